/* data/prep/prep_guess.c - the kind of tokens for a text if the user gives none. */
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/system/sys.h"
#include "base/text/shell.h"
#include "base/text/utf8.h"
#include "data/prep/prep_job.h"
#include "data/text/encoding.h"

enum { BLOCK_BYTES = 1 << 20, MAX_UTF8 = 4 };

/* Properties of the text read so far. */
struct look {
    char *block;      /* of BLOCK_BYTES + MAX_UTF8 bytes: the rest of a read, and the next one */
    bool is_utf8;     /* true until a byte isn't UTF-8 */
    uint64_t n_texts; /* files that aren't empty */
};

/* Number of bytes at the start of `text` that are whole characters. */
static size_t whole(const char *text, size_t bytes)
{
    uint32_t cp;
    size_t i = 0;
    for (size_t len = 1; i < bytes && len > 0; i += len)
        len = (unsigned char)text[i] < 0x80 ? 1 : lks__utf8_decode(text + i, bytes - i, &cp);
    return i;
}

static lks_status not_a_text(const char *path, const char *encoding, uint64_t offset)
{
    if (encoding != NULL)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is not UTF-8: byte %llu is 0; it looks like %s: `iconv -f %s -t UTF-8 "
                         "%s > utf8.txt`",
                         lks__shown(path, 256), (unsigned long long)offset, encoding, encoding,
                         lks__quoted(path, 256));
    return lks__fail(LKS_ERR_FORMAT,
                     "%s is not a text: byte %llu is 0; give a text in UTF-8, or a folder of them "
                     "(or lockstep prep raw, which keeps every byte); `lockstep train "
                     "--dataset=FOLDER` trains on tokens",
                     lks__shown(path, 256), (unsigned long long)offset);
}

static lks_status look_at_block(struct look *l, const lks__text_file *file, size_t have,
                                uint64_t at, bool last, size_t *rest_p)
{
    const size_t n = l->is_utf8 ? whole(l->block, have) : have;
    /* A later one doesn't let lks__texts_open() leave the file out either. */
    const char *zero = at == 0 ? memchr(l->block, 0, lks__min(have, LKS__TEXT_HEAD)) : NULL;
    if (at == 0)
        LKS__TRY(lks__check_container(file->path, l->block, have));
    if (zero != NULL && n == 0) /* a byte order mark, perhaps */
        return lks__not_utf8(file->path, l->block, have, n, 0, 0);
    if (zero != NULL)
        return not_a_text(file->path, lks__wide_encoding(l->block, have),
                          (uint64_t)(zero - l->block));
    *rest_p = have - n;
    if (*rest_p < MAX_UTF8 && (*rest_p == 0 || !last))
        return LKS_OK;
    (void)lks__not_utf8(file->path, l->block, have, n, at + n, 0); /* the caller's message */
    l->is_utf8 = false;
    *rest_p = 0;
    return LKS_OK;
}

static lks_status look_at_file(struct look *l, const lks__texts *texts, size_t i)
{
    int fd;
    size_t rest = 0;
    lks_status st = LKS_OK;
    const lks__text_file *file = &texts->files[i];
    LKS__TRY(lks__texts_file(texts, i, &fd));
    for (uint64_t at = 0; at < file->bytes && st == LKS_OK;) {
        const size_t n = file->bytes - at < BLOCK_BYTES ? (size_t)(file->bytes - at) : BLOCK_BYTES;
        st = lks__sys_stop_check();
        LKS__THEN(st, lks__texts_read(texts, i, fd, at, n, l->block + rest));
        const size_t have = rest + n;
        const uint64_t first = at - rest;
        at += n;
        LKS__THEN(st, look_at_block(l, file, have, first, at == file->bytes, &rest));
        memmove(l->block, l->block + have - rest, rest);
    }
    l->n_texts += file->bytes > 0;
    lks__sys_close(fd);
    return st;
}

static lks_status look_at_all(struct look *l, const lks__texts *texts, const char *input)
{
    for (size_t i = 0; i < texts->n; i++)
        LKS__TRY(look_at_file(l, texts, i));
    if (l->n_texts > 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT,
                     texts->n == 1 ? "%s is empty: give a text of some kilobytes or more"
                                   : "%s has no text in it: give a text, or a folder of texts",
                     lks__shown(input, 256));
}

lks_status lks__prep_guess(const char *input, const char **kind_p)
{
    lks__texts texts;
    struct look l = {.block = malloc(BLOCK_BYTES + MAX_UTF8), .is_utf8 = true};
    lks_status st = lks__no_memory("to read a text");
    texts = (lks__texts){.spool = -1};
    if (l.block != NULL)
        st = lks__texts_open(input, false, &texts);
    LKS__THEN(st, look_at_all(&l, &texts, input));
    *kind_p = l.is_utf8 ? "char" : "raw";
    lks__texts_close(&texts);
    free(l.block);
    return st;
}
