/* After a step each rank sends its pieces to the others: rounds of one all-gather, so that a round
 * copies pieces of all ranks at the same time, and needs little memory. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "ddp/library/update/optimizer.h"

enum { ROUND = 1 << 15 }; /* floats of a rank */

/* The next float of a rank's pieces to copy. */
struct walk {
    size_t piece, at, left;
};

struct lks__exchange {
    float *all;         /* [W * ROUND], or less if no rank has so many */
    size_t *counts;     /* [W] in this round */
    struct walk *walks; /* [W] */
};

/* Memory of a piece: of its parameter (state -1), or of a state; NULL if its tensor lacks it. */
static float *piece_of(const lks_optimizer *o, const lks__piece *piece, int state)
{
    const lks__table_tensor *t = &o->table.tensors[piece->tensor];
    if (state < 0)
        return o->params[piece->tensor].value + (piece->first - t->offset);
    return lks__optimizer_state(o->optim.optimizer, t, state) != NULL
               ? o->state[state] + piece->first
               : NULL;
}

lks_status lks__exchange_open(lks_optimizer *o)
{
    const size_t W = (size_t)o->W;
    size_t most = 0;
    for (size_t r = 0; r < W; r++) {
        size_t floats = 0;
        for (size_t i = 0; i < o->shares[r].n_pieces; i++)
            floats += o->shares[r].pieces[i].count;
        most = floats > most ? floats : most;
    }
    o->exchange = calloc(1, sizeof *o->exchange);
    LKS__MEMORY(o->exchange, "for the exchange of an optimizer");
    o->exchange->all = calloc(W * (most < ROUND ? most : ROUND) + 1, sizeof(float));
    o->exchange->counts = calloc(W, sizeof *o->exchange->counts);
    o->exchange->walks = calloc(W, sizeof *o->exchange->walks);
    if (o->exchange->all == NULL || o->exchange->counts == NULL || o->exchange->walks == NULL)
        return lks__no_memory("for the exchange of an optimizer");
    return LKS_OK;
}

void lks__exchange_close(struct lks__exchange *e)
{
    if (e == NULL)
        return;
    free(e->all);
    free(e->counts);
    free(e->walks);
    free(e);
}

/* Copy the next floats of rank r's pieces to `block`, or with `back` from there. */
static void copy_next(const lks_optimizer *o, int r, int state, float *block, bool back)
{
    struct walk *w = &o->exchange->walks[r];
    for (size_t n = o->exchange->counts[r]; n > 0;) {
        const lks__piece *piece = &o->shares[r].pieces[w->piece];
        float *mem = piece_of(o, piece, state);
        const size_t left = mem != NULL ? piece->count - w->at : 0, some = left < n ? left : n;
        if (some > 0)
            memcpy(back ? mem + w->at : block, back ? block : mem + w->at, some * sizeof *mem);
        block += some;
        n -= some;
        w->at += some;
        w->left -= some;
        if (some == left) {
            w->piece++;
            w->at = 0;
        }
    }
}

static lks_status next_round(const lks_optimizer *o, int state, bool *more_p)
{
    const struct lks__exchange *e = o->exchange;
    float *mine = e->all, *block = e->all;
    size_t total = 0;
    for (int r = 0; r < o->W; r++) {
        e->counts[r] = e->walks[r].left < ROUND ? e->walks[r].left : ROUND;
        mine += r < o->rank ? e->counts[r] : 0;
        total += e->counts[r];
    }
    *more_p = total > 0;
    if (total == 0)
        return LKS_OK;
    copy_next(o, o->rank, state, mine, false);
    LKS__TRY(lks_comm_all_gather_v(o->comm, mine, e->all, e->counts, LKS_FLOAT32));
    for (int r = 0; r < o->W; block += e->counts[r++])
        if (r != o->rank)
            copy_next(o, r, state, block, true);
    return LKS_OK;
}

lks_status lks__exchange_pieces(const lks_optimizer *o, int state)
{
    bool more = o->W > 1;
    for (int r = 0; r < o->W && more; r++) {
        struct walk *w = &o->exchange->walks[r];
        *w = (struct walk){0};
        for (size_t i = 0; i < o->shares[r].n_pieces; i++)
            if (piece_of(o, &o->shares[r].pieces[i], state) != NULL)
                w->left += o->shares[r].pieces[i].count;
    }
    while (more)
        LKS__TRY(next_round(o, state, &more));
    return LKS_OK;
}

void lks__exchange_drop(const lks_optimizer *o)
{
    const uintptr_t page = lks__sys_page_bytes();
    for (int r = 0; r < o->W; r++)
        for (size_t i = 0; i < LKS__OPTIM_STATES * o->shares[r].n_pieces && r != o->rank; i++) {
            const lks__piece *piece = &o->shares[r].pieces[i / LKS__OPTIM_STATES];
            float *mem = piece_of(o, piece, (int)(i % LKS__OPTIM_STATES));
            if (mem == NULL)
                continue;
            const uintptr_t from = ((uintptr_t)mem + page - 1) / page * page;
            const uintptr_t end = (uintptr_t)(mem + piece->count) / page * page;
            if (from < end)
                madvise((void *)from, end - from, MADV_DONTNEED);
        }
}
