/* lockstep eval: computes the loss of a model over a whole split. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "../progress.h"
#include "../runs.h"
#include "../tool.h"
#include "base/number/math.h"
#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/shell.h"
#include "report/record/metrics/evals.h"
#include "session/signals.h"
#include "train/checks/agree.h"
#include "train/evaluate/evaluate.h"
#include "train/procedure/procedure.h"
#include "train/setup/remember.h"
#include "weights/choice/given.h"
#include "weights/use/text.h"
#include "weights/weights.h"

static const char usage[] =
    "Usage: lockstep eval RUN [--dataset=DIR|FILE|PATTERN] [--key=value ...]\n"
    "       lockstep eval --init_from=PATH|--artifact=FILE --dataset=DIR|FILE|PATTERN\n"
    "\n"
    "Computes the mean loss of a model over all windows of block_size tokens. The\n"
    "model is a checkpoint (--checkpoint) of the run in the folder RUN, or given by\n"
    "--init_from or --artifact. The tokens are a split of a data folder, a file of\n"
    "tokens, or all shards that match a pattern. Without --dataset they are the run's\n"
    "own data. Overlapping windows: --stride=N.\n"
    "\n"
    "The result is the same on any number of ranks. It includes bits per byte if the\n"
    "tokenizer is known. For a SentencePiece model, give --tokenizer_path=MODEL. A\n"
    "checkpoint's result is also appended to evals.jsonl in RUN. --out_dir=RUN is the\n"
    "older form of RUN.\n"
    "\n"
    "  lockstep eval out/my\n"
    "  lockstep eval out/my --split=train --checkpoint=latest\n";

struct evaluation {
    lks__settings *s;
    lks__session *session;
    lks__replica replica;
    lks__shards *data;
    char dataset[LKS__SETTING_STR + 8];
    bool is_file;                /* a file or a pattern of files; false: a folder */
    char folder[LKS__CKPT_PATH]; /* the dataset, or the folder that contains its files */
    lks__meta meta;              /* of the tokens in this folder; vocab_size 0: not known */
    lks__byte_table bytes;
    lks__step_work work;
    lks__split_eval eval;
};

/* The name of the data in the output: the split, or the file's name. */
static const char *data_name(const struct evaluation *e, char out[256])
{
    if (!e->is_file)
        return lks__setting_word(e->s, LKS__SETTING_split);
    const char *name = lks__sys_name(e->dataset);
    return lks__escape(out, 256, name, strlen(name));
}

/* Check that the tokens were made with the tokenizer at `path`. */
static lks_status check_given(const struct evaluation *e, const lks__text *t, const char *path)
{
    lks__meta given = t->spm != NULL ? (lks__meta){.is_sentencepiece = true} : *t->meta;
    if (t->spm != NULL)
        given.model_hash = lks__spm_hash(t->spm);
    if (t->bpe != NULL) {
        given = (lks__meta){.is_bpe = true};
        LKS__TRY(lks__bpe_hash(t->bpe, &given.model_hash));
    }
    return lks__given_tokenizer_of(&e->meta, e->dataset, &given, path);
}

/* Count bytes by the tokenizer at `path`; "": by the one next to the weights, if it can be read. */
static lks_status open_tokenizer(struct evaluation *e, const char *path, bool *found_p)
{
    const uint32_t vocab = (uint32_t)e->replica.config.vocab_size;
    lks__text text;
    lks_status st = lks__text_open(path, &e->replica, &text);
    *found_p = st == LKS_OK && lks__text_known(&text);
    if (*found_p && path[0] != '\0')
        st = check_given(e, &text, path);
    if (st != LKS_OK)
        *found_p = false;
    else if (*found_p && text.bpe != NULL)
        st = lks__byte_table_bpe(text.bpe, vocab, &e->bytes);
    else if (*found_p && text.spm != NULL)
        st = lks__byte_table_open(path, vocab, &e->bytes);
    else if (*found_p)
        st = lks__byte_table_chars(text.meta, vocab, &e->bytes);
    lks__text_close(&text);
    return st == LKS_ERR_SUPPORT && path[0] == '\0' ? LKS_OK : st;
}

/* Count bytes by the tokenizer next to the tokens: characters, bytes or GPT-2's. */
static lks_status open_data_vocabulary(struct evaluation *e, uint32_t vocab, bool *found_p)
{
    lks__bpe *bpe;
    if (e->meta.chars != NULL || e->meta.is_bytes)
        return lks__byte_table_chars(&e->meta, vocab, &e->bytes);
    *found_p = e->meta.is_bpe && lks__bpe_is_at(e->folder);
    if (!*found_p)
        return LKS_OK;
    LKS__TRY(lks__bpe_open(e->folder, &bpe));
    const lks_status st = lks__byte_table_bpe(bpe, vocab, &e->bytes);
    lks__bpe_close(bpe);
    return st;
}

/* Find a tokenizer that counts bytes, in this order: the model's own, a given one, one next to the
 * weights, the one next to the tokens. Without one no bits per byte are printed. */
static lks_status open_bytes(struct evaluation *e, bool pieces)
{
    const uint32_t vocab = (uint32_t)e->replica.config.vocab_size;
    const lks__meta *meta = &e->replica.meta;
    /* golf's TOKENIZER_PATH isn't meant for a run of another family */
    const char *family = lks__setting_word(&e->replica.run, LKS__SETTING_family);
    const bool given = e->replica.run_dir[0] == '\0' ||
                       lks__settings_given_for(e->s, LKS__SETTING_tokenizer_path, family);
    const char *path = given ? e->s->tokenizer_path : "";
    bool found = true;
    if (meta->chars != NULL || meta->is_bytes)
        LKS__TRY(lks__byte_table_chars(meta, vocab, &e->bytes));
    else if (path[0] != '\0' || (!meta->is_sentencepiece && lks__bpe_is_at(e->replica.vocabulary)))
        LKS__TRY(open_tokenizer(e, path, &found));
    else if (pieces)
        LKS__TRY(lks__byte_table_in(e->folder, vocab, &found, &e->bytes));
    else if (!meta->is_sentencepiece)
        LKS__TRY(open_data_vocabulary(e, vocab, &found));
    else
        found = false;
    e->eval.bytes = found ? &e->bytes : NULL;
    return LKS_OK;
}

static lks_status find_data(struct evaluation *e)
{
    struct stat info;
    const char *path = e->s->dataset;
    const bool there = stat(path, &info) == 0;
    e->is_file = there ? !S_ISDIR(info.st_mode) : strpbrk(path, "*?[") != NULL;
    snprintf(e->dataset, sizeof e->dataset, "%s", path);
    if (e->is_file) {
        lks__ckpt_parent(path, e->folder);
        return LKS_OK;
    }
    LKS__TRY(lks__settings_data_dir(e->s, e->dataset));
    snprintf(e->folder, sizeof e->folder, "%s", e->dataset);
    return LKS_OK;
}

/* Read the tokenizer that is next to the tokens. A vocabulary that can't be read is like none. */
static lks_status open_meta(struct evaluation *e)
{
    bool found;
    LKS__TRY(lks__meta_load(e->folder, &found, &e->meta));
    if (lks__meta_describes(&e->meta) || !lks__bpe_is_at(e->folder))
        return LKS_OK;
    return lks__meta_of_vocabulary(e->folder, &e->meta) == LKS_ERR_NOMEM ? LKS_ERR_NOMEM : LKS_OK;
}

/* Check that the tokens' tokenizer is the model's: the one that a run recorded, or that is next to
 * other weights. */
static lks_status check_tokenizer(const struct evaluation *e)
{
    const lks__replica *r = &e->replica;
    lks__meta theirs = {0};
    const char *shown = lks__shown(r->path, 256);
    lks_status st = lks__given_same_meaning(&e->meta, e->dataset, &r->meta, shown);
    if (st == LKS_OK && r->run_dir[0] == '\0')
        st = lks__weights_meta_in(r->vocabulary, (uint32_t)r->config.vocab_size, &theirs);
    LKS__THEN(st, lks__given_same_meaning(&e->meta, e->dataset, &theirs, shown));
    lks__meta_free(&theirs);
    return st;
}

/* Check that the run's folder still contains the tokens of its training. */
static lks_status check_digest(const struct evaluation *e, bool golf)
{
    const lks__replica *r = &e->replica;
    uint64_t digest = 0;
    lks__shards *data[2] = {NULL, NULL};
    lks_status st = LKS_OK;
    if (e->s->from[LKS__SETTING_dataset] != LKS__FROM_CHECKPOINT || r->data_digest[0] == '\0')
        return LKS_OK;
    for (int split = 0; split < 2 && st == LKS_OK; split++)
        if (golf || lks__split_exists(e->dataset, split))
            st = lks__split_open(e->dataset, split, golf, (uint32_t)r->config.vocab_size,
                                 &data[split]);
    LKS__THEN(st, lks__procedure_digest(data, &digest));
    for (int split = 0; split < 2; split++)
        lks__shards_close(data[split]);
    const char *have = lks__hex(digest);
    if (st != LKS_OK || strcmp(have, r->data_digest) == 0)
        return st;
    return lks__fail(LKS_ERR_CONFIG,
                     "the data in %s is not the data that checkpoint %s was trained on (digest %s, "
                     "not %s): --dataset=%s evaluates on it all the same",
                     lks__shown(e->dataset, 512), lks__shown(r->path, 512), have, r->data_digest,
                     lks__quoted(e->dataset, 512));
}

/* Refuse a folder without validation tokens unless --split is given. */
static lks_status check_split(const struct evaluation *e)
{
    if (e->s->from[LKS__SETTING_split] != LKS__FROM_DEFAULT ||
        lks__split_exists(e->dataset, LKS__SPLIT_VAL) ||
        !lks__split_exists(e->dataset, LKS__SPLIT_TRAIN))
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "%s has no validation tokens: use --split=train for the training tokens, or "
                     "--dataset=DIR for other data",
                     lks__shown(e->dataset, 256));
}

static lks_status open_split(struct evaluation *e)
{
    const bool golf = lks__procedure_of(&e->replica.run)->data->is_shards;
    const int split = e->s->split == LKS__split_val ? LKS__SPLIT_VAL : LKS__SPLIT_TRAIN;
    const uint32_t vocab = (uint32_t)e->replica.config.vocab_size;
    LKS__TRY(find_data(e));
    if (!e->is_file) {
        LKS__TRY(check_split(e));
        LKS__TRY(check_digest(e, golf));
    }
    LKS__TRY(open_meta(e));
    LKS__TRY(check_tokenizer(e));
    if (e->is_file)
        LKS__TRY(lks__shards_open_any(e->dataset, vocab, &e->data));
    else
        LKS__TRY(lks__split_open(e->dataset, split, golf, vocab, &e->data));
    LKS__TRY(open_bytes(e, golf));
    e->eval.n_tokens = lks__shards_count(e->data);
    e->eval.source = e->data;
    return LKS_OK;
}

static lks_status choose_length(struct evaluation *e)
{
    const lks__settings *s = e->s;
    lks__model_config *c = &e->replica.config;
    if (s->from[LKS__SETTING_block_size] == LKS__FROM_ARG) {
        if (s->block_size > c->block_size && lks__model_has_positions(c))
            return lks__fail(LKS_ERR_CONFIG,
                             "--block_size=%" PRId64 ": the model has positions for %d tokens only",
                             s->block_size, c->block_size);
        c->block_size = (int)s->block_size;
    }
    if (s->stride > c->block_size)
        return lks__fail(LKS_ERR_CONFIG,
                         "--stride=%" PRId64 " is more than a window of block_size = %d tokens: "
                         "tokens between windows would be left out",
                         s->stride, c->block_size);
    return LKS_OK;
}

static void show_progress(void *ctx, size_t done, size_t n)
{
    progress_text("%zu of %zu batches", done, n);
}

static lks_status open_evaluation(struct evaluation *e)
{
    lks__replica *r = &e->replica;
    char gone[LKS__SETTING_STR] = "";
    if (e->s->artifact[0] != '\0')
        LKS__TRY(lks__replica_open_artifact(e->s->artifact, e->s, e->session, r));
    else
        LKS__TRY(lks__replica_open(e->s->out_dir, e->s, e->session, r));
    const char *family = lks__setting_word(&r->run, LKS__SETTING_family);
    if (r->run_dir[0] != '\0')
        LKS__TRY(lks__remember_data(e->session, r->run_dir, family, e->s));
    if (r->run_dir[0] != '\0' && r->meta.is_sentencepiece)
        LKS__TRY(lks__remember_tokenizer(e->session, r->run_dir, family, e->s, gone));
    if (gone[0] != '\0') {
        progress_hide();
        fprintf(stderr,
                "lockstep eval: the run's tokenizer %s no longer exists, so no bits per byte are "
                "printed: give it as --tokenizer_path=MODEL\n",
                lks__shown(gone, 512));
    }
    if (lks__settings_uses_weights(e->s) && e->s->from[LKS__SETTING_dataset] == LKS__FROM_DEFAULT &&
        r->run.dataset[0] != '\0')
        memcpy(e->s->dataset, r->run.dataset, sizeof e->s->dataset);
    LKS__TRY(choose_length(e));
    const size_t rows = (size_t)e->s->batch_size * (size_t)r->config.block_size;
    LKS__TRY(lks__model_open_forward(&r->config, &r->table, rows, e->session->device, &r->model));
    LKS__TRY(open_split(e));
    e->eval.session = e->session;
    e->eval.work = &e->work;
    e->eval.params = r->params.dev;
    e->eval.B = (size_t)e->s->batch_size;
    e->eval.T = (size_t)r->config.block_size;
    e->eval.stride = (size_t)e->s->stride;
    e->work.model = r->model;
    LKS__TRY(lks__mirror_open(e->session->device, sizeof(float), &e->work.losses));
    return lks__batch_open(e->session->device, e->eval.B * e->eval.T, &e->work.batch);
}

static lks_status print_result(const struct evaluation *e, const lks__split_result *r)
{
    char bpb[48] = "", stride[48] = "", name[256];
    if (e->eval.bytes != NULL)
        snprintf(bpb, sizeof bpb, ", %.9g bits per byte", r->bpb);
    if (e->eval.stride > 0)
        snprintf(stride, sizeof stride, ", stride %zu", e->eval.stride);
    printf("%s loss %.9g over %" PRIu64 " window%s of %zu token%s%s (perplexity %.4f%s), %s\n",
           data_name(e, name), r->loss, r->n_windows, r->n_windows == 1 ? "" : "s", e->eval.T,
           e->eval.T == 1 ? "" : "s", stride, lks__math_exp(r->loss), bpb, e->replica.origin);
    return tool_flush();
}

/* Append to the run's evals.jsonl. Weights without a run's folder have none. */
static lks_status record(const struct evaluation *e, const lks__split_result *r)
{
    lks__evals evals;
    char why[200], name[256];
    const lks__replica *model = &e->replica;
    if (model->run_dir[0] == '\0')
        return LKS_OK;
    lks__jsonw *w = lks__evals_begin(&evals, "eval", model->iter, model->params_hash);
    lks__jsonw_str(w, "dataset", e->dataset);
    lks__jsonw_str(w, "split", data_name(e, name));
    lks__jsonw_u64(w, "windows", r->n_windows);
    lks__jsonw_u64(w, "block_size", e->eval.T);
    if (e->eval.stride > 0)
        lks__jsonw_u64(w, "stride", e->eval.stride);
    lks__jsonw_float(w, "loss", r->loss);
    if (e->eval.bytes != NULL)
        lks__jsonw_float(w, "bpb", r->bpb);
    LKS__TRY(lks__evals_append(&evals, model->run_dir, why));
    if (why[0] != '\0')
        fprintf(stderr, "lockstep eval: %s\n", why);
    return LKS_OK;
}

static int stopped(int signo)
{
    return tool_stopped("eval", signo, "there is no loss, and nothing was written");
}

static lks_status evaluate(struct evaluation *e, lks__split_result *result)
{
    lks__session *session = e->session;
    const lks__settings *s = e->s;
    lks_status st = lks__agree_settings(session, s, LKS__CMD_EVAL);
    LKS__THEN(st, lks__session_device(session, s->device, s->share_gpu));
    progress_hide();
    tool_print_device_note("eval", session);
    LKS__TRY(st);
    LKS__TRY(lks__session_agree(session, open_evaluation(e)));
    LKS__TRY(lks__session_rehearse(session, NULL, lks__eval_rehearse, &e->eval));
    return s->stride > 0 ? lks__eval_sliding(&e->eval, result) : lks__eval_split(&e->eval, result);
}

/* Print and record the result, on rank 0. Record it even if it can't be printed. */
static lks_status report(const struct evaluation *e, const lks__split_result *result)
{
    if (e->session->world.rank != 0)
        return LKS_OK;
    const lks_status printed = print_result(e, result), recorded = record(e, result);
    return recorded == LKS_OK ? printed : recorded;
}

static int run_rank(lks__settings *s)
{
    lks__session session;
    lks__split_result result;
    int stop = 0;
    /* A signal during set-up doesn't end it at once, because its collective calls need all ranks.
     * The evaluation then starts no batch. */
    lks__signals_install("");
    lks_status st = lks__session_open(s->backend, s->timeout, (int)s->threads,
                                      (enum lks__bind)s->bind, &session);
    if (st == LKS_ERR_STOPPED)
        return tool_speaks() ? stopped(lks__stop_requested) : TOOL_SIGNAL + lks__stop_requested;
    if (st != LKS_OK)
        return tool_fail("eval", st);
    struct evaluation e = {.s = s, .session = &session};
    progress_begin("lockstep eval", "opening the model and the data");
    session.on_progress = show_progress;
    st = evaluate(&e, &result);
    if (st == LKS_ERR_STOPPED) { /* all ranks agree */
        stop = lks__session_asked_stop(&session);
        st = LKS_OK;
    } else if (st == LKS_OK) {
        progress_end();
        st = lks__session_agree(&session, report(&e, &result));
    }
    lks__session_fail(&session, st);
    int code = st != LKS_OK ? tool_fail("eval", st) : stop != 0 ? TOOL_SIGNAL + stop : TOOL_OK;
    if (st == LKS_OK && stop != 0 && session.world.rank == 0)
        stopped(stop);
    lks__byte_table_free(&e.bytes);
    lks__meta_free(&e.meta);
    lks__shards_close(e.data);
    lks__batch_close(&e.work.batch);
    lks__mirror_close(&e.work.losses);
    lks__replica_close(&e.replica);
    lks__session_close(&session);
    return code;
}

int tool_eval(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("eval", LKS__CMD_EVAL, usage, argc, argv, 0, &s, &args, &code))
        return code;
    if (tool_is_rank())
        return run_rank(&s);
    tool_print_notes("eval", &args);
    if (s.artifact[0] != '\0' && s.from[LKS__SETTING_checkpoint] == LKS__FROM_ARG)
        return tool_fail("eval", lks__fail(LKS_ERR_CONFIG,
                                           "--artifact and --checkpoint each name a model: leave "
                                           "one of them out"));
    const bool uses_run = !lks__settings_uses_weights(&s) && s.artifact[0] == '\0';
    const lks_status there = uses_run ? tool_run_check("eval", s.out_dir) : LKS_OK;
    if (there != LKS_OK)
        return tool_fail("eval", there);
    return tool_launches(&s) ? tool_launch("eval", &s, argc, argv) : run_rank(&s);
}
