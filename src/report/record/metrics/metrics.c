#include "report/record/metrics/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"

enum { LINE_BYTES = 64 << 10 };

enum { STAYING = 2, STAYING_BYTES = 1024 };

struct lks__metrics {
    char path[LKS__SYS_PATH];
    int fd;
    bool is_other; /* the line of the checkpoint has other weights */
    /* Lines of the run's end that a resume left in the file, so they aren't written again. */
    char staying[STAYING][STAYING_BYTES];
    size_t n_staying;
    lks__jsonw w;
    char line[LINE_BYTES];
};

static lks_status open_file(const char *out_dir, int flags, lks__metrics **metrics_p)
{
    lks__metrics *m = calloc(1, sizeof *m);
    LKS__MEMORY(m, "for the metrics");
    snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", out_dir);
    m->fd = lks__sys_open(m->path, O_RDWR | O_CREAT | O_NOFOLLOW | flags, 0666);
    if (m->fd < 0) {
        lks_status st = lks__sys_fail("can't open", m->path);
        free(m);
        return st;
    }
    *metrics_p = m;
    return LKS_OK;
}

lks_status lks__metrics_create(const char *out_dir, lks__metrics **metrics_p)
{
    return open_file(out_dir, O_TRUNC, metrics_p);
}

/* ---- where a resume cuts ------------------------------------------------------------------ */

/* A line's relation to checkpoint `iter`. KEEP: part of its state. OWN: its own line. OTHER: the
 * same, with other weights. END: written at the end of a run that ended with it. NEITHER: belongs
 * to no iteration. */
enum relation { KEEP, OWN, OTHER, END, LATER, NEITHER };

/* A piece of the file. The file is read from its end, because the place to cut is near it. */
struct tail {
    const lks__metrics *m;
    uint64_t from; /* offset of bytes[0] in the file */
    size_t n;
    char bytes[4 * LINE_BYTES];
};

static lks_status bad_line(const struct tail *t, uint64_t end, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: the line that ends at offset %" PRIu64
                     " %s, so no run has written it; remove it, or move the file away",
                     lks__shown(t->m->path, 512), end, what);
}

/* Read the bytes before `end`, as many as fit. */
static lks_status read_before(struct tail *t, uint64_t end)
{
    t->n = end < sizeof t->bytes ? (size_t)end : sizeof t->bytes;
    t->from = end - t->n;
    if (lks__sys_read_at(t->m->fd, t->bytes, t->n, t->from) < 0)
        return lks__sys_fail("can't read", t->m->path);
    return LKS_OK;
}

/* *end_p: from the file's size to the end of the last complete line. */
static lks_status last_end(struct tail *t, uint64_t *end_p)
{
    for (uint64_t end = *end_p; end > 0; end = t->from) {
        LKS__TRY(read_before(t, end));
        const char *newline = memrchr(t->bytes, '\n', t->n);
        if (newline != NULL) {
            *end_p = t->from + (uint64_t)(newline - t->bytes) + 1;
            return LKS_OK;
        }
    }
    *end_p = 0;
    return LKS_OK;
}

/* The line before `end`, including its line feed. */
static lks_status line_before(struct tail *t, uint64_t end, const char **line_p, size_t *bytes_p)
{
    for (bool refilled = false;; refilled = true) {
        size_t n = end > t->from && end <= t->from + t->n ? (size_t)(end - t->from) : 0;
        const char *newline = n > 0 ? memrchr(t->bytes, '\n', n - 1) : NULL;
        if (newline != NULL || (n > 0 && t->from == 0)) {
            *line_p = newline != NULL ? newline + 1 : t->bytes;
            *bytes_p = n - (size_t)(*line_p - t->bytes);
            return *bytes_p <= LINE_BYTES ? LKS_OK : bad_line(t, end, "is too long");
        }
        if (refilled) /* the buffer is full, and has no beginning of a line */
            return bad_line(t, end, "is too long");
        LKS__TRY(read_before(t, end));
    }
}

static enum relation own_line(const json_t *o, const lks__metrics_cut *cut)
{
    const char *hash = lks__json_str(o, "params_hash");
    const bool known = hash != NULL && cut->params_hash != NULL && cut->params_hash[0] != '\0';
    return known && strcmp(hash, cut->params_hash) != 0 ? OTHER : OWN;
}

static enum relation classify_object(const json_t *o, const lks__metrics_cut *cut)
{
    const char *kind = lks__json_str(o, "kind");
    const json_t *i = json_object_get(o, "iter");
    if (strcmp(kind, "config") == 0 || strcmp(kind, "host") == 0)
        return NEITHER;
    if (!json_is_integer(i) || json_integer_value(i) < 0)
        return LATER;
    uint64_t at = (uint64_t)json_integer_value(i);
    bool from_start = cut->iter == 0 && !cut->eval_done; /* evaluation 0 will be made again */
    if (strcmp(kind, "checkpoint") == 0 && !from_start)
        return at < cut->iter ? KEEP : at == cut->iter && cut->own_line ? own_line(o, cut) : LATER;
    if (strcmp(kind, "eval") == 0)
        return at < cut->iter || (at == cut->iter && cut->eval_done) ? KEEP : LATER;
    if (strcmp(kind, "train") == 0 || strcmp(kind, "skip") == 0 || strcmp(kind, "rollback") == 0 ||
        strcmp(kind, "recheck") == 0)
        return at < cut->iter ? KEEP : LATER;
    if (strcmp(kind, "final") == 0 || strcmp(kind, "artifact") == 0)
        return at < cut->iter ? KEEP : at == cut->iter && cut->own_line ? END : LATER;
    return LATER; /* kinds that follow a checkpoint and don't belong to it */
}

static lks_status classify(const struct tail *t, uint64_t end, const char *line, size_t bytes,
                           const lks__metrics_cut *cut, enum relation *relation_p)
{
    json_t *o;
    *relation_p = LATER;
    if (memchr(line, '\0', bytes) != NULL)
        return LKS_OK; /* zeros of the file system in place of data that a crash lost */
    LKS__TRY(lks__json_line(line, bytes, JSON_REJECT_DUPLICATES, &o));
    lks_status st = LKS_OK;
    if (json_is_string(json_object_get(o, "kind")))
        *relation_p = classify_object(o, cut);
    else
        st = bad_line(t, end, "is not a JSON object with a \"kind\"");
    json_decref(o);
    return st;
}

static void remember(lks__metrics *m, const char *line, size_t bytes)
{
    if (m->n_staying < STAYING && bytes < STAYING_BYTES)
        snprintf(m->staying[m->n_staying++], STAYING_BYTES, "%.*s", (int)bytes, line);
}

/* Search backwards for the checkpoint's own line, or the last line of its state. `*end_p`: on entry
 * the file's size, on return where to cut. The run's end that follows the own line stays. Rollbacks
 * repeat iterations: the newest of equal lines counts. */
static lks_status find_cut(lks__metrics *m, struct tail *t, const lks__metrics_cut *cut,
                           uint64_t *end_p, bool *has_line_p)
{
    enum relation relation = LATER;
    const char *line = NULL;
    size_t bytes = 0;
    uint64_t stays_to = 0;
    LKS__TRY(last_end(t, end_p));
    for (uint64_t end = *end_p; end > 0 && relation != OWN && relation != KEEP; end -= bytes) {
        LKS__TRY(line_before(t, end, &line, &bytes));
        LKS__TRY(classify(t, end, line, bytes, cut, &relation));
        m->is_other = relation == OTHER;
        if (relation == OTHER)
            relation = OWN;
        if (relation == OWN) {
            *end_p = stays_to > 0 ? stays_to : end;
        } else if (relation == END) {
            stays_to = stays_to > 0 ? stays_to : end;
            *end_p = end - bytes; /* unless the own line comes next */
            remember(m, line, bytes);
        } else if (relation == LATER) {
            *end_p = end - bytes;
            stays_to = m->n_staying = 0;
        }
    }
    *has_line_p = relation == OWN;
    if (relation != OWN)
        m->n_staying = 0;
    return LKS_OK;
}

static lks_status cut_file(lks__metrics *m, const lks__metrics_cut *cut, bool *empty_p,
                           bool *has_line_p)
{
    uint64_t end;
    LKS__TRY(lks__sys_file_bytes(m->fd, m->path, &end));
    struct tail *t = malloc(sizeof *t);
    LKS__MEMORY(t, "to read the metrics");
    t->m = m;
    t->from = t->n = 0;
    lks_status st = find_cut(m, t, cut, &end, has_line_p);
    free(t);
    if (st != LKS_OK)
        return st;
    *empty_p = end == 0;
    if (lks__sys_truncate(m->fd, end) != 0 || lseek(m->fd, 0, SEEK_END) < 0)
        return lks__sys_fail("can't cut", m->path);
    return LKS_OK;
}

lks_status lks__metrics_resume(const char *out_dir, const lks__metrics_cut *cut, bool *empty_p,
                               bool *has_line_p, lks__metrics **metrics_p)
{
    lks__metrics *m = NULL;
    LKS__TRY(open_file(out_dir, 0, &m));
    lks_status st = cut_file(m, cut, empty_p, has_line_p);
    if (st != LKS_OK) {
        lks__metrics_close(m);
        return st;
    }
    *metrics_p = m;
    return LKS_OK;
}

/* ---- the last host line -------------------------------------------------------------------- */

static void copy_path(const json_t *paths, const char *name, char out[LKS__METRICS_PATH])
{
    const char *path = lks__json_str(paths, name);
    bool fits = path != NULL && strlen(path) < LKS__METRICS_PATH;
    snprintf(out, LKS__METRICS_PATH, "%s", fits ? path : "");
}

/* The line as an object, if it is a host line with paths; otherwise *host_p = NULL. */
static lks_status read_host(const struct tail *t, uint64_t end, const char *line, size_t bytes,
                            json_t **host_p)
{
    json_t *o;
    *host_p = NULL;
    if (memmem(line, bytes, "\"host\"", 6) == NULL || memchr(line, '\0', bytes) != NULL)
        return LKS_OK;
    LKS__TRY(lks__json_line(line, bytes, JSON_REJECT_DUPLICATES, &o));
    if (o == NULL)
        return bad_line(t, end, "is not a JSON object");
    const char *kind = lks__json_str(o, "kind");
    const json_t *paths = json_object_get(o, "paths");
    if (kind != NULL && strcmp(kind, "host") == 0 &&
        json_is_string(json_object_get(paths, "dataset")))
        *host_p = o;
    else
        json_decref(o);
    return LKS_OK;
}

static lks_status find_host(struct tail *t, uint64_t end, json_t **host_p)
{
    const char *line = NULL;
    size_t bytes = 0;
    LKS__TRY(last_end(t, &end));
    for (; end > 0 && *host_p == NULL; end -= bytes) {
        LKS__TRY(line_before(t, end, &line, &bytes));
        LKS__TRY(read_host(t, end, line, bytes, host_p));
    }
    return LKS_OK;
}

/* The last host line of OUT/metrics.jsonl; NULL if there is none. */
static lks_status last_host(const char *out_dir, json_t **host_p)
{
    struct stat info;
    lks__metrics *m = calloc(1, sizeof *m);
    struct tail *t = malloc(sizeof *t);
    lks_status st = LKS_OK;
    *host_p = NULL;
    if (m == NULL || t == NULL) {
        st = lks__no_memory("to read the metrics");
    } else {
        snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", out_dir);
        m->fd = lks__sys_open(m->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
        *t = (struct tail){.m = m};
        if (m->fd >= 0 && fstat(m->fd, &info) == 0 && S_ISREG(info.st_mode))
            st = find_host(t, (uint64_t)info.st_size, host_p);
        lks__sys_close(m->fd);
    }
    free(t);
    free(m);
    return st;
}

lks_status lks__metrics_dataset(const char *out_dir, char used[LKS__METRICS_PATH],
                                char absolute[LKS__METRICS_PATH], bool *found_p)
{
    json_t *host;
    lks_status st = last_host(out_dir, &host);
    copy_path(json_object_get(host, "paths"), "dataset", used);
    copy_path(json_object_get(host, "paths"), "dataset_absolute", absolute);
    json_decref(host);
    *found_p = used[0] != '\0';
    return st;
}

lks_status lks__metrics_settings(const char *out_dir, json_t **settings_p)
{
    json_t *host;
    lks_status st = last_host(out_dir, &host);
    *settings_p = json_incref(json_object_get(host, "settings"));
    json_decref(host);
    return st;
}

static lks_status find_eval(struct tail *t, uint64_t end, uint64_t iter, json_t **eval_p)
{
    const lks__metrics_cut cut = {.iter = iter, .eval_done = true, .own_line = true};
    const char *line = NULL;
    size_t bytes = 0;
    enum relation relation = LATER;
    for (; end > 0 && relation != KEEP; end -= bytes) {
        LKS__TRY(line_before(t, end, &line, &bytes));
        LKS__TRY(classify(t, end, line, bytes, &cut, &relation));
    }
    json_t *o = NULL;
    if (relation == KEEP)
        LKS__TRY(lks__json_line(line, bytes, JSON_REJECT_DUPLICATES, &o));
    const char *kind = lks__json_str(o, "kind");
    const json_t *i = json_object_get(o, "iter");
    if (kind != NULL && strcmp(kind, "eval") == 0 && json_integer_value(i) == (json_int_t)iter)
        *eval_p = json_incref(o);
    json_decref(o);
    return LKS_OK;
}

lks_status lks__metrics_eval_at(const lks__metrics *m, uint64_t iter, json_t **eval_p)
{
    struct tail *t = malloc(sizeof *t);
    struct stat info;
    *eval_p = NULL;
    LKS__MEMORY(t, "to read the metrics");
    *t = (struct tail){.m = m};
    lks_status st = fstat(m->fd, &info) == 0 ? find_eval(t, (uint64_t)info.st_size, iter, eval_p)
                                             : lks__sys_fail("can't read", m->path);
    free(t);
    return st;
}

bool lks__metrics_is_other(const lks__metrics *m)
{
    return m->is_other;
}

lks_status lks__metrics_close(lks__metrics *m)
{
    if (m == NULL)
        return LKS_OK;
    lks_status st = lks__sys_close(m->fd) == 0 ? LKS_OK : lks__sys_fail("can't write", m->path);
    free(m);
    return st;
}

lks__jsonw *lks__metrics_begin(lks__metrics *m, const char *kind)
{
    lks__jsonw_open(&m->w, m->line, sizeof m->line);
    lks__jsonw_object(&m->w, NULL);
    lks__jsonw_str(&m->w, "kind", kind);
    return &m->w;
}

lks_status lks__metrics_end(lks__metrics *m)
{
    size_t len;
    lks__jsonw_end(&m->w);
    LKS__TRY(lks__jsonw_close(&m->w, &len));
    for (size_t i = 0; i < m->n_staying; i++)
        if (strlen(m->staying[i]) == len && memcmp(m->staying[i], m->line, len) == 0)
            return LKS_OK;
    if (lks__sys_write_all(m->fd, m->line, len) != 0)
        return lks__sys_fail("can't write", m->path);
    return LKS_OK;
}

/* Some network file systems give an open file another number, so its size and time count, too. */
static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return (a->st_dev == b->st_dev && a->st_ino == b->st_ino) ||
           (a->st_size > 0 && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
            a->st_mtim.tv_nsec == b->st_mtim.tv_nsec);
}

lks_status lks__metrics_sync(lks__metrics *m)
{
    if (lks__sys_fdatasync(m->fd) != 0)
        return lks__sys_fail("can't write", m->path);
    return lks__metrics_check(m);
}

lks_status lks__metrics_check(const lks__metrics *m)
{
    struct stat own, named;
    if (fstat(m->fd, &own) != 0)
        return lks__sys_fail("can't write", m->path);
    const bool found = lstat(m->path, &named) == 0;
    if (!found && errno != ENOENT)
        return lks__sys_fail("can't find", m->path);
    if (found && is_same_file(&named, &own))
        return LKS_OK;
    lks_status st = lks__fail(
        LKS_ERR_IO,
        "%s isn't this run's file any more: the file or its folder was moved, removed or replaced "
        "while the run used it; move it back, then continue from the newest checkpoint",
        lks__shown(m->path, 512));
    lks__sys_set_lasting(lks_last_error()); /* a restart would begin in another run's folder */
    return st;
}
