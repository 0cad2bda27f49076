/* data/prep/prep_spm.c - `lockstep prep sentencepiece`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/prep/prep_docs.h"
#include "data/text/sentencepiece/spm.h"

enum { MAX_VOCAB = 1 << 16 }; /* of a model that is trained here */

/* The trainer keeps all its text in memory, and more text doesn't improve a vocabulary. */
static const uint64_t TRAINER_BYTES = UINT64_C(256) << 20;

/* The documents are read at most three times: to count them, to train a model, and to encode
 * them. */
struct prep {
    lks__prep_job *job;
    lks__prep_docs d;
    char *model; /* the bytes of the model file */
    size_t model_bytes;
    lks__spm *spm;
    bool folds;         /* the model reads a line feed as a blank */
    uint64_t n_changed; /* documents in which it changes white space */
};

static bool trains(const struct prep *p)
{
    return p->job->o.tokenizer[0] == '\0';
}

/* ---- the model --------------------------------------------------------------------------- */

struct sentences {
    struct prep *p;
    uint64_t doc, bytes;
    char *text; /* the sentence returned last */
    lks_status st;
    char why[512]; /* st's message; the trainer then gets no sentences and reports a misleading
                      error */
};

static int no_sentence(struct sentences *s)
{
    if (s->st != LKS_OK)
        snprintf(s->why, sizeof s->why, "%s", lks_last_error());
    return 0;
}

/* Pass a document to the trainer as the exporter does: NUL as a space, no white space around it, no
 * empty documents. */
static int next_sentence(void *ctx, const char **text_p, size_t *bytes_p)
{
    struct sentences *s = ctx;
    const uint64_t most = s->p->job->o.train_docs;
    const char *text;
    size_t n;
    while (s->bytes < TRAINER_BYTES) {
        s->st = lks__docs_next(s->p->d.docs, &text, &n);
        if (s->st != LKS_OK || !text)
            return no_sentence(s);
        if (s->doc++ < s->p->d.n_val)
            continue;
        if (most != 0 && s->doc - s->p->d.n_val > most)
            return 0;
        char *copy = realloc(s->text, n + 1);
        if (!copy) {
            s->st = lks__no_memory("for a document of %zu bytes", n);
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
    struct sentences s = {.p = p, .st = LKS_OK};
    lks__docs_rewind(p->d.docs);
    if (p->job->o.training != NULL)
        p->job->o.training(true);
    lks_status st =
        lks__spm_train(p->job->o.vocab_size, next_sentence, &s, &p->model, &p->model_bytes);
    if (p->job->o.training != NULL)
        p->job->o.training(false);
    free(s.text);
    if (s.st != LKS_OK)
        return lks__fail(s.st, "%s", s.why);
    if (st != LKS_OK && s.bytes == 0)
        return lks__fail(LKS_ERR_FORMAT, "%s: its training documents have no text",
                         lks__prep_input(p->job));
    return st == LKS_OK ? st : lks__fail_in(st, "%s", lks__prep_input(p->job));
}

static lks_status get_model(struct prep *p)
{
    const char *path = p->job->o.tokenizer;
    if (!trains(p)) {
        LKS__TRY(lks__spm_read(path, &p->model, &p->model_bytes));
    } else {
        path = "the model that was trained";
        LKS__TRY(train_model(p));
    }
    const char *where = lks__shown(path, 256);
    LKS__TRY(lks__spm_open_bytes(p->model, p->model_bytes, where, &p->spm));
    uint32_t size = lks__spm_size(p->spm);
    if (!trains(p) && p->job->o.vocab_size != 0 && p->job->o.vocab_size != size)
        return lks__fail(LKS_ERR_CONFIG,
                         "vocab_size = %" PRIu32 ", but %s has %" PRIu32
                         " tokens: leave --vocab_size out",
                         p->job->o.vocab_size, where, size);
    if (lks__spm_bos(p->spm) < 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has no token for the beginning of a document (BOS), which separates "
                         "documents in token shards",
                         where);
    return LKS_OK;
}

/* ---- documents --------------------------------------------------------------------------- */

/* Find out whether the model has rules for white space, such as nmt_nfkc, SentencePiece's default.
 */
static lks_status find_folds(struct prep *p)
{
    int32_t *ids[2] = {NULL, NULL};
    size_t n[2];
    lks_status st = lks__spm_encode(p->spm, "x\nx", 3, &ids[0], &n[0]);
    LKS__THEN(st, lks__spm_encode(p->spm, "x x", 3, &ids[1], &n[1]));
    p->folds = st == LKS_OK && n[0] == n[1] && memcmp(ids[0], ids[1], n[0] * sizeof *ids[0]) == 0;
    free(ids[0]);
    free(ids[1]);
    return st;
}

/* True if the text has white space other than single blanks. */
static bool has_layout(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((text[i] >= '\t' && text[i] <= '\r') || (i > 0 && text[i] == ' ' && text[i - 1] == ' '))
            return true;
    return false;
}

static lks_status encode(void *ctx, const char *text, size_t bytes, int32_t **ids_p, size_t *n_p)
{
    struct prep *p = ctx;
    p->n_changed += p->folds && has_layout(text, bytes);
    return lks__spm_encode(p->spm, text, bytes, ids_p, n_p);
}

static void note_changed(const struct prep *p)
{
    char text[400];
    if (p->n_changed == 0 || p->job->o.note == NULL)
        return;
    snprintf(text, sizeof text,
             "%" PRIu64 " of %" PRIu64 " documents contain line feeds, tabs or runs of blanks, "
             "which become one blank each: the model normalizes white space and characters "
             "(NFKC), as in parameter-golf; char, gpt2 and bytes keep them",
             p->n_changed, p->d.n);
    p->job->o.note(text);
}

static lks_status write_all(struct prep *p)
{
    const lks__meta meta = {.vocab_size = lks__spm_size(p->spm),
                            .is_sentencepiece = true,
                            .model_hash = lks__spm_hash(p->spm)};
    LKS__TRY(find_folds(p));
    LKS__TRY(lks__prep_docs_write(&p->d, meta.vocab_size, lks__spm_bos(p->spm), encode, p));
    note_changed(p);
    LKS__TRY(lks__staged_add(&p->job->staged, LKS__META_MODEL, p->model, p->model_bytes));
    return lks__prep_describe(p->job, &meta);
}

/* ---- the preparation --------------------------------------------------------------------- */

static lks_status check(struct prep *p)
{
    lks__prep_options *o = &p->job->o;
    if (trains(p) && o->vocab_size == 0)
        o->vocab_size = LKS__PREP_VOCAB;
    if (trains(p) && o->vocab_size > MAX_VOCAB)
        return lks__fail(LKS_ERR_CONFIG, "vocab_size is %" PRIu32 "; 1 to %d are possible",
                         o->vocab_size, MAX_VOCAB);
    return lks__spm_available(); /* first, because another input can't fix this error */
}

lks_status lks__prep_sentencepiece(lks__prep_job *job)
{
    struct prep p = {.job = job};
    lks_status st = check(&p);
    LKS__THEN(st, lks__prep_docs_open(job, false, &p.d));
    LKS__THEN(st, get_model(&p));
    LKS__THEN(st, write_all(&p));
    lks__spm_close(p.spm);
    lks__prep_docs_close(&p.d);
    free(p.model);
    return st;
}
