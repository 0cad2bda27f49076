#include "train/checks/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "train/checkpoint.h"

/* --- settings and data ----------------------------------------------------------------------- */

enum { GIVEN, OPENED, N_LINES };

struct run_hashes {
    uint64_t hash[N_LINES];
    int32_t failed; /* this rank has no OPENED */
    char host[LKS__HOST_NAME];
};

static const char data_name[] = "the data", weights_name[] = "init_from";

static void add_digest(lks__run_lines *lines, const char *name, uint64_t digest)
{
    lks__append(lines->text, sizeof lines->text, "", "%s=%016" PRIx64 "\n", name, digest);
}

lks_status lks__agree_lines(const lks__run *run, bool data, lks__run_lines *lines)
{
    uint64_t digest;
    LKS__TRY(lks__settings_lines(&run->s, LKS__CMD_TRAIN, lines->text, sizeof lines->text - 64));
    if (!data)
        return LKS_OK;
    add_digest(lines, data_name, run->data_digest);
    snprintf(lines->data_dir, sizeof lines->data_dir, "%s", run->shown_data_dir);
    if (run->weights == NULL)
        return LKS_OK;
    LKS__TRY(lks__weights_digest(run->weights, &digest));
    add_digest(lines, weights_name, digest);
    snprintf(lines->weights, sizeof lines->weights, "%s", run->weights->shown);
    return LKS_OK;
}

/* One side of a difference: "rank 1 (host b) has 8", or "… has /data (digest 0123…)". */
static void describe_value(const lks__run_lines *lines, const char *line, int rank,
                           const struct run_hashes *theirs, char *text, size_t bytes)
{
    const size_t name = strcspn(line, "=\n");
    const int n = (int)strcspn(line + name, "\n") - 1;
    const char *path = strncmp(line, data_name, name) == 0      ? lines->data_dir
                       : strncmp(line, weights_name, name) == 0 ? lines->weights
                                                                : NULL;
    if (n <= 0)
        snprintf(text, bytes, "%s has (none)", lks__session_place(rank, theirs->host).text);
    else
        snprintf(text, bytes, "%s has %s%s%.*s%s", lks__session_place(rank, theirs->host).text,
                 path != NULL ? path : "", path != NULL ? " (digest " : "", n, line + name + 1,
                 path != NULL ? ")" : "");
}

/* All ranks have both ranks' lines, so all fail with the same sentence. */
static lks_status name_difference(const lks__run_lines both[2], const struct run_hashes *all, int r)
{
    const char *a = both[0].text, *b = both[1].text;
    char first[1600], other[1600];
    size_t n;
    while (*a != '\0' && (n = strcspn(a, "\n") + 1) <= strlen(b) && memcmp(a, b, n) == 0) {
        a += n;
        b += n;
    }
    describe_value(&both[0], a, 0, &all[0], first, sizeof first);
    describe_value(&both[1], b, r, &all[r], other, sizeof other);
    return lks__fail(LKS_ERR_DIVERGED,
                     "%.*s differs between ranks: %s, %s: start all ranks with the same settings "
                     "and data",
                     (int)strcspn(a, "=\n"), a, first, other);
}

static lks_status fetch_difference(lks__session *ses, const lks__run_lines *mine,
                                   const struct run_hashes *all, int r)
{
    static lks__run_lines both[2]; /* a rank without memory would miss the broadcasts */
    lks_status st = LKS_OK;
    for (int i = 0; i < 2 && st == LKS_OK; i++) {
        const int root = i == 0 ? 0 : r;
        if (ses->world.rank == root)
            both[i] = *mine;
        st = lks_comm_broadcast(ses->comm, &both[i], sizeof both[i], LKS_UINT8, root);
        both[i].text[sizeof both[i].text - 1] = '\0';
        both[i].data_dir[sizeof both[i].data_dir - 1] = '\0';
        both[i].weights[sizeof both[i].weights - 1] = '\0';
    }
    LKS__THEN(st, name_difference(both, all, r));
    return st;
}

lks_status lks__agree_run(lks__session *ses, lks_status st, const lks__run_lines *given,
                          const lks__run_lines *opened)
{
    const int W = ses->world.world_size;
    char cause[1024]; /* the exchange below may overwrite it */
    snprintf(cause, sizeof cause, "%s", lks_last_error());
    struct run_hashes mine;
    lks_status comm = LKS_OK;
    memset(&mine, 0, sizeof mine);
    mine.hash[GIVEN] = XXH3_64bits(given->text, strlen(given->text));
    mine.hash[OPENED] = XXH3_64bits(opened->text, strlen(opened->text));
    mine.failed = st != LKS_OK;
    lks__session_host(mine.host);
    struct run_hashes *all = lks__session_gather(ses, &mine, sizeof mine, &comm);
    int lines = OPENED, other = 1;
    for (int r = 0; r < W && comm == LKS_OK; r++)
        lines = all[r].failed ? GIVEN : lines;
    while (comm == LKS_OK && other < W && all[other].hash[lines] == all[0].hash[lines])
        other++;
    if (comm == LKS_OK && other < W)
        comm = fetch_difference(ses, lines == GIVEN ? given : opened, all, other);
    else if (st != LKS_OK)
        lks__fail(st, "%s", cause);
    free(all);
    return lks__session_agree(ses, comm != LKS_OK ? comm : st);
}

lks_status lks__agree_init(lks__session *ses, const lks__settings *s)
{
    static const char *const kinds[] = {[LKS__INIT_SCRATCH] = "scratch",
                                        [LKS__INIT_RESUME] = "resume",
                                        [LKS__INIT_WEIGHTS] = "weights"};
    return lks__session_same_word(ses, "init_from", kinds[lks__settings_init(s)]);
}

lks_status lks__agree_settings(lks__session *ses, const lks__settings *s, unsigned command)
{
    if (ses->world.world_size == 1)
        return LKS_OK;
    LKS__TRY(lks__agree_init(ses, s));
    if (command == LKS__CMD_EVAL)
        LKS__TRY(
            lks__session_same_word(ses, "artifact", s->artifact[0] != '\0' ? "a file" : "none"));
    lks__run_lines *lines = calloc(1, sizeof *lines);
    lks_status st = lines == NULL
                        ? lks__no_memory("for the list of settings")
                        : lks__settings_lines(s, command, lines->text, sizeof lines->text);
    st = lks__session_agree(ses, st);
    LKS__THEN(st, lks__agree_run(ses, st, lines, lines));
    free(lines);
    return st;
}

/* --- the state in memory --------------------------------------------------------------------- */

/* Hashes of one rank's state. */
struct state_hashes {
    int32_t compares;        /* other ranks have copies of its replica */
    uint64_t arenas, values; /* of the replica, and of everything else */
    uint64_t iter;
    char host[LKS__HOST_NAME];
};

static uint64_t hash_tensor(const lks__session *ses, const float *arena,
                            const lks__table_tensor *tensor, uint64_t hash)
{
    hash = XXH3_64bits_withSeed(arena + tensor->offset, tensor->count * sizeof(float), hash);
    lks_comm_beat(ses->comm);
    return hash;
}

/* Skip memory without moments: reading it would allocate its pages. */
static uint64_t hash_replica(const lks__trainer *t, bool moments)
{
    const size_t n = t->run.table.n_tensors;
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++)
        hash = hash_tensor(&t->ses, t->state.memory->params.host, &t->run.table.tensors[i], hash);
    for (size_t i = 0; i < LKS__OPTIM_STATES * n && moments; i++) {
        const lks__table_tensor *tensor = &t->run.table.tensors[i % n];
        if (lks__optimizer_state(t->work.optim.optimizer, tensor, (int)(i / n)) != NULL)
            hash = hash_tensor(&t->ses, t->state.memory->moments[i / n].host, tensor, hash);
    }
    return hash;
}

static lks_status hash_values(const lks__trainer *t, uint64_t *hash_p)
{
    const lks__state *state = &t->state;
    const double clock = lks__state_by_the_clock(&t->run) ? state->elapsed_s : 0.0;
    const uint64_t counts[] = {state->iter, state->data_shift, (uint64_t)state->nonfinite,
                               state->eval_done, t->checks.out_of_time};
    const double reals[] = {state->best_val_loss, clock};
    *hash_p = XXH3_64bits(counts, sizeof counts);
    *hash_p = XXH3_64bits_withSeed(reals, sizeof reals, *hash_p);
    *hash_p = XXH3_64bits_withSeed(&state->segment, sizeof state->segment, *hash_p);
    size_t bytes = lks__state_sampler_bytes(state);
    if (bytes == 0)
        return LKS_OK;
    void *sampler = malloc(bytes);
    LKS__MEMORY(sampler, "for the sampler's state");
    lks__batch_sampler_state_save(state->sampler, sampler);
    *hash_p = XXH3_64bits_withSeed(sampler, bytes, *hash_p);
    free(sampler);
    return LKS_OK;
}

/* lks__weights_digest() covers only samples of large weights, so weights can still differ here. */
static lks_status differs(const lks__run *run, const struct state_hashes *all, int r,
                          const char *what, uint64_t theirs, uint64_t rank0s)
{
    return lks__fail(LKS_ERR_DIVERGED,
                     "%s would start from another state than %s: iteration %" PRIu64 " and %" PRIu64
                     ", %s of state_hash %016" PRIx64 " and %016" PRIx64 ": %s",
                     lks__session_place(r, all[r].host).text,
                     lks__session_place(0, all[0].host).text, all[r].iter, all[0].iter, what,
                     theirs, rank0s,
                     run->weights != NULL
                         ? "--init_from names other weights there, or memory loses bits; copy "
                           "rank 0's weights to every host"
                         : "memory that loses bits, or a program error; start again from the last "
                           "checkpoint");
}

/* Rank 0 leads its host, so it has a replica if any rank has one to compare. */
static lks_status check_states(const lks__run *run, const struct state_hashes *all, int W)
{
    for (int r = 1; r < W; r++) {
        if (all[r].values != all[0].values)
            return differs(run, all, r, "sampler, clock and counts", all[r].values, all[0].values);
        if (all[r].compares && all[r].arenas != all[0].arenas)
            return differs(run, all, r, "parameters and moments", all[r].arenas, all[0].arenas);
    }
    return LKS_OK;
}

lks_status lks__agree_state(lks__trainer *t, bool moments)
{
    const int W = t->ses.world.world_size;
    if (W == 1)
        return LKS_OK;
    struct state_hashes mine;
    memset(&mine, 0, sizeof mine);
    lks_status st = lks__session_agree(&t->ses, hash_values(t, &mine.values));
    LKS__TRY(st);
    mine.iter = t->state.iter;
    mine.compares = lks__memory_has_copies(t->state.memory);
    mine.arenas = mine.compares ? hash_replica(t, moments) : 0;
    lks__session_host(mine.host);
    struct state_hashes *all = lks__session_gather(&t->ses, &mine, sizeof mine, &st);
    LKS__THEN(st, lks__session_agree(&t->ses, check_states(&t->run, all, W)));
    free(all);
    return st;
}
