/* data/prep/prep_bpe.c - `lockstep prep gpt2`: tokens of a byte-level BPE vocabulary.
 *
 * A plain file is one document, byte for byte. In JSON lines, each line is a document.
 *
 * A single plain file: its first int(n * (1 - val_fraction)) characters are for training, as in
 * nanoGPT's prepare.py for shakespeare, and nothing is added. Otherwise <|endoftext|> follows each
 * document, and the first int(n * val_fraction) documents, at least one, are for validation.
 *
 * With `shuffles`, in the order of datasets' train_test_split(seed=2357, shuffle=True), as in
 * nanoGPT's prepare.py for openwebtext: documents are permuted; the first ceil(n * val_fraction)
 * are for validation, and the others, in that order, for training. Needs 12 bytes of memory per
 * document. A single plain file is one document.
 *
 * Also writes tokenizer.json. An empty input gives empty files. Memory doesn't grow with the text,
 * but with its longest run of characters without white space, and with its longest line of JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/system/sys.h"
#include "data/prep/input/docs.h"
#include "data/prep/prep_job.h"
#include "data/read/numpy_order.h"
#include "data/read/sampler.h"
#include "data/text/bpe/bpe_pipe.h"

enum { BLOCK_BYTES = 1 << 20, SHUFFLE_SEED = 2357 };

struct prep {
    lks__prep_job *job;
    lks__bpe *bpe;
    lks__bpe_pipe *pipe;
    bool is_text; /* a single plain file, not documents */
    uint64_t n_docs, n_val_docs;
    uint64_t n_put; /* documents passed to the pipe */

    /* For shuffled documents: */
    uint64_t *places; /* [n_docs]: file and offset, see pack() */
    size_t places_room;
    uint32_t *order;  /* [n_docs] */
    lks__docs *lines; /* reads documents of JSON lines */
};

static lks_status begin_split(struct prep *p, int split)
{
    return lks__split_begin(&p->job->writer, split);
}

static lks_status end_split(struct prep *p)
{
    LKS__TRY(lks__bpe_pipe_flush(p->pipe));
    return lks__prep_end_split(p->job);
}

static lks_status changed(void)
{
    return lks__fail(LKS_ERR_IO, "the input changed while it was read");
}

/* --- counting documents ---------------------------------------------------------------------- */

/* A document's position: 24 bits of its file's number, 40 of its offset. */
enum { OFFSET_BITS = 40 };

static lks_status add_place(struct prep *p, size_t file, uint64_t at)
{
    if (p->n_docs == UINT32_MAX || file >> (64 - OFFSET_BITS) != 0 || at >> OFFSET_BITS != 0)
        return lks__fail(LKS_ERR_SUPPORT,
                         "the input has too many documents to shuffle, or one beyond 1 TiB of a "
                         "file: `lockstep prep gpt2` doesn't shuffle");
    if (!lks__list_grow(&p->places, (size_t)p->n_docs, &p->places_room, sizeof *p->places))
        return lks__no_memory("for the places of documents");
    p->places[p->n_docs] = (uint64_t)file << OFFSET_BITS | at;
    return LKS_OK;
}

static lks_status count_document(struct prep *p, size_t file, uint64_t at)
{
    if (p->job->kind->shuffles)
        LKS__TRY(add_place(p, file, at));
    p->n_docs++;
    return LKS_OK;
}

static lks_status count_lines(struct prep *p, size_t file)
{
    lks__docs *docs;
    bool found = true;
    LKS__TRY(lks__docs_open(&p->job->texts, file, file + 1, p->job->o.field, &docs));
    lks_status st = LKS_OK;
    while (st == LKS_OK && (st = lks__docs_skip(docs, &found)) == LKS_OK && found) {
        uint64_t at;
        lks__docs_place(docs, &file, &at);
        st = count_document(p, file, at);
    }
    lks__docs_close(docs);
    return st;
}

static lks_status count_documents(struct prep *p)
{
    const lks__texts *texts = &p->job->texts;
    for (size_t i = 0; i < texts->n; i++)
        LKS__TRY(texts->files[i].is_jsonl ? count_lines(p, i) : count_document(p, i, 0));
    if (p->n_docs == 0)
        return lks__prep_empty(p->job);
    LKS__TRY(lks__prep_val_documents(p->job, p->n_docs, "give more, or --val_fraction=0",
                                     &p->n_val_docs));
    if (p->job->kind->shuffles && p->n_val_docs > 0 &&
        p->job->o.val_docs == 0) /* train_test_split() rounds up */
        p->n_val_docs = (uint64_t)ceil(p->job->o.val_fraction * (double)p->n_docs);
    if (p->n_val_docs >= p->n_docs)
        p->n_val_docs = p->n_docs - 1;
    return LKS_OK;
}

/* --- writing documents ----------------------------------------------------------------------- */

/* Call before each document; the first ones are for validation. */
static lks_status begin_document(struct prep *p)
{
    if (p->n_put++ != p->n_val_docs || p->n_val_docs == 0)
        return LKS_OK;
    LKS__TRY(end_split(p));
    return begin_split(p, LKS__SPLIT_TRAIN);
}

/* Write a plain file as one document. */
static lks_status put_file(struct prep *p, size_t file)
{
    int fd;
    lks__prep_count(p->job, p->job->texts.files[file].bytes);
    LKS__TRY(begin_document(p));
    LKS__TRY(lks__texts_file(&p->job->texts, file, &fd));
    lks_status st = lks__bpe_pipe_range(p->pipe, file, fd, 0, p->job->texts.files[file].bytes);
    lks__sys_close(fd);
    return st == LKS_OK ? lks__bpe_pipe_end(p->pipe) : st;
}

static lks_status put_text(struct prep *p, const char *text, size_t bytes)
{
    lks__prep_count(p->job, bytes);
    LKS__TRY(begin_document(p));
    LKS__TRY(lks__bpe_pipe_text(p->pipe, text, bytes));
    return lks__bpe_pipe_end(p->pipe);
}

static lks_status put_lines(struct prep *p, size_t file)
{
    const char *text;
    size_t bytes;
    lks__docs *docs;
    lks_status st;
    LKS__TRY(lks__docs_open(&p->job->texts, file, file + 1, p->job->o.field, &docs));
    while ((st = lks__docs_next(docs, &text, &bytes)) == LKS_OK && text != NULL)
        if ((st = put_text(p, text, bytes)) != LKS_OK)
            break;
    lks__docs_close(docs);
    return st;
}

static lks_status put_in_order(struct prep *p)
{
    const lks__texts *texts = &p->job->texts;
    for (size_t i = 0; i < texts->n; i++)
        LKS__TRY(texts->files[i].is_jsonl ? put_lines(p, i) : put_file(p, i));
    return LKS_OK;
}

static lks_status put_place(struct prep *p, uint64_t place)
{
    const char *text;
    size_t bytes;
    const size_t file = (size_t)(place >> OFFSET_BITS);
    if (!p->job->texts.files[file].is_jsonl)
        return put_file(p, file);
    lks__docs_seek(p->lines, file, place & ((UINT64_C(1) << OFFSET_BITS) - 1));
    LKS__TRY(lks__docs_next(p->lines, &text, &bytes));
    return text == NULL ? changed() : put_text(p, text, bytes);
}

static lks_status put_shuffled(struct prep *p)
{
    const lks__texts *texts = &p->job->texts;
    p->order = malloc((size_t)(p->n_docs + 1) * sizeof *p->order);
    LKS__MEMORY(p->order, "for the order of %llu documents", (unsigned long long)p->n_docs);
    lks__numpy_permutation(SHUFFLE_SEED, p->order, (uint32_t)p->n_docs);
    LKS__TRY(lks__docs_open(texts, 0, texts->n, p->job->o.field, &p->lines));
    for (uint64_t i = 0; i < p->n_docs; i++)
        LKS__TRY(put_place(p, p->places[p->order[i]]));
    return LKS_OK;
}

/* Validation comes first, also in the output. */
static lks_status write_documents(struct prep *p)
{
    LKS__TRY(begin_split(p, p->n_val_docs > 0 ? LKS__SPLIT_VAL : LKS__SPLIT_TRAIN));
    LKS__TRY(p->job->kind->shuffles ? put_shuffled(p) : put_in_order(p));
    return p->n_put == p->n_docs ? end_split(p) : changed();
}

/* --- a single plain file --------------------------------------------------------------------- */

/* Count characters, and find the start of character number `stop` (UINT64_MAX: only count).
 * Continuation bytes don't count. */
static lks_status count_characters(const struct prep *p, int fd, uint64_t stop, uint64_t *n_p,
                                   uint64_t *at_p)
{
    uint64_t n = 0;
    const uint64_t bytes = p->job->texts.files[0].bytes;
    char *block = malloc(BLOCK_BYTES);
    LKS__MEMORY(block, "to read a text");
    lks_status st = LKS_OK;
    *at_p = bytes;
    for (uint64_t at = 0; at < bytes && st == LKS_OK; at += BLOCK_BYTES) {
        const size_t take = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        st = lks__sys_stop_check();
        LKS__THEN(st, lks__texts_read(&p->job->texts, 0, fd, at, take, block));
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

static lks_status find_split(const struct prep *p, int fd, uint64_t *at_p)
{
    uint64_t n = 0, n_train;
    *at_p = p->job->texts.files[0].bytes;
    if (p->job->o.val_fraction == 0.0)
        return LKS_OK;
    LKS__TRY(count_characters(p, fd, UINT64_MAX, &n, at_p));
    LKS__TRY(lks__prep_split(p->job, n, &n_train));
    return count_characters(p, fd, n_train, &n, at_p);
}

static lks_status write_ranges(struct prep *p, int fd)
{
    uint64_t split;
    LKS__TRY(find_split(p, fd, &split));
    LKS__TRY(begin_split(p, LKS__SPLIT_TRAIN));
    LKS__TRY(lks__bpe_pipe_range(p->pipe, 0, fd, 0, split));
    LKS__TRY(end_split(p));
    if (p->job->o.val_fraction == 0.0)
        return LKS_OK;
    LKS__TRY(begin_split(p, LKS__SPLIT_VAL));
    LKS__TRY(lks__bpe_pipe_range(p->pipe, 0, fd, split, p->job->texts.files[0].bytes));
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

/* --- the preparation ------------------------------------------------------------------------- */

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

static lks_status run(struct prep *p)
{
    const lks__texts *texts = &p->job->texts;
    LKS__TRY(lks__bpe_open(p->job->o.tokenizer, &p->bpe));
    if (p->job->o.special)
        LKS__TRY(lks__bpe_check_special(p->bpe));
    p->is_text = texts->n == 1 && !texts->files[0].is_jsonl && !p->job->kind->shuffles;
    if (p->is_text && p->job->o.val_docs > 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is one document, so use --val_fraction instead of --num_val_docs",
                         lks__prep_input(p->job));
    if (texts->bytes == 0)
        return lks__prep_empty(p->job);
    if (!p->is_text && lks__bpe_end_of_text(p->bpe) < 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "this vocabulary has no <|endoftext|>, which follows each document");
    LKS__TRY(lks__bpe_pipe_open(p->job, p->bpe, &p->pipe));
    if (!p->is_text)
        LKS__TRY(count_documents(p));
    LKS__TRY(lks__prep_begin(p->job, lks__bpe_size(p->bpe)));
    LKS__TRY(p->is_text ? write_text(p) : write_documents(p));
    return write_vocabulary(p);
}

lks_status lks__prep_bpe(lks__prep_job *job)
{
    struct prep p = {.job = job};
    lks_status st = run(&p);
    lks__docs_close(p.lines);
    lks__bpe_pipe_close(p.pipe);
    lks__bpe_close(p.bpe);
    free(p.places);
    free(p.order);
    return st;
}
