/* train/loop/report/report_end.c - the last lines of a run, for people. */
#include <inttypes.h>
#include <stdio.h>

#include "base/system/sys.h"
#include "base/text/shell.h"
#include "train/checks/recheck.h"
#include "train/loop/report/report.h"

static void seconds_text(double s, char out[32])
{
    if (s < 120.0)
        snprintf(out, 32, "%.1f s", s);
    else
        snprintf(out, 32, "%.0f min %02.0f s", (s - (double)((long)s % 60)) / 60.0,
                 (double)((long)s % 60));
}

static void losses_line(lks__report *r, const double *loss, const lks__eval_result *final)
{
    char text[300] = "";
    if (loss != NULL)
        lks__append(text, sizeof text, ", ", "last loss %.4f", *loss);
    if (final != NULL)
        lks__append(text, sizeof text, ", ", "last validation loss %.4f", final->val_loss);
    if (r->best.found)
        lks__append(text, sizeof text, ", ", "best validation loss %.4f at iteration %" PRIu64,
                    r->best.loss, r->best.iter);
    if (text[0] != '\0')
        lks__log_line(&r->log, "%s", text);
}

void lks__report_above(lks__report *r, uint64_t iter, double val_loss)
{
    if (!r->best.found || !(val_loss > 1.05 * r->best.loss))
        r->n_above = 0;
    else if (r->n_above == 0 || iter != r->above_iter)
        r->n_above++;
    r->above_iter = iter;
}

/* Each evaluation draws new batches, so the lowest loss may be low by chance. So the lines name the
 * losses and how to compare them, without a judgement. */
static void say_above(lks__report *r, const lks__run *run, const lks__state *state,
                      const lks__eval_result *final)
{
    char tool[600];
    if (final != NULL)
        lks__report_above(r, state->iter, final->val_loss);
    if (final == NULL || r->n_above < 2)
        return;
    lks__shell_program(tool, sizeof tool);
    const char *out = lks__quoted(run->s.out_dir, 600);
    lks__log_line(
        &r->log,
        "the last two validation losses are over 5 %% above the lowest, %.4f at iteration "
        "%" PRIu64 "; sample and eval use %s",
        r->best.loss, r->best.iter,
        run->s.always_save_checkpoint ? "the newest checkpoint: --checkpoint=best for the best one"
                                      : "the best checkpoint, as always_save_checkpoint=false");
    lks__log_line(
        &r->log,
        "to compare them over the whole validation text: %s eval %s --checkpoint=latest, and "
        "--checkpoint=best",
        tool, out);
}

static void say_next(lks__report *r, const lks__run *run, const lks__session *ses, int stop_signal)
{
    char tool[600];
    lks__shell_program(tool, sizeof tool);
    const char *out = lks__quoted(run->s.out_dir, 600);
    /* `resume` starts ranks only on this host. */
    const bool several = ses->world.local_world_size < ses->world.world_size;
    if (stop_signal != 0 && several)
        lks__log_line(&r->log,
                      "to continue: start the ranks as before, with %s train --out_dir=%s "
                      "--init_from=resume; on one host: %s resume %s",
                      tool, out, tool, out);
    else if (stop_signal != 0)
        lks__log_line(&r->log, "to continue: %s resume %s", tool, out);
    else if (lks__meta_describes(&run->meta))
        lks__log_line(&r->log, "next: %s sample %s", tool, out);
    else
        lks__log_line(&r->log, "next: %s eval %s", tool, out);
}

void lks__report_end(lks__report *r, const lks__trainer *t, int stop_signal, const double *loss,
                     const lks__eval_result *final)
{
    const lks__state *state = &t->state;
    char time[32], best[48] = "", summary[LKS__RECHECK_SUMMARY];
    if (!r->on)
        return;
    r->ended = true;
    r->stop_signal = stop_signal;
    lks__report_prometheus(r, &t->run, state, true);
    seconds_text(lks__sys_now() - r->started, time);
    if (stop_signal != 0)
        lks__log_line(&r->log, "stopped by signal %d before iteration %" PRIu64 ", after %s",
                      stop_signal, state->iter, time);
    else
        lks__log_line(&r->log, "done: %" PRIu64 " step%s in %s", r->n_steps,
                      r->n_steps == 1 ? "" : "s", time);
    losses_line(r, loss, final);
    say_above(r, &t->run, state, final);
    if (t->checks.recheck != NULL)
        lks__log_line(&r->log, "%s", lks__recheck_summary(&t->checks, summary));
    if (r->best.found)
        snprintf(best, sizeof best, ", best is ckpt-%08" PRIu64, r->best.iter);
    lks__log_line(&r->log, "in %s: metrics.jsonl, train.log; latest is ckpt-%08" PRIu64 "%s",
                  t->run.shown_out_dir, state->iter, best);
    say_next(r, &t->run, &t->ses, stop_signal);
}
