#include "data/text/bpe/bpe_pipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/pool.h"
#include "base/system/sys.h"

enum { CHUNK_BYTES = 1 << 20, CHUNKS_A_THREAD = 2 };

/* Complete documents (the last may be incomplete), or a part of one. */
struct chunk {
    char *text;
    size_t bytes, room;
    size_t *ends; /* [n_ends]: positions after which end-of-text is inserted */
    size_t n_ends, ends_room;
    int32_t *ids;
    size_t n_ids, ids_room;
    lks_status status;
    char why[512];
};

struct lks__bpe_pipe {
    lks__prep_job *job;
    const lks__bpe *bpe;
    lks__pool *pool;
    int n_threads;
    lks__bpe_work **work; /* [n_threads] */
    struct chunk *chunks; /* [n_chunks] */
    int n_chunks, n_full; /* chunks[n_full] is being filled */
    char *kept;           /* text after a cut */
    size_t kept_room;
    uint64_t done_bytes;
};

static lks_status no_memory(size_t bytes)
{
    return lks__no_memory("for %zu bytes of text", bytes);
}

/* --- encoding -------------------------------------------------------------------------------- */

static lks_status encode_documents(const lks__bpe_pipe *p, lks__bpe_work *work, struct chunk *c)
{
    size_t from = 0, made;
    c->n_ids = 0;
    for (size_t i = 0; i <= c->n_ends; i++) {
        const size_t to = i < c->n_ends ? c->ends[i] : c->bytes;
        LKS__TRY((p->job->o.special ? lks__bpe_encode_special : lks__bpe_encode)(
            p->bpe, work, c->text + from, to - from, c->ids + c->n_ids, &made));
        c->n_ids += made;
        if (i < c->n_ends)
            c->ids[c->n_ids++] = lks__bpe_end_of_text(p->bpe);
        from = to;
    }
    return LKS_OK;
}

static void encode_chunk(void *ctx, size_t task, int thread)
{
    const lks__bpe_pipe *p = ctx;
    struct chunk *c = &p->chunks[task];
    const size_t need = c->bytes + c->n_ends + 1;
    if (need > c->ids_room) {
        free(c->ids);
        c->ids = malloc(need * sizeof *c->ids);
        c->ids_room = c->ids == NULL ? 0 : need;
    }
    c->status = c->ids != NULL ? encode_documents(p, p->work[thread], c) : no_memory(c->bytes);
    if (c->status != LKS_OK) /* the message is thread-local */
        snprintf(c->why, sizeof c->why, "%s", lks_last_error());
}

static lks_status write_chunk(lks__bpe_pipe *p, struct chunk *c)
{
    if (c->status != LKS_OK)
        return lks__fail(c->status, "%s", c->why);
    p->done_bytes += c->bytes;
    c->bytes = c->n_ends = 0;
    return lks__split_put(&p->job->writer, c->ids, c->n_ids);
}

/* Encode the full chunks and write them. */
static lks_status run(lks__bpe_pipe *p)
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

/* --- filling chunks -------------------------------------------------------------------------- */

static lks_status end_chunk(lks__bpe_pipe *p)
{
    const struct chunk *c = &p->chunks[p->n_full];
    if (c->bytes > 0 || c->n_ends > 0)
        p->n_full++;
    return p->n_full == p->n_chunks ? run(p) : LKS_OK;
}

static lks_status grow(struct chunk *c, size_t room)
{
    return lks__list_room(&c->text, room, &c->room, 1) ? LKS_OK : no_memory(room);
}

/* The chunk to fill, with room for `bytes` more: the current one, unless it would get too long. */
static lks_status chunk_for(lks__bpe_pipe *p, uint64_t bytes, struct chunk **c_p)
{
    const struct chunk *c = &p->chunks[p->n_full];
    if (c->bytes > 0 && c->bytes + bytes > CHUNK_BYTES) /* a single document may be longer */
        LKS__TRY(end_chunk(p));
    *c_p = &p->chunks[p->n_full];
    return grow(*c_p, (*c_p)->bytes + (bytes < CHUNK_BYTES ? (size_t)bytes : CHUNK_BYTES));
}

/* Save the text after a cut, because the chunk may be written before the next one is filled. */
static lks_status keep(lks__bpe_pipe *p, const char *text, size_t bytes)
{
    if (!lks__list_room(&p->kept, bytes, &p->kept_room, 1))
        return no_memory(bytes);
    if (bytes > 0)
        memcpy(p->kept, text, bytes);
    return LKS_OK;
}

/* End the chunk at `cut` and begin the next chunk with the rest. */
static lks_status cut_chunk(lks__bpe_pipe *p, size_t cut)
{
    struct chunk *c = &p->chunks[p->n_full];
    const size_t rest = c->bytes - cut;
    LKS__TRY(keep(p, c->text + cut, rest));
    c->bytes = cut;
    LKS__TRY(end_chunk(p));
    c = &p->chunks[p->n_full];
    LKS__TRY(grow(c, rest + CHUNK_BYTES));
    if (rest > 0)
        memcpy(c->text, p->kept, rest);
    c->bytes = rest;
    return LKS_OK;
}

lks_status lks__bpe_pipe_range(lks__bpe_pipe *p, size_t file, int fd, uint64_t from, uint64_t to)
{
    struct chunk *c;
    LKS__TRY(chunk_for(p, to - from, &c));
    while (from < to) {
        c = &p->chunks[p->n_full];
        const size_t n = to - from < CHUNK_BYTES ? (size_t)(to - from) : CHUNK_BYTES;
        const size_t before = c->bytes;
        LKS__TRY(grow(c, before + n));
        LKS__TRY(lks__texts_read(&p->job->texts, file, fd, from, n, c->text + before));
        c->bytes += n;
        from += n;
        if (from == to)
            break;
        const size_t cut = lks__bpe_cut(p->job->o.special ? p->bpe : NULL, c->text,
                                        before > 0 ? before - 1 : 0, c->bytes);
        if (cut > 0)
            LKS__TRY(cut_chunk(p, cut));
        else
            LKS__TRY(lks__sys_stop_check());
    }
    return LKS_OK;
}

lks_status lks__bpe_pipe_text(lks__bpe_pipe *p, const char *text, size_t bytes)
{
    struct chunk *c;
    LKS__TRY(chunk_for(p, bytes, &c));
    LKS__TRY(grow(c, c->bytes + bytes));
    if (bytes > 0)
        memcpy(c->text + c->bytes, text, bytes);
    c->bytes += bytes;
    return LKS_OK;
}

lks_status lks__bpe_pipe_end(lks__bpe_pipe *p)
{
    struct chunk *c = &p->chunks[p->n_full];
    if (!lks__list_grow(&c->ends, c->n_ends, &c->ends_room, sizeof *c->ends))
        return lks__no_memory("for the places of documents");
    c->ends[c->n_ends++] = c->bytes;
    return c->n_ends < CHUNK_BYTES ? LKS_OK : end_chunk(p); /* many documents, all empty */
}

lks_status lks__bpe_pipe_flush(lks__bpe_pipe *p)
{
    LKS__TRY(end_chunk(p));
    return run(p);
}

/* --- opening --------------------------------------------------------------------------------- */

static lks_status open_all(lks__bpe_pipe *p)
{
    const int n = p->n_threads;
    LKS__TRY(lks__pool_open(n, 64, NULL, &p->pool));
    p->n_chunks = n * CHUNKS_A_THREAD;
    p->chunks = calloc((size_t)p->n_chunks, sizeof *p->chunks);
    p->work = calloc((size_t)n, sizeof *p->work);
    bool ok = p->chunks != NULL && p->work != NULL;
    for (int i = 0; i < n && ok; i++)
        ok = (p->work[i] = lks__bpe_work_open()) != NULL;
    return ok ? LKS_OK : lks__no_memory("for %d threads that encode", n);
}

lks_status lks__bpe_pipe_open(lks__prep_job *job, const lks__bpe *bpe, lks__bpe_pipe **pipe_p)
{
    lks__bpe_pipe *p = calloc(1, sizeof *p);
    if (p == NULL)
        return no_memory(sizeof *p);
    p->job = job;
    p->bpe = bpe;
    p->n_threads = job->o.n_threads;
    lks_status st = open_all(p);
    if (st != LKS_OK) {
        lks__bpe_pipe_close(p);
        return st;
    }
    *pipe_p = p;
    return LKS_OK;
}

void lks__bpe_pipe_close(lks__bpe_pipe *p)
{
    if (p == NULL)
        return;
    for (int i = 0; p->chunks != NULL && i < p->n_chunks; i++) {
        free(p->chunks[i].text);
        free(p->chunks[i].ends);
        free(p->chunks[i].ids);
    }
    for (int i = 0; p->work != NULL && i < p->n_threads; i++)
        lks__bpe_work_close(p->work[i]);
    free(p->chunks);
    free(p->kept);
    free(p->work);
    if (p->pool != NULL)
        lks__pool_close(p->pool);
    free(p);
}
