#include "report/record/leaves.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A segment: its head, then records of one iteration each. The head has the first word, the first
 * record's iteration, V and A (32 bits each), and the number of elements in a block. A record has
 * its iteration and V hashes. All words are little-endian. */
static const uint64_t FIRST_WORD = UINT64_C(0x3166616c5f736b6c); /* "lks_laf1" */

enum { HEAD_WORDS = 4, MOST_V = 1024, WORD = sizeof(uint64_t), WINDOW = 1 << 13 };

_Static_assert(HEAD_WORDS + 1 + MOST_V <= WINDOW, "a record fits");

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are written unchanged");

uint64_t lks__leaves_step_bytes(int V)
{
    return (1 + (uint64_t)V) * WORD;
}

static lks_status open_file(lks__leaves *l, const char *out_dir, int flags)
{
    *l = (lks__leaves){.fd = -1};
    snprintf(l->path, sizeof l->path, "%s/" LKS__LEAVES_FILE, out_dir);
    l->window = malloc(WINDOW * WORD);
    LKS__MEMORY(l->window, "for the hashes of gradients");
    l->fd = lks__sys_open(l->path, flags | O_NOFOLLOW | O_NONBLOCK, 0666);
    return l->fd >= 0 || errno == ENOENT ? LKS_OK : lks__sys_fail("can't open", l->path);
}

/* Begin to read the file. */
static lks_status rewind_file(lks__leaves *l)
{
    LKS__TRY(lks__sys_file_bytes(l->fd, l->path, &l->bytes));
    l->last = (struct lks__leaf_record){0};
    l->window_at = l->window_end = 0;
    return LKS_OK;
}

/* Close it after a failure. */
static lks_status close_if(lks__leaves *l, lks_status st)
{
    if (st != LKS_OK)
        lks__leaves_close(l);
    return st;
}

lks_status lks__leaves_open(const char *run, lks__leaves *l)
{
    lks_status st = open_file(l, run, O_RDONLY);
    if (st == LKS_OK && l->fd >= 0)
        st = rewind_file(l);
    return close_if(l, st);
}

lks_status lks__leaves_close(lks__leaves *l)
{
    const bool failed = l->window != NULL && l->fd >= 0 && lks__sys_close(l->fd) != 0;
    free(l->window);
    l->window = NULL;
    l->fd = -1;
    return failed ? lks__sys_fail("can't write", l->path) : LKS_OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

static lks_status bad_record(const lks__leaves *l)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: no run has written the record at offset %" PRIu64
                     ", so the file is damaged: without it the run's other files can be read",
                     lks__shown(l->path, 512), l->last.at);
}

/* Point l->record to the words from byte `at` on. *n_p: how many there are, at most `most`. */
static lks_status read_words(lks__leaves *l, uint64_t at, size_t most, size_t *n_p)
{
    const uint64_t left = at < l->bytes ? (l->bytes - at) / WORD : 0;
    const size_t n = left < WINDOW ? (size_t)left : WINDOW;
    *n_p = n < most ? n : most;
    if (n > 0 && (at < l->window_at || at + *n_p * WORD > l->window_end)) {
        if (lks__sys_read_at(l->fd, l->window, n * WORD, at) != 0)
            return lks__sys_fail("can't read", l->path);
        l->window_at = at;
        l->window_end = at + n * WORD;
    }
    l->record = l->window + (n > 0 ? (at - l->window_at) / WORD : 0);
    return LKS_OK;
}

/* Read a segment's head, to which l->record points. */
static lks_status read_head(const lks__leaves *l, struct lks__leaf_record *r)
{
    r->at += HEAD_WORDS * WORD;
    r->V = (uint32_t)l->record[2];
    r->A = (uint32_t)(l->record[2] >> 32);
    if (r->V < 1 || r->V > MOST_V || r->A < 1 || l->record[3] != LKS__LEAVES_BLOCK)
        return bad_record(l);
    return LKS_OK;
}

lks_status lks__leaves_next(lks__leaves *l, bool *any_p)
{
    struct lks__leaf_record r = l->last;
    uint64_t first = 0;
    size_t n = 0;
    *any_p = false;
    if (l->fd < 0)
        return LKS_OK;
    LKS__TRY(read_words(l, r.at, r.V + 1 > HEAD_WORDS ? r.V + 1 : HEAD_WORDS, &n));
    const bool begins = n > 0 && l->record[0] == FIRST_WORD;
    if (begins && n < HEAD_WORDS)
        return LKS_OK;
    if (begins) {
        first = l->record[1];
        LKS__TRY(read_head(l, &r));
        LKS__TRY(read_words(l, r.at, r.V + 1, &n));
    }
    if (n > 0 && r.V == 0)
        return bad_record(l);
    if (n < (size_t)r.V + 1)
        return LKS_OK;
    r.iter = l->record[0];
    if (r.iter > INT64_MAX || (begins && r.iter != first) ||
        (l->last.at > 0 && r.iter <= l->last.iter))
        return bad_record(l);
    r.at += lks__leaves_step_bytes((int)r.V);
    l->last = r;
    *any_p = true;
    return LKS_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

lks_status lks__leaves_back(lks__leaves *l, uint64_t iter)
{
    struct lks__leaf_record kept = {0};
    bool any = true;
    if (l->window == NULL)
        return LKS_OK;
    LKS__TRY(rewind_file(l));
    while (any) {
        const lks_status st = lks__leaves_next(l, &any);
        if (st != LKS_OK && st != LKS_ERR_FORMAT)
            return st;
        any = any && l->last.iter < iter;
        if (any)
            kept = l->last;
    }
    l->last = kept;
    if (lks__sys_truncate(l->fd, kept.at) != 0 || lseek(l->fd, (off_t)kept.at, SEEK_SET) < 0)
        return lks__sys_fail("can't cut", l->path);
    return LKS_OK;
}

lks_status lks__leaves_resume(const char *out_dir, uint64_t iter, bool create, lks__leaves *l)
{
    lks_status st = open_file(l, out_dir, O_RDWR | (create ? O_CREAT : 0));
    if (st == LKS_OK && l->fd >= 0)
        st = lks__leaves_back(l, iter);
    return close_if(l, st);
}

uint64_t *lks__leaves_begin(lks__leaves *l, uint64_t iter, int V, int A)
{
    uint64_t *words = l->window;
    if (l->last.at == 0 || l->last.V != (uint32_t)V || l->last.A != (uint32_t)A) {
        words[0] = FIRST_WORD;
        words[1] = iter;
        words[2] = (uint64_t)A << 32 | (uint32_t)V;
        words[3] = LKS__LEAVES_BLOCK;
        words += HEAD_WORDS;
    }
    l->last.V = (uint32_t)V;
    l->last.A = (uint32_t)A;
    l->last.iter = words[0] = iter;
    l->n_words = (size_t)(words - l->window) + 1 + (size_t)V;
    return words + 1;
}

lks_status lks__leaves_end(lks__leaves *l)
{
    const size_t bytes = l->n_words * WORD;
    if (lks__sys_write_all(l->fd, l->window, bytes) != 0)
        return lks__sys_fail("can't write", l->path);
    l->last.at += bytes;
    return LKS_OK;
}

lks_status lks__leaves_sync(lks__leaves *l)
{
    return l->window == NULL || lks__sys_fdatasync(l->fd) == 0
               ? LKS_OK
               : lks__sys_fail("can't write", l->path);
}
