/* train/procedure/golf_lines.c - the log lines of parameter-golf's train_gpt.py, for programs that
 * parse its logs. */
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "model/table/parts.h"
#include "train/procedure/golf.h"

enum { LIMIT_SECONDS = 600 }; /* of the contest, for training and for evaluation */

/* Like Python's repr: the shortest digits that read back as `x`, with a point or an exponent. */
static const char *python_float(double x, char out[40])
{
    char digits[32];
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, x);
    while (strtod(digits, NULL) != x && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16)
        snprintf(out, 40, "%s", digits);
    else
        snprintf(out, 40, "%.*f", precision - exponent > 1 ? precision - exponent : 1, x);
    return out;
}

/* The folder's real name, as in the script: links are followed. */
static void dataset_line(const lks__run *run, lks__log *log)
{
    char *real = realpath(run->data_dir, NULL);
    const char *name = real != NULL ? basename(real) : run->data_dir;
    lks__log_line(log, "train_loader:dataset:%s train_shards:%d", lks__shown(name, 512),
                  lks__shards_n_files(run->data[LKS__SPLIT_TRAIN]));
    free(real);
}

static void tokenizer_line(const lks__run *run, lks__log *log)
{
    char path[sizeof run->data_dir + 16];
    if (!run->golf->has_bpb)
        return;
    if (run->s.tokenizer_path[0] != '\0')
        snprintf(path, sizeof path, "%s", run->s.tokenizer_path);
    else
        snprintf(path, sizeof path, "%s/%s", run->data_dir,
                 run->meta.is_bytes ? "meta.json" : LKS__META_MODEL);
    lks__log_line(log, "val_bpb:enabled tokenizer_kind=%s tokenizer_path=%s",
                  run->meta.is_bytes ? "byte" : "sentencepiece", lks__shown(path, 512));
}

static void rates_line(const lks__settings *s, lks__log *log)
{
    char embed[40], head[40], matrix[40], scalar[40];
    lks__log_line(log, "tie_embeddings:%s embed_lr:%s head_lr:%s matrix_lr:%s scalar_lr:%s",
                  s->tie_embeddings ? "True" : "False",
                  python_float(s->tie_embeddings ? s->tied_embed_lr : s->embed_lr, embed),
                  python_float(s->tie_embeddings ? 0.0 : s->head_lr, head),
                  python_float(s->matrix_lr, matrix), python_float(s->scalar_lr, scalar));
}

lks_status lks__golf_log_path(const lks__run *run, char out[LKS__SETTING_STR + 16])
{
    const char *id = run->s.run_id;
    out[0] = '\0';
    if (id[0] == '\0')
        return LKS_OK;
    if (strchr(id, '/') != NULL || strlen(id) > 200)
        return lks__fail(LKS_ERR_CONFIG,
                         "run_id=%s names the file logs/RUN_ID.txt: it must have no slash and at "
                         "most 200 bytes",
                         lks__shown(id, 120));
    if (mkdir("logs", 0755) != 0 && errno != EEXIST)
        return lks__sys_fail("can't make the folder", "logs");
    snprintf(out, LKS__SETTING_STR + 16, "logs/%s.txt", id);
    return LKS_OK;
}

/* The script accepts any list, but a part without a match is most likely a mistake. */
static void parts_lines(const lks__run *run, const char *setting, const char *parts, lks__log *log)
{
    const char *part;
    char shown[120];
    size_t n;
    while ((part = lks__parts_unused(&parts, &run->table, LKS__GOLF_CONTROL, &n)) != NULL)
        lks__log_message(log, "warning: no tensor's name contains \"%s\" of %s",
                         lks__escape(shown, sizeof shown, part, n), setting);
}

void lks__golf_head_lines(const lks__run *run, const lks__session *ses, lks__log *log)
{
    const lks__settings *s = &run->s;
    int W = ses->world.world_size;
    if (s->run_id[0] != '\0')
        lks__log_line(log, "logs/%s.txt", lks__shown(s->run_id, 512));
    else
        lks__log_line(log, "%s/train.log", run->shown_out_dir);
    tokenizer_line(run, log);
    dataset_line(run, log);
    lks__log_line(log, "val_loader:shards pattern=%s/%s tokens:%" PRIu64, run->shown_data_dir,
                  lks__shards_split_name(run->data[LKS__SPLIT_VAL]), run->golf->val_tokens - 1);
    lks__log_line(log, "model_params:%zu", run->table.n_params);
    lks__log_line(log, "world_size:%d grad_accum_steps:%d", W, run->N / W);
    /* our attention is of that kind: it computes scores in blocks */
    lks__log_line(log, "sdp_backends:cudnn=False flash=True mem_efficient=False math=False");
    lks__log_line(log, "attention_mode:gqa num_heads:%" PRId64 " num_kv_heads:%" PRId64, s->n_head,
                  s->num_kv_heads);
    rates_line(s, log);
    lks__log_line(log,
                  "train_batch_tokens:%" PRId64 " train_seq_len:%" PRId64 " iterations:%" PRId64
                  " warmup_steps:%" PRId64 " max_wallclock_seconds:%.3f",
                  s->train_batch_tokens, s->block_size, s->iterations, s->warmup_steps,
                  s->max_wallclock_seconds);
    lks__log_line(log, "seed:%" PRId64, s->seed);
    parts_lines(run, "control_tensor_name_patterns", s->control_tensor_name_patterns, log);
    if (strcmp(s->int8_keep_float_fp32_name_patterns, LKS__GOLF_AS_CONTROL) != 0)
        parts_lines(run, "int8_keep_float_fp32_name_patterns",
                    s->int8_keep_float_fp32_name_patterns, log);
    if (s->warmup_steps > 0) /* the script warms up its compiler; there is none here */
        lks__log_line(log, "warmup_step:0/%" PRId64, s->warmup_steps);
    if (s->max_wallclock_seconds > 0.0)
        lks__log_line(log, "the learning rates follow rank 0's clock, so a second run gives other "
                           "losses; MAX_WALLCLOCK_SECONDS=0 avoids it");
}

/* "train_time:…ms step_avg:…ms"; the average covers the steps of the measured time. */
static const char *time_text(const lks__state *state, char out[80])
{
    const uint64_t made = state->iter + state->data_shift;
    const uint64_t steps = made > state->elapsed_from ? made - state->elapsed_from : 1;
    snprintf(out, 80, "train_time:%.0fms step_avg:%.2fms", state->elapsed_s * 1e3,
             state->elapsed_s * 1e3 / (double)steps);
    return out;
}

void lks__golf_train_line(const lks__run *run, const lks__state *state, const lks__step_result *r,
                          double mfu, char out[200])
{
    int64_t every = run->s.log_interval;
    char time[80];
    out[0] = '\0';
    if (every > 0 && (state->iter <= 10 || state->iter % (uint64_t)every == 0))
        snprintf(out, 200, "step:%" PRIu64 "/%" PRId64 " train_loss:%.4f %s", state->iter,
                 run->s.iterations, r->loss, time_text(state, time));
}

void lks__golf_eval_line(const lks__run *run, const lks__state *state, const lks__eval_result *eval,
                         char out[200])
{
    char bpb[32] = "", time[80];
    if (eval->has_bpb)
        snprintf(bpb, sizeof bpb, " val_bpb:%.4f", eval->val_bpb);
    snprintf(out, 200, "step:%" PRIu64 "/%" PRId64 " val_loss:%.4f%s %s", state->iter,
             run->s.iterations, eval->val_loss, bpb, time_text(state, time));
}

/* The script prints the memory of rank 0's device. Here it is the memory of rank 0's process, with
 * the ranks' common part: peak resident size, and peak address space. */
static void memory_line(lks__log *log)
{
    static const char status[] = "/proc/self/status";
    lks__log_line(log, "peak memory allocated: %" PRIu64 " MiB reserved: %" PRIu64 " MiB",
                  lks__sys_proc_bytes(status, "VmHWM") >> 20,
                  lks__sys_proc_bytes(status, "VmPeak") >> 20);
}

static void size_lines(const lks__run *run, const lks__finish_result *r, lks__log *log)
{
    char lines[LKS__ARTIFACT_LINES], warning[200], *rest = lines;
    lks__artifact_lines(&r->stats, r->model_bytes, run->golf->code_bytes, lines);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (line[0] != '\0')
            lks__log_line(log, "%s", line);
    if (lks__artifact_too_large(&r->stats, run->golf->code_bytes, warning))
        lks__log_message(log, "%s", warning);
}

/* Warn of times over the contest's. Training that the limit has ended counts as within it. */
static void time_lines(const lks__run *run, const lks__state *state, const lks__finish_result *r,
                       lks__log *log)
{
    const double limit = run->s.max_wallclock_seconds;
    const bool ended = limit > 0.0 && limit <= LIMIT_SECONDS;
    if (state->elapsed_s > LIMIT_SECONDS && !ended)
        lks__log_message(log, "TOO SLOW: training took %.0f s, over the contest's limit of %d s",
                         state->elapsed_s, LIMIT_SECONDS);
    if (r->eval_seconds > LIMIT_SECONDS)
        lks__log_message(log,
                         "TOO SLOW: the evaluation of the artifact took %.0f s, over the contest's "
                         "limit of %d s",
                         r->eval_seconds, LIMIT_SECONDS);
}

void lks__golf_finish_lines(const lks__trainer *t, const lks__finish_result *r, lks__log *log)
{
    const lks__eval_result *e = &r->eval;
    char bpb[32] = "", exact[32] = "";
    if (t->checks.out_of_time && t->state.iter < (uint64_t)t->run.s.iterations)
        lks__log_line(log,
                      "stopping_early: wallclock_cap train_time:%.0fms step:%" PRIu64 "/%" PRId64,
                      t->state.elapsed_s * 1e3, t->state.iter, t->run.s.iterations);
    memory_line(log);
    size_lines(&t->run, r, log);
    if (e->has_bpb) {
        snprintf(bpb, sizeof bpb, " val_bpb:%.4f", e->val_bpb);
        snprintf(exact, sizeof exact, " val_bpb:%.8f", e->val_bpb);
    }
    lks__log_line(log, "final_int8_zlib_roundtrip val_loss:%.4f%s eval_time:%.0fms", e->val_loss,
                  bpb, r->eval_seconds * 1e3);
    lks__log_line(log, "final_int8_zlib_roundtrip_exact val_loss:%.8f%s", e->val_loss, exact);
    time_lines(&t->run, &t->state, r, log);
}
