#include "base/text/shell.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"

/* True if the whole word is printable text. */
static bool is_safe(const char *word)
{
    uint32_t cp;
    for (size_t n = strlen(word), at = 0, len; at < n; at += len) {
        len = lks__utf8_decode(word + at, n - at, &cp);
        if (len == 0 || lks__is_control(cp))
            return false;
    }
    return true;
}

/* Number of bytes before the first one that a shell may replace. */
static size_t plain_bytes(const char *word)
{
    size_t n = 0;
    while (word[n] != '\0' && (isalnum((unsigned char)word[n]) || strchr("/._-+,:@%=", word[n])))
        n++;
    return n;
}

/* Write 'WORD', with each ' in it as '\''. Returns its length, which may exceed `bytes`. */
static size_t quote(char *out, size_t bytes, const char *word)
{
    size_t n = (size_t)snprintf(out, bytes, "'");
    for (const char *c = word; *c != '\0' && n < bytes; c++)
        n += *c == '\'' ? (size_t)snprintf(out + n, bytes - n, "'\\''")
                        : (size_t)snprintf(out + n, bytes - n, "%c", *c);
    return n < bytes ? n + (size_t)snprintf(out + n, bytes - n, "'") : n;
}

char *lks__shell_word(char *out, size_t bytes, const char *word)
{
    const size_t n_plain = plain_bytes(word);
    const bool plain = n_plain > 0 && word[n_plain] == '\0';
    const char *value = strncmp(word, "--", 2) == 0 ? memchr(word, '=', n_plain) : NULL;
    const int n_key = value != NULL ? (int)(value + 1 - word) : 0; /* --KEY= needs no quotes */
    size_t n = (size_t)snprintf(out, bytes, "%.*s", n_key, word);
    if (n < bytes)
        n += plain ? (size_t)snprintf(out + n, bytes - n, "%s", word + n_key)
                   : quote(out + n, bytes - n, word + n_key);
    if (n >= bytes || !is_safe(word))
        snprintf(out, bytes, "...");
    return out;
}

char *lks__shell_program(char *out, size_t bytes)
{
    const char *path = program_invocation_name;
    const bool ours = strncmp(lks__sys_name(path), "lockstep", 8) == 0;
    return lks__shell_word(out, bytes, ours ? path : "lockstep");
}
