#include "train/divergence.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "train/recipe.h"

lks_status lks__divergence_open(lks__trainer *t)
{
    t->divergence.hashes = calloc(t->table.n_tensors, sizeof *t->divergence.hashes);
    if (t->divergence.hashes == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the hashes of %zu tensors",
                         t->table.n_tensors);
    return LKS_OK;
}

void lks__divergence_close(lks__trainer *t)
{
    free(t->divergence.hashes);
}

static bool due(const lks__trainer *t)
{
    return t->s.check_interval > 0 && t->iter > 0 && t->iter % (uint64_t)t->s.check_interval == 0;
}

/* Several replicas are compared: by every rank that has one of its own, or by one rank of a host.
 */
static bool compares(const lks__trainer *t)
{
    const lks_world *w = &t->ses.world;
    return !t->shared || (w->local_world_size < w->world_size && w->local_rank == 0);
}

/* What of tensor `i` lies in [start, end) of the arena; that may be nothing. */
static uint64_t hash_part(const lks__trainer *t, size_t i, size_t start, size_t end)
{
    const lks__tensor *tensor = &t->table.tensors[i];
    size_t from = tensor->offset > start ? tensor->offset : start;
    size_t to = tensor->offset + tensor->count < end ? tensor->offset + tensor->count : end;
    return to > from ? XXH3_64bits(t->params + from, (to - from) * sizeof(float)) : 0;
}

/* Hash the tensors in blocks [first, end); returns the first one whose hash has changed, -1: none.
 */
static int32_t hash_blocks(lks__trainer *t, size_t first, size_t end)
{
    int32_t changed = -1;
    first = t->table.block_start[first];
    end = t->table.block_start[end];
    for (size_t i = 0; i < t->table.n_tensors; i++) {
        uint64_t hash = hash_part(t, i, first, end);
        if (hash != t->divergence.hashes[i] && changed < 0)
            changed = (int32_t)i;
        t->divergence.hashes[i] = hash;
        lks_comm_beat(t->ses.comm);
    }
    return changed;
}

/* Those that this rank updates. */
static int32_t hash_share(lks__trainer *t)
{
    size_t first, end;
    lks__recipe_share(t, &first, &end);
    return hash_blocks(t, first, end);
}

void lks__divergence_seal(lks__trainer *t)
{
    t->divergence.sealed = t->shared && due(t);
    if (t->divergence.sealed)
        hash_share(t);
}

void lks__divergence_look(lks__trainer *t, lks__divergence_note *mine)
{
    *mine = (lks__divergence_note){.changed = -1};
    gethostname(mine->host, sizeof mine->host - 1);
    if (t->shared && t->divergence.sealed)
        mine->changed = hash_share(t);
    t->divergence.sealed = false;
    if (!compares(t) || !due(t))
        return;
    hash_blocks(t, 0, t->table.n_blocks);
    mine->hash =
        1 | XXH3_64bits(t->divergence.hashes, t->table.n_tensors * sizeof *t->divergence.hashes);
}

/* --- the verdict ----------------------------------------------------------------------------- */

static lks__divergence_note note_of(const void *notes, size_t stride, int rank)
{
    lks__divergence_note note;
    memcpy(&note, (const char *)notes + (size_t)rank * stride, sizeof note);
    note.host[sizeof note.host - 1] = '\0';
    return note;
}

static const char *host_of(const lks__divergence_note *note, char shown[4 * LKS__HOST_NAME])
{
    return lks__escape(shown, 4 * LKS__HOST_NAME, note->host, strlen(note->host));
}

static lks_status changed(const lks__trainer *t, const lks__divergence_note *note, int rank)
{
    char shown[4 * LKS__HOST_NAME];
    return lks__fail(LKS_ERR_DIVERGED,
                     "the parameters have changed between update %" PRIu64 " and the next, first "
                     "in tensor %s, on host %s (seen by rank %d): memory that loses bits, or a "
                     "program error; test that host's memory, and go on from the last checkpoint "
                     "with --init_from=resume",
                     t->iter, t->table.tensors[note->changed].name, host_of(note, shown), rank);
}

/* How many ranks have a replica like that of `rank`; 0 where it compares none. */
static int supporters(const void *notes, size_t stride, int W, int rank)
{
    uint64_t hash = note_of(notes, stride, rank).hash;
    int n = 0;
    for (int r = 0; r < W; r++)
        n += note_of(notes, stride, r).hash == hash;
    return hash == 0 ? 0 : n;
}

/* Replicas differ: by tensors now. The rank that differs from most others is the one to blame; of
 * two nobody can tell. */
static lks_status differ(lks__trainer *t, const void *notes, size_t stride)
{
    int W = t->ses.world.world_size, good = 0, odd = 0;
    const size_t n = t->table.n_tensors;
    for (int r = 1; r < W; r++)
        if (supporters(notes, stride, W, r) > supporters(notes, stride, W, good))
            good = r;
    const uint64_t right = note_of(notes, stride, good).hash;
    while (note_of(notes, stride, odd).hash == right || note_of(notes, stride, odd).hash == 0)
        odd++;
    uint64_t *all = calloc(n * (size_t)W, sizeof *all);
    if (all == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the hashes of %d ranks", W);
    lks_status st = lks_comm_all_gather(t->ses.comm, t->divergence.hashes, all, n * sizeof *all);
    size_t i = 0;
    while (st == LKS_OK && i + 1 < n && all[(size_t)odd * n + i] == all[(size_t)good * n + i])
        i++;
    free(all);
    if (st != LKS_OK)
        return st;
    lks__divergence_note a = note_of(notes, stride, odd), b = note_of(notes, stride, good);
    char shown_a[4 * LKS__HOST_NAME], shown_b[4 * LKS__HOST_NAME];
    bool told = supporters(notes, stride, W, good) > supporters(notes, stride, W, odd);
    return lks__fail(LKS_ERR_DIVERGED,
                     "after update %" PRIu64
                     " the replicas have diverged, first in tensor %s: rank "
                     "%d (host %s) has other values than rank %d (host %s)%s: memory that loses "
                     "bits, or a program error; go on from the last checkpoint with "
                     "--init_from=resume",
                     t->iter, t->table.tensors[i].name, odd, host_of(&a, shown_a), good,
                     host_of(&b, shown_b), told ? ", which has those of most ranks" : "");
}

lks_status lks__divergence_judge(lks__trainer *t, const void *notes, size_t stride)
{
    uint64_t hash = 0;
    bool same = true;
    for (int r = 0; r < t->ses.world.world_size; r++) {
        lks__divergence_note note = note_of(notes, stride, r);
        if (note.changed >= 0 && (size_t)note.changed < t->table.n_tensors)
            return changed(t, &note, r);
        same = same && (note.hash == 0 || hash == 0 || note.hash == hash);
        hash = note.hash != 0 ? note.hash : hash;
    }
    return same ? LKS_OK : differ(t, notes, stride);
}
