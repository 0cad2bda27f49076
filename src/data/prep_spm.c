/* data/prep_spm.c - `lockstep prep sentencepiece`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "data/docs.h"
#include "data/prep_job.h"
#include "data/sampler.h"
#include "data/spm.h"

enum {
    MAX_VOCAB = 1 << 16, /* of a model that is trained here */
    MAX_MODEL_BYTES = 64 << 20,
};

/* The trainer holds all of its text in memory, and more than this doesn't improve a vocabulary. */
static const uint64_t TRAINER_BYTES = UINT64_C(256) << 20;

struct prep {
    lks__prep_job *job;
    lks__docs *docs;
    uint64_t n_docs, n_val_docs;
    char *model; /* the bytes of SentencePiece's file */
    size_t model_bytes;
    lks__spm *spm;
};

/* ---- how many documents ------------------------------------------------------------------ */

static bool trains(const struct prep *p)
{
    return p->job->o.tokenizer[0] == '\0';
}

/* The documents are read at most three times: to be counted, to train a model, and to be encoded.
 */
static void show(const struct prep *p, int pass)
{
    const uint64_t bytes = p->job->texts.bytes;
    lks__prep_progress(p->job, (uint64_t)pass * bytes + lks__docs_done(p->docs), 2 * bytes);
}

static lks_status count_docs(struct prep *p)
{
    char name[256];
    for (bool found = true;; p->n_docs++) {
        LKS__TRY(lks__docs_skip(p->docs, &found));
        if (!found)
            break;
        show(p, 0);
    }
    if (p->n_docs == 0 && trains(p))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is empty: it has no text to make tokens and a vocabulary of",
                         lks__prep_input(p->job, name));
    return lks__prep_val_documents(p->job, p->n_docs,
                                   "divide documents by blank lines, or give JSON lines (a name "
                                   "that ends in .jsonl), or --val_fraction=0",
                                   &p->n_val_docs);
}

/* ---- the model --------------------------------------------------------------------------- */

struct sentences {
    struct prep *p;
    uint64_t doc, bytes;
    char *text; /* the sentence returned last */
    lks_status st;
    char why[512]; /* the error of st; the trainer then gets no sentences and reports a misleading
                      one */
};

static int no_sentence(struct sentences *s)
{
    if (s->st != LKS_OK)
        snprintf(s->why, sizeof s->why, "%s", lks_last_error());
    return 0;
}

/* Give the trainer a document as the exporter does: NUL as a space, no white space around it, no
 * empty ones. */
static int next_sentence(void *ctx, const char **text_p, size_t *bytes_p)
{
    struct sentences *s = ctx;
    const uint64_t most = s->p->job->o.train_docs;
    const char *text;
    size_t n;
    while (s->bytes < TRAINER_BYTES) {
        s->st = lks__docs_next(s->p->docs, &text, &n);
        if (s->st != LKS_OK || !text)
            return no_sentence(s);
        if (s->doc++ < s->p->n_val_docs)
            continue;
        if (most != 0 && s->doc - s->p->n_val_docs > most)
            return 0;
        char *copy = realloc(s->text, n + 1);
        if (!copy) {
            s->st = lks__fail(LKS_ERR_NOMEM, "no memory for a document of %zu bytes", n);
            return no_sentence(s);
        }
        s->text = copy;
        for (size_t i = 0; i < n; i++)
            copy[i] = text[i] == '\0' ? ' ' : text[i];
        while (n > 0 && strchr(" \t\n\v\f\r", copy[n - 1]))
            n--;
        copy[n] = '\0';
        size_t skip = strspn(copy, " \t\n\v\f\r");
        if (skip == n)
            continue;
        s->bytes += n - skip;
        *text_p = copy + skip;
        *bytes_p = n - skip;
        return 1;
    }
    return 0;
}

static lks_status train_model(struct prep *p)
{
    char name[256];
    struct sentences s = {.p = p, .st = LKS_OK};
    lks__docs_rewind(p->docs);
    if (p->job->o.training != NULL)
        p->job->o.training(true);
    lks_status st =
        lks__spm_train(p->job->o.vocab_size, next_sentence, &s, &p->model, &p->model_bytes);
    if (p->job->o.training != NULL)
        p->job->o.training(false);
    free(s.text);
    if (s.st != LKS_OK)
        return lks__fail(s.st, "%s", s.why);
    return st == LKS_OK ? st : lks__fail_in(st, "%s", lks__prep_input(p->job, name));
}

static lks_status get_model(struct prep *p)
{
    char where[256];
    const char *path = p->job->o.tokenizer;
    if (!trains(p)) {
        LKS__TRY(lks__sys_read_file(path, MAX_MODEL_BYTES, &p->model, &p->model_bytes));
    } else {
        path = "the model that was trained";
        LKS__TRY(train_model(p));
    }
    lks__escape(where, sizeof where, path, strlen(path));
    LKS__TRY(lks__spm_open_bytes(p->model, p->model_bytes, where, &p->spm));
    uint32_t size = lks__spm_size(p->spm);
    if (!trains(p) && p->job->o.vocab_size != 0 && p->job->o.vocab_size != size)
        return lks__fail(LKS_ERR_CONFIG,
                         "vocab_size = %" PRIu32 ", but %s has %" PRIu32
                         " tokens: leave --vocab_size out",
                         p->job->o.vocab_size, where, size);
    if (lks__spm_bos(p->spm) < 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has no token for the beginning of a document (BOS), which divides "
                         "documents in token shards",
                         where);
    return LKS_OK;
}

/* ---- documents --------------------------------------------------------------------------- */

static lks_status put_doc(struct prep *p, const char *text, size_t bytes)
{
    int32_t *ids;
    size_t n;
    const int32_t bos = lks__spm_bos(p->spm);
    LKS__TRY(lks__split_put(&p->job->writer, &bos, 1));
    LKS__TRY(lks__spm_encode(p->spm, text, bytes, &ids, &n));
    lks_status st = lks__split_put(&p->job->writer, ids, n);
    free(ids);
    return st;
}

/* The next n documents, as a split. */
static lks_status write_split(struct prep *p, int split, uint64_t n)
{
    char name[256];
    const char *text;
    size_t bytes;
    LKS__TRY(lks__split_begin(&p->job->writer, split));
    for (; n > 0; n--) {
        LKS__TRY(lks__docs_next(p->docs, &text, &bytes));
        if (text == NULL)
            return lks__fail(LKS_ERR_IO, "%s changed while it was read",
                             lks__prep_input(p->job, name));
        LKS__TRY(put_doc(p, text, bytes));
        show(p, 1);
    }
    return lks__prep_end_split(p->job);
}

static lks_status write_all(struct prep *p)
{
    const lks__meta meta = {.vocab_size = lks__spm_size(p->spm),
                            .is_sentencepiece = true,
                            .model_hash = lks__spm_hash(p->spm)};
    LKS__TRY(lks__prep_begin(p->job, meta.vocab_size));
    lks__docs_rewind(p->docs);
    if (p->job->o.val_fraction > 0.0)
        LKS__TRY(write_split(p, LKS__SPLIT_VAL, p->n_val_docs));
    LKS__TRY(write_split(p, LKS__SPLIT_TRAIN, p->n_docs - p->n_val_docs));
    LKS__TRY(lks__staged_add(&p->job->staged, LKS__META_MODEL, p->model, p->model_bytes));
    return lks__prep_describe(p->job, &meta);
}

/* ---- all of it --------------------------------------------------------------------------- */

static lks_status check(struct prep *p)
{
    lks__prep_options *o = &p->job->o;
    if (trains(p) && o->vocab_size == 0)
        o->vocab_size = LKS__PREP_VOCAB;
    if (trains(p) && o->vocab_size > MAX_VOCAB)
        return lks__fail(LKS_ERR_CONFIG, "vocab_size is %" PRIu32 "; 1 to %d are possible",
                         o->vocab_size, MAX_VOCAB);
    return lks__spm_available(); /* first: another input can't mend it */
}

lks_status lks__prep_sentencepiece(lks__prep_job *job)
{
    struct prep p = {.job = job};
    lks_status st = check(&p);
    if (st == LKS_OK)
        st = lks__docs_open(&job->texts, 0, job->texts.n, job->o.field, &p.docs);
    if (st == LKS_OK)
        st = count_docs(&p);
    if (st == LKS_OK)
        st = get_model(&p);
    if (st == LKS_OK)
        st = write_all(&p);
    lks__spm_close(p.spm);
    lks__docs_close(p.docs);
    free(p.model);
    return st;
}
