#include "data/read/shards.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/list.h"
#include "base/number/checked.h"
#include "base/system/sys.h"
#include "data/read/sampler.h"
#include "data/text/meta.h"
#include "data/tokens.h"

struct lks__shards {
    char name[256];         /* the pattern, or the file without a header; escaped */
    const char *split_name; /* of a split: train.bin, or the pattern without the folder */
    bool is_raw;
    char **paths; /* [n_files] */
    int n_files;
    lks__tokens **files; /* [n_files] */
    uint64_t *end;       /* [n_files] position after each file's last token */
};

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct listing {
    lks__shards *s;
    const char *pattern;
    int dir_bytes; /* of the pattern: its folder, with the slash */
    size_t room;
};

/* As in Python's glob, a name that begins with a dot needs a pattern that begins with a dot. */
static lks_status add_match(const char *dir, const char *name, void *ctx)
{
    struct listing *l = ctx;
    lks__shards *s = l->s;
    if (fnmatch(l->pattern + l->dir_bytes, name, FNM_PERIOD | FNM_NOESCAPE) != 0)
        return LKS_OK;
    if (!lks__list_grow(&s->paths, (size_t)s->n_files, &l->room, sizeof *s->paths) ||
        asprintf(&s->paths[s->n_files], "%.*s%s", l->dir_bytes, l->pattern, name) < 0)
        return lks__no_memory("to list %s", s->name);
    s->n_files++;
    return LKS_OK;
}

/* List all entries of the folder that match; an entry that isn't a file fails when it is opened. */
static lks_status list(lks__shards *s, const char *pattern)
{
    const char *slash = strrchr(pattern, '/');
    struct listing l = {s, pattern, slash ? (int)(slash + 1 - pattern) : 0, 0};
    char *dir_name = slash ? strndup(pattern, (size_t)l.dir_bytes) : strdup(".");
    LKS__MEMORY(dir_name, "to list %s", s->name);
    const bool missing = access(dir_name, F_OK) != 0 && errno == ENOENT;
    lks_status st = missing ? LKS_OK : lks__sys_each_name("cannot list", dir_name, add_match, &l);
    free(dir_name);
    if (st != LKS_OK)
        return st;
    if (s->n_files == 0)
        return lks__fail(LKS_ERR_IO,
                         "there is no token shard %s; make some with `lockstep prep sentencepiece "
                         "--input=TEXT --out=DIR`, or of another kind with --shards=TOKENS",
                         s->name);
    qsort(s->paths, (size_t)s->n_files, sizeof *s->paths, by_bytes);
    return LKS_OK;
}

static lks_status list_one(lks__shards *s, const char *path)
{
    s->paths = calloc(1, sizeof *s->paths);
    if (s->paths == NULL || (s->paths[0] = strdup(path)) == NULL)
        return lks__no_memory("to open a token file");
    s->n_files = 1;
    return LKS_OK;
}

/* True if the files are small enough to be checked completely. A file with unknown size fails when
 * it is opened. */
static bool is_small(const lks__shards *s)
{
    uint64_t bytes = 0;
    struct stat info;
    for (int i = 0; i < s->n_files; i++)
        if (stat(s->paths[i], &info) == 0 && !lks__add(bytes, (uint64_t)info.st_size, &bytes))
            return false;
    return bytes <= LKS__TOKENS_WHOLE;
}

/* A path names several shards, one shard, or a file without a header. */
enum path_kind { PATTERN, SHARD, RAW };

static lks_status open_files(lks__shards *s, uint32_t vocab_size)
{
    s->files = calloc((size_t)s->n_files, sizeof(lks__tokens *));
    s->end = calloc((size_t)s->n_files, sizeof *s->end);
    if (!s->files || !s->end)
        return lks__no_memory("for a list of %d shards", s->n_files);
    bool whole = is_small(s);
    uint64_t end = 0; /* at most 2^31 files of 2^31 tokens: no overflow */
    for (int i = 0; i < s->n_files; i++) {
        LKS__TRY(s->is_raw ? lks__tokens_open(s->paths[i], vocab_size, &s->files[i])
                           : lks__tokens_open_shard(s->paths[i], vocab_size, whole, &s->files[i]));
        s->end[i] = end += lks__tokens_count(s->files[i]);
    }
    if (end == 0)
        return lks__fail(LKS_ERR_FORMAT, "the %d shard%s %s hold%s no tokens", s->n_files,
                         s->n_files == 1 ? "" : "s", s->name, s->n_files == 1 ? "s" : "");
    return LKS_OK;
}

static lks_status open_as(enum path_kind kind, const char *path, uint32_t vocab_size,
                          lks__shards **shards_p)
{
    lks__shards *s = calloc(1, sizeof *s);
    LKS__MEMORY(s, "for a list of shards");
    s->is_raw = kind == RAW;
    lks__escape(s->name, sizeof s->name, path, strlen(path));
    lks_status st = kind == PATTERN ? list(s, path) : list_one(s, path);
    LKS__THEN(st, open_files(s, vocab_size));
    if (st == LKS_OK)
        *shards_p = s;
    else
        lks__shards_close(s);
    return st;
}

lks_status lks__shards_open(const char *pattern, uint32_t vocab_size, lks__shards **shards_p)
{
    return open_as(PATTERN, pattern, vocab_size, shards_p);
}

/* --- splits ----------------------------------------------------------------------------------- */

/* One file, shards as parameter-golf names them, or shards with another prefix, as llm.c's. */
enum form { ONE_FILE, GOLF_SHARDS, OTHER_SHARDS, NO_FORM };
static const char *const split_names[NO_FORM][2] = {
    {LKS__TRAIN_FILE, LKS__VAL_FILE},
    {LKS__SHARDS_TRAIN, LKS__SHARDS_VAL},
    {"*_train*.bin", "*_val*.bin"},
};

static lks_status split_path(const char *dir, int split, enum form form, char **path_p)
{
    if (asprintf(path_p, "%s/%s", dir, split_names[form][split]) < 0)
        return lks__no_memory("for the name of a token file");
    return LKS_OK;
}

static void free_paths(lks__shards *s)
{
    for (int i = 0; i < s->n_files; i++)
        free(s->paths[i]);
    free(s->paths);
}

/* True if a file of this form exists. Unreadable paths count: opening them reports the reason. */
static bool has_form(const char *dir, int split, enum form form)
{
    char *path;
    struct stat info;
    if (split_path(dir, split, form, &path) != LKS_OK)
        return true;
    lks__shards list_of = {0};
    const bool has = form != ONE_FILE ? list(&list_of, path) == LKS_OK
                                      : stat(path, &info) == 0 || errno != ENOENT;
    free_paths(&list_of);
    free(path);
    return has;
}

/* The form of the split, or NO_FORM if the folder contains none. Shards with another prefix count
 * only if neither split has another form, because they would be another dataset. */
static enum form form_of(const char *dir, int split, bool shards_first)
{
    const enum form first = shards_first ? GOLF_SHARDS : ONE_FILE;
    const enum form second = shards_first ? ONE_FILE : GOLF_SHARDS;
    const int other = split == LKS__SPLIT_TRAIN ? LKS__SPLIT_VAL : LKS__SPLIT_TRAIN;
    if (has_form(dir, split, first))
        return first;
    if (has_form(dir, split, second))
        return second;
    const bool mixed = has_form(dir, other, ONE_FILE) || has_form(dir, other, GOLF_SHARDS);
    return !mixed && has_form(dir, split, OTHER_SHARDS) ? OTHER_SHARDS : NO_FORM;
}

/* Bytes of NAME in NAME_train.bin, NAME_train_000001.bin and the same with val; 0: another form. */
static size_t prefix_of(const char *name)
{
    static const char *const words[2] = {"_train", "_val"};
    const char *end = strrchr(name, '.'), *digits = end;
    while (digits > name && isdigit((unsigned char)digits[-1]))
        digits--;
    if (digits != end)
        end = digits - 1;
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(words[i]);
        if ((digits[-1] == '_' || *end == '.') && end > name + n &&
            memcmp(end - n, words[i], n) == 0)
            return (size_t)(end - n - name);
    }
    return 0;
}

/* Shards of another prefix: both splits must belong to one dataset. */
static lks_status check_names(const char *dir, int split)
{
    lks__shards all = {0};
    lks_status st = LKS_OK;
    lks__escape(all.name, sizeof all.name, dir, strlen(dir));
    for (int k = 0; k < 2 && st == LKS_OK; k++) { /* this split has some */
        char *path = NULL;
        st = split_path(dir, k == 0 ? split : 1 - split, OTHER_SHARDS, &path);
        LKS__THEN(st, list(&all, path));
        free(path);
    }
    for (int i = 0; i < all.n_files && st == LKS_OK; i++) {
        const char *name = strrchr(all.paths[i], '/') + 1, *first = strrchr(all.paths[0], '/') + 1;
        const bool twice = i > 0 && strcmp(all.paths[i], all.paths[i - 1]) == 0;
        const size_t n = prefix_of(name);
        if (n == 0 || twice)
            st = lks__fail(LKS_ERR_CONFIG,
                           "%s: %s isn't named like NAME_train.bin, NAME_train_000001.bin or the "
                           "same with val: rename it, or move it to another folder",
                           all.name, lks__shown(name, 256));
        else if (n != prefix_of(first) || memcmp(name, first, n) != 0)
            st = lks__fail(LKS_ERR_CONFIG,
                           "%s: %s and %s belong to different datasets; keep the files of one in "
                           "this folder",
                           all.name, lks__shown(first, 256), lks__shown(name, 256));
    }
    free_paths(&all);
    return st;
}

/* Without one of the files that `prep` has written, the rest would be another, smaller dataset. */
static lks_status check_complete(const char *dir, const char *pattern)
{
    json_t *hashes, *hash;
    const char *name;
    lks_status st = lks__meta_hashes(dir, &hashes);
    json_object_foreach(hashes, name, hash)
    {
        if (st == LKS_OK && fnmatch(pattern, name, FNM_PERIOD) == 0 && !lks__sys_has(dir, name))
            st = lks__fail(LKS_ERR_IO,
                           "%s/%s is missing, which meta.json names: repeat `lockstep prep`, or "
                           "remove it from \"hashes\" in meta.json",
                           lks__shown(dir, 256), lks__shown(name, 256));
    }
    json_decref(hashes);
    return st;
}

bool lks__split_exists(const char *dir, int split)
{
    return form_of(dir, split, false) != NO_FORM;
}

static lks_status open_file(const char *path, uint32_t vocab_size, lks__shards **shards_p)
{
    return open_as(lks__tokens_is_shard(path) ? SHARD : RAW, path, vocab_size, shards_p);
}

lks_status lks__shards_open_any(const char *path, uint32_t vocab_size, lks__shards **shards_p)
{
    struct stat info;
    const bool is_pattern = stat(path, &info) != 0 && strpbrk(path, "*?[") != NULL;
    return is_pattern ? lks__shards_open(path, vocab_size, shards_p)
                      : open_file(path, vocab_size, shards_p);
}

lks_status lks__split_open(const char *dir, int split, bool shards_first, uint32_t vocab_size,
                           lks__shards **shards_p)
{
    char *path;
    const enum form form = form_of(dir, split, shards_first);
    if (form == NO_FORM)
        return lks__fail(LKS_ERR_CONFIG,
                         "there is no token file %s/%s, and no shard %s; make tokens with "
                         "`lockstep prep %s --input=TEXT --out=DIR`",
                         lks__shown(dir, 256), split_names[ONE_FILE][split],
                         split_names[OTHER_SHARDS][split], shards_first ? "sentencepiece" : "char");
    if (form == OTHER_SHARDS)
        LKS__TRY(check_names(dir, split));
    LKS__TRY(check_complete(dir, split_names[form][split]));
    LKS__TRY(split_path(dir, split, form, &path));
    lks_status st = form == ONE_FILE ? open_file(path, vocab_size, shards_p)
                                     : lks__shards_open(path, vocab_size, shards_p);
    if (st == LKS_OK)
        (*shards_p)->split_name = split_names[form][split];
    free(path);
    return st;
}

void lks__shards_close(lks__shards *s)
{
    if (!s)
        return;
    for (int i = 0; s->files != NULL && i < s->n_files; i++)
        lks__tokens_close(s->files[i]);
    free(s->files);
    free_paths(s);
    free(s->end);
    free(s);
}

uint64_t lks__shards_count(const lks__shards *s)
{
    return s->end[s->n_files - 1];
}

const char *lks__shards_split_name(const lks__shards *s)
{
    return s->split_name;
}

int lks__shards_n_files(const lks__shards *s)
{
    return s->n_files;
}

const char *lks__shards_path(const lks__shards *s, int file)
{
    return s->paths[file];
}

lks_status lks__shards_digest(const lks__shards *s, uint64_t *digest_p)
{
    if (s->is_raw)
        return lks__tokens_digest(s->files[0], digest_p);
    uint64_t *digests = malloc((size_t)s->n_files * sizeof *digests);
    LKS__MEMORY(digests, "to hash %d shards", s->n_files);
    lks_status st = LKS_OK;
    for (int i = 0; i < s->n_files && st == LKS_OK; i++)
        st = lks__tokens_digest(s->files[i], &digests[i]);
    if (st == LKS_OK)
        *digest_p = XXH3_64bits(digests, (size_t)s->n_files * sizeof *digests);
    free(digests);
    return st;
}

bool lks__shards_whole(const lks__shards *s)
{
    for (int i = 0; i < s->n_files; i++)
        if (!lks__tokens_whole(s->files[i]))
            return false;
    return true;
}

lks_status lks__shards_hash(const lks__shards *s, int file, uint64_t *hash_p)
{
    return lks__tokens_hash(s->files[file], hash_p);
}

/* The file that contains token `at` < count: the first file that ends after it. */
static int file_of(const lks__shards *s, uint64_t at)
{
    int lo = 0, hi = s->n_files - 1;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (s->end[mid] > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

const char *lks__shards_place(const lks__shards *s, uint64_t position, uint64_t *offset_p)
{
    const int file = file_of(s, position);
    const lks__tokens *t = s->files[file];
    *offset_p = lks__tokens_offset(t, position - (s->end[file] - lks__tokens_count(t)));
    return s->paths[file];
}

lks_status lks__shards_read(const lks__shards *s, uint64_t position, size_t n, int32_t *out)
{
    uint64_t at = position % lks__shards_count(s);
    for (int file = file_of(s, at); n > 0; file = (file + 1) % s->n_files) {
        uint64_t count = lks__tokens_count(s->files[file]);
        uint64_t first = at - (s->end[file] - count), left = count - first;
        size_t take = left < n ? (size_t)left : n;
        LKS__TRY(lks__tokens_read(s->files[file], first, take, out));
        out += take;
        n -= take;
        at = file + 1 < s->n_files ? s->end[file] : 0;
    }
    return LKS_OK;
}

lks_status lks__shards_samples(const lks__shards *data, const uint64_t *offsets, size_t B, size_t T,
                               int32_t *tokens, int32_t *targets)
{
    for (size_t b = 0; b < B; b++) {
        /* Its last element is the first of the next row, which is read again. */
        int32_t *row = tokens + b * T;
        LKS__TRY(lks__shards_read(data, offsets[b], T + 1, row));
        memcpy(targets + b * T, row + 1, T * sizeof *row);
    }
    return LKS_OK;
}

lks_status lks__shards_usable(const lks__shards *s, uint64_t seq_len, uint64_t *usable_p)
{
    uint64_t n = lks__shards_count(s);
    if (n - 1 < seq_len)
        return lks__fail(
            LKS_ERR_CONFIG,
            "%s: %llu tokens are too few for one sequence of %llu, which needs one token more",
            s->name, (unsigned long long)n, (unsigned long long)seq_len);
    *usable_p = (n - 1) / seq_len * seq_len + 1;
    return LKS_OK;
}
