#include "data/fetch/fetch.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "data/fetch/download.h"
#include "data/fetch/sums.h"

enum { ADDRESS = 2048, SHARD_MAGIC = 20240520, SHARD_HEADER = 1024, HEAD = 4096 };

/* --- the form --------------------------------------------------------------------------------- */

static bool has_form(lks__fetch_form form, const unsigned char *head, size_t n, uint64_t bytes)
{
    uint32_t shard[3]; /* magic, version, number of tokens */
    uint64_t length;
    memcpy(shard, head, sizeof shard);
    memcpy(&length, head, sizeof length);
    switch (form) {
    case LKS__FETCH_TEXT:
        return head[0] != '<' && memchr(head, '\0', n) == NULL;
    case LKS__FETCH_JSON:
        return head[strspn((const char *)head, " \t\r\n")] == '{';
    case LKS__FETCH_SHARD:
        return n > SHARD_HEADER && shard[0] == SHARD_MAGIC && shard[1] == 1 &&
               SHARD_HEADER + 2 * (uint64_t)shard[2] == bytes;
    case LKS__FETCH_SAFETENSORS:
        return n > 8 && length <= bytes - 8 && head[8] == '{';
    case LKS__FETCH_SENTENCEPIECE: /* a list of pieces, the first field of the message */
        return head[0] == 0x0a;
    }
    return false;
}

/* Refuse a server's error page or another file, which would otherwise count as the data. */
static lks_status check_form(const lks__fetch_file *file, const char *path)
{
    static const char *const names[] = {
        [LKS__FETCH_TEXT] = "a text",
        [LKS__FETCH_JSON] = "JSON",
        [LKS__FETCH_SHARD] = "a complete shard of tokens",
        [LKS__FETCH_SAFETENSORS] = "a safetensors file",
        [LKS__FETCH_SENTENCEPIECE] = "a SentencePiece model",
    };
    unsigned char head[HEAD + 1] = {0};
    struct stat info;
    const int fd = lks__sys_open(path, O_RDONLY, 0);
    lks_status st = LKS_OK;
    if (fd < 0 || fstat(fd, &info) < 0)
        st = lks__sys_fail("cannot read", path);
    const size_t n = st != LKS_OK ? 0 : info.st_size < HEAD ? (size_t)info.st_size : HEAD;
    if (st == LKS_OK && lks__sys_read_at(fd, head, n, 0) < 0)
        st = lks__sys_fail("cannot read", path);
    if (st == LKS_OK && !has_form(file->form, head, n, (uint64_t)info.st_size))
        st = lks__fail(LKS_ERR_FORMAT, "it is not %s", names[file->form]);
    lks__sys_close(fd);
    return st;
}

/* --- one file --------------------------------------------------------------------------------- */

typedef struct target {
    const lks__fetch *fetch;
    const lks__fetch_file *file;
    char name[LKS__FETCH_NAME];
    char path[PATH_MAX], part[PATH_MAX]; /* the file, and its partial form */
    char from[ADDRESS];
    char recorded[LKS__SUM], sum[LKS__SUM];
} target;

static void reading(void *ctx, uint64_t done, uint64_t all)
{
    const target *t = ctx;
    t->fetch->progress(t->name, "reading", done, all);
}

static void hashing(void *ctx, uint64_t done, uint64_t all)
{
    const target *t = ctx;
    t->fetch->progress(t->name, "hashing", done, all);
}

static lks_status check_sum(const target *t)
{
    if (t->recorded[0] == '\0' || strcmp(t->recorded, t->sum) == 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT,
                     "its SHA-256 is %s, but the first download's was %s (recorded in "
                     "OUT/" LKS__SUMS_FILE "; remove its line there to accept another file)",
                     t->sum, t->recorded);
}

/* Check the form and the sum of `path`, the file or its partial form. */
static lks_status verify(target *t, const char *path)
{
    LKS__TRY(check_form(t->file, path));
    LKS__TRY(lks__sums_of(path, hashing, t, t->sum));
    return check_sum(t);
}

static lks_status verify_part(void *ctx)
{
    target *t = ctx;
    return verify(t, t->part);
}

static lks_status bring(target *t)
{
    const lks__download d = {.from = t->from,
                             .path = t->path,
                             .part = t->part,
                             .bytes = t->file->bytes,
                             .most = t->file->most,
                             .progress = reading,
                             .verify = verify_part,
                             .ctx = t};
    return lks__download_get(&d);
}

/* Make the folder of a file. */
static lks_status make_folder(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    return lks__sys_make_dirs(folder);
}

static lks_status record(const target *t, bool existed)
{
    const lks__fetch *f = t->fetch;
    char text[LKS__FETCH_NAME + LKS__SUM + 160];
    if (t->recorded[0] == '\0')
        LKS__TRY(lks__sums_add(f->out, t->name, t->sum));
    snprintf(text, sizeof text, "%s: %s, SHA-256 %s (%s)", t->name,
             existed ? "exists already" : "complete", t->sum,
             t->recorded[0] != '\0' ? "as recorded" : "unverified; recorded for the next time");
    f->done(text);
    return LKS_OK;
}

/* Add to a failure how to get the file without this command. */
static lks_status by_hand(lks_status st, const target *t, bool existed)
{
    char why[1200];
    struct stat part;
    if (st == LKS_ERR_STOPPED || st == LKS_ERR_SUPPORT || st == LKS_ERR_NOMEM)
        return st;
    snprintf(why, sizeof why, "%s", lks_last_error());
    const char *from = lks__shown(t->from, ADDRESS + 100);
    const char *to = lks__shown(t->path, 600);
    if (existed)
        return lks__fail(st, "%s: %s; remove or rename the file to fetch it again", to, why);
    if (stat(t->part, &part) == 0)
        return lks__fail(st,
                         "cannot fetch %s: %s. The same command continues after the %lld bytes "
                         "that are in %s.part; or download the file by hand and save it as %s",
                         from, why, (long long)part.st_size, to, to);
    return lks__fail(st, "cannot fetch %s: %s. Or download the file by hand and save it as %s",
                     from, why, to);
}

static lks_status fetch_file(target *t)
{
    const lks__fetch *f = t->fetch;
    const char *base = f->from[0] != '\0' ? f->from : f->set->address;
    const size_t n_base = strlen(base) - (base[strlen(base) - 1] == '/');
    struct stat info;
    if (snprintf(t->path, sizeof t->path, "%s/%s", f->out, t->name) > PATH_MAX - 16 ||
        snprintf(t->from, sizeof t->from, "%.*s/%s", (int)n_base, base, t->name) >= ADDRESS)
        return lks__fail(LKS_ERR_CONFIG, "--out or --from is too long");
    snprintf(t->part, sizeof t->part, "%.*s.part", PATH_MAX - 8, t->path);
    LKS__TRY(lks__sums_find(f->out, t->name, t->recorded));
    const bool existed = stat(t->path, &info) == 0;
    lks_status st = LKS_OK;
    if (existed) {
        st = verify(t, t->path);
    } else {
        LKS__TRY(make_folder(t->path));
        st = bring(t);
    }
    return st == LKS_OK ? record(t, existed) : by_hand(st, t, existed);
}

/* Remove folders that this call made, if a failure left them empty. */
static void tidy(const target *t, bool was_there)
{
    const char *out = t->fetch->out;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", t->path);
    for (char *slash; (slash = strrchr(folder, '/')) != NULL && strlen(folder) > strlen(out);) {
        *slash = '\0';
        if (strlen(folder) == strlen(out) && was_there)
            return;
        rmdir(folder);
    }
}

static lks_status check_source(const lks__fetch *f)
{
    if (f->from[0] == '\0' && f->set->address == NULL)
        return lks__fail(LKS_ERR_CONFIG, "%s", f->set->instead);
    if (f->from[0] == '\0' || lks__download_is_web(f->from))
        return lks__download_available();
    if (lks__sys_is_folder(f->from))
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "--from=%s is neither a folder nor an http:// or https:// "
                     "address",
                     lks__shown(f->from, 300));
}

lks_status lks__fetch_all(const lks__fetch *f)
{
    LKS__TRY(check_source(f));
    const bool was_there = lks__sys_is_folder(f->out);
    for (int i = 0;; i++) {
        target t = {.fetch = f};
        t.file = lks__fetch_file_at(f->set, f->shards, i, t.name);
        if (t.file == NULL)
            return LKS_OK;
        const lks_status st = fetch_file(&t);
        if (st != LKS_OK) {
            tidy(&t, was_there);
            return st;
        }
    }
}
