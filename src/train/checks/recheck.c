#include "train/checks/recheck.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/number/rng.h"
#include "base/text/jsontext.h"
#include "base/text/shell.h"
#include "ddp/nodes.h"
#include "report/diff/history.h"
#include "train/checks/votes.h"
#include "train/micro.h"

enum { MOST_TIMES = 3 };

/* --- the draw --------------------------------------------------------------------------------- */

/* Word 0 decides whether the step is checked, word 1 which host each host checks, so that each is
 * checked by one other, and word 2 which virtual ranks of it. */
static void draw(const lks__run *run, uint64_t iter, uint32_t words[4])
{
    const uint32_t counter[4] = {(uint32_t)iter, 0, LKS__SITE_RECHECK, (uint32_t)(iter >> 32)};
    lks__philox4x32(lks__philox_key_of((uint64_t)run->s.seed), counter, words);
}

static bool is_drawn(const lks__run *run, uint64_t iter, double share)
{
    uint32_t words[4];
    draw(run, iter, words);
    return words[0] < share * 0x1p32;
}

/* --- set-up ----------------------------------------------------------------------------------- */

struct place {
    char host[LKS__HOST_NAME];
    int32_t local_rank;
};

static lks_status refuse(const lks__trainer *t, bool *refused_p)
{
    const bool given = t->run.s.from[LKS__SETTING_recheck] >= LKS__FROM_FILE;
    const bool one = t->ses.world.local_world_size == t->ses.world.world_size;
    *refused_p = one || !lks__memory_on_host(t->state.memory);
    if (!*refused_p || !given)
        return LKS_OK;
    if (one)
        return lks__fail(LKS_ERR_CONFIG,
                         "recheck=%g compares gradients of different hosts, but all ranks are on "
                         "one host: leave --recheck out; `lockstep audit` computes parts of a run "
                         "again on any host",
                         t->run.s.recheck);
    return lks__fail(LKS_ERR_CONFIG,
                     "recheck=%g compares hashes of gradients in host memory, and device=%s has "
                     "its own memory: leave --recheck out",
                     t->run.s.recheck, t->ses.device->ops->name);
}

static lks_status allocate(const lks__run *run, int W, struct lks__recheck **recheck_p)
{
    struct lks__recheck *c = calloc(1, sizeof *c);
    *recheck_p = c;
    if (c != NULL) {
        c->hosts = calloc((size_t)W, sizeof *c->hosts);
        c->all = calloc((size_t)W, sizeof *c->all);
        c->hashes = calloc((size_t)run->V, sizeof *c->hashes);
    }
    return c != NULL && c->hosts != NULL && c->all != NULL && c->hashes != NULL
               ? LKS_OK
               : lks__no_memory("to check %d ranks", W);
}

/* The ranks of a host follow each other. */
static void find_hosts(struct lks__recheck *c, const struct place *places, int W)
{
    for (int r = 0; r < W; r++) {
        c->n_hosts += r == 0 || places[r].local_rank == 0;
        lks__recheck_host *h = &c->hosts[c->n_hosts - 1];
        if (h->end_rank == 0) {
            h->first_rank = r;
            memcpy(h->name, places[r].host, sizeof h->name);
        }
        h->end_rank = r + 1;
    }
}

/* The host in the record, which had this first rank. With other ranks now, its name must be the
 * only one. NULL: it isn't in this group. */
static lks__recheck_host *find_host(const struct lks__recheck *c, const json_t *row)
{
    const char *name = lks__json_str(row, "host");
    const json_int_t first_rank = lks__json_int(row, "first_rank");
    lks__recheck_host *found = NULL;
    int n = 0;
    for (lks__recheck_host *h = c->hosts; h < c->hosts + c->n_hosts && name != NULL; h++) {
        if (strcmp(h->name, name) != 0)
            continue;
        if (h->first_rank == first_rank)
            return h;
        found = h;
        n++;
    }
    return n == 1 ? found : NULL;
}

/* Count the gradients that were compared in the step of a `train` line. */
static void count_step(const lks__run *run, const lks__history *h, uint64_t iter,
                       struct lks__recheck *c)
{
    const json_t *settings = json_object_get(h->host, "settings");
    const char *backend = lks__json_str(h->host, "backend");
    const json_int_t W = lks__json_int(h->host, "world_size");
    const bool one_host = backend == NULL || strcmp(backend, "shm") == 0 || W < 2;
    if (!one_host && is_drawn(run, iter, lks__json_number(settings, "recheck")))
        c->equal += (uint64_t)W;
}

static void count_errors(const json_t *line, struct lks__recheck *c)
{
    c->different++;
    lks__each(row, json_object_get(line, "wrong")) {
        lks__recheck_host *host = find_host(c, row);
        if (host != NULL)
            host->times++;
    }
}

/* Count gradients and errors in the run's record before iteration `end`. The record's end may be
 * damaged. */
static lks_status read_record(const lks__run *run, uint64_t end, struct lks__recheck *c)
{
    lks__history h;
    const json_t *line;
    lks_status st = lks__history_open(run->s.out_dir, &h);
    if (st != LKS_OK)
        return st == LKS_ERR_NOMEM ? st : LKS_OK;
    while ((st = lks__history_next(&h, &line)) == LKS_OK && line != NULL) {
        const char *kind = lks__json_str(line, "kind");
        const uint64_t iter = (uint64_t)lks__json_int(line, "iter");
        if (iter < end && strcmp(kind, "train") == 0)
            count_step(run, &h, iter, c);
        else if (iter < end && strcmp(kind, "recheck") == 0)
            count_errors(line, c);
    }
    lks__history_close(&h);
    return st == LKS_ERR_NOMEM ? st : LKS_OK;
}

lks_status lks__recheck_open(lks__trainer *t, const lks__ckpt *resume)
{
    bool refused;
    struct place mine = {.local_rank = t->ses.world.local_rank};
    if (t->run.s.recheck == 0.0)
        return LKS_OK;
    lks_status st = lks__session_agree(&t->ses, refuse(t, &refused));
    if (st != LKS_OK || refused)
        return st;
    lks__session_host(mine.host);
    st =
        lks__session_agree(&t->ses, allocate(&t->run, t->ses.world.world_size, &t->checks.recheck));
    struct place *all = lks__session_gather(&t->ses, &mine, sizeof mine, &st);
    struct lks__recheck *c = t->checks.recheck;
    if (st == LKS_OK)
        find_hosts(c, all, t->ses.world.world_size);
    free(all);
    if (st != LKS_OK || resume == NULL)
        return st;
    if (t->ses.world.rank == 0) /* it reports them, and ends the run at the limit */
        st = read_record(&t->run, resume->iter, c);
    return lks__session_agree(&t->ses, st);
}

void lks__recheck_close(const lks__checks *checks)
{
    if (checks->recheck == NULL)
        return;
    free(checks->recheck->hosts);
    free(checks->recheck->all);
    free(checks->recheck->hashes);
    free(checks->recheck);
}

static int host_of(const struct lks__recheck *c, int rank)
{
    int h = 0;
    while (c->hosts[h].end_rank <= rank)
        h++;
    return h;
}

/* The virtual rank that `rank` checks. */
static int drawn_leaf(const lks__run *run, const struct lks__recheck *c, uint64_t iter, int rank)
{
    const int n = c->n_hosts, W = c->hosts[n - 1].end_rank, mine = host_of(c, rank);
    uint32_t words[4];
    draw(run, iter, words);
    const lks__recheck_host *h = &c->hosts[(mine + 1 + (int)(words[1] % (uint32_t)(n - 1))) % n];
    const int first = lks__first_leaf(run->V, W, h->first_rank);
    const int leaves = lks__first_leaf(run->V, W, h->end_rank) - first;
    const uint32_t local = (uint32_t)(rank - c->hosts[mine].first_rank);
    return first + (int)((words[2] % (uint32_t)leaves + local) % (uint32_t)leaves);
}

/* --- a step ----------------------------------------------------------------------------------- */

/* This rank's result for virtual rank v. */
static lks_status compute(lks__trainer *t, int v, lks__recheck_result *result)
{
    const size_t count = t->run.table.trained_count;
    uint64_t first_bad;
    LKS__TRY(lks__train_leaf(t, v, &result->hash));
    t->ses.device->layers->first_not_finite(t->ses.device->ex, &first_bad,
                                            lks__reducer_spare(t->work.reducer), count);
    result->finite = first_bad == count;
    return LKS_OK;
}

/* After a request to stop the step is discarded, so the result isn't needed. */
lks_status lks__recheck_begin(lks__trainer *t)
{
    struct lks__recheck *c = t->checks.recheck;
    if (c == NULL)
        return LKS_OK;
    c->drawn = is_drawn(&t->run, t->state.iter, t->run.s.recheck);
    if (!c->drawn)
        return LKS_OK;
    lks_comm_note(t->ses.comm, t->state.iter, "recheck");
    const int v = drawn_leaf(&t->run, c, t->state.iter, t->ses.world.rank);
    const lks_status st = compute(t, v, &c->mine);
    lks_comm_note(t->ses.comm, t->state.iter, "forward and backward");
    return st == LKS_ERR_STOPPED ? LKS_OK : st;
}

/* Find the first rank whose hash of another's gradient differs; false: none does. NaN may have
 * other bits on another processor, so it only counts if the step has no other. */
static bool find_pair(const lks__run *run, struct lks__recheck *c, uint64_t iter, bool finite)
{
    const int W = c->hosts[c->n_hosts - 1].end_rank;
    for (c->checker = 0; c->checker < W; c->checker++) {
        const lks__recheck_result *result = &c->all[c->checker];
        c->v = drawn_leaf(run, c, iter, c->checker);
        c->owner = lks__leaf_rank(run->V, W, c->v);
        c->owner_hash = c->hashes[c->v];
        c->checker_hash = result->hash;
        if (c->owner_hash == c->checker_hash)
            c->hosts[host_of(c, c->owner)].right = iter + 1;
        else if (finite || result->finite)
            return true;
    }
    return false;
}

/* True if all ranks of the host have the hash. */
static bool has(const struct lks__recheck *c, const lks__recheck_host *h, uint64_t hash)
{
    int r = h->first_rank;
    while (r < h->end_rank && c->all[r].hash == hash)
        r++;
    return r == h->end_rank;
}

/* All ranks have computed the gradient: find the majority, and all that differ from it. Without
 * one, either host of the pair may be wrong. */
static void judge(struct lks__recheck *c)
{
    c->agree = 0;
    for (int i = 0; i < c->n_hosts && c->agree == 0; i++) {
        int n = 0;
        c->right = c->all[c->hosts[i].first_rank].hash;
        for (int k = 0; k < c->n_hosts; k++)
            n += has(c, &c->hosts[k], c->right);
        c->agree = 2 * n > c->n_hosts ? n : 0;
    }
    const lks__recheck_host *owner = &c->hosts[host_of(c, c->owner)];
    const lks__recheck_host *checker = &c->hosts[host_of(c, c->checker)];
    const bool decided = c->agree > 0;
    for (lks__recheck_host *h = c->hosts; h < c->hosts + c->n_hosts; h++) {
        h->wrong = (h == owner && !(decided && c->owner_hash == c->right)) ||
                   (h == checker && !(decided && c->checker_hash == c->right)) ||
                   (decided && !has(c, h, c->right));
        h->times += h->wrong;
    }
}

lks_status lks__recheck_compare(lks__trainer *t, lks__step_result *r)
{
    struct lks__recheck *c = t->checks.recheck;
    if (c == NULL || !c->drawn)
        return LKS_OK;
    LKS__TRY(lks_comm_all_gather(t->ses.comm, &c->mine, c->all, sizeof c->mine, LKS_UINT8));
    lks__votes_hashes(t, c->hashes);
    const bool finite = isfinite(r->loss) && isfinite(r->grad_norm);
    if (!find_pair(&t->run, c, t->state.iter, finite)) {
        c->equal += finite ? (uint64_t)t->ses.world.world_size : 0;
        return LKS_OK;
    }
    c->different++;
    lks_comm_note(t->ses.comm, t->state.iter, "recheck");
    LKS__TRY(lks__memory_release(t->state.memory));
    LKS__TRY(lks__session_agree(&t->ses, compute(t, c->v, &c->mine)));
    LKS__TRY(lks_comm_all_gather(t->ses.comm, &c->mine, c->all, sizeof c->mine, LKS_UINT8));
    judge(c);
    r->outcome = LKS__STEP_AGAIN;
    lks__batch_sampler_back(t->state.sampler);
    return LKS_OK;
}

/* --- the result ------------------------------------------------------------------------------- */

/* List the hosts that were wrong in the last step, and for at least the `times`-th time. */
static void list_wrong(const struct lks__recheck *c, int times, char *out, size_t bytes)
{
    char ranks[40];
    out[0] = '\0';
    for (const lks__recheck_host *h = c->hosts; h < c->hosts + c->n_hosts; h++) {
        if (!h->wrong || h->times < times)
            continue;
        snprintf(ranks, sizeof ranks,
                 h->end_rank - h->first_rank > 1 ? "ranks %d to %d" : "rank %d", h->first_rank,
                 h->end_rank - 1);
        lks__append(out, bytes, c->agree > 0 ? " and " : " or ", "host %s (%s; error %d of %d)",
                    lks__shown(h->name, 4 * LKS__HOST_NAME), ranks, h->times, MOST_TIMES);
    }
}

const char *lks__recheck_text(const lks__checks *checks, char out[LKS__RECHECK_TEXT])
{
    const struct lks__recheck *c = checks->recheck;
    char wrong[700], result[120];
    list_wrong(c, 1, wrong, sizeof wrong);
    if (c->agree > 0)
        snprintf(result, sizeof result, "%d of %d hosts got %016" PRIx64, c->agree, c->n_hosts,
                 c->right);
    else
        snprintf(result, sizeof result, "no majority of the %d hosts agreed", c->n_hosts);
    snprintf(
        out, LKS__RECHECK_TEXT,
        "%s computed the gradient of virtual rank %d wrongly: hash %016" PRIx64
        " on %s, but %016" PRIx64 " on %s, which checked it; when all ranks computed it again, %s",
        wrong, c->v, c->owner_hash,
        lks__session_place(c->owner, c->hosts[host_of(c, c->owner)].name).text, c->checker_hash,
        lks__session_place(c->checker, c->hosts[host_of(c, c->checker)].name).text, result);
    return out;
}

/* Write "a:2,b:2", the hosts that were never found wrong as often as allowed; "…" if they aren't
 * known, or too many. Returns their ranks, or 0. */
static int other_hosts(const struct lks__recheck *c, char *out, size_t bytes)
{
    bool whole = true;
    int ranks = 0;
    out[0] = '\0';
    for (const lks__recheck_host *h = c->hosts; h < c->hosts + c->n_hosts; h++) {
        if (h->times >= MOST_TIMES)
            continue;
        whole &= lks__append(out, bytes, ",", "%s:%d", lks__shown(h->name, 4 * LKS__HOST_NAME),
                             h->end_rank - h->first_rank);
        ranks += h->end_rank - h->first_rank;
    }
    if (c->agree > 0 && ranks > 0 && whole)
        return ranks;
    snprintf(out, bytes, "…");
    return 0;
}

const char *lks__recheck_summary(const lks__checks *checks, char out[LKS__RECHECK_SUMMARY])
{
    const struct lks__recheck *c = checks->recheck;
    const uint64_t n = c->equal + c->different;
    snprintf(out, LKS__RECHECK_SUMMARY, "recheck: %" PRIu64 " gradient%s computed again, ", n,
             n == 1 ? "" : "s");
    if (c->different == 0)
        lks__append(out, LKS__RECHECK_SUMMARY, "", "all equal");
    else
        lks__append(out, LKS__RECHECK_SUMMARY, "",
                    "%" PRIu64 " differed: metrics.jsonl has a recheck line of each", c->different);
    return out;
}

lks_status lks__recheck_limit(const lks__trainer *t)
{
    const struct lks__recheck *c = t->checks.recheck;
    char wrong[500], hosts[1000], right[64] = "never right";
    uint64_t at = UINT64_MAX;
    bool reached = false;
    for (const lks__recheck_host *h = c->hosts; h < c->hosts + c->n_hosts; h++) {
        const bool over = h->wrong && h->times >= MOST_TIMES;
        reached |= over;
        at = over && h->right < at ? h->right : at;
    }
    if (!reached)
        return LKS_OK;
    const bool mpi = strcmp(lks_comm_backend(t->ses.comm), "mpi") == 0;
    list_wrong(c, MOST_TIMES, wrong, sizeof wrong);
    const char *out_dir = lks__quoted(t->run.s.out_dir, 600);
    /* A message has at most 2,047 bytes. */
    const size_t room = 1700 - strlen(wrong) - strlen(out_dir);
    const int ranks = other_hosts(c, hosts, lks__min(sizeof hosts, room));
    if (at > 0)
        snprintf(right, sizeof right, "last right in iteration %" PRIu64, at - 1);
    return lks__fail(LKS_ERR_DIVERGED,
                     "%s computes wrongly%s, and was %s: test that host's memory and "
                     "processor, and continue without it: %s%s lockstep train --init_from=resume "
                     "--out_dir=%s%s",
                     wrong, c->agree > 0 ? "" : " (no majority of hosts shows which one)", right,
                     mpi ? "mpirun --host " : "lockstep run --hosts=", hosts, out_dir,
                     ranks > 0 && t->run.V % ranks != 0 ? " --allow_uneven" : "");
}
