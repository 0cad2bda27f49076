#include "data/prep_bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/sys.h"
#include "data/bpe.h"
#include "data/docs.h"
#include "data/sampler.h"

/* Text is encoded in chunks, several at a time, and written in order. */
enum { CHUNK_BYTES = 1 << 20, CHUNKS_A_THREAD = 2 };

struct chunk {
    char *text;
    size_t bytes, room;
    int32_t *ids;
    size_t n_ids, ids_room;
    bool ends; /* a document that end-of-text follows */
    lks_status status;
    char why[512];
};

struct prep {
    lks__prep_job *job;
    lks__bpe *bpe;
    lks__pool *pool;
    lks__bpe_work **work; /* [n_threads] */
    struct chunk *chunks; /* [n_chunks] */
    int n_chunks, n_full;
    char *kept; /* text behind a cut */
    size_t kept_room;
    bool marks_ends; /* end-of-text behind documents */
    uint64_t n_docs, n_val_docs, done_bytes;
};

/* --- the pipeline ---------------------------------------------------------------------------- */

static void encode_chunk(void *ctx, size_t task, int thread)
{
    struct prep *p = ctx;
    struct chunk *c = &p->chunks[task];
    const size_t need = c->bytes + 1;
    c->n_ids = 0;
    c->status = LKS_OK;
    if (need > c->ids_room) {
        free(c->ids);
        c->ids = malloc(need * sizeof *c->ids);
        c->ids_room = c->ids == NULL ? 0 : need;
    }
    if (c->ids == NULL)
        c->status = lks__fail(LKS_ERR_NOMEM, "no memory for the tokens of %zu bytes", c->bytes);
    else
        c->status = lks__bpe_encode(p->bpe, p->work[thread], c->text, c->bytes, c->ids, &c->n_ids);
    if (c->status != LKS_OK) /* the sentence is this thread's own */
        snprintf(c->why, sizeof c->why, "%s", lks_last_error());
    else if (c->ends)
        c->ids[c->n_ids++] = lks__bpe_end_of_text(p->bpe);
}

static lks_status write_chunk(struct prep *p, const struct chunk *c)
{
    if (c->status != LKS_OK)
        return lks__fail(c->status, "%s", c->why);
    p->done_bytes += c->bytes;
    return lks__split_put(&p->job->writer, c->ids, c->n_ids);
}

/* Encode the chunks that are full, and write them. */
static lks_status flush(struct prep *p)
{
    LKS__TRY(lks__sys_stop_check());
    lks__pool_run(p->pool, (size_t)p->n_full, encode_chunk, p);
    const int n = p->n_full;
    p->n_full = 0;
    for (int i = 0; i < n; i++)
        LKS__TRY(write_chunk(p, &p->chunks[i]));
    lks__prep_progress(p->job, p->done_bytes, p->job->texts.bytes);
    return LKS_OK;
}

static lks_status grow(struct chunk *c, size_t room)
{
    if (room <= c->room)
        return LKS_OK;
    room = room > 2 * c->room ? room : 2 * c->room;
    char *grown = realloc(c->text, room);
    if (grown == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %zu bytes of text", room);
    c->text = grown;
    c->room = room;
    return LKS_OK;
}

/* The chunk to be filled next, empty. */
static lks_status next_chunk(struct prep *p, struct chunk **c_p)
{
    if (p->n_full == p->n_chunks)
        LKS__TRY(flush(p));
    *c_p = &p->chunks[p->n_full];
    (*c_p)->bytes = 0;
    (*c_p)->ends = false;
    return grow(*c_p, CHUNK_BYTES);
}

/* --- documents ------------------------------------------------------------------------------- */

static lks_status keep(struct prep *p, const char *text, size_t bytes)
{
    if (bytes > p->kept_room) {
        char *grown = realloc(p->kept, bytes);
        if (grown == NULL)
            return lks__fail(LKS_ERR_NOMEM, "no memory for %zu bytes of text", bytes);
        p->kept = grown;
        p->kept_room = bytes;
    }
    if (bytes > 0)
        memcpy(p->kept, text, bytes);
    return LKS_OK;
}

/* Bytes [from, to) of a file, as one document or the part of one. */
static lks_status put_range(struct prep *p, size_t file, int fd, uint64_t from, uint64_t to)
{
    struct chunk *c;
    LKS__TRY(next_chunk(p, &c));
    while (from < to || c->bytes > 0) {
        const uint64_t left = to - from;
        const size_t n = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        LKS__TRY(grow(c, c->bytes + n));
        LKS__TRY(lks__texts_read(&p->job->texts, file, fd, from, n, c->text + c->bytes));
        c->bytes += n;
        from += n;
        const size_t cut = from == to ? c->bytes : lks__bpe_cut(c->text, c->bytes);
        if (cut == 0)
            continue; /* no white space yet */
        const size_t rest = c->bytes - cut;
        LKS__TRY(
            keep(p, c->text + cut, rest)); /* the chunk may be written before the next is filled */
        c->bytes = cut;
        p->n_full++;
        LKS__TRY(next_chunk(p, &c));
        LKS__TRY(grow(c, rest));
        memcpy(c->text, p->kept, rest);
        c->bytes = rest;
    }
    return LKS_OK;
}

/* End-of-text goes behind what was put last. */
static lks_status end_document(struct prep *p)
{
    struct chunk *c;
    if (!p->marks_ends)
        return LKS_OK;
    LKS__TRY(next_chunk(p, &c));
    c->ends = true;
    p->n_full++;
    return LKS_OK;
}

static lks_status put_document(struct prep *p, const char *text, size_t bytes)
{
    struct chunk *c;
    LKS__TRY(next_chunk(p, &c));
    LKS__TRY(grow(c, bytes));
    memcpy(c->text, text, bytes);
    c->bytes = bytes;
    c->ends = true;
    p->n_full++;
    return LKS_OK;
}

/* A plain file as a document. */
static lks_status put_file(struct prep *p, size_t file)
{
    int fd;
    LKS__TRY(lks__texts_file(&p->job->texts, file, &fd));
    lks_status st = put_range(p, file, fd, 0, p->job->texts.files[file].bytes);
    lks__sys_close(fd);
    return st == LKS_OK ? end_document(p) : st;
}

static lks_status begin_split(struct prep *p, int split)
{
    return lks__split_begin(&p->job->writer, split);
}

static lks_status end_split(struct prep *p)
{
    LKS__TRY(flush(p));
    return lks__prep_end_split(p->job);
}

/* Call before each document; the first ones are for validation. */
static lks_status begin_document(struct prep *p, uint64_t *n_p)
{
    if ((*n_p)++ != p->n_val_docs || p->n_val_docs == 0)
        return LKS_OK;
    LKS__TRY(end_split(p));
    return begin_split(p, LKS__SPLIT_TRAIN);
}

static lks_status put_lines(struct prep *p, size_t file, uint64_t *n_p)
{
    const char *text;
    size_t bytes;
    lks__docs *docs;
    lks_status st;
    LKS__TRY(lks__docs_open(&p->job->texts, file, file + 1, p->job->o.field, &docs));
    while ((st = lks__docs_next(docs, &text, &bytes)) == LKS_OK && text != NULL) {
        st = begin_document(p, n_p);
        if (st == LKS_OK)
            st = put_document(p, text, bytes);
        if (st != LKS_OK)
            break;
    }
    lks__docs_close(docs);
    return st;
}

static lks_status count_lines(struct prep *p, size_t file)
{
    lks__docs *docs;
    bool found = true;
    LKS__TRY(lks__docs_open(&p->job->texts, file, file + 1, p->job->o.field, &docs));
    lks_status st = LKS_OK;
    for (; st == LKS_OK && found; p->n_docs += found)
        st = lks__docs_skip(docs, &found);
    lks__docs_close(docs);
    return st;
}

static lks_status count_documents(struct prep *p)
{
    const lks__texts *texts = &p->job->texts;
    for (size_t i = 0; i < texts->n; i++) {
        if (texts->files[i].is_jsonl)
            LKS__TRY(count_lines(p, i));
        else
            p->n_docs++;
    }
    return lks__prep_val_documents(p->job, p->n_docs, "give more, or --val_fraction=0",
                                   &p->n_val_docs);
}

/* Validation comes first, also among the files: an empty one is written here. */
static lks_status write_documents(struct prep *p)
{
    const lks__texts *texts = &p->job->texts;
    uint64_t n = 0;
    const bool has_val = p->job->o.val_fraction > 0.0;
    if (has_val)
        LKS__TRY(begin_split(p, LKS__SPLIT_VAL));
    if (has_val && p->n_val_docs == 0)
        LKS__TRY(end_split(p));
    if (p->n_val_docs == 0)
        LKS__TRY(begin_split(p, LKS__SPLIT_TRAIN));
    for (size_t i = 0; i < texts->n; i++) {
        if (texts->files[i].is_jsonl) {
            LKS__TRY(put_lines(p, i, &n));
            continue;
        }
        LKS__TRY(begin_document(p, &n));
        LKS__TRY(put_file(p, i));
    }
    if (n != p->n_docs)
        return lks__fail(LKS_ERR_IO, "the input changed while it was read");
    return end_split(p);
}

/* --- a single plain file --------------------------------------------------------------------- */

/* Count characters, and find where character number `stop` begins (UINT64_MAX: only count). Bytes
 * that continue one don't count. */
static lks_status count_characters(const struct prep *p, int fd, uint64_t stop, uint64_t *n_p,
                                   uint64_t *at_p)
{
    uint64_t n = 0;
    const uint64_t bytes = p->job->texts.files[0].bytes;
    char *block = malloc(CHUNK_BYTES);
    if (block == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to read a text");
    lks_status st = LKS_OK;
    *at_p = bytes;
    for (uint64_t at = 0; at < bytes && st == LKS_OK; at += CHUNK_BYTES) {
        const size_t take = bytes - at < CHUNK_BYTES ? (size_t)(bytes - at) : CHUNK_BYTES;
        st = lks__sys_stop_check();
        if (st == LKS_OK)
            st = lks__texts_read(&p->job->texts, 0, fd, at, take, block);
        for (size_t i = 0; i < take && st == LKS_OK; i++) {
            if (((unsigned char)block[i] & 0xc0) == 0x80)
                continue;
            if (n++ == stop) {
                *at_p = at + i;
                free(block);
                return LKS_OK;
            }
        }
    }
    free(block);
    *n_p = n;
    return st;
}

/* In double and truncated, as int(n*0.9) in nanoGPT's prepare.py; 1 - 0.1 is exactly 0.9. */
static lks_status find_split(const struct prep *p, int fd, uint64_t *at_p)
{
    uint64_t n = 0;
    *at_p = p->job->texts.files[0].bytes;
    if (p->job->o.val_fraction == 0.0)
        return LKS_OK;
    LKS__TRY(count_characters(p, fd, UINT64_MAX, &n, at_p));
    const uint64_t n_train = (uint64_t)((double)n * (1.0 - p->job->o.val_fraction));
    return count_characters(p, fd, n_train, &n, at_p);
}

static lks_status write_ranges(struct prep *p, int fd)
{
    uint64_t split;
    LKS__TRY(find_split(p, fd, &split));
    LKS__TRY(begin_split(p, LKS__SPLIT_TRAIN));
    LKS__TRY(put_range(p, 0, fd, 0, split));
    LKS__TRY(end_split(p));
    if (p->job->o.val_fraction == 0.0)
        return LKS_OK;
    LKS__TRY(begin_split(p, LKS__SPLIT_VAL));
    LKS__TRY(put_range(p, 0, fd, split, p->job->texts.files[0].bytes));
    return end_split(p);
}

static lks_status write_text(struct prep *p)
{
    int fd;
    LKS__TRY(lks__texts_file(&p->job->texts, 0, &fd));
    lks_status st = write_ranges(p, fd);
    lks__sys_close(fd);
    return st;
}

/* --- all together ---------------------------------------------------------------------------- */

static lks_status write_vocabulary(struct prep *p)
{
    char *text = NULL;
    size_t bytes;
    lks__meta meta = {.vocab_size = lks__bpe_size(p->bpe), .is_bpe = true};
    LKS__TRY(lks__bpe_text(p->bpe, &text, &bytes, &meta.model_hash));
    lks_status st = lks__staged_add(&p->job->staged, LKS__BPE_FILE, text, bytes);
    free(text);
    return st == LKS_OK ? lks__prep_describe(p->job, &meta) : st;
}

static lks_status open_vocabulary(struct prep *p)
{
    const char *path = p->job->o.tokenizer;
    if (path[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG,
                         "--tokenizer=DIR is missing: a folder with GPT-2's vocab.bpe and "
                         "encoder.json (OpenAI's, about 1.5 MB), or a tokenizer.json");
    return lks__bpe_open(path, &p->bpe);
}

static lks_status open_threads(struct prep *p)
{
    const int n = p->job->o.n_threads;
    LKS__TRY(lks__pool_open(n, 64, NULL, &p->pool));
    p->n_chunks = n * CHUNKS_A_THREAD;
    p->chunks = calloc((size_t)p->n_chunks, sizeof *p->chunks);
    p->work = calloc((size_t)n, sizeof *p->work);
    bool ok = p->chunks != NULL && p->work != NULL;
    for (int i = 0; i < n && ok; i++)
        ok = (p->work[i] = lks__bpe_work_open()) != NULL;
    return ok ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "no memory for %d threads that encode", n);
}

static lks_status run(struct prep *p)
{
    const lks__texts *texts = &p->job->texts;
    LKS__TRY(open_vocabulary(p));
    p->marks_ends = texts->n != 1 || texts->files[0].is_jsonl;
    if (p->marks_ends && lks__bpe_end_of_text(p->bpe) < 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "this vocabulary has no <|endoftext|>, which follows each document");
    LKS__TRY(open_threads(p));
    if (p->marks_ends)
        LKS__TRY(count_documents(p));
    LKS__TRY(lks__prep_begin(p->job, lks__bpe_size(p->bpe)));
    LKS__TRY(p->marks_ends ? write_documents(p) : write_text(p));
    return write_vocabulary(p);
}

static void close_all(struct prep *p)
{
    for (int i = 0; p->chunks != NULL && i < p->n_chunks; i++) {
        free(p->chunks[i].text);
        free(p->chunks[i].ids);
    }
    for (int i = 0; p->work != NULL && i < p->job->o.n_threads; i++)
        lks__bpe_work_close(p->work[i]);
    free(p->chunks);
    free(p->kept);
    free(p->work);
    if (p->pool != NULL)
        lks__pool_close(p->pool);
    lks__bpe_close(p->bpe);
}

lks_status lks__prep_bpe(lks__prep_job *job)
{
    struct prep p = {.job = job};
    lks_status st = run(&p);
    close_all(&p);
    return st;
}
