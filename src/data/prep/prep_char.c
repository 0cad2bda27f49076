/* data/prep/prep_char.c - `lockstep prep char` and `prep raw`: the text is read twice, first for
 * its vocabulary or length. */
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "data/prep/input/docs.h"
#include "data/prep/prep_job.h"
#include "data/read/sampler.h"
#include "data/text/byte_tokens.h"
#include "data/text/encoding.h"

enum {
    MAX_CHARS = 1 << 16,
    BLOCK_BYTES = 1 << 20,
    MAX_UTF8 = 4,
};

/* One pass over the characters of all documents. */
struct pass {
    lks__prep_job *job;
    lks_status (*take)(struct pass *pass, const uint32_t *chars, size_t n);
    uint32_t *chars; /* [BLOCK_BYTES + 2 * MAX_UTF8] */
    char *block;     /* as many bytes: the beginning of a character, then the next read */
    bool was_cr;     /* a line feed that follows belongs to the CR */
    uint32_t last;   /* last character of the document */
    uint64_t n;      /* characters of all documents */
    uint64_t done;   /* bytes of this pass so far */
    int number;      /* number of the pass: 0 or 1 */

    /* Used by `take`. */
    int32_t *ids; /* [LKS__CODE_POINTS]: 0 if it occurs, in pass 1 its id; else negative */
    uint64_t n_train;
};

/* --- characters ------------------------------------------------------------------------------ */

static lks_status take_chars(struct pass *p, size_t n)
{
    if (n == 0)
        return LKS_OK;
    p->last = p->chars[n - 1];
    p->n += n;
    return p->take(p, p->chars, n);
}

/* Decode `text`, of at most BLOCK_BYTES + MAX_UTF8 bytes, and convert CRLF and CR to LF. The last
 * *rest_p bytes are an incomplete character, or not UTF-8. */
static lks_status decode(struct pass *p, const char *text, size_t bytes, size_t *rest_p)
{
    size_t n = 0, i = 0;
    for (; p->job->kind->raw && i < bytes; i++)
        p->chars[n++] = (unsigned char)text[i];
    while (i < bytes) {
        uint32_t cp = (unsigned char)text[i];
        size_t len = 1;
        if (cp >= 0x80 && (len = lks__utf8_decode(text + i, bytes - i, &cp)) == 0)
            break;
        i += len;
        if (cp == '\n' && p->was_cr) {
            p->was_cr = false;
            continue;
        }
        p->was_cr = cp == '\r';
        p->chars[n++] = p->was_cr ? '\n' : cp;
    }
    *rest_p = bytes - i;
    return take_chars(p, n);
}

/* End a document of `bytes` bytes. If there are several, add a line feed unless it ends in one. */
static lks_status end_document(struct pass *p, bool several, uint64_t bytes)
{
    p->was_cr = false;
    if (p->number == 0)
        lks__prep_count(p->job, bytes);
    if (!several || p->last == '\n')
        return LKS_OK;
    p->chars[0] = '\n';
    return take_chars(p, 1);
}

static lks_status take_file(struct pass *p, size_t i, int fd)
{
    const lks__texts *texts = &p->job->texts;
    const uint64_t bytes = texts->files[i].bytes;
    size_t rest = 0; /* bytes at the start of the block left from the previous one */
    for (uint64_t at = 0; at < bytes;) {
        LKS__TRY(lks__sys_stop_check());
        const size_t n = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        LKS__TRY(lks__texts_read(texts, i, fd, at, n, p->block + rest));
        at += n;
        const size_t have = rest + n;
        LKS__TRY(decode(p, p->block, have, &rest));
        if (rest >= MAX_UTF8 || (rest > 0 && at == bytes))
            return lks__not_utf8(texts->files[i].path, p->block, have, have - rest, at - rest, 0);
        memmove(p->block, p->block + have - rest, rest);
        p->done += n;
        lks__prep_progress(p->job, p->done + (uint64_t)p->number * texts->bytes, 2 * texts->bytes);
    }
    return LKS_OK;
}

/* Process a document that is in memory and known to be UTF-8. */
static lks_status take_text(struct pass *p, const char *text, size_t bytes)
{
    size_t rest = 0;
    for (size_t at = 0, n; at < bytes; at += n - rest) {
        n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        LKS__TRY(decode(p, text + at, n, &rest));
    }
    return LKS_OK;
}

static lks_status take_lines(struct pass *p, size_t i)
{
    const lks__texts *texts = &p->job->texts;
    const char *text;
    size_t bytes;
    lks__docs *docs;
    LKS__TRY(lks__docs_open(texts, i, i + 1, p->job->o.field, &docs));
    lks_status st;
    while ((st = lks__docs_next(docs, &text, &bytes)) == LKS_OK && text != NULL) {
        p->last = 0;
        st = take_text(p, text, bytes);
        LKS__THEN(st, end_document(p, true, bytes));
        if (st != LKS_OK)
            break;
        const uint64_t done = p->done + lks__docs_done(docs);
        lks__prep_progress(p->job, done + (uint64_t)p->number * texts->bytes, 2 * texts->bytes);
    }
    p->done += texts->files[i].bytes;
    lks__docs_close(docs);
    return st;
}

/* Process all documents. */
static lks_status go_through(struct pass *p)
{
    const lks__texts *texts = &p->job->texts;
    p->n = p->done = 0;
    for (size_t i = 0; i < texts->n; i++) {
        int fd;
        p->last = 0;
        if (texts->files[i].is_jsonl) {
            LKS__TRY(take_lines(p, i));
            continue;
        }
        LKS__TRY(lks__texts_file(texts, i, &fd));
        lks_status st = take_file(p, i, fd);
        lks__sys_close(fd);
        LKS__TRY(st);
        LKS__TRY(end_document(p, texts->n > 1, texts->files[i].bytes));
    }
    return LKS_OK;
}

/* --- the two passes -------------------------------------------------------------------------- */

static lks_status mark(struct pass *p, const uint32_t *chars, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p->ids[chars[i]] = 0;
    return LKS_OK;
}

/* Encode the characters, of which some are for training. */
static lks_status encode(struct pass *p, const uint32_t *chars, size_t n)
{
    int32_t *ids = (int32_t *)p->chars; /* in place */
    const uint64_t before = p->n - n;
    size_t cut = p->n_train <= before ? 0 : p->n_train - before < n ? p->n_train - before : n;
    for (size_t i = 0; i < n; i++) {
        ids[i] = p->ids[chars[i]];
        if (ids[i] < 0)
            return lks__prep_changed(p->job);
    }
    lks__split_writer *w = &p->job->writer;
    if (cut > 0)
        LKS__TRY(lks__split_put(w, ids, cut));
    if (cut == n)
        return LKS_OK;
    if (w->split == LKS__SPLIT_TRAIN) {
        LKS__TRY(lks__prep_end_split(p->job));
        LKS__TRY(lks__split_begin(w, LKS__SPLIT_VAL));
    }
    return lks__split_put(w, ids + cut, n - cut);
}

static void number_bytes(struct pass *p, lks__meta *meta)
{
    for (int b = 0; b < 256; b++)
        p->ids[b] = LKS__BYTE_FIRST + b;
    meta->vocab_size = LKS__BYTE_TOKENS;
    meta->is_bytes = true;
}

/* Number the characters as `given` does. It must have all that occur. */
static lks_status number_given(struct pass *p, const lks__meta *given, lks__meta *meta)
{
    char utf8[5] = "";
    uint32_t missing = 0, first = 0;
    for (uint32_t id = 0; id < given->vocab_size; id++)
        p->ids[given->chars[id]] = (int32_t)id + 1; /* 0 is a character that only occurs */
    for (uint32_t cp = 0; cp < LKS__CODE_POINTS; cp++)
        if (p->ids[cp]-- == 0 && missing++ == 0)
            first = cp;
    if (missing > 0) {
        lks__utf8_encode(first, utf8);
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has %u different character%s not in the vocabulary of %u characters, "
                         "for example U+%04X \"%s\": replace %s in the text",
                         lks__prep_input(p->job), missing, missing == 1 ? "" : "s",
                         given->vocab_size, first, lks__shown(utf8, 16),
                         missing == 1 ? "it" : "them");
    }
    meta->chars = malloc(given->vocab_size * sizeof *meta->chars);
    LKS__MEMORY(meta->chars, "for %u characters", given->vocab_size);
    memcpy(meta->chars, given->chars, given->vocab_size * sizeof *meta->chars);
    meta->vocab_size = given->vocab_size;
    return LKS_OK;
}

/* Number the characters that occur, in code-point order. */
static lks_status number_chars(struct pass *p, lks__meta *meta)
{
    uint32_t n = 0;
    for (uint32_t cp = 0; cp < LKS__CODE_POINTS; cp++)
        n += p->ids[cp] == 0;
    if (n > MAX_CHARS)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has %u different characters; token files hold at most %d",
                         lks__prep_input(p->job), n, MAX_CHARS);
    meta->chars = malloc((n + 1) * sizeof *meta->chars);
    LKS__MEMORY(meta->chars, "for %u characters", n);
    for (uint32_t cp = 0; cp < LKS__CODE_POINTS; cp++)
        if (p->ids[cp] == 0) {
            p->ids[cp] = (int32_t)meta->vocab_size;
            meta->chars[meta->vocab_size++] = cp;
        }
    return LKS_OK;
}

/* The number of files is known before the first one is written. */
static lks_status check_shards(const lks__prep_job *job, uint64_t n_train)
{
    const uint64_t shard = job->o.shard_tokens;
    if (shard == 0 || n_train / shard < LKS__SPLIT_SHARDS)
        return LKS_OK;
    return lks__split_too_many(shard);
}

static lks_status both_passes(struct pass *p, lks__meta *meta)
{
    p->take = mark;
    LKS__TRY(go_through(p));
    const uint64_t n = p->n;
    if (p->job->kind->raw)
        number_bytes(p, meta);
    else
        LKS__TRY(p->job->o.chars != NULL ? number_given(p, p->job->o.chars, meta)
                                         : number_chars(p, meta));
    if (n == 0)
        return lks__prep_empty(p->job);
    LKS__TRY(lks__prep_split(p->job, n, &p->n_train));
    LKS__TRY(check_shards(p->job, p->n_train));
    LKS__TRY(lks__prep_begin(p->job, meta->vocab_size));
    LKS__TRY(lks__split_begin(&p->job->writer, LKS__SPLIT_TRAIN));
    p->take = encode;
    p->number = 1;
    LKS__TRY(go_through(p));
    LKS__TRY(lks__prep_end_split(p->job));
    if (p->n != n)
        return lks__fail(LKS_ERR_IO, "the text changed while it was read");
    return lks__prep_describe(p->job, meta);
}

lks_status lks__prep_char(lks__prep_job *job)
{
    lks__meta meta = {0};
    struct pass p = {.job = job};
    p.ids = malloc(LKS__CODE_POINTS * sizeof *p.ids);
    p.chars = malloc((BLOCK_BYTES + 2 * MAX_UTF8) * sizeof *p.chars);
    p.block = malloc(BLOCK_BYTES + 2 * MAX_UTF8);
    lks_status st = lks__no_memory("for the character table");
    if (p.ids != NULL && p.chars != NULL && p.block != NULL) {
        memset(p.ids, 0xff, LKS__CODE_POINTS * sizeof *p.ids);
        st = both_passes(&p, &meta);
    }
    lks__meta_free(&meta);
    free(p.ids);
    free(p.chars);
    free(p.block);
    return st;
}
