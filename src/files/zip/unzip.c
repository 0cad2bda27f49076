#include "files/zip/unzip.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/system/sys.h"

lks_status lks__unzip_bad(const lks__unzip *s, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound artifact: %s", s->shown, what);
}

/* Read the next piece. It is empty at the end of the file, but zlib may still have output. */
static lks_status next_piece(lks__unzip *s)
{
    uint64_t left = s->file_bytes - s->at;
    size_t bytes = left < LKS__UNZIP_PIECE ? (size_t)left : LKS__UNZIP_PIECE;
    if (bytes == 0)
        return LKS_OK;
    if (lks__sys_read_at(s->fd, s->piece, bytes, s->at) < 0) {
        if (errno == 0)
            return lks__unzip_bad(s, "it became shorter while it was read");
        if (errno == ECANCELED)
            return lks__fail(LKS_ERR_STOPPED, "stopped while %s was read", s->shown);
        return lks__fail(LKS_ERR_IO, "cannot read %s: %s", s->shown, strerror(errno));
    }
    s->at += bytes;
    s->z.next_in = s->piece;
    s->z.avail_in = (uInt)bytes;
    return LKS_OK;
}

lks_status lks__unzip_some(lks__unzip *s, void *out, size_t bytes, size_t *got_p, bool *end_p)
{
    size_t got = 0;
    *end_p = false;
    while (!*end_p && got < bytes) {
        size_t room = bytes - got < LKS__UNZIP_PIECE ? bytes - got : LKS__UNZIP_PIECE;
        if (s->z.avail_in == 0)
            LKS__TRY(next_piece(s));
        s->z.next_out = (unsigned char *)out + got;
        s->z.avail_out = (uInt)room;
        int rc = inflate(&s->z, Z_NO_FLUSH);
        got += room - s->z.avail_out;
        if (rc == Z_MEM_ERROR)
            return lks__no_memory("to decompress %s", s->shown);
        if (rc == Z_BUF_ERROR && s->at == s->file_bytes)
            return lks__unzip_bad(s, "it is truncated");
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return lks__unzip_bad(s, "it is damaged, or not compressed by zlib");
        *end_p = rc == Z_STREAM_END;
    }
    *got_p = got;
    return LKS_OK;
}

lks_status lks__unzip_exactly(lks__unzip *s, void *out, size_t bytes)
{
    size_t got;
    bool end;
    LKS__TRY(lks__unzip_some(s, out, bytes, &got, &end));
    return got == bytes ? LKS_OK : lks__unzip_bad(s, "its data end too early");
}

lks_status lks__unzip_end(lks__unzip *s)
{
    char more;
    size_t got;
    bool end;
    LKS__TRY(lks__unzip_some(s, &more, 1, &got, &end));
    if (got > 0)
        return lks__unzip_bad(s, "data follow its last tensor");
    if (s->z.avail_in > 0 || s->at < s->file_bytes)
        return lks__unzip_bad(s, "bytes follow the compressed data");
    return LKS_OK;
}

lks_status lks__unzip_open(const char *path, lks__unzip *s)
{
    s->fd = -1;
    lks__escape(s->shown, sizeof s->shown, path, strlen(path));
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    s->fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (s->fd < 0)
        return lks__sys_fail("cannot open", path);
    LKS__TRY(lks__sys_file_bytes(s->fd, path, &s->file_bytes));
    s->inflating = inflateInit(&s->z) == Z_OK;
    return s->inflating ? LKS_OK : lks__no_memory("to decompress %s", s->shown);
}

void lks__unzip_close(lks__unzip *s)
{
    if (s->inflating)
        inflateEnd(&s->z);
    lks__sys_close(s->fd);
}
