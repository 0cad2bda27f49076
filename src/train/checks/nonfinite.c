#include "train/checks/nonfinite.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number/units.h"
#include "train/micro.h"

/* --- searching ------------------------------------------------------------------------------- */

/* Find the first tensor, in the order of backward (from the end of the table), whose gradient isn't
 * finite; place "": none. `grads` is memory of the device. */
static lks_status find_tensor(const lks__trainer *t, const float *grads, char place[LKS__PLACE])
{
    lks__device *device = t->ses.device;
    const lks__table_tensor *tensors = t->run.table.tensors;
    size_t n = t->run.table.n_tensors;
    lks__mirror slots;
    place[0] = '\0';
    LKS__TRY(lks__mirror_open(device, n * sizeof(uint64_t), &slots));
    uint64_t *dev = slots.dev;
    const uint64_t *host = slots.host;
    for (size_t i = 0; i < n; i++)
        if (!tensors[i].frozen)
            device->layers->first_not_finite(device->ex, &dev[i], grads + tensors[i].offset,
                                             tensors[i].count);
    lks__mirror_to_host(&slots, LKS__QUEUE_COMPUTE, 0, slots.bytes);
    lks_status st = lks__device_finish(device, LKS__QUEUE_COMPUTE);
    while (st == LKS_OK && n > 0 && (tensors[n - 1].frozen || host[n - 1] == tensors[n - 1].count))
        n--;
    if (st == LKS_OK && n > 0)
        snprintf(place, LKS__PLACE, "%s", tensors[n - 1].name);
    lks__mirror_close(&slots);
    return st;
}

/* Find the first module of micro-batch `index`, whose loss isn't finite, with such an output. */
static lks_status find_activation(lks__trainer *t, int index, lks__nonfinite *bad)
{
    lks__micro_batch mb;
    LKS__TRY(lks__train_read(t, index / t->run.A, index % t->run.A, &mb));
    const lks__backward bw = lks__train_pass(t, index / t->run.A, index % t->run.A, NULL);
    *bad = (lks__nonfinite){.index = index, .in_loss = true};
    return lks__model_find_bad(t->work.model, t->state.memory->params.dev, &mb, &bw, bad->place);
}

/* Compute the gradient of micro-batch `index` into `grads`, and find its first tensor that isn't
 * finite. */
static lks_status check_gradient(lks__trainer *t, int index, float *grads, lks__nonfinite *bad)
{
    LKS__TRY(lks__session_check_stop(&t->ses));
    t->ses.device->layers->clear(t->ses.device->ex, grads, t->run.table.trained_count);
    LKS__TRY(lks__train_alone(t, index / t->run.A, index % t->run.A, grads));
    LKS__TRY(find_tensor(t, grads, bad->place));
    if (bad->place[0] != '\0')
        bad->index = index;
    return LKS_OK;
}

/* Find the first of this rank's micro-batches whose gradient isn't finite although its loss is. */
static lks_status find_gradient(lks__trainer *t, lks__nonfinite *bad)
{
    const size_t bytes = t->run.table.trained_count * sizeof(float);
    lks__device *device = t->ses.device;
    void *grads;
    lks_status st = device->ops->alloc(device, bytes, &grads);
    if (st != LKS_OK) /* without memory, search the sum of the step instead */
        return st == LKS_ERR_NOMEM ? LKS_OK : st;
    for (int i = t->run.first_v * t->run.A; i < t->run.end_v * t->run.A && st == LKS_OK; i++) {
        st = check_gradient(t, i, grads, bad);
        if (bad->index == i)
            break;
    }
    lks__device_drain(device);
    device->ops->release(device, grads, bytes);
    return st;
}

static int first_bad_loss(const lks__trainer *t)
{
    const float *losses = t->work.losses.host;
    for (int i = 0; i < t->run.N; i++)
        if (!isfinite(losses[i]))
            return i;
    return -1;
}

/* Search this rank's micro-batches; index INT_MAX if all are finite. */
static lks_status search(lks__trainer *t, lks__nonfinite *bad)
{
    int loss = first_bad_loss(t);
    *bad = (lks__nonfinite){.index = INT_MAX};
    if (loss < 0)
        return find_gradient(t, bad);
    if (loss / t->run.A < t->run.first_v || loss / t->run.A >= t->run.end_v)
        return LKS_OK;
    return find_activation(t, loss, bad);
}

/* Find the first place of all ranks. */
static lks_status find_together(lks__trainer *t, const float *grads, lks__nonfinite *bad)
{
    int W = t->ses.world.world_size;
    lks__nonfinite mine;
    lks_comm_note(t->ses.comm, t->state.iter, "search for NaN");
    lks_status st = lks__session_agree(&t->ses, search(t, &mine));
    lks__nonfinite *all = lks__session_gather(&t->ses, &mine, sizeof mine, &st);
    *bad = (lks__nonfinite){.index = INT_MAX};
    for (int r = 0; r < W && st == LKS_OK; r++)
        if (all[r].index < bad->index)
            *bad = all[r];
    free(all);
    if (st == LKS_OK && bad->index == INT_MAX) {
        bad->index = -1;
        st = find_tensor(t, lks__memory_whole(t->state.memory, grads), bad->place);
    }
    return st;
}

/* --- the answer ------------------------------------------------------------------------------ */

void lks__nonfinite_text(const lks__trainer *t, const lks__step_result *r, char text[320])
{
    const lks__nonfinite *bad = &r->bad;
    const int v = bad->index / t->run.A, m = bad->index % t->run.A;
    if (bad->index < 0) {
        snprintf(text, 320, "the sum of all gradients overflows, first in %s", bad->place);
        return;
    }
    const int rank = lks__leaf_rank(t->run.V, t->ses.world.world_size, v);
    if (bad->in_loss)
        snprintf(text, 320,
                 "the loss of micro-batch %d of virtual rank %d (rank %d) is %g; the first that "
                 "isn't finite is the output of %s",
                 m, v, rank,
                 lks__units_plain((double)((const float *)t->work.losses.host)[bad->index]),
                 bad->place);
    else
        snprintf(text, 320,
                 "the gradient of micro-batch %d of virtual rank %d (rank %d) isn't finite, though "
                 "its loss is; backward makes it first in %s",
                 m, v, rank, bad->place);
}

static lks_status give_up(const lks__trainer *t, const lks__step_result *r, const char *why)
{
    char text[320];
    lks__nonfinite_text(t, r, text);
    return lks__fail(LKS_ERR_NAN,
                     "iteration %" PRIu64 ": %s; %scheckpoints are untouched; a smaller "
                     "learning_rate or a longer warm-up may help",
                     t->state.iter, text, why);
}

lks_status lks__nonfinite_check(lks__trainer *t, lks__step_result *r)
{
    r->outcome = LKS__STEP_DONE;
    if (isfinite(r->grad_norm) && first_bad_loss(t) < 0) {
        if (t->run.s.on_nan == LKS__on_nan_skip)
            t->state.nonfinite = 0;
        return LKS_OK;
    }
    LKS__TRY(find_together(t, r->grads, &r->bad));
    if (t->run.s.on_nan == LKS__on_nan_stop)
        return give_up(t, r, "--on_nan=skip or rollback would have continued; ");
    if (++t->state.nonfinite > t->run.s.on_nan_limit)
        return give_up(t, r, "that was once more than on_nan_limit allows; ");
    r->outcome = t->run.s.on_nan == LKS__on_nan_skip ? LKS__STEP_SKIPPED : LKS__STEP_BACK;
    return LKS_OK;
}
