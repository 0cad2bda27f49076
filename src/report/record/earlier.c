/* report/record/earlier.c - moves an earlier run, or the later part of this one, to OUT/earlier-N.
 *
 * The later part is gathered in OUT/earlier.tmp, which is renamed last. If the process dies at any
 * call, one of these is true:
 *
 *     `latest` hasn't moved: the folder is unchanged, and earlier.tmp contains only copies.
 *     `latest` has moved: the next start finds later checkpoints in OUT or in earlier.tmp, and
 *         completes the move. metrics.jsonl is still whole then, because a resume cuts it last.
 *
 * A whole run is gathered in OUT/earlier.new, which is renamed last, too. If the process dies, the
 * next new run completes the move, and a resume is refused. A whole run that moves back also does
 * so from earlier.new. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "files/checkpoint/name.h"
#include "report/record/files.h"
#include "report/record/lines.h"
#include "report/record/outdir.h"

#define TEMP "earlier.tmp" /* the part after a checkpoint, while it is moved */
#define NEW  "earlier.new" /* a whole run, while it is moved because a new one starts */

enum {
    CHUNK = 64 << 10,
    INNER_PATH = LKS__SYS_PATH + 400, /* of a file or folder in a folder of OUT */
};

/* The first earlier-N that doesn't exist yet. */
static lks_status free_name(const char *out_dir, char path[LKS__SYS_PATH])
{
    struct stat info;
    for (int n = 1; n < 100000; n++) {
        snprintf(path, LKS__SYS_PATH, "%s/earlier-%d", out_dir, n);
        if (lstat(path, &info) != 0 && errno == ENOENT)
            return LKS_OK;
    }
    errno = EEXIST;
    return lks__sys_fail("can't make", path);
}

static lks_status move(const char *from_dir, const char *to_dir, const char *name)
{
    char from[INNER_PATH], to[INNER_PATH];
    snprintf(from, sizeof from, "%s/%s", from_dir, name);
    snprintf(to, sizeof to, "%s/%s", to_dir, name);
    if (lks__sys_rename(from, to) == 0)
        return LKS_OK;
    return errno != EXDEV
               ? lks__sys_fail("can't move", from)
               : lks__fail(LKS_ERR_IO,
                           "can't move %s: folders of a container's image (overlayfs) can't be "
                           "renamed; copy the run's folder (cp -r), and use the copy",
                           lks__shown(from, 512));
}

/* --- copies ----------------------------------------------------------------------------------- */

static lks_status copy_bytes(int from, int to, const char *path)
{
    char chunk[CHUNK];
    uint64_t end;
    LKS__TRY(lks__sys_file_bytes(from, path, &end));
    for (uint64_t at = 0, n; at < end; at += n) {
        n = end - at < CHUNK ? end - at : CHUNK;
        if (lks__sys_read_at(from, chunk, (size_t)n, at) != 0)
            return lks__sys_fail("can't read", path);
        if (lks__sys_write_all(to, chunk, (size_t)n) != 0)
            return lks__sys_fail("can't copy", path);
    }
    return lks__sys_fsync(to) == 0 ? LKS_OK : lks__sys_fail("can't copy", path);
}

static lks_status copy(const char *from_path, const char *to_path)
{
    lks_status st = LKS_OK;
    int to = -1, from = lks__sys_open(from_path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (from < 0)
        st = lks__sys_fail("can't open", from_path);
    if (st == LKS_OK && lks__sys_unlink(to_path) != 0 && errno != ENOENT)
        st = lks__sys_fail("can't replace", to_path);
    if (st == LKS_OK &&
        (to = lks__sys_open(to_path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666)) < 0)
        st = lks__sys_fail("can't make", to_path);
    LKS__THEN(st, copy_bytes(from, to, from_path));
    lks__sys_close(from);
    if (to >= 0 && lks__sys_close(to) != 0 && st == LKS_OK)
        st = lks__sys_fail("can't copy", from_path);
    return st;
}

static lks_status copy_if_later(const char *dir, const char *name, void *temp)
{
    char from[INNER_PATH], to[INNER_PATH];
    const lks__run_file *file = lks__run_file_of(name);
    if (file == NULL || file->later != LKS__LATER_COPIED)
        return LKS_OK;
    snprintf(from, sizeof from, "%s/%s", dir, name);
    snprintf(to, sizeof to, "%s/%s", (const char *)temp, name);
    return copy(from, to);
}

/* Copy the link `name`, latest or best, if it names a checkpoint that moves. */
static lks_status copy_name(const char *out_dir, const char *temp, const char *name, uint64_t iter)
{
    lks__entry e;
    lks_status st = lks__name_read(out_dir, name, &e);
    if (st == LKS_OK && e.kind == LKS__ENTRY_CKPT && e.iter > iter)
        return lks__name_set(temp, name, e.name);
    return st == LKS_ERR_FORMAT ? LKS_OK : st;
}

static lks_status remove_file(const char *dir, const char *name, void *ctx)
{
    char path[INNER_PATH];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    lks__sys_unlink(path);
    return LKS_OK;
}

void lks__outdir_discard(const char *temp)
{
    struct stat info;
    if (lstat(temp, &info) != 0 || !S_ISDIR(info.st_mode))
        return;
    lks__sys_each_name("can't read", temp, remove_file, NULL);
    lks__sys_rmdir(temp);
}

/* --- the later part --------------------------------------------------------------------------- */

static bool is_later(const lks__entry *e, uint64_t iter)
{
    return (e->kind == LKS__ENTRY_CKPT || e->kind == LKS__ENTRY_OLD) && e->iter > iter;
}

/* *yes_p: true if earlier.tmp contains checkpoints, so that a move has begun. */
static lks_status has_begun(const char *temp, bool *yes_p)
{
    struct stat info;
    lks__entry *entries = NULL;
    size_t n = 0;
    *yes_p = false;
    if (lstat(temp, &info) != 0)
        return errno == ENOENT ? LKS_OK : lks__sys_fail("can't read", temp);
    LKS__TRY(lks__ckpt_scan(temp, &entries, &n));
    free(entries);
    *yes_p = n > 0;
    return LKS_OK;
}

/* True if metrics.jsonl contains this checkpoint's line, which is written after `latest` has moved,
 * or if the file can't be read. */
static bool is_recorded(const char *out_dir, uint64_t iter)
{
    char path[LKS__SYS_PATH], begins[64], *line;
    lks__lines lines;
    size_t bytes;
    const size_t len = (size_t)snprintf(begins, sizeof begins,
                                        "{\"kind\":\"checkpoint\",\"iter\":%" PRIu64 ",", iter);
    snprintf(path, sizeof path, "%s/metrics.jsonl", out_dir);
    if (lks__lines_open(path, &lines) != LKS_OK)
        return true;
    bool readable, found = false;
    do {
        readable = lks__lines_text(&lines, &line, &bytes) == LKS_OK;
        if (readable && line == NULL) /* the rest may be its line, torn */
            found =
                lines.have - lines.at >= len && memcmp(lines.chunk + lines.at, begins, len) == 0;
        else
            found = readable && bytes >= len && memcmp(line, begins, len) == 0;
    } while (readable && line != NULL && !found);
    lks__lines_close(&lines);
    return found || !readable;
}

struct later {
    lks__entry *all; /* newest first */
    size_t n;
    lks__entry latest;
    bool begun;
    bool has_own; /* false if the run continues from a checkpoint in another folder */
};

static lks_status find_later(const char *out_dir, const char *temp, uint64_t iter, struct later *l)
{
    size_t n;
    *l = (struct later){.n = 0};
    lks_status st = lks__name_read(out_dir, LKS__NAME_LATEST, &l->latest);
    if (st != LKS_OK && st != LKS_ERR_FORMAT)
        return st;
    LKS__TRY(has_begun(temp, &l->begun));
    LKS__TRY(lks__ckpt_scan(out_dir, &l->all, &n));
    for (size_t i = 0; i < n; i++) {
        l->has_own |= l->all[i].iter == iter && l->all[i].kind != LKS__ENTRY_TMP;
        if (is_later(&l->all[i], iter))
            l->all[l->n++] = l->all[i];
    }
    return LKS_OK;
}

/* A save that died before `latest` moved leaves one complete checkpoint without a line in
 * metrics.jsonl. It is a leftover, as its temporary folder was, and gets that name back. */
static bool drop_unpublished(const char *out_dir, uint64_t iter, const struct later *l)
{
    char from[LKS__SYS_PATH], to[LKS__SYS_PATH], name[LKS__CKPT_NAME];
    if (l->begun || l->n != 1 || l->latest.kind != LKS__ENTRY_CKPT || l->latest.iter != iter ||
        is_recorded(out_dir, l->all[0].iter))
        return false;
    lks__entry_name(name, LKS__ENTRY_TMP, l->all[0].iter);
    snprintf(from, sizeof from, "%s/%s", out_dir, l->all[0].name);
    snprintf(to, sizeof to, "%s/%s", out_dir, name);
    return lks__sys_rename(from, to) == 0;
}

/* Copy all that a reader of the later part needs besides its checkpoints. */
static lks_status make_copies(const char *out_dir, char *temp, uint64_t iter)
{
    LKS__TRY(lks__sys_make_own_dir(temp));
    LKS__TRY(lks__sys_each_name("can't read", out_dir, copy_if_later, temp));
    LKS__TRY(copy_name(out_dir, temp, LKS__NAME_LATEST, iter));
    LKS__TRY(copy_name(out_dir, temp, LKS__NAME_BEST, iter));
    return lks__sys_sync_dir(temp);
}

/* Let `latest` name `iter`, which takes the run back, and remove a later `best`. */
static lks_status move_names(const char *out_dir, uint64_t iter, const struct later *l)
{
    char name[LKS__CKPT_NAME];
    lks__entry best;
    lks__entry_name(name, LKS__ENTRY_CKPT, iter);
    if (l->latest.kind != LKS__ENTRY_CKPT || l->latest.iter != iter)
        LKS__TRY(lks__name_set(out_dir, LKS__NAME_LATEST, name));
    LKS__TRY(lks__sys_sync_dir(out_dir));
    lks_status st = lks__name_read(out_dir, LKS__NAME_BEST, &best);
    if (st == LKS_OK && best.kind == LKS__ENTRY_CKPT && best.iter > iter)
        st = lks__name_remove(out_dir, LKS__NAME_BEST);
    return st == LKS_ERR_FORMAT ? LKS_OK : st;
}

static lks_status move_if_later(const char *dir, const char *name, void *temp)
{
    const lks__run_file *file = lks__run_file_of(name);
    const bool moves = file != NULL && file->later == LKS__LATER_MOVED;
    return moves && strncmp(name, "ckpt-", 5) != 0 ? move(dir, temp, name) : LKS_OK;
}

/* All has moved: give the folder its name. `moved` is "" after a failure. */
static lks_status name_moved(const char *out_dir, const char *temp, char moved[LKS__SYS_PATH])
{
    LKS__TRY(lks__sys_sync_dir(temp));
    LKS__TRY(lks__sys_sync_dir(out_dir));
    lks_status st = free_name(out_dir, moved);
    if (st == LKS_OK && lks__sys_rename(temp, moved) != 0)
        st = lks__sys_fail("can't move", temp);
    if (st != LKS_OK)
        moved[0] = '\0';
    return st == LKS_OK ? lks__sys_sync_dir(out_dir) : st;
}

static lks_status finish(const char *out_dir, char *temp, const struct later *l,
                         char moved[LKS__SYS_PATH])
{
    for (size_t i = 0; i < l->n; i++)
        LKS__TRY(move(out_dir, temp, l->all[i].name));
    LKS__TRY(lks__sys_each_name("can't read", out_dir, move_if_later, temp));
    return name_moved(out_dir, temp, moved);
}

lks_status lks__outdir_back(const char *out_dir, uint64_t iter, char moved[LKS__SYS_PATH])
{
    char temp[LKS__SYS_PATH];
    struct later l;
    moved[0] = '\0';
    LKS__TRY(lks__outdir_check(out_dir));
    snprintf(temp, sizeof temp, "%s/" TEMP, out_dir);
    lks_status st = find_later(out_dir, temp, iter, &l);
    const bool newer = l.latest.kind == LKS__ENTRY_CKPT && l.latest.iter > iter;
    const bool any = l.has_own && (l.n > 0 || l.begun || newer);
    if (st != LKS_OK || !any || drop_unpublished(out_dir, iter, &l)) {
        if (st == LKS_OK && !l.begun)
            lks__outdir_discard(temp);
        free(l.all);
        return st;
    }
    if (newer && !l.begun)
        lks__outdir_discard(
            temp); /* copies of another move, which may name checkpoints that stay */
    st = make_copies(out_dir, temp, iter);
    if (st != LKS_OK && !l.begun) {
        char cause[1024];
        snprintf(cause, sizeof cause, "%s", lks_last_error());
        lks__outdir_discard(temp);
        lks__fail(st, "%s", cause);
    }
    LKS__THEN(st, move_names(out_dir, iter, &l));
    LKS__THEN(st, finish(out_dir, temp, &l, moved));
    free(l.all);
    if (st == LKS_OK)
        return LKS_OK;
    moved[0] = '\0';
    return lks__fail_in(st, "the part of the run after iteration %" PRIu64 " can't be moved away",
                        iter);
}

/* --- a new run -------------------------------------------------------------------------------- */

struct start {
    char temp[LKS__SYS_PATH];
    bool begun;           /* `temp` contains files */
    bool left;            /* a file stayed, because `temp` has one of this name */
    const char *data_dir; /* of the new run; or NULL */
};

/* True if OUT/data stays: it is the user's, or the new run reads it. */
static bool data_stays(const char *out_dir, const char *data_dir)
{
    char path[INNER_PATH];
    snprintf(path, sizeof path, "%s/" LKS__DATA_FOLDER, out_dir);
    return !lks__run_has_data(out_dir) || (data_dir != NULL && lks__sys_same(path, data_dir));
}

static lks_status move_earlier(const char *dir, const char *name, void *ctx)
{
    struct start *start = ctx;
    const lks__run_file *file = lks__run_file_of(name);
    if (file == NULL || !file->moves)
        return LKS_OK;
    if (strcmp(name, LKS__DATA_FOLDER) == 0 && data_stays(dir, start->data_dir))
        return LKS_OK;
    LKS__TRY(lks__sys_make_own_dir(start->temp));
    start->begun = true;
    if (lks__sys_has(start->temp, name)) { /* this one was written afterwards */
        start->left = true;
        return LKS_OK;
    }
    return move(dir, start->temp, name);
}

static lks_status count_name(const char *dir, const char *name, void *n)
{
    ++*(int *)n;
    return LKS_OK;
}

/* True if a process died while it moved an earlier run. */
static bool is_torn(const char *out_dir)
{
    char temp[LKS__SYS_PATH];
    struct stat info;
    int n = 0;
    snprintf(temp, sizeof temp, "%s/" NEW, out_dir);
    return lstat(temp, &info) == 0 && S_ISDIR(info.st_mode) &&
           lks__sys_each_name("can't read", temp, count_name, &n) == LKS_OK && n > 0;
}

lks_status lks__outdir_check(const char *out_dir)
{
    if (!is_torn(out_dir))
        return LKS_OK;
    const char *shown = lks__shown(out_dir, 512);
    return lks__fail(
        LKS_ERR_CONFIG,
        "a new run in %s ended while the earlier one's files were moved, and left some in "
        "%s/" NEW ": move them back to continue the earlier one, or start the new one "
        "again",
        shown, shown);
}

/* Rename earlier.tmp if a move has begun. Checkpoints that it left in OUT move with the rest of the
 * run. */
static lks_status name_begun(const char *out_dir)
{
    char temp[LKS__SYS_PATH], path[LKS__SYS_PATH];
    bool begun;
    snprintf(temp, sizeof temp, "%s/" TEMP, out_dir);
    LKS__TRY(has_begun(temp, &begun));
    if (!begun) {
        lks__outdir_discard(temp);
        return LKS_OK;
    }
    LKS__TRY(free_name(out_dir, path));
    return lks__sys_rename(temp, path) == 0 ? LKS_OK : lks__sys_fail("can't move", temp);
}

lks_status lks__outdir_start(const char *out_dir, const char *data_dir, char moved[LKS__SYS_PATH])
{
    struct start start = {.begun = is_torn(out_dir), .data_dir = data_dir};
    char other[LKS__SYS_PATH];
    moved[0] = '\0';
    snprintf(start.temp, sizeof start.temp, "%s/" NEW, out_dir);
    LKS__TRY(lks__sys_make_dirs(out_dir));
    LKS__TRY(name_begun(out_dir));
    LKS__TRY(lks__sys_each_name("can't read", out_dir, move_earlier, &start));
    if (start.begun)
        LKS__TRY(name_moved(out_dir, start.temp, moved));
    return start.left ? lks__outdir_start(out_dir, data_dir, other) : LKS_OK;
}

static lks_status move_back(const char *dir, const char *name, void *out_dir)
{
    return move(dir, out_dir, name);
}

lks_status lks__outdir_undo(const char *out_dir, const char *moved)
{
    char out[LKS__SYS_PATH], data[INNER_PATH], temp[INNER_PATH], torn[INNER_PATH];
    snprintf(out, sizeof out, "%s", out_dir);
    snprintf(data, sizeof data, "%s/" LKS__DATA_FOLDER, out);
    snprintf(temp, sizeof temp, "%s/" LKS__DATA_TEMP, out);
    snprintf(torn, sizeof torn, "%s/" NEW, out);
    if (lks__run_has_data(out) && lks__sys_rename(data, temp) != 0)
        return lks__sys_fail("can't rename", data);
    lks__outdir_discard(temp);
    if (moved[0] == '\0')
        return LKS_OK;
    if (lks__sys_rename(moved, torn) != 0)
        return lks__sys_fail("can't move", moved);
    LKS__TRY(lks__sys_each_name("can't read", torn, move_back, out));
    return lks__sys_rmdir(torn) == 0 ? lks__sys_sync_dir(out) : lks__sys_fail("can't remove", torn);
}
