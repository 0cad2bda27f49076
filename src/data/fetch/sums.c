#include "data/fetch/sums.h"

#include <fcntl.h>
#include <limits.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"

enum { LIMIT = 4 << 20, DIGITS = LKS__SUM - 1, PIECE = 1 << 20 };

static void sums_path(const char *folder, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/" LKS__SUMS_FILE, folder);
}

bool lks__sums_line(const char *text)
{
    return strspn(text, "0123456789abcdef") == DIGITS && strncmp(text + DIGITS, "  ", 2) == 0;
}

/* Check one line; *name_p: its name. */
static bool read_line(char *line, const char **name_p)
{
    if (!lks__sums_line(line))
        return false;
    *name_p = line + DIGITS + 2;
    return **name_p != '\0';
}

/* The file's text; an empty one if there is no file. The caller frees *text_p. */
static lks_status load(const char *path, char **text_p)
{
    size_t n;
    char *text = NULL;
    if (access(path, F_OK) < 0)
        return (*text_p = strdup("")) != NULL ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "no memory");
    LKS__TRY(lks__sys_read_file(path, LIMIT, &text, &n));
    if (strlen(text) == n && (n == 0 || text[n - 1] == '\n')) {
        *text_p = text;
        return LKS_OK;
    }
    free(text);
    return lks__fail(LKS_ERR_FORMAT, "%s is damaged: its last line is incomplete; remove that line",
                     lks__shown(path, 512));
}

lks_status lks__sums_find(const char *folder, const char *name, char sum[LKS__SUM])
{
    char path[PATH_MAX], *text, *rest, *line;
    int number = 0;
    lks_status st = LKS_OK;
    sum[0] = '\0';
    sums_path(folder, path);
    LKS__TRY(load(path, &text));
    rest = text;
    while (st == LKS_OK && sum[0] == '\0' && (line = strsep(&rest, "\n")) != NULL && rest != NULL) {
        const char *found;
        number++;
        if (!read_line(line, &found))
            st = lks__fail(LKS_ERR_FORMAT,
                           "%s:%d is not a SHA-256 (64 digits), two blanks and a name: remove the "
                           "line",
                           lks__shown(path, 512), number);
        else if (strcmp(found, name) == 0)
            snprintf(sum, LKS__SUM, "%.*s", (int)DIGITS, line);
    }
    free(text);
    return st;
}

lks_status lks__sums_add(const char *folder, const char *name, const char sum[LKS__SUM])
{
    char path[PATH_MAX], *text, *all = NULL;
    sums_path(folder, path);
    LKS__TRY(load(path, &text));
    const int n = asprintf(&all, "%s%s  %s\n", text, sum, name);
    lks_status st = n < 0 ? lks__no_memory("for %s", LKS__SUMS_FILE)
                          : lks__sys_write_file(path, all, (size_t)n);
    if (n >= 0)
        free(all);
    free(text);
    return st;
}

/* Complete a sum as hexadecimal digits. */
static void write_sum(SHA2_CTX *state, char sum[LKS__SUM])
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA256Final(digest, state);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(sum + 2 * i, 3, "%02x", digest[i]);
}

void lks__sums_text(const char *text, size_t n, char sum[LKS__SUM])
{
    SHA2_CTX state;
    SHA256Init(&state);
    SHA256Update(&state, (const uint8_t *)text, n);
    write_sum(&state, sum);
}

lks_status lks__sums_of(const char *path, void (*progress)(void *ctx, uint64_t done, uint64_t all),
                        void *ctx, char sum[LKS__SUM])
{
    SHA2_CTX state;
    struct stat info;
    lks_status st = LKS_OK;
    uint8_t *piece = malloc(PIECE);
    const int fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    SHA256Init(&state);
    if (piece == NULL)
        st = lks__no_memory("for a file's piece");
    else if (fd < 0 || fstat(fd, &info) < 0)
        st = lks__sys_fail("cannot read", path);
    else if (!S_ISREG(info.st_mode))
        st = lks__fail(LKS_ERR_IO, "it is not a file");
    const uint64_t all = st == LKS_OK ? (uint64_t)info.st_size : 0;
    for (uint64_t at = 0; at < all && st == LKS_OK;) {
        const size_t n = all - at < PIECE ? (size_t)(all - at) : PIECE;
        if (lks__sys_read_at(fd, piece, n, at) < 0) {
            st = lks__sys_fail("cannot read", path);
            break;
        }
        SHA256Update(&state, piece, n);
        at += n;
        if (progress != NULL)
            progress(ctx, at, all);
    }
    write_sum(&state, sum);
    free(piece);
    lks__sys_close(fd);
    return st;
}
