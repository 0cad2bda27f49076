#include "report/view/series.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/list.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "report/record/outdir.h"

enum {
    CHUNK = 1 << 20, /* a run's lines are shorter than 64 KiB */
    MOST_RANKS = 1024,
    MOST_RANKS_BYTES = 64 << 20,
    MOST_SAMPLES = 16,
};

/* --- lines ------------------------------------------------------------------------------------ */

static lks_status out_of_memory(void)
{
    return lks__no_memory("for the numbers of a run");
}

static lks_status add_point(lks__series *s, const json_t *o, uint64_t iter)
{
    if (!lks__list_grow(&s->points, s->n_points, &s->points_room, sizeof *s->points))
        return out_of_memory();
    lks__point *p = &s->points[s->n_points++];
    *p = (lks__point){.iter = iter,
                      .loss = lks__json_number(o, "loss"),
                      .lr = lks__json_number(o, "lr"),
                      .grad_norm = lks__json_number(o, "grad_norm"),
                      .tokens = lks__json_number(o, "tokens"),
                      .ms = lks__json_number(o, "ms"),
                      .tok_per_s = lks__json_number(o, "tok_per_s"),
                      .mfu = lks__json_number(o, "mfu"),
                      .wait_ms = lks__json_number(o, "comm_exposed_ms")};
    if (p->ms > 0.0)
        s->elapsed += p->ms * 1e-3;
    p->seconds = s->elapsed;
    return LKS_OK;
}

/* Remove the texts of iterations from `iter` on, which the run repeats, and append `text`, if it is
 * not NULL. */
static lks_status add_sample(lks__series *s, uint64_t iter, const char *text)
{
    json_t *all = json_array();
    lks__each(row, s->samples)
        if ((uint64_t)json_integer_value(json_array_get(row, 0)) < iter)
            json_array_append(all, row);
    if (text != NULL)
        json_array_append_new(all, json_pack("[I, s]", (json_int_t)iter, text));
    if (json_array_size(all) > MOST_SAMPLES)
        json_array_remove(all, 0);
    json_decref(s->samples);
    s->samples = all;
    s->samples_made++;
    return all != NULL ? LKS_OK : out_of_memory();
}

static lks_status add_eval(lks__series *s, const json_t *o, uint64_t iter, bool final)
{
    if (!lks__list_grow(&s->evals, s->n_evals, &s->evals_room, sizeof *s->evals))
        return out_of_memory();
    s->evals[s->n_evals++] =
        (lks__eval_point){.iter = iter,
                          .train_loss = lks__json_number(o, "train_loss"),
                          .val_loss = lks__json_number(o, "val_loss"),
                          .val_bpb = lks__json_number(o, "val_bpb"),
                          .tokens = s->n_points > 0 ? s->points[s->n_points - 1].tokens : 0.0,
                          .seconds = s->elapsed,
                          .final = final};
    const char *text = lks__json_str(o, "sample");
    return text != NULL ? add_sample(s, iter, text) : LKS_OK;
}

static lks_status add_mark(lks__series *s, const char *kind, uint64_t iter, const char *text)
{
    if (!lks__list_grow(&s->marks, s->n_marks, &s->marks_room, sizeof *s->marks))
        return out_of_memory();
    lks__run_mark *m = &s->marks[s->n_marks++];
    m->iter = iter;
    snprintf(m->kind, sizeof m->kind, "%s", kind);
    snprintf(m->text, sizeof m->text, "%s", text);
    lks__utf8_make(m->kind);
    lks__utf8_make(m->text);
    return LKS_OK;
}

/* The run went back to `to`; it doesn't repeat evaluation `to`. */
static lks_status go_back(lks__series *s, uint64_t to)
{
    s->epoch++;
    while (s->n_points > 0 && s->points[s->n_points - 1].iter >= to)
        s->n_points--;
    while (s->n_evals > 0 && s->evals[s->n_evals - 1].iter > to)
        s->n_evals--;
    return s->samples != NULL ? add_sample(s, to + 1, NULL) : LKS_OK;
}

/* Add a mark if a resume has changed the batch: its text is the new batch. */
static lks_status add_segment(lks__series *s, const json_t *changed, uint64_t iter)
{
    static const char *const batch[] = {"batch_size", "gradient_accumulation_steps",
                                        "virtual_ranks", "train_batch_tokens"};
    char text[LKS__MARK_TEXT] = "";
    for (size_t i = 0; i < sizeof batch / sizeof batch[0]; i++) {
        const json_t *value = json_object_get(changed, batch[i]);
        if (json_is_integer(value))
            lks__append(text, sizeof text, ", ", "%s %" JSON_INTEGER_FORMAT, batch[i],
                        json_integer_value(value));
    }
    return text[0] != '\0' ? add_mark(s, "segment", iter, text) : LKS_OK;
}

/* Name the hosts that computed a gradient wrongly. Without a majority it was one of them. */
static void name_wrong(const json_t *line, char text[LKS__MARK_TEXT])
{
    const bool decided = json_object_get(line, "right") != NULL;
    lks__each(row, json_object_get(line, "wrong")) {
        const char *host = lks__json_str(row, "host");
        if (host != NULL)
            lks__append(text, LKS__MARK_TEXT, decided ? " and " : " or ", "%s%s",
                        text[0] == '\0' ? "wrong gradient on host " : "", host);
    }
}

static lks_status read_host(lks__series *s, json_t *o)
{
    const json_t *resumed = json_object_get(o, "resumed_iter");
    uint64_t iter = s->n_points > 0 ? s->points[s->n_points - 1].iter + 1 : 0;
    if (json_is_integer(resumed) && json_integer_value(resumed) >= 0) /* after skipped steps, too */
        iter = (uint64_t)json_integer_value(resumed);
    if (json_object_get(o, "micro_batches") != NULL) {
        json_decref(s->end);
        s->end = json_incref(o);
        return LKS_OK;
    }
    json_decref(s->host);
    json_decref(s->end);
    s->host = json_incref(o);
    s->end = NULL;
    const bool whole = json_is_object(json_object_get(o, "config"));
    json_t *newer = json_object_get(o, whole ? "config" : "changed");
    if (s->config != NULL && json_is_object(newer) && json_object_update(s->config, newer) != 0)
        return out_of_memory();
    LKS__TRY(add_mark(s, s->starts++ == 0 ? "start" : "resume", iter, ""));
    return add_segment(s, json_object_get(o, "changed"), iter);
}

static lks_status read_object(lks__series *s, json_t *o)
{
    const char *kind = lks__json_str(o, "kind");
    const json_t *i = json_object_get(o, "iter");
    const uint64_t iter = (uint64_t)json_integer_value(i);
    if (kind != NULL && strcmp(kind, "config") == 0) {
        json_decref(s->config);
        s->config = json_incref(o);
        return LKS_OK;
    }
    if (kind != NULL && strcmp(kind, "host") == 0)
        return read_host(s, o);
    if (kind == NULL || !json_is_integer(i) || json_integer_value(i) < 0) {
        s->bad++;
        return LKS_OK;
    }
    if (strcmp(kind, "train") == 0)
        return add_point(s, o, iter);
    if (strcmp(kind, "eval") == 0 || strcmp(kind, "final") == 0)
        return add_eval(s, o, iter, strcmp(kind, "final") == 0);
    const char *hash = lks__json_str(o, "params_hash");
    const char *path = lks__json_str(o, "path");
    const char *place = lks__json_str(o, "place");
    char wrong[LKS__MARK_TEXT] = "";
    if (strcmp(kind, "checkpoint") == 0) {
        s->checkpoints++;
        snprintf(s->params_hash, sizeof s->params_hash, "%s", hash != NULL ? hash : "");
        lks__utf8_make(s->params_hash);
    } else if (strcmp(kind, "artifact") == 0) {
        json_decref(s->artifact);
        s->artifact = json_incref(o);
    } else if (strcmp(kind, "skip") == 0) {
        s->skips++;
    } else if (strcmp(kind, "recheck") == 0) {
        s->rechecks++;
        name_wrong(o, wrong);
    } else if (strcmp(kind, "rollback") == 0) {
        s->rollbacks++;
        if (json_is_integer(json_object_get(o, "to")) && lks__json_int(o, "to") >= 0)
            LKS__TRY(go_back(s, (uint64_t)lks__json_int(o, "to")));
    }
    return add_mark(s, kind, iter, path != NULL ? path : place != NULL ? place : wrong);
}

static lks_status read_line(lks__series *s, const char *line, size_t bytes)
{
    json_t *o;
    lks_status st = lks__json_line(line, bytes, 0, &o);
    if (o != NULL)
        st = read_object(s, o);
    else if (st == LKS_OK)
        s->bad++;
    json_decref(o);
    return st;
}

/* --- ranks.jsonl ------------------------------------------------------------------------------ */

/* The newest point before iteration `iter`, or NULL. */
static const lks__point *point_before(const lks__series *s, json_int_t iter)
{
    size_t low = 0, high = s->n_points; /* points ascend */
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if ((json_int_t)s->points[mid].iter < iter)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 ? &s->points[low - 1] : NULL;
}

static bool is_numbers(const json_t *all)
{
    bool good = json_is_array(all) && json_array_size(all) <= MOST_RANKS;
    for (size_t i = 0; good && i < json_array_size(all); i++)
        good = json_is_number(json_array_get(all, i));
    return good;
}

static json_t *numbers(const json_t *o, const char *key)
{
    json_t *all = json_object_get(o, key);
    return is_numbers(all) ? json_incref(all) : json_null();
}

/* Append a line's row, and remove earlier rows of iterations that the run has repeated. */
static void add_ranks(const lks__series *s, json_t *rows, const char *line, size_t bytes)
{
    json_t *o;
    (void)lks__json_line(line, bytes, 0, &o);
    const json_t *at = json_object_get(o, "iter");
    const json_int_t iter = json_integer_value(at);
    size_t n = json_array_size(rows);
    if (json_is_integer(at) && iter >= 0 && is_numbers(json_object_get(o, "memory_bytes"))) {
        const lks__point *point = point_before(s, iter);
        while (n > 0 && json_integer_value(json_array_get(json_array_get(rows, n - 1), 0)) >= iter)
            json_array_remove(rows, --n);
        json_array_append_new(rows, json_pack("[I, o, o, o, o, o]", iter,
                                              lks__json_real(point != NULL ? point->tokens : 0.0),
                                              lks__json_real(point != NULL ? point->seconds : 0.0),
                                              numbers(o, "compute_ms"), numbers(o, "wait_ms"),
                                              numbers(o, "memory_bytes")));
    }
    json_decref(o);
}

/* Read the whole file again if its length has changed; it is short, with a line per evaluation. A
 * file that is missing or can't be read counts as empty. ERR_NOMEM. */
static lks_status read_ranks(lks__series *s)
{
    char path[LKS__SYS_PATH], *text = NULL;
    struct stat info;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/ranks.jsonl", s->dir);
    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode))
        info.st_size = 0;
    if ((uint64_t)info.st_size == s->ranks_bytes)
        return LKS_OK;
    if (info.st_size > 0 &&
        lks__sys_read_file(path, MOST_RANKS_BYTES, &text, &bytes) == LKS_ERR_NOMEM)
        return LKS_ERR_NOMEM;
    json_t *rows = json_array();
    for (const char *line = text, *end; line != NULL; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        if (end == NULL)
            break;
        add_ranks(s, rows, line, (size_t)(end - line));
    }
    free(text);
    json_decref(s->ranks);
    s->ranks = rows;
    s->ranks_bytes = (uint64_t)info.st_size;
    return LKS_OK;
}

/* --- the file --------------------------------------------------------------------------------- */

static void forget(lks__series *s)
{
    json_decref(s->config);
    json_decref(s->host);
    json_decref(s->end);
    json_decref(s->artifact);
    json_decref(s->ranks);
    json_decref(s->samples);
    s->config = s->host = s->end = s->artifact = s->ranks = s->samples = NULL;
    s->ranks_bytes = 0;
    s->n_points = s->n_evals = s->n_marks = s->n_before = s->bad = 0;
    s->starts = s->skips = s->rollbacks = s->rechecks = s->checkpoints = 0;
    s->params_hash[0] = '\0';
    s->offset = 0;
    s->elapsed = 0.0;
    s->epoch++;
}

/* True if the bytes before s->offset are still there, and the same. */
static bool is_unchanged(const lks__series *s, int fd)
{
    char now[sizeof s->before];
    return s->n_before == 0 ||
           (lks__sys_read_at(fd, now, s->n_before, s->offset - s->n_before) == 0 &&
            memcmp(now, s->before, s->n_before) == 0);
}

/* Read the complete lines from s->offset up to `bytes`. */
static lks_status read_lines(lks__series *s, int fd, uint64_t bytes, char *chunk, const char *path)
{
    while (s->offset < bytes) {
        size_t have = bytes - s->offset < CHUNK ? (size_t)(bytes - s->offset) : CHUNK, done = 0;
        if (lks__sys_read_at(fd, chunk, have, s->offset) != 0)
            return errno == 0
                       ? LKS_OK
                       : lks__sys_fail("can't read", path); /* it was cut: read it next time */
        for (char *end; (end = memchr(chunk + done, '\n', have - done)) != NULL;) {
            LKS__TRY(read_line(s, chunk + done, (size_t)(end - chunk) - done));
            done = (size_t)(end - chunk) + 1;
        }
        if (done == 0 && have < CHUNK)
            return LKS_OK; /* the line isn't complete yet */
        if (done == 0) {   /* no run's line is so long */
            s->bad++;
            done = have;
        }
        s->n_before = done < sizeof s->before ? done : sizeof s->before;
        memcpy(s->before, chunk + done - s->n_before, s->n_before);
        s->offset += done;
    }
    return LKS_OK;
}

/* An open metrics.jsonl. */
struct reading {
    lks__series *s;
    int fd;
    uint64_t bytes;
    char *chunk;
    const char *path;
    lks_status st;
};

static void read_all(void *arg)
{
    struct reading *r = arg;
    r->st = read_lines(r->s, r->fd, r->bytes, r->chunk, r->path);
    LKS__THEN(r->st, read_ranks(r->s));
}

lks_status lks__series_read(lks__series *s)
{
    char path[LKS__SYS_PATH];
    struct reading r = {.s = s, .path = path};
    snprintf(path, sizeof path, "%s/metrics.jsonl", s->dir);
    /* Before the lines: a run writes its last ones under the lock. */
    s->running = lks__outdir_free(s->dir, true) != LKS_OK;
    r.fd = lks__sys_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (r.fd < 0 && errno == ENOENT) { /* moved away; a new run begins */
        if (s->offset > 0)
            forget(s);
        return LKS_OK;
    }
    if (r.fd < 0)
        return lks__sys_fail("can't open", path);
    r.chunk = malloc(CHUNK);
    lks_status st = r.chunk == NULL ? out_of_memory() : LKS_OK;
    LKS__THEN(st, lks__sys_file_bytes(r.fd, path, &r.bytes));
    if (st == LKS_OK && !is_unchanged(s, r.fd))
        forget(s);
    LKS__THEN(st, lks__json_in_memory(read_all, &r) ? r.st : out_of_memory());
    free(r.chunk);
    lks__sys_close(r.fd);
    return st;
}

const char *lks__series_dir(const char *arg)
{
    struct stat info;
    const char *equals = stat(arg, &info) == 0 ? NULL : strchr(arg, '=');
    return equals != NULL ? equals + 1 : arg;
}

lks_status lks__series_open(const char *arg, lks__series *s)
{
    struct stat info;
    char path[LKS__SYS_PATH];
    *s = (lks__series){.n_points = 0};
    const char *dir = lks__series_dir(arg);
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    s->dir[lks__sys_path_length(s->dir)] = '\0';
    const char *last = strrchr(s->dir, '/');
    s->named = dir > arg;
    if (s->named)
        snprintf(s->name, sizeof s->name, "%.*s", (int)(dir - arg) - 1, arg);
    else
        snprintf(s->name, sizeof s->name, "%.*s", (int)sizeof s->name - 1,
                 last != NULL && last[1] ? last + 1 : s->dir);
    lks__utf8_make(s->name);
    snprintf(path, sizeof path, "%s/metrics.jsonl", s->dir);
    if (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return lks__fail(
            LKS_ERR_CONFIG,
            "%s is not a run's folder or a folder of runs: it contains no metrics.jsonl, "
            "which `lockstep train` writes",
            lks__shown(s->dir, 600));
    lks_status st = lks__series_read(s);
    if (st != LKS_OK)
        lks__series_close(s);
    return st;
}

void lks__series_close(lks__series *s)
{
    forget(s);
    free(s->points);
    free(s->evals);
    free(s->marks);
    s->points = NULL;
    s->evals = NULL;
    s->marks = NULL;
    s->points_room = s->evals_room = s->marks_room = 0;
}

/* --- results ---------------------------------------------------------------------------------- */

uint64_t lks__series_steps(const lks__series *s)
{
    return s->n_points > 0 ? s->points[s->n_points - 1].iter + 1 : 0;
}

double lks__series_last_loss(const lks__series *s)
{
    return s->n_points > 0 ? s->points[s->n_points - 1].loss : (double)NAN;
}

/* True if the newest step, with or without an update, is the last one of a run without evaluations.
 */
static bool made_all(const lks__series *s)
{
    const json_t *last = json_object_get(s->config, "max_iters");
    const uint64_t iter = (uint64_t)json_integer_value(last);
    bool made = s->n_points > 0 && s->points[s->n_points - 1].iter == iter;
    for (size_t i = s->n_marks; i-- > 0 && !made;)
        made = s->marks[i].iter == iter && strcmp(s->marks[i].kind, "skip") == 0;
    return made && json_is_integer(last) && lks__json_int(s->config, "eval_interval") == 0;
}

bool lks__series_complete(const lks__series *s)
{
    const lks__eval_point *last = lks__series_last_eval(s);
    const bool evaluated = last != NULL && last->final &&
                           (s->n_points == 0 || s->points[s->n_points - 1].iter < last->iter);
    return s->end != NULL && (evaluated || made_all(s));
}

/* True if the newest start of the run has no lock to ask. */
static bool is_unlocked(const lks__series *s)
{
    lks__each(word, json_object_get(s->host, "command"))
        if (json_is_string(word) && strcmp(json_string_value(word), "--lock=off") == 0)
            return true;
    return false;
}

const char *lks__series_state(const lks__series *s)
{
    return s->running                         ? "running"
           : s->offset == 0                   ? ""
           : lks__series_complete(s)          ? "complete"
           : s->end == NULL && is_unlocked(s) ? "running, or stopped without an end"
                                              : "stopped";
}

const lks__eval_point *lks__series_best(const lks__series *s)
{
    const lks__eval_point *best = NULL;
    for (size_t i = 0; i < s->n_evals; i++)
        if (!isnan(s->evals[i].val_loss) && (best == NULL || s->evals[i].val_loss < best->val_loss))
            best = &s->evals[i];
    return best;
}

const lks__eval_point *lks__series_last_eval(const lks__series *s)
{
    return s->n_evals > 0 ? &s->evals[s->n_evals - 1] : NULL;
}

const lks__run_mark *lks__series_segment(const lks__series *s, const lks__run_mark *after)
{
    for (size_t i = after != NULL ? (size_t)(after - s->marks) + 1 : 0; i < s->n_marks; i++)
        if (strcmp(s->marks[i].kind, "segment") == 0)
            return &s->marks[i];
    return NULL;
}

const char *lks__series_setting(const lks__series *s, const char *key, char out[256])
{
    return lks__json_text(json_object_get(s->config, key), out);
}

bool lks__series_same(const lks__series *a, const lks__series *b, const char *key)
{
    const json_t *x = json_object_get(a->config, key), *y = json_object_get(b->config, key);
    const bool x_none = x == NULL || json_is_null(x), y_none = y == NULL || json_is_null(y);
    return x_none || y_none ? x_none == y_none : lks__json_same(x, y);
}
