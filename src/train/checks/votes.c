#include "train/checks/votes.h"

#include <stddef.h>
#include <string.h>

#include "base/system/sys.h"
#include "lockstep/reduce.h"
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

static bool asks_to_save(const lks__state *state, lks__checks *checks)
{
    bool asks = lks__save_requested != 0;
    lks__save_requested = 0;
    bool just_now = checks->agreed_at > 0 && (state->iter <= checks->agreed_iter + 1 ||
                                              lks__sys_now() - checks->agreed_at < SAME_REQUEST_S);
    if (!asks || checks->noticed || !just_now)
        return asks;
    checks->noticed = true; /* the next signal is a new request */
    return false;
}

/* Only rank 0 reads its clock, so that all ranks save in the same step. */
static bool clock_asks(const lks__run *run, const lks__session *ses, const lks__checks *checks)
{
    const double minutes = run->s.checkpoint_minutes;
    return ses->world.rank == 0 && minutes > 0.0 &&
           lks__sys_now() - checks->saved_at >= 60.0 * minutes;
}

/* This rank's vote, without the hashes of divergence.h. */
static lks__vote own_vote(const lks__run *run, const lks__session *ses, const lks__state *state,
                          const lks__step_work *work, lks__checks *checks)
{
    lks__vote vote = {.stop_signal = lks__session_asked_stop(ses),
                      .save = LKS__ASKED_NOT,
                      .skipped = work->skipped};
    if (asks_to_save(state, checks))
        vote.save = LKS__ASKED_SIGNAL;
    else if (clock_asks(run, ses, checks))
        vote.save = LKS__ASKED_CLOCK;
    return vote;
}

/* Write this rank's message. */
static void write_message(const lks__run *run, const lks__step_work *work, const lks__vote *vote,
                          char *message, size_t message_bytes)
{
    const uint64_t *hashes = lks__reducer_hashes(work->reducer);
    const int n = run->end_v - run->first_v;
    size_t first, bytes;
    lks__votes_losses(run, &first, &bytes);
    memset(message, 0, message_bytes);
    memcpy(message, vote, sizeof *vote);
    message += sizeof *vote;
    memcpy(message, (const char *)work->losses.host + first, bytes);
    if (hashes != NULL)
        memcpy(message + bytes, hashes, (size_t)n * sizeof *hashes);
}

void lks__votes_hashes(const lks__run *run, const lks__session *ses, const lks__step_work *work,
                       uint64_t *hashes)
{
    const int W = ses->world.world_size;
    const size_t bytes = lks__step_message_bytes(run->V, run->A, W);
    for (int rank = 0; rank < W; rank++) {
        const int v = lks__first_leaf(run->V, W, rank);
        const int n = lks__first_leaf(run->V, W, rank + 1) - v;
        const char *theirs = work->exchange + (size_t)(1 + rank) * bytes;
        memcpy(hashes + v, theirs + sizeof(lks__vote) + losses_bytes(run, n),
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
        if (r->save != LKS__ASKED_SIGNAL && vote.save != LKS__ASKED_NOT)
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

lks_status lks__votes_exchange(const lks__run *run, lks__session *ses, const lks__state *state,
                               const lks__step_work *work, lks__checks *checks, lks__step_result *r)
{
    const int W = ses->world.world_size;
    const size_t bytes = lks__step_message_bytes(run->V, run->A, W);
    char *mine = work->exchange, *all = work->exchange + bytes;
    lks__vote vote = own_vote(run, ses, state, work, checks);
    LKS__TRY(lks__divergence_hash(run, ses, state, checks, &vote.divergence));
    write_message(run, work, &vote, mine, bytes);
    LKS__TRY(lks_comm_all_gather(ses->comm, mine, all, bytes, LKS_UINT8));
    const bool skipped = read_messages(run, W, all, bytes, work->losses.host, r);
    r->loss = mean(work->losses.host, run->N);
    if (r->save == LKS__ASKED_SIGNAL) {
        checks->agreed_at = lks__sys_now();
        checks->agreed_iter = state->iter;
        checks->noticed = vote.save == LKS__ASKED_SIGNAL;
    }
    int named;
    const lks_status st = lks__divergence_check(
        run, ses, state, checks, all + offsetof(lks__vote, divergence), bytes, &named);
    if (st != LKS_OK) /* all ranks have found it: the one that it is about reports it */
        return lks__session_agree(ses,
                                  st == LKS_ERR_DIVERGED && named != ses->world.rank ? LKS_OK : st);
    return skipped ? LKS_ERR_STOPPED : LKS_OK;
}

void lks__votes_discard(const lks__session *ses, const lks__state *state, lks__step_result *r)
{
    if (r->stop_signal == 0) /* the signal came while searching for NaN */
        r->stop_signal = lks__session_asked_stop(ses);
    r->outcome = LKS__STEP_DISCARDED;
    lks__batch_sampler_back(state->sampler);
}
