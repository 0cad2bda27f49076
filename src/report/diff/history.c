#include "report/diff/history.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text/jsontext.h"

static lks_status out_of_memory(void)
{
    return lks__no_memory("to read a run's metrics");
}

lks_status lks__history_open(const char *run, lks__history *h)
{
    char path[sizeof h->lines.path];
    struct stat info;
    *h = (lks__history){.run = run};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    if (lstat(path, &info) != 0 && errno == ENOENT)
        return lks__fail(LKS_ERR_CONFIG, "%s is not a run's folder: it contains no metrics.jsonl",
                         lks__shown(run, 512));
    LKS__TRY(lks__lines_open(path, &h->lines));
    h->changed = json_object();
    h->claims.starts = json_array();
    h->claims.replaced = json_array();
    if (h->changed != NULL && h->claims.starts != NULL && h->claims.replaced != NULL)
        return LKS_OK;
    lks__history_close(h);
    return out_of_memory();
}

void lks__history_close(lks__history *h)
{
    lks__lines_close(&h->lines);
    json_decref(h->settings);
    json_decref(h->host);
    json_decref(h->changed);
    json_decref(h->line);
    lks__claims_free(&h->claims);
    *h = (lks__history){.run = NULL};
}

/* The settings after all starts, and the iteration at which each changed last. */
static lks_status apply_starts(lks__history *h)
{
    json_t *value, *settings = lks__claims_settings(&h->claims);
    const char *key;
    bool good = settings != NULL;
    json_decref(h->settings);
    h->settings = settings;
    json_object_clear(h->changed);
    lks__each(start, h->claims.starts) {
        json_t *at = json_object_get(start, "resumed_iter");
        json_object_foreach(json_object_get(start, "changed"), key, value) good &=
            !json_is_integer(at) || json_object_set(h->changed, key, at) == 0;
    }
    return good ? LKS_OK : out_of_memory();
}

/* The newest start's line replaces the one before it. The line at a run's end is no start. */
static lks_status read_host(lks__history *h, json_t *o)
{
    if (json_object_get(o, "micro_batches") != NULL)
        return LKS_OK;
    json_decref(h->host);
    h->host = json_incref(o);
    LKS__TRY(lks__claims_add_start(&h->claims, o));
    const bool any =
        json_object_get(o, "config") != NULL || json_object_size(json_object_get(o, "changed")) > 0;
    return any && h->settings != NULL ? apply_starts(h) : LKS_OK;
}

/* Resumes change `settings`, but not the claim. */
static lks_status read_config(lks__history *h)
{
    json_decref(h->settings);
    h->settings = json_incref(h->line);
    if (h->claims.config == NULL)
        h->claims.config = json_deep_copy(h->line);
    return h->claims.config != NULL ? LKS_OK : out_of_memory();
}

/* *has_iter_p: false for config and host lines, which belong to no iteration. */
static lks_status read_line(lks__history *h, bool *has_iter_p)
{
    const char *kind = lks__json_str(h->line, "kind");
    const json_t *iter = json_object_get(h->line, "iter");
    *has_iter_p = false;
    if (kind == NULL)
        return lks__lines_bad(&h->lines, "has no \"kind\"");
    if (strcmp(kind, "host") == 0)
        return read_host(h, h->line);
    if (strcmp(kind, "config") == 0)
        return read_config(h);
    if (!json_is_integer(iter) || json_integer_value(iter) < 0)
        return lks__lines_bad(&h->lines, "has no \"iter\" that is a count");
    *has_iter_p = true;
    return lks__claims_add(&h->claims, h->line);
}

static lks_status next_line(lks__history *h, bool *has_iter_p)
{
    LKS__TRY(lks__lines_next(&h->lines, &h->line));
    return h->line != NULL ? read_line(h, has_iter_p) : LKS_OK;
}

lks_status lks__history_next(lks__history *h, const json_t **line_p)
{
    bool has_iter = false;
    *line_p = NULL;
    while (!has_iter) {
        json_decref(h->line);
        h->line = NULL;
        const lks_status st = next_line(h, &has_iter);
        if (st != LKS_OK)
            h->lines.next = h->lines.at;
        if (st != LKS_OK || h->line == NULL)
            return st;
    }
    *line_p = h->line;
    return LKS_OK;
}

lks_status lks__history_finish(lks__history *h)
{
    const json_t *line;
    do
        LKS__TRY(lks__history_next(h, &line));
    while (line != NULL);
    return h->claims.n_steps > 0
               ? LKS_OK
               : lks__fail(LKS_ERR_CONFIG, "there is nothing to audit: the run has no step yet");
}
