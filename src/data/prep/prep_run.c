/* data/prep/prep_run.c - the kinds of tokens, and a preparation from its options to its files. */
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "data/prep/input/docs.h"
#include "data/prep/prep_job.h"
#include "data/read/sampler.h"
#include "data/text/bpe/bpe.h"
#include "data/text/encoding.h"

#define TINYSHAKESPEARE "`lockstep fetch shakespeare`, then --input=data/shakespeare/input.txt"

enum { HEAD_BYTES = 1 << 16 };

static const struct lks__prep_kind kinds[] = {
    {.name = "char",
     .val_fraction = 0.1,
     .takes = LKS__PREP_TOKENIZER,
     .keeps = LKS__KEEPS_MARK | LKS__KEEPS_NUL,
     .get = "give your own text, or get nanoGPT's with " TINYSHAKESPEARE,
     .run = lks__prep_char},
    {.name = "gpt2",
     .val_fraction = 0.0005,
     .takes = LKS__PREP_TOKENIZER | LKS__PREP_SPECIAL | LKS__PREP_VAL_DOCS,
     .keeps = LKS__KEEPS_ALL,
     .needs_tokenizer = true,
     .run = lks__prep_bpe},
    {.name = "openwebtext",
     .val_fraction = 0.0005,
     .takes = LKS__PREP_TOKENIZER | LKS__PREP_SPECIAL | LKS__PREP_VAL_DOCS,
     .keeps = LKS__KEEPS_ALL,
     .needs_tokenizer = true,
     .get =
         "JSON lines with a \"text\" each, for example made with `python3 -c \"from datasets "
         "import load_dataset as l; l('openwebtext', "
         "split='train').to_json('openwebtext.jsonl')\"` (`lockstep fetch openwebtext` says more), "
         "then --input=openwebtext.jsonl",
     .shuffles = true,
     .run = lks__prep_bpe},
    {.name = "shakespeare",
     .val_fraction = 0.1,
     .takes = LKS__PREP_TOKENIZER | LKS__PREP_SPECIAL | LKS__PREP_VAL_DOCS,
     .keeps = LKS__KEEPS_ALL,
     .needs_tokenizer = true,
     .get = TINYSHAKESPEARE,
     .run = lks__prep_bpe},
    {.name = "sentencepiece",
     .val_fraction = 0.1,
     .shard_tokens = LKS__PREP_SHARD_TOKENS,
     .takes =
         LKS__PREP_TOKENIZER | LKS__PREP_VOCAB_SIZE | LKS__PREP_VAL_DOCS | LKS__PREP_TRAIN_DOCS,
     .run = lks__prep_sentencepiece},
    {.name = "bytes",
     .val_fraction = 0.1,
     .shard_tokens = LKS__PREP_SHARD_TOKENS,
     .takes = LKS__PREP_VAL_DOCS,
     .keeps = LKS__KEEPS_ALL,
     .run = lks__prep_bytes},
    {.name = "raw",
     .val_fraction = 0.1,
     .keeps = LKS__KEEPS_MARK | LKS__KEEPS_CRLF | LKS__KEEPS_NUL,
     .raw = true,
     .run = lks__prep_char},
};

const char *lks__prep_kind_name(int i)
{
    return i < (int)(sizeof kinds / sizeof kinds[0]) ? kinds[i].name : NULL;
}

const lks__prep_kind *lks__prep_kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

bool lks__prep_takes(const lks__prep_kind *kind, int what)
{
    return (kind->takes & what) != 0;
}

/* --- functions for the kinds ----------------------------------------------------------------- */

lks_status lks__prep_begin(lks__prep_job *job, uint32_t vocab_size)
{
    job->result.vocab_size = vocab_size;
    LKS__TRY(lks__split_writer_open(&job->staged, job->o.shard_tokens, vocab_size, &job->writer));
    return lks__sys_make_dirs(job->o.out_dir);
}

lks_status lks__prep_end_split(lks__prep_job *job)
{
    const bool val = job->writer.split == LKS__SPLIT_VAL;
    return lks__split_end(&job->writer, val ? &job->result.n_val : &job->result.n_train);
}

lks_status lks__prep_describe(lks__prep_job *job, const lks__meta *meta)
{
    json_t *json = lks__meta_to_json(meta);
    const bool complete = json_object_set(json, LKS__META_HASHES, job->writer.hashes) == 0;
    char *text = complete ? lks__json_dump(json, JSON_COMPACT) : NULL;
    json_decref(json);
    LKS__MEMORY(text, "for meta.json");
    lks_status st = lks__staged_add(&job->staged, "meta.json", text, strlen(text));
    free(text);
    return st;
}

void lks__prep_count(lks__prep_job *job, uint64_t bytes)
{
    job->result.n_docs++;
    job->result.n_empty += bytes == 0;
}

void lks__prep_progress(const lks__prep_job *job, uint64_t done, uint64_t all)
{
    if (job->o.progress != NULL)
        job->o.progress(done, all);
}

const char *lks__prep_input(const lks__prep_job *job)
{
    static _Thread_local char out[256];
    const char *name = job->texts.n == 1 ? job->texts.files[0].path : job->o.input;
    const size_t n = job->texts.n == 1 ? strlen(name) : strcspn(name, "\n");
    size_t more = 0;
    lks__escape(out, sizeof out - 32, name, n);
    for (const char *at = name + n; *at != '\0'; at++)
        more += *at == '\n';
    if (more > 0)
        snprintf(out + strlen(out), 32, " and %zu more", more);
    return out;
}

/* Computed in double and truncated, like int(n*0.9) in nanoGPT's prepare.py; 1 - 0.1 is exactly
 * 0.9. */
lks_status lks__prep_split(const lks__prep_job *job, uint64_t n, uint64_t *n_train_p)
{
    const double val_fraction = job->o.val_fraction;
    const uint64_t n_train = *n_train_p = (uint64_t)((double)n * (1.0 - val_fraction));
    if (val_fraction == 0.0 || (n_train > 0 && n_train < n))
        return LKS_OK;
    return lks__fail(
        LKS_ERR_FORMAT, "%s has %llu %s%s: with val_fraction %g that leaves the %s split empty",
        lks__prep_input(job), (unsigned long long)n, job->kind->raw ? "byte" : "character",
        n == 1 ? "" : "s", val_fraction, n_train == 0 ? "train" : "val");
}

/* Counting doesn't parse lines. Parse a single one: the file may be another form of JSON. */
static lks_status check_line(const lks__prep_job *job)
{
    lks__docs *docs;
    const char *text;
    size_t bytes;
    LKS__TRY(lks__docs_open(&job->texts, 0, job->texts.n, job->o.field, &docs));
    lks_status st = lks__docs_next(docs, &text, &bytes);
    lks__docs_close(docs);
    return st;
}

lks_status lks__prep_val_documents(const lks__prep_job *job, uint64_t n, const char *hint,
                                   uint64_t *n_val_p)
{
    const bool is_jsonl = job->texts.n == 1 && job->texts.files[0].is_jsonl;
    *n_val_p = job->o.val_docs;
    if (n == 1 && is_jsonl)
        LKS__TRY(check_line(job));
    if (job->o.val_docs > 0 && job->o.val_docs < n)
        return LKS_OK;
    if (job->o.val_docs > 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "num_val_docs is %llu, but %s has %llu document%s, and at least one is "
                         "needed for training",
                         (unsigned long long)job->o.val_docs, lks__prep_input(job),
                         (unsigned long long)n, n == 1 ? "" : "s");
    if (job->o.val_fraction == 0.0 || n == 0)
        return LKS_OK;
    if (n == 1)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is one document, but training and validation need at least one each: "
                         "%s",
                         lks__prep_input(job), is_jsonl ? "give more, or --val_fraction=0" : hint);
    *n_val_p = (uint64_t)((double)n * job->o.val_fraction);
    if (*n_val_p == 0)
        *n_val_p = 1;
    return LKS_OK;
}

lks_status lks__prep_empty(const lks__prep_job *job)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is empty or blank: there is no text to make tokens from",
                     lks__prep_input(job));
}

lks_status lks__prep_changed(const lks__prep_job *job)
{
    return lks__fail(LKS_ERR_IO, "%s changed while it was read", lks__prep_input(job));
}

/* --- the inputs ------------------------------------------------------------------------------ */

/* Remarks about the files, by kind: LKS__KEEPS_... is 1 << kind. */
enum { REMARKS = 4 };
struct remarks {
    char first[REMARKS][LKS__REMARK];
    size_t n[REMARKS];
};

/* Check the beginning of a file. */
static lks_status look_at(const lks__prep_job *job, size_t i, char *head, struct remarks *r)
{
    int fd;
    char remark[LKS__REMARK];
    const lks__text_file *file = &job->texts.files[i];
    const size_t n = file->bytes < HEAD_BYTES ? (size_t)file->bytes : HEAD_BYTES;
    LKS__TRY(lks__texts_file(&job->texts, i, &fd));
    lks_status st = lks__texts_read(&job->texts, i, fd, 0, n, head);
    lks__sys_close(fd);
    LKS__TRY(st);
    LKS__TRY(lks__check_container(file->path, head, n));
    for (int k = 0; k < REMARKS && !file->is_jsonl; k++) {
        lks__text_remark(file->path, head, n, job->kind->keeps & 1 << k, remark);
        if (remark[0] != '\0' && r->n[k]++ == 0)
            memcpy(r->first[k], remark, sizeof remark);
    }
    return LKS_OK;
}

/* Report the first file of each kind, and the number of others. */
static void note_remarks(const lks__prep_job *job, const struct remarks *r)
{
    char text[LKS__REMARK + 64];
    for (int k = 0; k < REMARKS && job->o.note != NULL; k++) {
        if (r->n[k] == 0)
            continue;
        const size_t more = r->n[k] - 1;
        snprintf(text, sizeof text, more == 0 ? "%s" : "%s (and %zu more file%s like it)",
                 r->first[k], more, more == 1 ? "" : "s");
        job->o.note(text);
    }
}

static lks_status look_at_all(const lks__prep_job *job)
{
    struct remarks r = {0};
    lks_status st = LKS_OK;
    char *head = malloc(HEAD_BYTES);
    LKS__MEMORY(head, "to read a text");
    for (size_t i = 0; i < job->texts.n && st == LKS_OK; i++)
        st = look_at(job, i, head, &r);
    free(head);
    if (st == LKS_OK)
        note_remarks(job, &r);
    return st;
}

/* Report the first skipped entries of folders. */
static void note_left(const lks__prep_job *job)
{
    enum { SHOWN = 5 };
    char text[SHOWN * 200 + 100];
    const lks__texts *t = &job->texts;
    snprintf(text, sizeof text, "left out %zu entr%s of folders: ", t->n_left,
             t->n_left == 1 ? "y" : "ies");
    if (t->n_left == 0 || job->o.note == NULL)
        return;
    for (size_t i = 0; i < t->n_left && i < SHOWN; i++)
        lks__append(text, sizeof text, i == 0 ? "" : ", ", "%s (%s)",
                    lks__shown(t->left[i].path, 160), t->left[i].why);
    if (t->n_left > SHOWN)
        lks__append(text, sizeof text, "", " and %zu more", t->n_left - SHOWN);
    job->o.note(text);
}

static bool is_same(const lks__text_file *a, const lks__text_file *b)
{
    return a->dev == b->dev && a->ino == b->ino;
}

static int by_file(const void *a, const void *b)
{
    const lks__text_file *x = a, *y = b;
    if (x->dev != y->dev)
        return x->dev < y->dev ? -1 : 1;
    if (x->ino != y->ino)
        return x->ino < y->ino ? -1 : 1;
    return strcmp(x->path, y->path);
}

/* Report files that are read more than once: validation could then measure text of the training
 * split. */
static lks_status note_twice(const lks__prep_job *job)
{
    const size_t n = job->texts.n;
    char other[300] = "", more[40] = "", text[700];
    const lks__text_file *first = NULL;
    size_t n_twice = 0;
    if (n < 2)
        return LKS_OK;
    lks__text_file *files = malloc(n * sizeof *files);
    LKS__MEMORY(files, "to list the input's files");
    memcpy(files, job->texts.files, n * sizeof *files);
    qsort(files, n, sizeof *files, by_file);
    for (size_t i = 1; i < n; i++)
        if (is_same(&files[i - 1], &files[i]) && (i < 2 || !is_same(&files[i - 2], &files[i])) &&
            n_twice++ == 0)
            first = &files[i - 1];
    if (first != NULL && job->o.note != NULL) {
        if (strcmp(first[0].path, first[1].path) != 0)
            snprintf(other, sizeof other, " (also as %s)", lks__shown(first[1].path, 256));
        if (n_twice > 1)
            snprintf(more, sizeof more, " and %zu more", n_twice - 1);
        snprintf(text, sizeof text, "read more than once: %s%s%s%s", lks__shown(first[0].path, 256),
                 other, more,
                 job->o.val_fraction > 0.0 ? "; a text may then be in both train and val" : "");
        job->o.note(text);
    }
    free(files);
    return LKS_OK;
}

/* --- the preparation ------------------------------------------------------------------------- */

static lks_status check(const lks__prep_kind *kind, const lks__prep_options *o)
{
    if (o->input[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG, "--input=TEXT is missing%s%s",
                         kind->get == NULL ? "" : ": ", kind->get == NULL ? "" : kind->get);
    if (o->out_dir[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG, "--out=DIR is missing");
    if (kind->needs_tokenizer && o->tokenizer[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG,
                         "--tokenizer=DIR is missing: a folder with GPT-2's vocab.bpe and "
                         "encoder.json (`lockstep fetch gpt2-vocab`, then "
                         "--tokenizer=data/gpt2-vocab), or a tokenizer.json");
    if (!(o->val_fraction >= 0.0 && o->val_fraction < 1.0))
        return lks__fail(LKS_ERR_CONFIG, "val_fraction is %g; it must be 0 or between 0 and 1",
                         o->val_fraction);
    return LKS_OK;
}

/* A folder of texts can't be the output folder: the next preparation would read the tokens as
 * text. */
static lks_status check_folders(const lks__prep_options *o)
{
    lks_status st = LKS_OK;
    char *lines = strdup(o->input), *rest = lines;
    LKS__MEMORY(lines, "to list the input's files");
    for (char *line; st == LKS_OK && (line = strsep(&rest, "\n")) != NULL;)
        if (lks__sys_is_folder(line) && lks__sys_same(line, o->out_dir))
            st = lks__fail(LKS_ERR_CONFIG,
                           "--out is the input folder, %s: the next `lockstep prep` would read "
                           "token files as text; give another --out",
                           lks__shown(line, 256));
    free(lines);
    return st;
}

/* Refuse a field for inputs that have none: JSON lines under another name would be read as text. */
static lks_status check_field(const lks__prep_job *job)
{
    if (!job->o.field_given)
        return LKS_OK;
    for (size_t i = 0; i < job->texts.n; i++)
        if (job->texts.files[i].is_jsonl)
            return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        "--field is for JSON lines, but there are none in %s: leave it out, or name the file "
        "NAME.jsonl, or give it as standard input (--input=- <FILE)",
        lks__prep_input(job));
}

/* The vocabulary that the folder's meta.json names; "": none. A sp.model stays: it may be the only
 * copy, and only meta.json gives it a meaning. */
static lks_status find_earlier(const char *dir, const char **tokenizer_p)
{
    lks__meta meta = {0};
    bool found;
    const lks_status st = lks__meta_load(dir, &found, &meta);
    *tokenizer_p = meta.is_bpe ? LKS__BPE_FILE : "";
    lks__meta_free(&meta);
    const bool damaged = st == LKS_ERR_FORMAT || st == LKS_ERR_CONFIG || st == LKS_ERR_SUPPORT;
    return damaged ? LKS_OK : st; /* a damaged one is replaced, too */
}

static lks_status run(lks__prep_job *job)
{
    const char *tokenizer;
    LKS__TRY(check_folders(&job->o));
    LKS__TRY(lks__texts_open(job->o.input, job->o.field_given, &job->texts));
    LKS__TRY(check_field(job));
    note_left(job);
    LKS__TRY(note_twice(job));
    LKS__TRY(look_at_all(job));
    LKS__TRY(find_earlier(job->o.out_dir, &tokenizer));
    LKS__TRY(job->kind->run(job));
    LKS__TRY(lks__split_remove_others(&job->staged, tokenizer));
    return lks__staged_commit(&job->staged);
}

lks_status lks__prep(const lks__prep_kind *kind, const lks__prep_options *options,
                     lks__prep_result *result)
{
    lks__prep_job job = {.kind = kind,
                         .o = *options,
                         .texts = {.spool = -1},
                         .staged = {.dir = options->out_dir},
                         .writer = {.fd = -1}};
    lks__prep_options *o = &job.o;
    if (o->val_fraction < 0.0)
        o->val_fraction = kind->val_fraction;
    o->field = o->field == NULL ? "text" : o->field;
    o->tokenizer = o->tokenizer == NULL ? "" : o->tokenizer;
    o->n_threads = o->n_threads < 1 ? 1 : o->n_threads;
    if (o->shard_tokens == 0)
        o->shard_tokens = kind->shard_tokens;
    LKS__TRY(check(kind, o));
    sigset_t before;
    lks__sys_limit_begin(&before);
    lks_status st = run(&job);
    lks__prep_progress(&job, 1, 1);
    if (st == LKS_OK)
        *result = job.result;
    lks__split_writer_close(&job.writer);
    lks__staged_close(&job.staged);
    lks__texts_close(&job.texts);
    lks__sys_limit_end(&before);
    return st;
}
