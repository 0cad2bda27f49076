#include "data/prep_bpe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/jsontext.h"
#include "base/pool.h"
#include "base/sys.h"
#include "data/bpe.h"
#include "data/docs.h"
#include "data/meta.h"
#include "data/staged.h"

/* Text is encoded in chunks, several at a time, and written in order. */
enum { CHUNK_BYTES = 1 << 20, CHUNKS_A_THREAD = 2, MAX_VOCAB = 1 << 16 };

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
    const lks__prep_bpe_options *o;
    lks__bpe *bpe;
    lks__pool *pool;
    lks__bpe_work **work; /* [n_threads] */
    struct chunk *chunks; /* [n_chunks] */
    int n_chunks, n_full;
    char *kept; /* text behind a cut */
    size_t kept_room;
    char **files; /* [n_files] */
    size_t n_files;
    bool marks_ends; /* end-of-text behind documents */
    uint64_t n_docs, n_val_docs, all_bytes, done_bytes;
    lks__staged staged;
    int fd; /* of the split being written */
    uint64_t n_tokens;
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
    uint8_t *out = (uint8_t *)c->ids; /* in place: an id takes fewer bytes there */
    if (c->status != LKS_OK)
        return lks__fail(c->status, "%s", c->why);
    for (size_t i = 0; i < c->n_ids; i++) {
        const uint32_t id = (uint32_t)c->ids[i];
        out[2 * i] = (uint8_t)id;
        out[2 * i + 1] = (uint8_t)(id >> 8);
    }
    if (lks__sys_write_all(p->fd, out, 2 * c->n_ids) < 0)
        return lks__sys_fail("cannot write tokens to", p->o->out_dir);
    p->n_tokens += c->n_ids;
    p->done_bytes += c->bytes;
    return LKS_OK;
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
    if (p->o->progress != NULL)
        p->o->progress(p->done_bytes, p->all_bytes);
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

static int open_text(const char *path, uint64_t *bytes_p)
{
    struct stat info;
    const int fd =
        lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0); /* a pipe must not block the open */
    if (fd < 0)
        return -1;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *bytes_p = (uint64_t)info.st_size;
        return fd;
    }
    lks__sys_close(fd);
    errno = EISDIR;
    return -1;
}

static lks_status read_piece(int fd, const char *path, char *to, size_t n, uint64_t at)
{
    if (lks__sys_read_at(fd, to, n, at) >= 0)
        return LKS_OK;
    if (errno == 0)
        errno = EIO; /* it has shrunk */
    return lks__sys_fail("cannot read", path);
}

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
static lks_status put_range(struct prep *p, int fd, const char *path, uint64_t from, uint64_t to)
{
    struct chunk *c;
    LKS__TRY(next_chunk(p, &c));
    while (from < to || c->bytes > 0) {
        const uint64_t left = to - from;
        const size_t n = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        LKS__TRY(grow(c, c->bytes + n));
        LKS__TRY(read_piece(fd, path, c->text + c->bytes, n, from));
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

/* Documents [first, end) of all files; counts them if `end` is 0. */
static lks_status each_document(struct prep *p, uint64_t first, uint64_t end, uint64_t *n_p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n_files; i++) {
        const char *path = p->files[i];
        if (!lks__docs_is_jsonl(path)) {
            uint64_t bytes;
            const bool wanted = n >= first && n < end;
            n++;
            if (!wanted)
                continue;
            const int fd = open_text(path, &bytes);
            if (fd < 0)
                return lks__sys_fail("cannot read", path);
            lks_status st = put_range(p, fd, path, 0, bytes);
            lks__sys_close(fd);
            LKS__TRY(st);
            LKS__TRY(end_document(p));
            continue;
        }
        lks__docs *docs;
        LKS__TRY(lks__docs_open(path, p->o->field, &docs));
        lks_status st;
        const char *text;
        size_t bytes;
        while ((st = lks__docs_next(docs, &text, &bytes)) == LKS_OK && text != NULL) {
            if (n >= first && n < end)
                st = put_document(p, text, bytes);
            n++;
            if (st != LKS_OK)
                break;
        }
        lks__docs_close(docs);
        LKS__TRY(st);
    }
    *n_p = n;
    return LKS_OK;
}

/* --- a single plain file --------------------------------------------------------------------- */

/* Count characters, and find where character number `stop` begins (UINT64_MAX: only count). Bytes
 * that continue one don't count. */
static lks_status count_characters(int fd, const char *path, uint64_t bytes, uint64_t stop,
                                   uint64_t *n_p, uint64_t *at_p)
{
    uint64_t n = 0;
    char *block = malloc(CHUNK_BYTES);
    if (block == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to read %s", path);
    lks_status st = LKS_OK;
    *at_p = bytes;
    for (uint64_t at = 0; at < bytes && st == LKS_OK; at += CHUNK_BYTES) {
        const size_t take = bytes - at < CHUNK_BYTES ? (size_t)(bytes - at) : CHUNK_BYTES;
        st = lks__sys_stop_check();
        if (st == LKS_OK)
            st = read_piece(fd, path, block, take, at);
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
static lks_status find_split(const struct prep *p, int fd, uint64_t bytes, uint64_t *at_p)
{
    uint64_t n = 0;
    *at_p = bytes;
    if (p->o->val_fraction == 0.0)
        return LKS_OK;
    LKS__TRY(count_characters(fd, p->files[0], bytes, UINT64_MAX, &n, at_p));
    const uint64_t n_train = (uint64_t)((double)n * (1.0 - p->o->val_fraction));
    return count_characters(fd, p->files[0], bytes, n_train, &n, at_p);
}

/* --- files ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static lks_status add_file(struct prep *p, const char *dir, const char *name)
{
    struct stat info;
    char *path;
    char **grown = realloc(p->files, (p->n_files + 1) * sizeof *grown);
    if (grown == NULL || asprintf(&path, name == NULL ? "%s" : "%s/%s", dir, name) < 0) {
        p->files = grown == NULL ? p->files : grown;
        return lks__fail(LKS_ERR_NOMEM, "no memory to list the input's files");
    }
    p->files = grown;
    p->files[p->n_files++] = path;
    if (stat(path, &info) < 0)
        return lks__sys_fail("cannot read", path);
    if (name != NULL && !S_ISREG(info.st_mode)) { /* a folder in the folder, say */
        free(path);
        p->n_files--;
        return LKS_OK;
    }
    p->all_bytes += (uint64_t)info.st_size;
    return LKS_OK;
}

static lks_status list_files(struct prep *p)
{
    struct stat info;
    const char *input = p->o->input;
    if (stat(input, &info) < 0)
        return lks__sys_fail("cannot read", input);
    if (!S_ISDIR(info.st_mode))
        return add_file(p, input, NULL);
    DIR *dir = opendir(input);
    if (dir == NULL)
        return lks__sys_fail("cannot read", input);
    lks_status st = LKS_OK;
    for (struct dirent *e; st == LKS_OK && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.')
            st = add_file(p, input, e->d_name);
    closedir(dir);
    qsort(p->files, p->n_files, sizeof *p->files, by_name);
    return st;
}

static lks_status count_documents(struct prep *p)
{
    char shown[256];
    lks__escape(shown, sizeof shown, p->o->input, strlen(p->o->input));
    LKS__TRY(each_document(p, 0, 0, &p->n_docs));
    if (p->n_docs == 1 && p->o->val_fraction > 0.0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is one document, but both training and validation take at least one: "
                         "give more, or --val_fraction=0",
                         shown);
    p->n_val_docs = (uint64_t)((double)p->n_docs * p->o->val_fraction);
    if (p->n_val_docs == 0 && p->o->val_fraction > 0.0 && p->n_docs > 0)
        p->n_val_docs = 1;
    return LKS_OK;
}

/* --- all together ---------------------------------------------------------------------------- */

static lks_status begin_split(struct prep *p, const char *name)
{
    p->n_tokens = 0;
    return lks__staged_open(&p->staged, name, &p->fd);
}

static lks_status end_split(struct prep *p, uint64_t *n_p)
{
    lks_status st = flush(p);
    *n_p = p->n_tokens;
    if (st == LKS_OK && lks__sys_fsync(p->fd) < 0)
        st = lks__sys_fail("cannot write tokens to", p->o->out_dir);
    lks__sys_close(p->fd);
    p->fd = -1;
    return st;
}

static lks_status write_text(struct prep *p, lks__prep_result *r)
{
    uint64_t bytes, split;
    const int fd = open_text(p->files[0], &bytes);
    if (fd < 0)
        return lks__sys_fail("cannot read", p->files[0]);
    lks_status st = find_split(p, fd, bytes, &split);
    if (st == LKS_OK)
        st = begin_split(p, "train.bin");
    if (st == LKS_OK)
        st = put_range(p, fd, p->files[0], 0, split);
    if (st == LKS_OK)
        st = end_split(p, &r->n_train);
    if (st == LKS_OK && p->o->val_fraction > 0.0) {
        st = begin_split(p, "val.bin");
        if (st == LKS_OK)
            st = put_range(p, fd, p->files[0], split, bytes);
        if (st == LKS_OK)
            st = end_split(p, &r->n_val);
    }
    lks__sys_close(fd);
    return st;
}

static lks_status write_documents(struct prep *p, lks__prep_result *r)
{
    uint64_t n;
    LKS__TRY(count_documents(p));
    LKS__TRY(begin_split(p, "train.bin"));
    LKS__TRY(each_document(p, p->n_val_docs, p->n_docs, &n));
    LKS__TRY(end_split(p, &r->n_train));
    if (p->o->val_fraction == 0.0)
        return LKS_OK;
    LKS__TRY(begin_split(p, "val.bin"));
    LKS__TRY(each_document(p, 0, p->n_val_docs, &n));
    return end_split(p, &r->n_val);
}

static lks_status write_rest(struct prep *p)
{
    char *text = NULL, *about = NULL;
    size_t bytes;
    lks__meta meta = {.vocab_size = lks__bpe_size(p->bpe), .is_bpe = true};
    LKS__TRY(lks__bpe_text(p->bpe, &text, &bytes, &meta.model_hash));
    json_t *json = lks__meta_to_json(&meta);
    if (json != NULL)
        about = lks__json_dump(json, JSON_COMPACT);
    json_decref(json);
    lks_status st = about != NULL ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "no memory for meta.json");
    if (st == LKS_OK)
        st = lks__staged_add(&p->staged, LKS__BPE_FILE, text, bytes);
    if (st == LKS_OK)
        st = lks__staged_add(&p->staged, "meta.json", about, strlen(about));
    free(text);
    free(about);
    return st;
}

/* A val.bin of an earlier preparation would be read with this train.bin. */
static lks_status remove_old_val(const struct prep *p)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/val.bin", p->o->out_dir);
    if (p->o->val_fraction == 0.0 && lks__sys_unlink(path) < 0 && errno != ENOENT)
        return lks__sys_fail("cannot remove", path);
    return LKS_OK;
}

static lks_status open_all(struct prep *p)
{
    const int n = p->o->n_threads;
    LKS__TRY(lks__bpe_open(p->o->tokenizer, &p->bpe));
    if (lks__bpe_size(p->bpe) > MAX_VOCAB)
        return lks__fail(LKS_ERR_CONFIG, "this vocabulary has %u ids; token files hold at most %d",
                         lks__bpe_size(p->bpe), MAX_VOCAB);
    LKS__TRY(list_files(p));
    p->marks_ends = p->n_files != 1 || lks__docs_is_jsonl(p->files[0]);
    if (p->marks_ends && lks__bpe_end_of_text(p->bpe) < 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "this vocabulary has no <|endoftext|>, which follows each document");
    LKS__TRY(lks__pool_open(n, 64, NULL, &p->pool));
    p->n_chunks = n * CHUNKS_A_THREAD;
    p->chunks = calloc((size_t)p->n_chunks, sizeof *p->chunks);
    p->work = calloc((size_t)n, sizeof *p->work);
    bool ok = p->chunks != NULL && p->work != NULL;
    for (int i = 0; i < n && ok; i++)
        ok = (p->work[i] = lks__bpe_work_open()) != NULL;
    return ok ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "no memory for %d threads that encode", n);
}

static void close_all(struct prep *p)
{
    if (p->fd >= 0)
        lks__sys_close(p->fd);
    lks__staged_close(&p->staged);
    for (int i = 0; p->chunks != NULL && i < p->n_chunks; i++) {
        free(p->chunks[i].text);
        free(p->chunks[i].ids);
    }
    for (int i = 0; p->work != NULL && i < p->o->n_threads; i++)
        lks__bpe_work_close(p->work[i]);
    for (size_t i = 0; i < p->n_files; i++)
        free(p->files[i]);
    free(p->files);
    free(p->chunks);
    free(p->kept);
    free(p->work);
    if (p->pool != NULL)
        lks__pool_close(p->pool);
    lks__bpe_close(p->bpe);
}

lks_status lks__prep_bpe(const lks__prep_bpe_options *o, lks__prep_result *r)
{
    struct prep p = {.o = o, .fd = -1, .staged = {.dir = o->out_dir}};
    lks_status st = open_all(&p);
    *r = (lks__prep_result){0};
    if (st == LKS_OK)
        st = lks__sys_make_dirs(o->out_dir);
    if (st == LKS_OK) {
        r->vocab_size = lks__bpe_size(p.bpe);
        st = p.marks_ends ? write_documents(&p, r) : write_text(&p, r);
    }
    if (st == LKS_OK)
        st = write_rest(&p);
    if (st == LKS_OK)
        st = lks__staged_commit(&p.staged);
    if (st == LKS_OK)
        st = remove_old_val(&p);
    close_all(&p);
    return st;
}
