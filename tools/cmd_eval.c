/* lockstep eval: the loss of a model over a whole split. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "rundir/evals.h"
#include "session/signals.h"
#include "tool.h"
#include "train/evaluate.h"
#include "train/procedure.h"
#include "train/remember.h"
#include "use/replica.h"

static const char usage[] =
    "Usage: lockstep eval --out_dir=DIR [--dataset=DIR] [--key=value ...]\n"
    "       lockstep eval --init_from=PATH|--artifact=FILE --dataset=DIR [--key=value ...]\n"
    "\n"
    "Mean loss of a checkpoint in --out_dir (--which), of other weights, or of an exported\n"
    "artifact, over all windows of block_size tokens of a split; the same figure on any number\n"
    "of ranks. For models of the golf family bits per byte are printed, too, with\n"
    "--tokenizer_path=MODEL. Without --dataset it is the data that the run used last.\n"
    "A checkpoint's result is also appended to evals.jsonl in --out_dir.\n";

/* What is evaluated, and on which data. */
struct job {
    lks__settings *s;
    lks__session *session;
    lks__replica replica;
    lks__shards *data; /* NULL: not open */
    lks__byte_table bytes;
    lks__split_eval eval;
};

static const char *split_of(const struct job *j)
{
    return lks__setting_word(j->s, LKS__SETTING_split);
}

/* What counts bytes; without a model that the folder names, nothing does. */
static lks_status open_bytes(struct job *j, const char *dir)
{
    uint32_t vocab = (uint32_t)j->replica.config.vocab_size;
    bool found = true;
    if (j->s->tokenizer_path[0] == '\0')
        LKS__TRY(lks__byte_table_in(dir, vocab, &found, &j->bytes));
    else
        LKS__TRY(lks__byte_table_open(j->s->tokenizer_path, vocab, &j->bytes));
    j->eval.bytes = found ? &j->bytes : NULL;
    return LKS_OK;
}

static lks_status read_tokens(const void *source, uint64_t first, size_t n, int32_t *out)
{
    return lks__shards_read(source, first, n, out);
}

static lks_status open_split(struct job *j, const char *dir)
{
    const bool golf = lks__procedure_of(&j->replica.run)->data->is_shards;
    const int split = j->s->split == LKS__split_val ? LKS__SPLIT_VAL : LKS__SPLIT_TRAIN;
    const uint32_t vocab = (uint32_t)j->replica.config.vocab_size;
    LKS__TRY(lks__split_open(dir, split, golf, vocab, &j->data));
    if (golf)
        LKS__TRY(open_bytes(j, dir));
    j->eval.path = lks__shards_path(j->data, 0);
    j->eval.n_tokens = lks__shards_count(j->data);
    j->eval.read = read_tokens;
    j->eval.source = j->data;
    return LKS_OK;
}

static lks_status open_job(struct job *j)
{
    char dir[LKS__SETTING_STR + 8];
    int batch = (int)j->s->batch_size;
    if (j->s->artifact[0] != '\0')
        LKS__TRY(lks__replica_open_artifact(j->s->artifact, j->s, batch, j->session, &j->replica));
    else
        LKS__TRY(lks__replica_open(j->s->out_dir, j->s, batch, j->session, &j->replica));
    if (j->replica.run_dir[0] != '\0')
        LKS__TRY(lks__remember_data(j->session, j->replica.run_dir, j->s));
    LKS__TRY(lks__settings_data_dir(j->s, dir));
    LKS__TRY(open_split(j, dir));
    j->eval.session = j->session;
    j->eval.model = j->replica.model;
    j->eval.params = j->replica.params.dev;
    j->eval.B = (size_t)j->s->batch_size;
    j->eval.T = (size_t)j->replica.config.block_size;
    return LKS_OK;
}

static void print_result(const struct job *j, const lks__split_result *r)
{
    char bpb[48] = "";
    if (j->eval.bytes != NULL)
        snprintf(bpb, sizeof bpb, ", %.9g bits per byte", r->bpb);
    printf("%s loss %.9g over %" PRIu64 " windows of %zu tokens (perplexity %.4f%s), %s\n",
           split_of(j), r->loss, r->n_windows, j->eval.T, exp(r->loss), bpb, j->replica.took);
    fflush(stdout);
}

/* Append to the run's evals.jsonl; an artifact belongs to no run. */
static lks_status record(const struct job *j, const lks__split_result *r)
{
    lks__evals evals;
    char dir[LKS__SETTING_STR + 8], why[200];
    const lks__replica *model = &j->replica;
    if (model->run_dir[0] == '\0')
        return LKS_OK;
    LKS__TRY(lks__settings_data_dir(j->s, dir));
    lks__jsonw *w = lks__evals_begin(&evals, "eval", model->iter, model->params_hash);
    lks__jsonw_str(w, "dataset", dir);
    lks__jsonw_str(w, "split", split_of(j));
    lks__jsonw_u64(w, "windows", r->n_windows);
    lks__jsonw_u64(w, "block_size", j->eval.T);
    lks__jsonw_float(w, "loss", r->loss);
    if (j->eval.bytes != NULL)
        lks__jsonw_float(w, "bpb", r->bpb);
    LKS__TRY(lks__evals_append(&evals, model->run_dir, why));
    if (why[0] != '\0')
        fprintf(stderr, "lockstep eval: %s\n", why);
    return LKS_OK;
}

static int run_rank(lks__settings *s)
{
    lks__session session;
    lks__split_result result;
    int stop = 0;
    /* A signal during set-up doesn't stop it at once, because its collective calls need all ranks.
     * Then no batch is begun. */
    lks__signals_install("");
    lks_status st = lks__session_open(s->backend, s->timeout, (int)s->threads, &session);
    if (st != LKS_OK)
        return tool_fail("eval", st);
    struct job j = {.s = s, .session = &session};
    st = lks__session_device(&session, s->device);
    if (st == LKS_OK)
        st = lks__session_agree(&session, open_job(&j));
    if (st == LKS_OK)
        st = lks__eval_split(&j.eval, &result);
    if (st == LKS_ERR_STOPPED) { /* all ranks agree */
        stop = lks__session_asked_stop(&session);
        st = LKS_OK;
    }
    if (st == LKS_OK && stop == 0) {
        if (session.world.rank == 0) {
            print_result(&j, &result);
            st = record(&j, &result);
        }
        st = lks__session_agree(&session, st);
    }
    lks__session_fail(&session, st);
    int code = st != LKS_OK ? tool_fail("eval", st) : stop != 0 ? TOOL_SIGNAL + stop : TOOL_OK;
    if (st == LKS_OK && stop != 0 && session.world.rank == 0)
        tool_stopped("eval", stop, "there is no loss, and nothing was written");
    lks__byte_table_free(&j.bytes);
    lks__shards_close(j.data);
    lks__replica_close(&j.replica);
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
    return tool_launches(&s) ? tool_launch("eval", &s, argc, argv) : run_rank(&s);
}
