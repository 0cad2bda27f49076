#include "data/text/encoding.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/text/shell.h"
#include "base/text/utf8.h"

enum { WORD = 256 };

/* The file as a command's operand, after `before`; "" for standard input. */
static const char *operand(const char *before, const char *path, char out[WORD])
{
    const int n = snprintf(out, WORD, "%s", before);
    if (strcmp(path, LKS__STDIN_NAME) == 0)
        out[0] = '\0';
    else
        lks__shell_word(out + n, (size_t)(WORD - n), path);
    return out;
}

/* --- containers ------------------------------------------------------------------------------ */

static const struct container {
    const char *magic;
    size_t bytes;
    const char *name, *unpack; /* `unpack` writes its contents to standard output */
} containers[] = {
    {"\x1f\x8b", 2, "gzip", "gzip -dc"},
    {"BZh", 3, "bzip2", "bzip2 -dc"},
    {"\x28\xb5\x2f\xfd", 4, "zstd", "zstd -dc"},
    {"\xfd"
     "7zXZ",
     5, "xz", "xz -dc"},
    {"PK\3\4", 4, "zip", "unzip -p"},
    {"%PDF-", 5, "PDF", NULL},
    {"PAR1\x15", 5, "Parquet", NULL},
    {"{\\rtf", 5, "rich-text", NULL},
};

static const struct container *container_of(const char *head, size_t bytes)
{
    for (size_t i = 0; i < sizeof containers / sizeof containers[0]; i++)
        if (bytes >= containers[i].bytes &&
            memcmp(head, containers[i].magic, containers[i].bytes) == 0)
            return &containers[i];
    return NULL;
}

const char *lks__container_name(const char *head, size_t bytes)
{
    const struct container *c = container_of(head, bytes);
    return c == NULL ? NULL : c->name;
}

/* True for a name of a document that is a zip file inside. */
static bool is_document(const char *path)
{
    static const char *const ends[] = {".docx", ".odt", ".epub", ".xlsx", ".pptx"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (lks__ends_with(path, ends[i]))
            return true;
    return false;
}

lks_status lks__check_container(const char *path, const char *head, size_t bytes)
{
    char word[WORD];
    const struct container *c = container_of(head, bytes);
    const char *name = lks__shown(path, 256);
    if (c == NULL)
        return LKS_OK;
    if (strcmp(c->name, "zip") == 0 && is_document(path))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is a document with markup: open it in its program and save it as "
                         "plain text (UTF-8) first",
                         name);
    if (strcmp(c->name, "zip") == 0 && lks__ends_with(path, ".pt"))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s contains weights, and is not a text: --init_from=%s with "
                         "--dataset=DIR trains them further",
                         name, operand("", path, word));
    if (c->unpack == NULL)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is a %s file: convert it to plain text or JSON lines first", name,
                         c->name);
    return lks__fail(LKS_ERR_FORMAT,
                     "%s is %s %s file: unpack it first with `%s%s > unpacked.txt`, or pipe it to "
                     "`lockstep prep` with --input=- (JSON lines: and --field=text)",
                     name, c->name[0] == 'x' ? "an" : "a", c->name, c->unpack,
                     operand(" ", path, word));
}

/* --- encodings ------------------------------------------------------------------------------- */

/* Properties of the bytes around text[i]. */
struct looks {
    size_t high, paired;   /* bytes over 0x7f from text[i] on; those that follow another one */
    size_t controls;       /* 0x80 to 0x9f, which Latin-1 doesn't use */
    bool has_utf8, is_cut; /* multi-byte characters before text[i]; the text ends within one */
};

static struct looks look(const char *text, size_t bytes, size_t i)
{
    struct looks l = {0};
    uint32_t cp;
    const unsigned char *s = (const unsigned char *)text;
    for (size_t at = 0, len; at < i; at += len) {
        len = lks__utf8_decode(text + at, i - at, &cp);
        l.has_utf8 |= len > 1;
        len += len == 0;
    }
    for (size_t at = i; at < bytes && at < i + 4096; at++) {
        l.high += s[at] > 0x7f;
        l.paired += at > i && s[at] > 0x7f && s[at - 1] > 0x7f;
        l.controls += s[at] >= 0x80 && s[at] < 0xa0;
    }
    const size_t left = bytes - i, want = s[i] >= 0xf0 ? 4 : s[i] >= 0xe0 ? 3 : 2;
    l.is_cut = s[i] >= 0xc2 && s[i] < 0xf5 && left < want && l.high == left;
    return l;
}

/* True if `head` begins with text, mostly ASCII, in units of `width` bytes, whose lowest is
 * byte `at`. Ids of tokens have the same form, but are often below 32. */
static bool is_wide(const char *head, size_t bytes, size_t width, size_t at)
{
    const size_t n = lks__min(bytes, 64) / width;
    size_t n_ascii = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = 0;
        for (size_t k = 0; k < width; k++)
            c = c << 8 | (unsigned char)head[i * width + (at == 0 ? width - 1 - k : k)];
        if ((c < ' ' && c != '\t' && c != '\r' && c != '\n') || (c > '~' && c < 0xa0))
            return false;
        n_ascii += c <= '~';
    }
    return 2 * n_ascii > n;
}

const char *lks__wide_encoding(const char *head, size_t bytes)
{
    static const struct {
        const char *name;
        size_t width, at;
    } encodings[] = {
        {"UTF-16LE", 2, 0}, {"UTF-16BE", 2, 1}, {"UTF-32LE", 4, 0}, {"UTF-32BE", 4, 3}};
    if (bytes >= 4 &&
        (memcmp(head, "\xff\xfe\0\0", 4) == 0 || memcmp(head, "\0\0\xfe\xff", 4) == 0))
        return "UTF-32";
    if (bytes >= 2 && (memcmp(head, "\xff\xfe", 2) == 0 || memcmp(head, "\xfe\xff", 2) == 0))
        return "UTF-16";
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++)
        if (is_wide(head, bytes, encodings[i].width, encodings[i].at))
            return encodings[i].name;
    return NULL;
}

/* iconv's name of the encoding; NULL: unknown. */
static const char *encoding_of(const char *text, size_t bytes, size_t i, uint64_t offset)
{
    const char *wide = offset == i ? lks__wide_encoding(text, bytes) : NULL;
    if (wide != NULL)
        return wide;
    const struct looks l = look(text, bytes, i);
    if (l.has_utf8 || 2 * l.paired > l.high)
        return NULL;
    return l.controls > 0 ? "WINDOWS-1252" : "LATIN1";
}

/* Write a message's second half, about text[i]. */
static void advise(const char *path, const char *text, size_t bytes, size_t i, uint64_t offset,
                   char *out, size_t out_bytes)
{
    char word[WORD];
    const char *encoding = encoding_of(text, bytes, i, offset);
    const struct looks l = look(text, bytes, i);
    operand(" ", path, word);
    if (encoding != NULL)
        snprintf(out, out_bytes, "it looks like %s: `iconv -f %s -t UTF-8%s > utf8.txt`", encoding,
                 encoding, word);
    else if (l.has_utf8 && l.is_cut)
        snprintf(out, out_bytes, "it is cut off within a character");
    else if (l.has_utf8)
        snprintf(out, out_bytes,
                 "text before it is UTF-8, so bytes were damaged: `iconv -c -f UTF-8 -t UTF-8%s > "
                 "utf8.txt` drops them",
                 word);
    else
        snprintf(out, out_bytes,
                 "convert it first, for example with `iconv -f ENCODING -t UTF-8%s > utf8.txt`",
                 word);
}

lks_status lks__not_utf8(const char *path, const char *text, size_t bytes, size_t i,
                         uint64_t offset, uint64_t line)
{
    char what[512], where[40] = "";
    const char *name = lks__shown(path, 256);
    LKS__TRY(offset == i ? lks__check_container(path, text, bytes) : LKS_OK);
    if (line > 0)
        snprintf(where, sizeof where, " (line %llu)", (unsigned long long)line);
    advise(path, text, bytes, i, offset, what, sizeof what);
    return lks__fail(LKS_ERR_FORMAT, "%s is not valid UTF-8: byte 0x%02x at offset %llu%s; %s",
                     name, (unsigned char)text[i], (unsigned long long)offset, where, what);
}

/* --- text that is kept unchanged ------------------------------------------------------------- */

const char *lks__text_remark(const char *path, const char *head, size_t bytes, int keeps,
                             char out[LKS__REMARK])
{
    char what[384], word[WORD];
    uint32_t cp;
    out[0] = '\0';
    const char *name = lks__shown(path, 128);
    for (size_t i = 0, len; keeps & LKS__KEEPS_BYTES && i < bytes; i += len) {
        len = lks__utf8_decode(head + i, bytes - i, &cp);
        if (len > 0)
            continue;
        if (bytes - i < 4) /* the head may end within a character */
            break;
        advise(path, head, bytes, i, i, what, sizeof what);
        snprintf(out, LKS__REMARK,
                 "%s is not valid UTF-8 (byte 0x%02x at offset %zu), and its bytes are kept, but "
                 "samples will show U+FFFD for them; %s",
                 name, (unsigned char)head[i], i, what);
        return out;
    }
    if (keeps & LKS__KEEPS_MARK && bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0)
        snprintf(out, LKS__REMARK,
                 "%s begins with a byte order mark, which is kept: `tail -c +4%s > new.txt` drops "
                 "it",
                 name, operand(" ", path, word));
    else if (keeps & LKS__KEEPS_CRLF && bytes > 0 && memmem(head, bytes, "\r\n", 2) != NULL)
        snprintf(out, LKS__REMARK,
                 "lines of %s end in CRLF, which is kept: `tr -d '\\r'%s > new.txt` makes it LF",
                 name, operand(" < ", path, word));
    else if (keeps & LKS__KEEPS_NUL && memchr(head, '\0', bytes) != NULL) {
        const bool wide = lks__wide_encoding(head, bytes) != NULL;
        if (wide)
            advise(path, head, bytes, 0, 0, what, sizeof what);
        else
            snprintf(what, sizeof what, "`tr -d '\\0'%s > new.txt` drops them",
                     operand(" < ", path, word));
        snprintf(out, LKS__REMARK, "%s contains NUL characters, which are kept%c %s", name,
                 wide ? ';' : ':', what);
    }
    return out;
}
