#include "train/checks/votes.h"

#include <stddef.h>
#include <string.h>

#include "base/system/sys.h"
#include "plan/gradients.h"
#include "session/signals.h"
#include "train/checks/divergence.h"

/* Each rank's message. The losses and then the hashes of its virtual ranks follow. */
typedef struct lks__vote {
    lks__divergence_vote divergence;
    int32_t stop_signal, save; /* save: lks__asked */
    int32_t skipped;           /* it left out micro-batches, because it was asked to stop */
} lks__vote;

_Static_assert(sizeof(lks__vote) == LKS__VOTE_BYTES, "plan counts these bytes");

static size_t losses_bytes(const lks__run *run, int n_leaves)
{
    return (size_t)(n_leaves * run->A) * sizeof(float);
}

void lks__votes_losses(const lks__run *run, size_t *first, size_t *bytes)
{
    *first = losses_bytes(run, run->first_v);
    *bytes = losses_bytes(run, run->end_v - run->first_v);
}

/* Ranks notice the same signal at different steps: if it arrives within 1 s or one step of an
 * agreed save, it is the same request. */
static const double SAME_REQUEST_S = 1.0;

static bool asks_to_save(lks__trainer *t)
{
    bool asks = lks__save_requested != 0;
    lks__save_requested = 0;
    bool just_now =
        t->checks.agreed_at > 0 && (t->state.iter <= t->checks.agreed_iter + 1 ||
                                    lks__sys_now() - t->checks.agreed_at < SAME_REQUEST_S);
    if (!asks || t->checks.noticed || !just_now)
        return asks;
    t->checks.noticed = true; /* the next signal is a new request */
    return false;
}

/* Only rank 0 reads its clock: the other ranks' votes are signals, which replace its vote. */
static bool clock_asks(const lks__trainer *t)
{
    const double minutes = t->run.s.checkpoint_minutes;
    return t->ses.world.rank == 0 && minutes > 0.0 &&
           lks__sys_now() - t->checks.saved_at >= 60.0 * minutes;
}

/* This rank's vote, without the hashes of divergence.h. */
static lks__vote own_vote(lks__trainer *t)
{
    lks__vote vote = {.stop_signal = lks__session_asked_stop(&t->ses),
                      .save = LKS__ASKED_NOT,
                      .skipped = t->work.skipped};
    if (asks_to_save(t))
        vote.save = LKS__ASKED_SIGNAL;
    else if (clock_asks(t))
        vote.save = LKS__ASKED_CLOCK;
    return vote;
}

/* Write this rank's message. */
static void write_message(const lks__trainer *t, const lks__vote *vote, char *message,
                          size_t message_bytes)
{
    const uint64_t *hashes = lks__reducer_hashes(t->work.reducer);
    const int n = t->run.end_v - t->run.first_v;
    size_t first, bytes;
    lks__votes_losses(&t->run, &first, &bytes);
    memset(message, 0, message_bytes);
    memcpy(message, vote, sizeof *vote);
    message += sizeof *vote;
    memcpy(message, (const char *)t->work.losses.host + first, bytes);
    if (hashes != NULL)
        memcpy(message + bytes, hashes, (size_t)n * sizeof *hashes);
}

void lks__votes_hashes(const lks__trainer *t, uint64_t *hashes)
{
    const int W = t->ses.world.world_size;
    const size_t bytes = lks__step_message_bytes(t->run.V, t->run.A, W);
    for (int rank = 0; rank < W; rank++) {
        const int v = lks__first_leaf(t->run.V, W, rank);
        const int n = lks__first_leaf(t->run.V, W, rank + 1) - v;
        const char *theirs = t->work.exchange + (size_t)(1 + rank) * bytes;
        memcpy(hashes + v, theirs + sizeof(lks__vote) + losses_bytes(&t->run, n),
               (size_t)n * sizeof *hashes);
    }
}

/* Read all ranks' messages, which are `bytes` apart: their losses, and r->save and stop_signal.
 * True if a rank has left out micro-batches. */
static bool read_messages(const lks__run *run, int W, const char *all, size_t bytes, float *losses,
                          lks__step_result *r)
{
    lks__vote vote;
    bool skipped = false;
    r->stop_signal = 0;
    r->save = LKS__ASKED_NOT;
    for (int rank = 0; rank < W; rank++) {
        int v0 = lks__first_leaf(run->V, W, rank), v1 = lks__first_leaf(run->V, W, rank + 1);
        const char *theirs = all + (size_t)rank * bytes;
        memcpy(&vote, theirs, sizeof vote);
        if (r->stop_signal == 0)
            r->stop_signal = vote.stop_signal;
        if (vote.save != LKS__ASKED_NOT)
            r->save = (lks__asked)vote.save;
        skipped |= vote.skipped != 0;
        memcpy(losses + v0 * run->A, theirs + sizeof vote, losses_bytes(run, v1 - v0));
    }
    return skipped;
}

static double mean(const float *values, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += (double)values[i];
    return sum / n;
}

lks_status lks__votes_exchange(lks__trainer *t, lks__step_result *r)
{
    const int W = t->ses.world.world_size;
    const size_t bytes = lks__step_message_bytes(t->run.V, t->run.A, W);
    char *mine = t->work.exchange, *all = t->work.exchange + bytes;
    lks__vote vote = own_vote(t);
    LKS__TRY(lks__divergence_hash(t, &vote.divergence));
    write_message(t, &vote, mine, bytes);
    LKS__TRY(lks_comm_all_gather(t->ses.comm, mine, all, bytes, LKS_UINT8));
    const bool skipped = read_messages(&t->run, W, all, bytes, t->work.losses.host, r);
    r->loss = mean(t->work.losses.host, t->run.N);
    if (r->save == LKS__ASKED_SIGNAL) {
        t->checks.agreed_at = lks__sys_now();
        t->checks.agreed_iter = t->state.iter;
        t->checks.noticed = vote.save == LKS__ASKED_SIGNAL;
    }
    int named;
    const lks_status st =
        lks__divergence_check(t, all + offsetof(lks__vote, divergence), bytes, &named);
    if (st != LKS_OK) /* all ranks have found it: the one that it is about reports it */
        return lks__session_agree(
            &t->ses, st == LKS_ERR_DIVERGED && named != t->ses.world.rank ? LKS_OK : st);
    return skipped ? LKS_ERR_STOPPED : LKS_OK;
}

void lks__votes_discard(const lks__trainer *t, lks__step_result *r)
{
    if (r->stop_signal == 0) /* the signal came while searching for NaN */
        r->stop_signal = lks__session_asked_stop(&t->ses);
    r->outcome = LKS__STEP_DISCARDED;
    lks__batch_sampler_back(t->state.sampler);
}
