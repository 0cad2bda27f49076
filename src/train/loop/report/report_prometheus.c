/* train/loop/report/report_prometheus.c - a text file for Prometheus with the newest numbers, which
 * node_exporter's textfile collector reads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "train/checkpoint.h"
#include "train/loop/report/report.h"

static const double EVERY_S = 5.0;

/* Escape a label's value. */
static void escape(const char *text, char *out, size_t bytes)
{
    size_t n = 0;
    for (; *text != '\0' && n + 3 < bytes; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n')
            out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = '\0';
    lks__utf8_make(out); /* a file with other bytes would be refused as a whole */
}

static void gauge(FILE *out, const char *name, const char *help, const char *run, double value)
{
    if (isfinite(value))
        fprintf(out,
                "# HELP lockstep_%s %s\n# TYPE lockstep_%s gauge\nlockstep_%s{run=\"%s\"} %.17g\n",
                name, help, name, name, run, value);
}

static lks_status write_file(const lks__report *r, const lks__run *run, const lks__state *state)
{
    char *text = NULL, name[2 * LKS__SETTING_STR + 4];
    size_t bytes;
    const lks__newest *n = &r->newest;
    escape(run->s.out_dir, name, sizeof name);
    FILE *out = open_memstream(&text, &bytes);
    LKS__MEMORY(out, "for %s", run->s.prometheus);
    gauge(out, "iteration", "Steps that are done.", name, (double)state->iter);
    gauge(out, "loss", "Training loss of the newest step.", name, n->loss);
    gauge(out, "learning_rate", "Learning rate of the newest step.", name, n->lr);
    gauge(out, "grad_norm", "Norm of the gradient before clipping.", name, n->grad_norm);
    gauge(out, "tokens", "Tokens of all steps.", name, (double)lks__state_tokens(run, state));
    gauge(out, "tokens_per_second", "Speed of the newest step.", name, n->tok_per_s);
    gauge(out, "mfu", "Share of the machine's measured peak.", name, n->mfu);
    gauge(out, "wait_seconds", "Time of the newest step that rank 0 waited for others.", name,
          n->wait_s);
    gauge(out, "val_loss", "Validation loss of the newest evaluation.", name, n->val_loss);
    gauge(out, "best_val_loss", "Lowest validation loss of a checkpoint.", name,
          r->best.found ? r->best.loss : (double)NAN);
    gauge(out, "updated_seconds", "When this was written, since 1970.", name, lks__sys_wall());
    lks_status st = LKS_OK;
    if (fclose(out) != 0 || text == NULL)
        st = lks__no_memory("for %s", run->s.prometheus);
    LKS__THEN(st, lks__sys_may_replace(run->s.prometheus, "# HELP lockstep_"));
    LKS__THEN(st, lks__sys_write_file(run->s.prometheus, text, bytes));
    free(text);
    return st;
}

void lks__report_prometheus(lks__report *r, const lks__run *run, const lks__state *state, bool now)
{
    if (!r->on || run->s.prometheus[0] == '\0' || (!now && lks__sys_now() < r->prometheus_at))
        return;
    r->prometheus_at = lks__sys_now() + EVERY_S;
    if (write_file(r, run, state) != LKS_OK && !r->prometheus_failed) {
        lks__log_message(&r->log, "%s; the run continues without it", lks_last_error());
        r->prometheus_failed = true;
    }
}
