#include "train/metrics.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/jsontext.h"
#include "base/sys.h"

enum { LINE_BYTES = 64 << 10, MAX_FILE = 1 << 30 };

struct lks__metrics {
    char path[4200];
    int fd;
    lks__jsonw w;
    char line[LINE_BYTES];
};

static lks_status open_file(const char *out_dir, int flags, lks__metrics **metrics_p)
{
    lks__metrics *m = calloc(1, sizeof *m);
    if (m == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the metrics");
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

/* What a line is to checkpoint `iter`: part of what it holds, its own line, or later than it. */
enum verdict { KEEP, OWN, LATER };

static lks_status judge(const char *line, size_t bytes, const lks__metrics_cut *cut,
                        enum verdict *verdict_p)
{
    json_error_t error;
    json_t *o = lks__json_load(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (o == NULL && lks__json_no_memory(&error))
        return lks__fail(LKS_ERR_NOMEM, "no memory to read a line of the metrics");
    const char *kind = json_string_value(json_object_get(o, "kind"));
    json_t *i = json_object_get(o, "iter");
    enum verdict v = LATER; /* what we can't read, we didn't write */
    if (kind != NULL && (strcmp(kind, "config") == 0 || strcmp(kind, "host") == 0)) {
        v = KEEP;
    } else if (kind != NULL && json_is_integer(i) && json_integer_value(i) >= 0) {
        uint64_t at = (uint64_t)json_integer_value(i);
        if (strcmp(kind, "checkpoint") == 0)
            v = at < cut->iter ? KEEP : at == cut->iter && cut->own_line ? OWN : LATER;
        else if (strcmp(kind, "eval") == 0)
            v = at < cut->iter || (at == cut->iter && cut->eval_done) ? KEEP : LATER;
        else if (strcmp(kind, "train") == 0 || strcmp(kind, "skip") == 0 ||
                 strcmp(kind, "rollback") == 0)
            v = at < cut->iter ? KEEP : LATER;
    }
    json_decref(o);
    *verdict_p = v;
    return LKS_OK;
}

lks_status lks__metrics_resume(const char *out_dir, const lks__metrics_cut *cut, bool *empty_p,
                               bool *has_line_p, lks__metrics **metrics_p)
{
    lks__metrics *m;
    LKS__TRY(open_file(out_dir, 0, &m));
    char *text;
    size_t bytes;
    lks_status st = lks__sys_read_file(m->path, MAX_FILE, &text, &bytes);
    if (st != LKS_OK) {
        lks__metrics_close(m);
        return st;
    }
    size_t end = 0;
    *has_line_p = false;
    while (end < bytes && !*has_line_p && st == LKS_OK) {
        const char *newline = memchr(text + end, '\n', bytes - end);
        if (newline == NULL)
            break;
        size_t next = (size_t)(newline - text) + 1;
        enum verdict v = LATER;
        st = judge(text + end, next - end, cut, &v);
        if (v == LATER)
            break;
        *has_line_p = v == OWN;
        end = next;
    }
    free(text);
    *empty_p = end == 0;
    if (st == LKS_OK && (lks__sys_truncate(m->fd, end) != 0 || lseek(m->fd, 0, SEEK_END) < 0))
        st = lks__sys_fail("can't cut", m->path);
    if (st != LKS_OK) {
        lks__metrics_close(m);
        return st;
    }
    *metrics_p = m;
    return LKS_OK;
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
    if (lks__sys_write_all(m->fd, m->line, len) != 0)
        return lks__sys_fail("can't write", m->path);
    return LKS_OK;
}
