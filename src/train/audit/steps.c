#include "train/audit/steps.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "train/audit/settings.h"
#include "train/audit/trail.h"
#include "train/checkpoint.h"
#include "train/micro.h"
#include "train/procedure/procedure.h"
#include "train/step.h"

/* --- one step --------------------------------------------------------------------------------- */

static void compare_figure(lks__replay *r, const char *what, uint64_t iter, const char *name,
                           double claimed, double computed)
{
    char theirs[32], ours[32];
    if (claimed == computed || (isnan(claimed) && !isfinite(computed)))
        return;
    lks__json_shortest(claimed, theirs, sizeof theirs);
    lks__json_shortest(computed, ours, sizeof ours);
    lks__replay_false(r, "%s %" PRIu64 ": %s is %s in metrics.jsonl, %s computed", what, iter, name,
                      theirs, ours);
}

/* Move leaves.bin to this iteration. *any_p: it has a record of it. */
static lks_status find_hashes(lks__replay *r, uint64_t iter, bool *any_p)
{
    bool any = true;
    lks_status st = LKS_OK;
    while (st == LKS_OK && any && (r->leaves.last.at == 0 || r->leaves.last.iter < iter)) {
        st = lks__leaves_next(&r->leaves, &any);
        if (st == LKS_OK && any && r->leaves.last.iter < r->leaves_first)
            r->leaves_first = r->leaves.last.iter;
    }
    if (st == LKS_ERR_FORMAT) { /* the rest of the file is useless */
        lks__replay_false(r, "%s", lks_last_error());
        st = lks__leaves_close(&r->leaves);
    }
    *any_p = any && r->leaves.fd >= 0 && r->leaves.last.iter == iter;
    return st;
}

/* An honest file has all steps from its first one to a checkpoint, but for skipped ones. A gap is
 * one false claim. */
static void add_unhashed(lks__replay *r, const lks__trainer *t, uint64_t iter)
{
    const lks__claims *c = r->claims;
    const bool saved = c->n_saves > 0 && c->saves[c->n_saves - 1].iter > iter;
    const bool readable = r->leaves.fd >= 0 && lks__reducer_hashes(t->work.reducer) != NULL;
    if (readable && saved && r->leaves_first < iter && r->next_unhashed != iter)
        lks__replay_false(r, "step %" PRIu64 ": leaves.bin has no hashes of its gradients", iter);
    r->unhashed++;
    r->next_unhashed = iter + 1;
    if (iter < r->first_unhashed)
        r->first_unhashed = iter;
}

static void compare_hash(lks__replay *r, const lks__run *run, uint64_t iter, int v,
                         uint64_t computed)
{
    const uint64_t claimed = r->leaves.record[1 + v];
    char maker[LKS__REPLAY_MAKER];
    r->gradients++;
    if (claimed != computed)
        lks__replay_false(r,
                          "step %" PRIu64 ": the gradient of virtual rank %d of %d has the hash "
                          "%016" PRIx64 " in leaves.bin%s, %016" PRIx64 " computed",
                          iter, v, run->V, claimed,
                          lks__replay_maker(r->claims, iter, run->V, v, maker), computed);
}

/* True if the record of leaves.bin has the run's virtual ranks. */
static bool has_ranks(lks__replay *r, const lks__run *run, uint64_t iter)
{
    if (r->leaves.last.V == (uint32_t)run->V && r->leaves.last.A == (uint32_t)run->A)
        return true;
    lks__replay_false(r, "step %" PRIu64 ": leaves.bin is of other virtual ranks", iter);
    return false;
}

static lks_status compare_hashes(lks__replay *r, const lks__trainer *t, uint64_t iter)
{
    const lks__run *run = &t->run;
    bool any;
    LKS__TRY(find_hashes(r, iter, &any));
    if (!any || lks__reducer_hashes(t->work.reducer) == NULL) {
        add_unhashed(r, t, iter);
        return LKS_OK;
    }
    const uint64_t *hashes = lks__reducer_hashes(t->work.reducer); /* of the only rank: all */
    const int V = has_ranks(r, run, iter) ? run->V : 0;
    for (int v = 0; v < V; v++)
        compare_hash(r, run, iter, v, hashes[v]);
    return LKS_OK;
}

static lks_status compare_step(lks__replay *r, const lks__trainer *t, const lks__claim *claim,
                               const lks__step_result *step)
{
    r->steps++;
    if (claim == NULL) {
        lks__replay_false(r, "step %" PRIu64 ": metrics.jsonl has no line of this step",
                          step->iter);
        return LKS_OK;
    }
    if (claim->again)
        lks__replay_false(r,
                          "step %" PRIu64
                          ": metrics.jsonl has another line of it, or of a later step, before its "
                          "line",
                          step->iter);
    if (claim->skipped != (step->outcome == LKS__STEP_SKIPPED)) {
        lks__replay_false(
            r, "step %" PRIu64 ": the record says that it was %s; it was%s when computed",
            claim->iter, claim->skipped ? "skipped" : "made",
            claim->skipped ? "n't" : " not finite");
        return LKS_OK;
    }
    if (claim->skipped)
        return LKS_OK;
    LKS__TRY(compare_hashes(r, t, claim->iter));
    compare_figure(r, "step", claim->iter, "loss", claim->loss, lks__nine_digits(step->loss));
    compare_figure(r, "step", claim->iter, "grad_norm", claim->grad_norm, step->grad_norm);
    compare_figure(r, "step", claim->iter, "lr", claim->lr, step->lr);
    compare_figure(r, "step", claim->iter, "tokens", claim->tokens,
                   (double)lks__state_tokens(&t->run, &t->state));
    return LKS_OK;
}

/* `computed`: NAN if the run's procedure doesn't compute this loss. */
static void compare_loss(lks__replay *r, const lks__claimed_eval *claim, const char *name,
                         double claimed, double computed)
{
    if (!(isnan(claimed) && isnan(computed)))
        compare_figure(r, "evaluation", claim->iter, name, claimed, lks__nine_digits(computed));
}

static void compare_losses(lks__replay *r, const lks__run *run, const lks__claimed_eval *claim,
                           const lks__eval_result *eval)
{
    compare_figure(r, "evaluation", claim->iter, "val_loss", claim->val_loss,
                   lks__nine_digits(eval->val_loss));
    compare_loss(r, claim, "train_loss", claim->train_loss,
                 eval->has_train ? eval->train_loss : (double)NAN);
    if (!eval->has_bpb && run->golf != NULL && !isnan(claim->val_bpb))
        r->lacks_bpb = true;
    else
        compare_loss(r, claim, "val_bpb", claim->val_bpb,
                     eval->has_bpb ? eval->val_bpb : (double)NAN);
}

/* Compare the evaluation before step t->state.iter, if the record has one. After a resume that
 * changed settings, it is unknown which of them it had. `due`: an honest record has one. */
static lks_status compare_evaluation(lks__replay *r, lks__trainer *t, bool due)
{
    const uint64_t iter = t->state.iter;
    const bool any = lks__claims_eval(r->claims, iter) != NULL;
    lks__eval_result eval;
    if (!r->evaluates || lks__claims_changed(r->claims, iter) != NULL || (!any && !due))
        return LKS_OK;
    if (!any) {
        lks__replay_false(r, "evaluation %" PRIu64 ": metrics.jsonl has no line of it", iter);
        return LKS_OK;
    }
    lks__batch_sampler_mark(t->state.sampler);
    LKS__TRY(t->run.procedure->evaluate(t, &eval));
    lks__batch_sampler_back(t->state.sampler);
    r->evals++;
    for (size_t i = 0; i < r->claims->n_evals; i++) /* an `eval` and a `final` line, for example */
        if (r->claims->evals[i].iter == iter)
            compare_losses(r, &t->run, &r->claims->evals[i], &eval);
    return LKS_OK;
}

/* Compute the gradient of one virtual rank only. */
static lks_status replay_leaf(lks__replay *r, lks__trainer *t)
{
    uint64_t hash;
    bool any;
    LKS__TRY(find_hashes(r, t->state.iter, &any));
    any = any && lks__reducer_hashes(t->work.reducer) != NULL;
    if (!any)
        add_unhashed(r, t, t->state.iter);
    if (!any && r->trail == NULL)
        return lks__fail(LKS_ERR_SUPPORT, "there is no hash of step %" PRIu64, t->state.iter);
    if (r->leaf >= t->run.V)
        return lks__fail(LKS_ERR_CONFIG, "leaf=%d, but the run has %d virtual ranks, from 0 on",
                         r->leaf, t->run.V);
    t->run.procedure->begin_step(&t->state, &t->work);
    LKS__TRY(r->trail != NULL ? lks__trail_leaves(r->trail, t, r->leaf, r->leaf + 1, &hash)
                              : lks__train_leaf(t, r->leaf, &hash));
    if (any && has_ranks(r, &t->run, t->state.iter))
        compare_hash(r, &t->run, t->state.iter, r->leaf, hash);
    return LKS_OK;
}

/* The gradients' part of a whole step's trail. The step computes them once more. */
static lks_status trail_gradients(const lks__replay *r, lks__trainer *t)
{
    uint64_t hash;
    lks__batch_sampler_mark(t->state.sampler);
    t->run.procedure->begin_step(&t->state, &t->work);
    LKS__TRY(lks__trail_leaves(r->trail, t, 0, t->run.V, &hash));
    lks__batch_sampler_back(t->state.sampler);
    return LKS_OK;
}

/* --- a run of steps --------------------------------------------------------------------------- */

/* Apply the settings that a resume changed here. */
static lks_status apply_resume(const lks__replay *r, lks__trainer *t)
{
    const json_t *changed = lks__claims_changed(r->claims, t->state.iter);
    if (changed == NULL)
        return LKS_OK;
    const char *name = lks__audit_reopens(r->claims, t->state.iter);
    if (name != NULL)
        return lks__fail(LKS_ERR_SUPPORT,
                         "a resume changed %s at iteration %" PRIu64
                         ", and that checkpoint doesn't exist any more",
                         name, t->state.iter);
    LKS__TRY(lks__audit_change(&t->run.s, changed));
    return lks__settings_complete(&t->run.s, 1);
}

lks_status lks__replay_data(const lks__run *run, lks__state *state, const lks__claim *claim)
{
    const bool draws = lks__state_sampler_bytes(state) > 0;
    if (draws && claim != NULL && claim->data_shift != state->data_shift)
        return lks__fail(LKS_ERR_SUPPORT,
                         "the run went back to iteration %" PRIu64
                         ", and sampler=nanogpt can't repeat that: give --from, a later checkpoint",
                         claim->iter);
    if (claim != NULL)
        state->data_shift = claim->data_shift;
    if (!run->procedure->evaluation_due(run, state))
        return LKS_OK;
    state->eval_done = true;
    if (draws &&
        lks__batch_sampler_eval(state->sampler, state->iter, (int)run->s.eval_iters) == NULL)
        return lks__no_memory("for the samples of an evaluation");
    return LKS_OK;
}

/* Refuse steps whose result depends on more than the run's settings and data. */
static lks_status check_repeatable(const lks__trainer *t)
{
    const bool clock = lks__state_by_the_clock(&t->run);
    if (!clock && t->run.s.wire == LKS__wire_float32)
        return LKS_OK;
    return lks__fail(LKS_ERR_SUPPORT,
                     "with %s only gradients of steps that follow a checkpoint at once can be "
                     "computed again: give --step and --leaf",
                     clock ? "max_wallclock_seconds rates depend on the clock, so"
                           : "wire=bfloat16 sums depend on the hosts, so");
}

static lks_status check_kernels(const lks__replay *r, const lks__trainer *t, uint64_t iter)
{
    uint64_t first;
    const char *made = lks__json_str(lks__claims_start(r->claims, iter, &first), "fingerprint");
    if (made == NULL || strcmp(made, t->ses.fingerprint) == 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_SUPPORT,
                     "step %" PRIu64 " was made with kernels of fingerprint %s, here it is %s, so "
                     "the bits can differ",
                     iter, lks__shown(made, 128), t->ses.fingerprint);
}

static lks_status replay_one(lks__replay *r, lks__trainer *t, bool trail, bool *again_p)
{
    const lks__claim *claim = lks__claims_step(r->claims, t->state.iter);
    const uint64_t iter = t->state.iter;
    lks__step_result step = {0};
    if (trail)
        LKS__TRY(trail_gradients(r, t));
    const lks_status st = lks__train_step(t, &step);
    *again_p = false;
    if (st == LKS_ERR_NAN || (st == LKS_OK && step.outcome == LKS__STEP_BACK)) {
        lks__replay_false(r,
                          "step %" PRIu64
                          ": the record says that it was made; it was not finite when computed",
                          iter);
        return LKS_OK;
    }
    LKS__TRY(st);
    LKS__TRY(compare_step(r, t, claim, &step));
    if (trail)
        LKS__TRY(lks__trail_update(r->trail, t, &step));
    *again_p = step.outcome == LKS__STEP_DONE || step.outcome == LKS__STEP_SKIPPED;
    return *again_p ? lks__replay_saved(r, t) : LKS_OK;
}

/* True, and a false claim, if the run's settings end it before step t->state.iter. */
static bool is_beyond(lks__replay *r, const lks__trainer *t)
{
    if (t->state.iter < t->run.procedure->n_steps(&t->run.s))
        return false;
    lks__replay_false(r, "step %" PRIu64 ": the run's settings end it before this step",
                      t->state.iter);
    return true;
}

static lks_status replay(lks__replay *r, lks__trainer *t, uint64_t end)
{
    const uint64_t start = t->state.iter;
    bool last = false, again = true;
    while (again && t->state.iter < end) {
        const lks__claim *claim = lks__claims_step(r->claims, t->state.iter);
        last = t->state.iter + 1 == end;
        LKS__TRY(check_kernels(r, t, t->state.iter));
        if (t->state.iter > start)
            LKS__TRY(apply_resume(r, t));
        if (is_beyond(r, t))
            return LKS_OK;
        if (t->state.iter > start || start == 0) /* else the steps before it lead to it */
            LKS__TRY(
                compare_evaluation(r, t, t->run.procedure->evaluation_due(&t->run, &t->state)));
        LKS__TRY(lks__replay_data(&t->run, &t->state, claim));
        if (last && r->trail != NULL)
            LKS__TRY(lks__trail_begin(r->trail, t, r->leaf));
        if (r->leaf >= 0 && last) {
            LKS__TRY(replay_leaf(r, t));
            break;
        }
        LKS__TRY(check_repeatable(t));
        LKS__TRY(replay_one(r, t, last && r->trail != NULL, &again));
    }
    if (again)
        LKS__TRY(compare_evaluation(r, t, false));
    return last && r->trail != NULL ? lks__trail_end(r->trail, t) : LKS_OK;
}

lks_status lks__replay_steps(lks__replay *r, uint64_t start, uint64_t end)
{
    lks__trainer *t = calloc(1, sizeof *t);
    LKS__MEMORY(t, "for an audit");
    lks_status st = lks__audit_open(r, start, t);
    if (st == LKS_OK) {
        st = lks__leaves_open(r->run, &r->leaves);
        r->leaves_first = UINT64_MAX;
        LKS__THEN(st, replay(r, t, end));
        lks__leaves_close(&r->leaves);
        lks__trainer_close(t);
    }
    free(t);
    return st;
}
