#include "train/audit/claims.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/text/jsontext.h"
#include "ddp/nodes.h"
#include "report/diff/history.h"

static lks_status out_of_memory(void)
{
    return lks__fail(LKS_ERR_NOMEM, "no memory for a run's record");
}

static lks_status add_step(lks__claims *c, const json_t *line, bool skipped, uint64_t shift)
{
    const uint64_t iter = (uint64_t)json_integer_value(json_object_get(line, "iter"));
    while (c->n_steps > 0 && c->steps[c->n_steps - 1].iter >= iter)
        c->n_steps--; /* undone by a rollback */
    if (!lks__list_grow(&c->steps, c->n_steps, &c->steps_room, sizeof *c->steps))
        return out_of_memory();
    c->steps[c->n_steps++] = (lks__claim){.iter = iter,
                                          .data_shift = shift,
                                          .loss = lks__json_number(line, "loss"),
                                          .lr = lks__json_number(line, "lr"),
                                          .grad_norm = lks__json_number(line, "grad_norm"),
                                          .ms = lks__json_number(line, "ms"),
                                          .skipped = skipped};
    return LKS_OK;
}

static lks_status add_save(lks__claims *c, const json_t *line)
{
    uint64_t hash;
    if (!lks__list_grow(&c->saves, c->n_saves, &c->saves_room, sizeof *c->saves))
        return out_of_memory();
    lks__claimed_save *save = &c->saves[c->n_saves++];
    *save = (lks__claimed_save){(uint64_t)json_integer_value(json_object_get(line, "iter")), ""};
    if (lks__json_hash(line, "params_hash", &hash))
        snprintf(save->params_hash, sizeof save->params_hash, "%016" PRIx64, hash);
    return LKS_OK;
}

/* The host line that precedes the current line, if it is a new one. */
static lks_status add_start(lks__claims *c, const lks__history *h)
{
    const size_t n = json_array_size(c->starts);
    if (h->host == NULL || (n > 0 && json_array_get(c->starts, n - 1) == h->host))
        return LKS_OK;
    return json_array_append(c->starts, h->host) == 0 ? LKS_OK : out_of_memory();
}

static lks_status read_lines(lks__claims *c, lks__history *h)
{
    const json_t *line;
    uint64_t shift = 0;
    for (;;) {
        LKS__TRY(lks__history_next(h, &line));
        LKS__TRY(add_start(c, h));
        if (c->config == NULL && h->settings != NULL) { /* before a resume changes it */
            c->config = json_deep_copy(h->settings);
            if (c->config == NULL)
                return out_of_memory();
        }
        if (line == NULL)
            return LKS_OK;
        const char *kind = json_string_value(json_object_get(line, "kind"));
        const bool skipped = strcmp(kind, "skip") == 0;
        if (strcmp(kind, "rollback") == 0)
            shift = (uint64_t)json_integer_value(json_object_get(line, "data_shift"));
        if (skipped || strcmp(kind, "train") == 0)
            LKS__TRY(add_step(c, line, skipped, shift));
        if (strcmp(kind, "checkpoint") == 0)
            LKS__TRY(add_save(c, line));
    }
}

lks_status lks__claims_read(const char *run, lks__claims *c)
{
    lks__history h;
    *c = (lks__claims){.starts = json_array()};
    if (c->starts == NULL)
        return out_of_memory();
    LKS__TRY(lks__history_open(run, &h));
    lks_status st = read_lines(c, &h);
    lks__history_close(&h);
    if (st == LKS_OK && c->n_steps == 0)
        st = lks__fail(LKS_ERR_CONFIG, "there is nothing to audit: the run has no step yet");
    return st;
}

void lks__claims_free(lks__claims *c)
{
    free(c->steps);
    free(c->saves);
    json_decref(c->config);
    json_decref(c->starts);
    *c = (lks__claims){.n_steps = 0};
}

const lks__claim *lks__claims_step(const lks__claims *c, uint64_t iter)
{
    size_t low = 0, high = c->n_steps;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (c->steps[middle].iter < iter)
            low = middle + 1;
        else
            high = middle;
    }
    return low < c->n_steps && c->steps[low].iter == iter ? &c->steps[low] : NULL;
}

const lks__claimed_save *lks__claims_save(const lks__claims *c, uint64_t iter)
{
    for (size_t i = c->n_saves; i-- > 0;)
        if (c->saves[i].iter == iter)
            return &c->saves[i];
    return NULL;
}

/* 0 for the first start of a run. */
static uint64_t resumed_iter(const json_t *host)
{
    const json_int_t iter = json_integer_value(json_object_get(host, "resumed_iter"));
    return iter > 0 ? (uint64_t)iter : 0;
}

const json_t *lks__claims_start(const lks__claims *c, uint64_t iter, uint64_t *first_p)
{
    size_t i = json_array_size(c->starts);
    while (i > 0 && resumed_iter(json_array_get(c->starts, i - 1)) > iter)
        i--;
    const json_t *host = i > 0 ? json_array_get(c->starts, i - 1) : NULL;
    *first_p = resumed_iter(host);
    return host;
}

const char *lks__claims_maker(const lks__claims *c, uint64_t iter, int V, int v,
                              char out[LKS__CLAIMS_MAKER])
{
    uint64_t first;
    size_t i;
    const json_t *host = lks__claims_start(c, iter, &first), *row;
    const json_int_t W = json_integer_value(json_object_get(host, "world_size"));
    json_int_t rank = 0, end = 0;
    char shown[256];
    out[0] = '\0';
    if (W < 1 || W > V)
        return out;
    while (rank + 1 < W && lks__first_leaf(V, (int)W, (int)rank + 1) <= v)
        rank++;
    json_array_foreach(json_object_get(host, "hosts"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "host"));
        const json_int_t ranks = json_integer_value(json_object_get(row, "ranks"));
        if (name == NULL || ranks < 1 || ranks > W)
            return out;
        end += ranks;
        if (rank >= end)
            continue;
        snprintf(out, LKS__CLAIMS_MAKER, " by rank %d on %s", (int)rank,
                 lks__escape(shown, sizeof shown, name, strlen(name)));
        return out;
    }
    return out;
}

const json_t *lks__claims_changed(const lks__claims *c, uint64_t iter)
{
    uint64_t first;
    const json_t *host = lks__claims_start(c, iter, &first);
    const json_t *changed = json_object_get(host, "changed");
    return first == iter && json_is_object(changed) && json_object_size(changed) > 0 ? changed
                                                                                     : NULL;
}
