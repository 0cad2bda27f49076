#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Hash pieces with XXH3, with its state on the stack. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/checkpoint/ckpt.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"

void lks__ckpt_params_hash(const lks__st_tensor *model, size_t n, char out[17])
{
    XXH3_state_t all;
    XXH3_64bits_reset(&all);
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = XXH3_64bits(model[i].data, model[i].bytes);
        XXH3_64bits_update(&all, &hash, sizeof hash);
    }
    lks__hex_to(out, XXH3_64bits_digest(&all));
}

/* All paths of one save. */
typedef struct places {
    const char *out;
    char name[LKS__CKPT_NAME];
    char temp[LKS__CKPT_PATH], final[LKS__CKPT_PATH], old[LKS__CKPT_PATH];
} places;

static lks_status find_places(const char *out, uint64_t iter, places *p)
{
    char name[LKS__CKPT_NAME];
    p->out = out;
    lks__entry_name(p->name, LKS__ENTRY_CKPT, iter);
    LKS__TRY(lks__ckpt_join(p->final, out, p->name));
    lks__entry_name(name, LKS__ENTRY_TMP, iter);
    LKS__TRY(lks__ckpt_join(p->temp, out, name));
    lks__entry_name(name, LKS__ENTRY_OLD, iter);
    return lks__ckpt_join(p->old, out, name);
}

/* Lock the folder against saves of other programs; *fd_p is -1 if its file system can't. */
static lks_status lock_folder(const char *out, int *fd_p)
{
    char path[LKS__CKPT_PATH];
    LKS__TRY(lks__ckpt_join(path, out, LKS__LOCK_FILE));
    *fd_p = lks__sys_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (*fd_p < 0)
        return lks__sys_fail("can't open", path);
    if (lks__sys_lock(*fd_p, LKS__LOCK_SAVE) == 0)
        return LKS_OK;
    const bool used = errno == EWOULDBLOCK;
    lks__sys_close(*fd_p);
    *fd_p = -1;
    return !used ? LKS_OK
                 : lks__fail(LKS_ERR_CONFIG,
                             "another program is saving a checkpoint into %s: give each its own "
                             "folder",
                             lks__shown(out, 512));
}

/* ---- before and after ---------------------------------------------------------------------- */

/* Clean up after saves that died. A checkpoint that was being replaced gets its name back, unless
 * the new one exists. Only this step can fail: deletions are tried again at the next save. */
static lks_status clear_leftovers(const char *out)
{
    lks__entry *entries;
    size_t n;
    char path[LKS__CKPT_PATH], base[LKS__CKPT_PATH], name[LKS__CKPT_NAME];
    lks_status st = lks__ckpt_scan(out, &entries, &n);
    if (st != LKS_OK)
        return st;
    for (size_t i = 0; i < n && st == LKS_OK; i++) {
        if (entries[i].kind == LKS__ENTRY_CKPT)
            continue;
        st = lks__ckpt_join(path, out, entries[i].name);
        if (st == LKS_OK && entries[i].kind == LKS__ENTRY_TMP) {
            lks__ckpt_remove(path);
            continue;
        }
        lks__entry_name(name, LKS__ENTRY_CKPT, entries[i].iter);
        LKS__THEN(st, lks__ckpt_join(base, out, name));
        if (st != LKS_OK)
            break;
        if (i > 0 && strcmp(entries[i - 1].name, name) == 0) {
            st = lks__sys_sync_dir(
                out); /* the new name must survive a crash before the old one is deleted */
            if (st == LKS_OK)
                lks__ckpt_remove(path);
        } else if (lks__sys_rename(path, base) < 0) {
            st = lks__sys_fail("cannot rename", path);
        }
    }
    free(entries);
    return st;
}

/* Delete a checkpoint. Its folder first gets a temporary name, so that an incomplete deletion
 * doesn't look like a checkpoint. One that the user has made read-only stays. */
static void drop(const char *out, const lks__entry *e)
{
    char path[LKS__CKPT_PATH], temp[LKS__CKPT_PATH], name[LKS__CKPT_NAME];
    lks__entry_name(name, LKS__ENTRY_TMP, e->iter);
    if (lks__ckpt_join(path, out, e->name) == LKS_OK && lks__ckpt_join(temp, out, name) == LKS_OK &&
        lks__ckpt_only_ours(path) && access(path, W_OK) == 0 && lks__sys_rename(path, temp) == 0)
        lks__ckpt_remove(temp);
}

/* Delete old checkpoints as lks__ckpt_save() promises, newest first. With keep = 0 the search ends
 * at the first checkpoint not asked for by the clock, because an earlier save has searched the
 * rest. */
static void prune(const places *p, const lks__ckpt_content *c, int keep)
{
    lks__entry *entries;
    size_t n;
    int scheduled = 0, others = 0;
    lks__entry best;
    lks__ckpt_remove(p->old);
    if (lks__ckpt_scan(p->out, &entries, &n) != LKS_OK)
        return;
    if (lks__name_read(p->out, LKS__NAME_BEST, &best) == LKS_ERR_IO)
        n = 0; /* the target of `best` is unknown, so delete none */
    for (size_t i = 0; i < n; i++) {
        const lks__entry *e = &entries[i];
        lks__asked asked = lks__asked_of(c->state);
        if (e->kind != LKS__ENTRY_CKPT || e->iter > c->iter)
            continue;
        bool beyond = keep > 0 && scheduled >= keep;
        if (!beyond && e->iter != c->iter) {
            if (lks__entry_asked(p->out, e, &asked) != LKS_OK)
                continue;
            beyond = asked == LKS__ASKED_CLOCK ||
                     (keep > 0 && asked != LKS__ASKED_NOT && scheduled + others >= keep);
        }
        scheduled += asked == LKS__ASKED_NOT;
        others += asked != LKS__ASKED_NOT && asked != LKS__ASKED_CLOCK;
        const bool spared = c->keep_every > 0 && e->iter % c->keep_every == 0;
        if (beyond && !spared && strcmp(e->name, best.name) != 0)
            drop(p->out, e);
        else if (keep == 0 && e->iter != c->iter)
            break;
    }
    free(entries);
}

lks_status lks__ckpt_went_back(const char *out_dir, uint64_t iter)
{
    char name[LKS__CKPT_NAME];
    lks__entry *entries, best;
    lks__asked asked;
    size_t n;
    lks__entry_name(name, LKS__ENTRY_CKPT, iter);
    LKS__TRY(lks__name_set(out_dir, LKS__NAME_LATEST, name));
    LKS__TRY(lks__sys_sync_dir(out_dir));
    if (lks__name_read(out_dir, LKS__NAME_BEST, &best) == LKS_ERR_IO)
        return LKS_OK;
    LKS__TRY(lks__ckpt_scan(out_dir, &entries, &n));
    for (size_t i = 0; i < n && entries[i].iter > iter; i++)
        if (entries[i].kind == LKS__ENTRY_CKPT && strcmp(entries[i].name, best.name) != 0 &&
            lks__entry_asked(out_dir, &entries[i], &asked) == LKS_OK && asked != LKS__ASKED_NOT)
            drop(out_dir, &entries[i]);
    free(entries);
    return LKS_OK;
}

/* ---- the files ----------------------------------------------------------------------------- */

/* Write one of the two safetensors files; the header's hash is stored in hashes[name]. */
static lks_status write_tensors(const places *p, const char *name, const lks__st_tensor *tensors,
                                size_t n, const json_t *metadata, json_t *hashes)
{
    char path[LKS__CKPT_PATH];
    lks__st_file *file;
    LKS__TRY(lks__ckpt_join(path, p->temp, name));
    LKS__TRY(lks__st_write(path, tensors, n, metadata));
    /* Check that a reader accepts the file. */
    LKS__TRY(lks__st_open_known(path, LKS__CKPT_JSON_LIMIT, NULL, &file));
    const char *hash = lks__hex(lks__st_header_hash(file));
    lks__st_close(file);
    if (json_object_set_new(hashes, name, json_string(hash)) < 0)
        return lks__no_memory("for a checkpoint's state");
    return LKS_OK;
}

static lks_status write_state(const places *p, const lks__ckpt_content *content,
                              const char *params_hash, json_t *hashes)
{
    lks_status st = LKS_OK;
    char path[LKS__CKPT_PATH], *text = NULL;
    uint64_t hash;
    json_t *state = content->state ? json_copy(content->state) : json_object();
    if (json_object_set_new(state, "format", json_string(LKS__CKPT_FORMAT)) < 0 ||
        json_object_set_new(state, "iter", json_integer((json_int_t)content->iter)) < 0 ||
        json_object_set_new(state, "params_hash", json_string(params_hash)) < 0 ||
        json_object_set(state, "files", hashes) < 0 ||
        json_object_set_new(state, "state_hash", json_string(lks__hex(0))) < 0)
        st = lks__no_memory("for a checkpoint's state");
    if (st == LKS_OK) {
        text = lks__json_dump(state, JSON_SORT_KEYS | JSON_INDENT(2) | JSON_REAL_PRECISION(17));
        if (!text)
            st = lks__no_memory("for a checkpoint's state");
    }
    if (st == LKS_OK) {
        size_t bytes = strlen(text);
        char *at = lks__state_hash(text, bytes, &hash);
        memcpy(at, lks__hex(hash), 16);
        if (bytes > LKS__CKPT_JSON_LIMIT)
            st = lks__fail(LKS_ERR_ARG, "a checkpoint's state of %zu bytes is too large", bytes);
        else
            st = lks__ckpt_join(path, p->temp, LKS__CKPT_STATE);
        LKS__THEN(st, lks__ckpt_write(path, text, bytes));
    }
    free(text);
    json_decref(state);
    return st;
}

static lks_status write_files(const places *p, const lks__ckpt_content *c, const char *params_hash)
{
    lks_status st;
    json_t *hashes = json_object(), *metadata = json_object();
    if (!hashes || !metadata ||
        (c->fingerprint &&
         json_object_set_new(metadata, "kernels", json_string(c->fingerprint)) < 0))
        st = lks__no_memory("for a checkpoint's state");
    else
        st = write_tensors(p, LKS__CKPT_MODEL, c->model, c->n_model, metadata, hashes);
    LKS__THEN(
        st, write_tensors(p, LKS__CKPT_OPTIMIZER, c->optimizer, c->n_optimizer, metadata, hashes));
    LKS__THEN(st, write_state(p, c, params_hash, hashes));
    LKS__THEN(st, lks__sys_sync_dir(p->temp));
    json_decref(hashes);
    json_decref(metadata);
    return st;
}

/* ---- the save ------------------------------------------------------------------------------ */

/* Rename the written folder and move `latest`. On failure all names are unchanged. */
static lks_status publish(const places *p)
{
    lks_status st;
    struct stat info;
    bool replaces = lstat(p->final, &info) == 0;
    if (replaces && lks__sys_rename(p->final, p->old) < 0)
        return lks__sys_fail("cannot rename", p->final);
    if (lks__sys_rename(p->temp, p->final) < 0) {
        st = lks__sys_fail("cannot rename", p->temp);
        goto restore;
    }
    st = lks__sys_sync_dir(p->out);
    LKS__THEN(st, lks__name_set(p->out, LKS__NAME_LATEST, p->name));
    if (st == LKS_OK)
        return st;

    rename(p->final, p->temp);
restore:
    if (replaces)
        rename(p->old, p->final);
    return st;
}

/* Save into the locked folder. */
static lks_status save(const places *p, const lks__ckpt_content *content, int keep, char digits[17])
{
    char cause[1024];
    lks_status st = clear_leftovers(p->out);
    if (st == LKS_OK && lks__sys_mkdir(p->temp, 0777) < 0)
        st = lks__sys_fail("cannot make the folder", p->temp);
    else if (st == LKS_OK) {
        lks__ckpt_params_hash(content->model, content->n_model, digits);
        st = write_files(p, content, digits);
        LKS__THEN(st, publish(p));
        snprintf(cause, sizeof cause, "%s", lks_last_error());
        if (st != LKS_OK) {
            lks__ckpt_remove(p->temp);
            lks__fail(st, "%s", cause);
        }
    }
    if (st != LKS_OK)
        return lks__fail_in(st, "checkpoint %s is not saved", p->name);
    st = lks__sys_sync_dir(p->out);
    if (st != LKS_OK)
        return lks__fail_in(st, "checkpoint %s is saved, but a power failure may undo `latest`",
                            p->name);

    if (content->best) {
        st = lks__name_set(p->out, LKS__NAME_BEST, p->name);
        LKS__THEN(st, lks__sys_sync_dir(p->out));
        if (st != LKS_OK)
            return lks__fail_in(st, "checkpoint %s is saved, but `best` can't name it", p->name);
    }
    prune(p, content, keep);
    return LKS_OK;
}

lks_status lks__ckpt_save(const char *out_dir, const lks__ckpt_content *content, int keep,
                          char name[32], char params_hash[17])
{
    char digits[17];
    places p;
    int lock = -1;
    lks_status st = find_places(out_dir, content->iter, &p);
    LKS__THEN(st, lock_folder(out_dir, &lock));
    if (st != LKS_OK)
        return lks__fail_in(st, "checkpoint %s is not saved", p.name);
    st = save(&p, content, keep, digits);
    lks__sys_close(lock);
    LKS__TRY(st);
    memcpy(name, p.name, sizeof p.name);
    memcpy(params_hash, digits, sizeof digits);
    return LKS_OK;
}
