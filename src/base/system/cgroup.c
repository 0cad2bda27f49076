#include "base/system/cgroup.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line of /proc/self/mountinfo contains two paths and the options of overlays. */
enum { LINE_BYTES = 4 * PATH_MAX };

struct search {
    const char *root, *controller;
    lks__cgroup_fn *fn;
    void *ctx;
    int version;
    char group[PATH_MAX]; /* path of this process's group, from /proc/self/cgroup */
    char *line;           /* [LINE_BYTES] */
};

struct mount {
    const char *root, *point; /* the mounted group, and its mount point */
    const char *type, *options;
};

static FILE *open_proc(const char *root, const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/proc/self/%s", root, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* Read the next whole line, without its line feed; skip longer lines. */
static bool next_line(FILE *f, char *line)
{
    while (fgets(line, LINE_BYTES, f) != NULL) {
        size_t n = strcspn(line, "\n");
        if (line[n] == '\n') {
            line[n] = '\0';
            return true;
        }
        int c;
        while ((c = fgetc(f)) != EOF && c != '\n')
            n = LINE_BYTES;
        if (n < LINE_BYTES - 1)
            return true; /* the last line has no line feed */
    }
    return false;
}

/* True if `word` is in the comma-separated `list`. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, n) == 0 && (at[n] == '\0' || at[n] == ','))
            return true;
    }
    return false;
}

/* Lines of /proc/self/cgroup: "0::PATH" for version 2, "ID:CONTROLLERS:PATH" for version 1. */
static bool find_group(struct search *s)
{
    FILE *f = open_proc(s->root, "cgroup");
    bool found = false;
    while (f != NULL && !found && next_line(f, s->line)) {
        char *list = strchr(s->line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *list++ = '\0';
        *path++ = '\0';
        bool v2 = strcmp(s->line, "0") == 0 && *list == '\0';
        found = s->version == 2 ? v2 : !v2 && has_word(list, s->controller);
        if (found && *path == '/' && strlen(path) < sizeof s->group)
            memcpy(s->group, path, strlen(path) + 1);
        else
            found = false;
    }
    if (f != NULL)
        fclose(f);
    return found;
}

/* mountinfo writes space, tab, line feed and backslash as \ and three octal digits. */
static void unescape(char *text)
{
    char *out = text;
    while (*text != '\0') {
        const char *d = text + 1;
        if (*text == '\\' && d[0] >= '0' && d[0] <= '3' && d[1] >= '0' && d[1] <= '7' &&
            d[2] >= '0' && d[2] <= '7') {
            *out++ = (char)((d[0] - '0') * 64 + (d[1] - '0') * 8 + (d[2] - '0'));
            text += 4;
        } else {
            *out++ = *text++;
        }
    }
    *out = '\0';
}

/* "ID PARENT DEVICE ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE OPTIONS" */
static bool parse_mount(char *line, struct mount *m)
{
    char *fields[5], *after[3], *rest = line, *tail = strstr(line, " - ");
    if (tail == NULL)
        return false;
    *tail = '\0';
    tail += 3;
    for (int i = 0; i < 5; i++)
        if ((fields[i] = strsep(&rest, " ")) == NULL)
            return false;
    for (int i = 0; i < 3; i++)
        if ((after[i] = strsep(&tail, " ")) == NULL)
            return false;
    unescape(fields[3]);
    unescape(fields[4]);
    *m = (struct mount){fields[3], fields[4], after[0], after[2]};
    return true;
}

static bool is_ours(const struct search *s, const struct mount *m)
{
    if (s->version == 2)
        return strcmp(m->type, "cgroup2") == 0;
    return strcmp(m->type, "cgroup") == 0 && has_word(m->options, s->controller);
}

/* The rest of `group` after `root`; NULL if the group is neither `root` nor below it. A component
 * ".." would lead out of the mounted folder. */
static const char *below(const char *root, const char *group)
{
    size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(group, root, n) != 0 || (group[n] != '/' && group[n] != '\0'))
        return NULL;
    for (const char *at = group + n; (at = strstr(at, "/..")) != NULL; at += 3)
        if (at[3] == '/' || at[3] == '\0')
            return NULL;
    return group + n;
}

/* Visit our group in this mount and the groups above it. */
static void climb(const struct search *s, const struct mount *m, const char *rest)
{
    char dir[PATH_MAX];
    int n = snprintf(dir, sizeof dir, "%s%s%s", s->root, m->point, rest);
    if (n < 0 || (size_t)n >= sizeof dir)
        return;
    size_t top = strlen(s->root) + strlen(m->point), end = (size_t)n;
    for (bool own = true;; own = false) {
        while (end > top && dir[end - 1] == '/')
            end--;
        dir[end] = '\0';
        if (!s->fn(s->ctx, dir, s->version, own) || end == top)
            return;
        while (dir[end - 1] != '/')
            end--;
    }
}

/* Visit each mount of the hierarchy that contains our group; with `outside`, each that doesn't. */
static bool climb_mounts(struct search *s, bool outside)
{
    bool found = false;
    struct mount m;
    FILE *f = open_proc(s->root, "mountinfo");
    while (f != NULL && next_line(f, s->line)) {
        if (!parse_mount(s->line, &m) || !is_ours(s, &m))
            continue;
        const char *rest = below(m.root, s->group);
        if ((rest == NULL) != outside)
            continue;
        climb(s, &m, outside ? "" : rest);
        found = true;
    }
    if (f != NULL)
        fclose(f);
    return found;
}

void lks__cgroup_walk(const char *root, const char *controller, lks__cgroup_fn *fn, void *ctx)
{
    struct search s = {.root = root, .controller = controller, .fn = fn, .ctx = ctx};
    s.line = malloc(LINE_BYTES);
    for (s.version = 2; s.line != NULL && s.version >= 1; s.version--)
        if (find_group(&s) && !climb_mounts(&s, false))
            climb_mounts(&s, true);
    free(s.line);
}

bool lks__cgroup_number(const char *dir, const char *name, uint64_t *value_p)
{
    char path[PATH_MAX], text[64];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    if (f == NULL)
        return false;
    bool found = fgets(text, sizeof text, f) != NULL && isdigit((unsigned char)text[0]);
    fclose(f);
    if (!found)
        return false;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || (*end != '\0' && *end != '\n'))
        return false;
    *value_p = v;
    return true;
}

/* Cores that a group allows: version 2's "QUOTA PERIOD", version 1's two files. */
static bool look_at_quota(void *ctx, const char *dir, int version, bool own)
{
    char path[PATH_MAX + 16];
    double *cores = ctx, quota = 0, period = 0;
    uint64_t us[2];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = version == 2 ? fopen(path, "re") : NULL;
    if (f != NULL) {
        if (fscanf(f, "%lf %lf", &quota, &period) != 2)
            quota = 0;
        fclose(f);
    } else if (version == 1 && lks__cgroup_number(dir, "cpu.cfs_quota_us", &us[0]) &&
               lks__cgroup_number(dir, "cpu.cfs_period_us", &us[1])) {
        quota = (double)us[0];
        period = (double)us[1];
    }
    if (quota > 0 && period > 0 && quota / period < *cores)
        *cores = quota / period;
    return true;
}

double lks__cgroup_cores(const char *root)
{
    double cores = INFINITY;
    lks__cgroup_walk(root, "cpu", look_at_quota, &cores);
    return cores;
}

static bool look_at_processes(void *ctx, const char *dir, int version, bool own)
{
    uint64_t *least = ctx, limit;
    if (lks__cgroup_number(dir, "pids.max", &limit) && limit < *least)
        *least = limit;
    return true;
}

uint64_t lks__cgroup_processes(const char *root)
{
    uint64_t least = UINT64_MAX;
    lks__cgroup_walk(root, "pids", look_at_processes, &least);
    return least;
}
