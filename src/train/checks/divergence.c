#include "train/checks/divergence.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

lks_status lks__divergence_open(const lks__run *run, lks__checks *checks)
{
    checks->divergence.hashes = calloc(run->table.n_tensors, sizeof *checks->divergence.hashes);
    LKS__MEMORY(checks->divergence.hashes, "for the hashes of %zu tensors", run->table.n_tensors);
    return LKS_OK;
}

void lks__divergence_close(const lks__checks *checks)
{
    free(checks->divergence.hashes);
}

static bool due(const lks__trainer *t)
{
    return t->run.s.check_interval > 0 && t->state.iter > 0 &&
           t->state.iter % (uint64_t)t->run.s.check_interval == 0;
}

/* Hash the elements of tensor `i` that are in [start, end) of the arena; 0 if it has none there. */
static lks_status hash_part(const lks__trainer *t, size_t i, size_t start, size_t end,
                            uint64_t *hash_p)
{
    const lks__table_tensor *tensor = &t->run.table.tensors[i];
    size_t from = tensor->offset > start ? tensor->offset : start;
    size_t to = tensor->offset + tensor->count < end ? tensor->offset + tensor->count : end;
    *hash_p = 0;
    return to > from ? lks__memory_hash(t->state.memory, from, to - from, hash_p) : LKS_OK;
}

/* Hash the tensors in blocks [first, end). *changed_p: the first tensor whose hash has changed, or
 * -1. */
static lks_status hash_blocks(lks__trainer *t, size_t first, size_t end, int32_t *changed_p)
{
    *changed_p = -1;
    first = t->run.table.block_start[first];
    end = t->run.table.block_start[end];
    for (size_t i = 0; i < t->run.table.n_tensors; i++) {
        uint64_t hash;
        LKS__TRY(hash_part(t, i, first, end, &hash));
        if (hash != t->checks.divergence.hashes[i] && *changed_p < 0)
            *changed_p = (int32_t)i;
        t->checks.divergence.hashes[i] = hash;
        lks_comm_beat(t->ses.comm);
    }
    return LKS_OK;
}

static lks_status hash_share(lks__trainer *t, int32_t *changed_p)
{
    size_t first, end;
    lks__memory_part(t->state.memory, t->run.table.n_blocks, &first, &end);
    return hash_blocks(t, first, end, changed_p);
}

lks_status lks__divergence_record(lks__trainer *t)
{
    int32_t changed;
    t->checks.divergence.recorded = lks__memory_is_shared(t->state.memory) && due(t);
    return t->checks.divergence.recorded ? hash_share(t, &changed) : LKS_OK;
}

lks_status lks__divergence_hash(lks__trainer *t, lks__divergence_vote *mine)
{
    int32_t changed;
    *mine = (lks__divergence_vote){.iter = t->state.iter, .changed = -1};
    mine->compares = lks__memory_passes_have_copies(t->state.memory);
    gethostname(mine->host, sizeof mine->host - 1);
    if (t->checks.divergence.recorded)
        LKS__TRY(hash_share(t, &mine->changed));
    t->checks.divergence.recorded = false; /* a repeated step would compare the hashes below */
    if (!mine->compares || !due(t))
        return LKS_OK;
    LKS__TRY(hash_blocks(t, 0, t->run.table.n_blocks, &changed));
    mine->hash = 1 | XXH3_64bits(t->checks.divergence.hashes,
                                 t->run.table.n_tensors * sizeof *t->checks.divergence.hashes);
    return LKS_OK;
}

/* --- the verdict ----------------------------------------------------------------------------- */

/* The votes of W ranks, `stride` bytes apart. */
struct votes {
    const char *first;
    size_t stride;
    int W;
};

static lks__divergence_vote vote_of(const struct votes *votes, int rank)
{
    lks__divergence_vote vote;
    memcpy(&vote, votes->first + (size_t)rank * votes->stride, sizeof vote);
    vote.host[sizeof vote.host - 1] = '\0';
    return vote;
}

static const char *host_of(const lks__divergence_vote *vote, char shown[4 * LKS__HOST_NAME])
{
    return lks__escape(shown, 4 * LKS__HOST_NAME, vote->host, strlen(vote->host));
}

static lks_status fail_changed(const lks__trainer *t, const lks__divergence_vote *vote, int rank)
{
    char shown[4 * LKS__HOST_NAME];
    return lks__fail(LKS_ERR_DIVERGED,
                     "the parameters have changed between update %" PRIu64 " and the next, first "
                     "in tensor %s, on host %s (seen by rank %d): memory that loses bits, or a "
                     "program error; test that host's memory, and resume from the last checkpoint "
                     "with --init_from=resume",
                     t->state.iter, t->run.table.tensors[vote->changed].name, host_of(vote, shown),
                     rank);
}

/* The number of ranks whose replica equals the replica of `rank`; 0 if it has no hash. */
static int supporters(const struct votes *votes, int rank)
{
    uint64_t hash = vote_of(votes, rank).hash;
    int n = 0;
    for (int r = 0; r < votes->W; r++)
        n += vote_of(votes, r).hash == hash;
    return hash == 0 ? 0 : n;
}

/* Replicas differ: name the first tensor, and the rank that differs from most others. Of two ranks
 * either may be wrong. */
static lks_status fail_replicas(const lks__trainer *t, const struct votes *votes, int *rank_p)
{
    int good = 0, odd = 0;
    const size_t n = t->run.table.n_tensors;
    for (int r = 1; r < votes->W; r++)
        if (supporters(votes, r) > supporters(votes, good))
            good = r;
    const uint64_t right = vote_of(votes, good).hash;
    while (vote_of(votes, odd).hash == right || vote_of(votes, odd).hash == 0)
        odd++;
    *rank_p = odd;
    lks_status st = LKS_OK;
    uint64_t *all = lks__session_gather(&t->ses, t->checks.divergence.hashes, n * sizeof *all, &st);
    size_t i = 0;
    while (st == LKS_OK && i + 1 < n && all[(size_t)odd * n + i] == all[(size_t)good * n + i])
        i++;
    free(all);
    if (st != LKS_OK)
        return st;
    lks__divergence_vote a = vote_of(votes, odd), b = vote_of(votes, good);
    char shown_a[4 * LKS__HOST_NAME], shown_b[4 * LKS__HOST_NAME];
    bool majority = supporters(votes, good) > supporters(votes, odd);
    return lks__fail(LKS_ERR_DIVERGED,
                     "after update %" PRIu64
                     " the replicas have diverged, first in tensor %s: rank "
                     "%d (host %s) has other values than rank %d (host %s)%s: memory that loses "
                     "bits, or a program error; resume from the last checkpoint with "
                     "--init_from=resume",
                     t->state.iter, t->run.table.tensors[i].name, odd, host_of(&a, shown_a), good,
                     host_of(&b, shown_b), majority ? ", which agrees with most ranks" : "");
}

static lks_status fail_iterations(const lks__divergence_vote *vote, int rank,
                                  const lks__divergence_vote *first)
{
    char shown[4 * LKS__HOST_NAME], shown_first[4 * LKS__HOST_NAME];
    return lks__fail(
        LKS_ERR_DIVERGED,
        "rank %d (host %s) has made %" PRIu64 " iterations, but rank 0 (host %s) %" PRIu64
        ": a program error; resume from the last checkpoint with --init_from=resume",
        rank, host_of(vote, shown), vote->iter, host_of(first, shown_first), first->iter);
}

/* Rank `one` has hashed its replica and `other` has not. If they are the same rank, no other has.
 */
static lks_status fail_missing(const struct votes *votes, int one, int other)
{
    lks__divergence_vote vote = vote_of(votes, one), missing = vote_of(votes, other);
    char shown[4 * LKS__HOST_NAME], shown_missing[4 * LKS__HOST_NAME];
    if (one == other)
        return lks__fail(LKS_ERR_DIVERGED,
                         "after update %" PRIu64
                         " rank %d (host %s) has hashed its replica, and no other rank has: a "
                         "program error; resume from the last checkpoint with --init_from=resume",
                         vote.iter, one, host_of(&vote, shown));
    return lks__fail(LKS_ERR_DIVERGED,
                     "after update %" PRIu64
                     " rank %d (host %s) has hashed its replica, but rank %d (host %s) has not: "
                     "give all ranks the same --check_interval",
                     vote.iter, one, host_of(&vote, shown), other,
                     host_of(&missing, shown_missing));
}

lks_status lks__divergence_check(const lks__trainer *t, const void *all, size_t stride, int *rank_p)
{
    const struct votes votes = {all, stride, t->ses.world.world_size};
    const lks__divergence_vote first = vote_of(&votes, 0);
    int hashed = -1, missing = -1, n_hashed = 0;
    bool same = true;
    for (int r = 0; r < votes.W; r++) {
        lks__divergence_vote vote = vote_of(&votes, r);
        *rank_p = r;
        if (vote.iter != first.iter)
            return fail_iterations(&vote, r, &first);
        if (vote.changed >= 0 && (size_t)vote.changed < t->run.table.n_tensors)
            return fail_changed(t, &vote, r);
        if (vote.hash == 0) {
            missing = vote.compares && missing < 0 ? r : missing;
            continue;
        }
        hashed = hashed < 0 ? r : hashed;
        same = same && vote.hash == vote_of(&votes, hashed).hash;
        n_hashed++;
    }
    if (n_hashed == 1 && missing < 0)
        missing = hashed;
    *rank_p = missing;
    if (n_hashed > 0 && missing >= 0)
        return fail_missing(&votes, hashed, missing);
    return same ? LKS_OK : fail_replicas(t, &votes, rank_p);
}
