/* train/loop/report/report_events.c - events for TensorBoard, with the numbers of metrics.jsonl. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/system/sys.h"
#include "train/loop/report/report.h"

enum { TEXT_BYTES = 96 << 10 };

/* Write the settings that define the run, as lines of a config file. Four spaces before a line keep
 * it unchanged in Markdown. */
static lks_status write_settings(lks__report *r, const lks__run *run, const lks__state *state)
{
    char value[LKS__SETTING_STR], shown[4 * LKS__SETTING_STR];
    static char text[TEXT_BYTES]; /* too large for the stack */
    const char *key;
    json_t *of_key, *o = lks__settings_to_json(&run->s);
    LKS__MEMORY(o, "for the settings");
    text[0] = '\0';
    json_object_foreach(o, key, of_key)
    {
        lks__settings_text(&run->s, lks__setting_find(key), value);
        lks__escape(shown, sizeof shown, value, strlen(value));
        lks__append(text, sizeof text, "", "    %s = %s\n", key, shown);
    }
    json_decref(o);
    lks__events_begin(r->events, state->iter);
    lks__events_text(r->events, "settings", text);
    return lks__events_end(r->events);
}

/* Put four spaces before each line, so that Markdown keeps it unchanged. */
static const char *indented(const char *text)
{
    static char out[TEXT_BYTES]; /* too large for the stack */
    size_t n = 0;
    for (bool begin = true; *text != '\0' && n + 6 < sizeof out; text++) {
        if (begin)
            n += (size_t)snprintf(out + n, sizeof out - n, "    ");
        out[n++] = *text;
        begin = *text == '\n';
    }
    out[n] = '\0';
    return out;
}

lks_status lks__report_events_sample(lks__report *r, const lks__state *state, const char *text)
{
    if (r->events == NULL)
        return LKS_OK;
    lks__events_begin(r->events, state->iter);
    lks__events_text(r->events, "sample", indented(text));
    return lks__events_end(r->events);
}

/* TensorBoard has dropped all numbers from state->iter on, so repeat those of an evaluation that
 * isn't computed again. TensorBoard keeps texts. */
static lks_status repeat_eval(lks__report *r, const lks__state *state)
{
    static const char *const names[] = {"train_loss", "val_loss", "val_bpb"};
    json_t *eval;
    char tag[64];
    if (!state->eval_done)
        return LKS_OK;
    LKS__TRY(lks__metrics_eval_at(r->metrics, state->iter, &eval));
    if (eval == NULL)
        return LKS_OK;
    lks__events_begin(r->events, state->iter);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *value = json_object_get(eval, names[i]);
        snprintf(tag, sizeof tag, "eval/%s", names[i]);
        if (json_is_number(value))
            lks__events_scalar(r->events, tag, json_number_value(value));
    }
    json_decref(eval);
    return lks__events_end(r->events);
}

lks_status lks__report_events_open(lks__report *r, const lks__run *run, const lks__state *state)
{
    LKS__TRY(lks__events_create(run->s.out_dir, state->iter, &r->events));
    LKS__TRY(write_settings(r, run, state));
    return repeat_eval(r, state);
}

lks_status lks__report_events_train(lks__report *r, const lks__step_result *step, double tok_per_s,
                                    double mfu)
{
    lks__events *e = r->events;
    if (e == NULL)
        return LKS_OK;
    lks__events_begin(e, step->iter);
    lks__events_scalar(e, "train/loss", step->loss);
    lks__events_scalar(e, "train/lr", step->lr);
    lks__events_scalar(e, "train/grad_norm", step->grad_norm);
    lks__events_scalar(e, "speed/ms", step->seconds * 1e3);
    lks__events_scalar(e, "speed/tok_per_s", tok_per_s);
    lks__events_scalar(e, "speed/mfu", mfu);
    lks__events_scalar(e, "speed/comm_exposed_ms", step->exposed_s * 1e3);
    return lks__events_end(e);
}

lks_status lks__report_events_back(lks__report *r, const lks__state *state)
{
    if (r->events == NULL)
        return LKS_OK;
    LKS__TRY(lks__events_back(r->events, state->iter));
    return repeat_eval(r, state);
}

/* `kind`: as in metrics.jsonl, "eval" or "final". */
lks_status lks__report_events_eval(lks__report *r, const lks__state *state, const char *kind,
                                   const lks__eval_result *eval)
{
    char tag[64];
    if (r->events == NULL)
        return LKS_OK;
    lks__events_begin(r->events, state->iter);
    snprintf(tag, sizeof tag, "%s/train_loss", kind);
    if (eval->has_train)
        lks__events_scalar(r->events, tag, eval->train_loss);
    snprintf(tag, sizeof tag, "%s/val_loss", kind);
    lks__events_scalar(r->events, tag, eval->val_loss);
    snprintf(tag, sizeof tag, "%s/val_bpb", kind);
    if (eval->has_bpb)
        lks__events_scalar(r->events, tag, eval->val_bpb);
    LKS__TRY(lks__events_end(r->events));
    return lks__report_events_memory(r, state, "memory/rank_0",
                                     lks__sys_proc_bytes("/proc/self/status", "VmRSS"));
}

lks_status lks__report_events_memory(lks__report *r, const lks__state *state, const char *tag,
                                     uint64_t bytes)
{
    if (r->events == NULL)
        return LKS_OK;
    lks__events_begin(r->events, state->iter);
    lks__events_scalar(r->events, tag, (double)bytes);
    return lks__events_end(r->events);
}
