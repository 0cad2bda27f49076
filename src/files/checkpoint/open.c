#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/checkpoint/ckpt.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"

/* ---- one folder ---------------------------------------------------------------------------- */

static lks_status bad_state(const char *path, const char *why)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound checkpoint state: %s",
                     lks__shown(path, 512), why);
}

static lks_status parse_state(const char *path, char *text, size_t bytes, json_t **state_p)
{
    uint64_t hash;
    json_error_t error;
    char *stored = lks__state_hash(text, bytes, &hash);
    if (stored && memcmp(stored, lks__hex(hash), 16) != 0)
        return bad_state(path, "it is altered or damaged, as it does not match its own hash");
    /* A run's characters may include U+0000. */
    json_t *state = lks__json_load(text, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (!state && lks__json_no_memory(&error))
        return lks__no_memory("to read %s", lks__shown(path, 512));
    if (!state)
        return bad_state(path, lks__shown(error.text, JSON_ERROR_TEXT_LENGTH * 4));
    const char *format = json_string_value(json_object_get(state, "format"));
    const json_t *iter = json_object_get(state, "iter");
    lks_status st = LKS_OK;
    if (!format || strcmp(format, LKS__CKPT_FORMAT) != 0)
        st = bad_state(path, "its format is not " LKS__CKPT_FORMAT);
    else if (!stored)
        st = bad_state(path, "its own hash is missing");
    else if (!json_is_integer(iter) || json_integer_value(iter) < 0)
        st = bad_state(path, "\"iter\" is not a count");
    if (st != LKS_OK) {
        json_decref(state);
        return st;
    }
    *state_p = state;
    return LKS_OK;
}

/* "dir/name" of a file that must exist: without it the checkpoint folder is torn, not absent. */
static lks_status file_path(char out[LKS__CKPT_PATH], const char *dir, const char *name)
{
    struct stat info;
    LKS__TRY(lks__ckpt_join(out, dir, name));
    if (stat(out, &info) < 0 && errno == ENOENT)
        return lks__fail(LKS_ERR_FORMAT, "the checkpoint %s is torn: it has no %s",
                         lks__shown(dir, 512), name);
    return LKS_OK;
}

static lks_status open_state(const char *path, json_t **state_p)
{
    char *text;
    size_t bytes;
    LKS__TRY(lks__sys_read_file(path, LKS__CKPT_JSON_LIMIT, &text, &bytes));
    lks_status st = parse_state(path, text, bytes, state_p);
    free(text);
    return st;
}

/* Open one safetensors file and verify all its bytes. The header is compared with its hash in
 * state.json before it is parsed. hashes_p: the tensors' hashes; the caller frees. */
static lks_status open_tensors(const char *dir, const char *name, const json_t *state,
                               lks__st_file **file_p, uint64_t **hashes_p)
{
    char path[LKS__CKPT_PATH];
    lks__st_file *file;
    LKS__TRY(file_path(path, dir, name));
    const char *stored = json_string_value(json_object_get(json_object_get(state, "files"), name));
    if (!stored)
        return lks__fail(LKS_ERR_FORMAT, "%s can't be verified: %s has no hash of its header",
                         lks__shown(path, 512), LKS__CKPT_STATE);
    LKS__TRY(lks__st_open_known(path, LKS__CKPT_JSON_LIMIT, stored, &file));
    uint64_t *hashes = calloc(lks__st_count(file) + 1, sizeof *hashes);
    lks_status st = hashes ? lks__st_verify(file, hashes)
                           : lks__no_memory("to verify %s", lks__shown(path, 512));
    if (st != LKS_OK) {
        free(hashes);
        lks__st_close(file);
        return st;
    }
    *file_p = file;
    *hashes_p = hashes;
    return LKS_OK;
}

static lks_status open_parts(const char *dir, int parts, lks__ckpt *ckpt)
{
    uint64_t *hashes;
    char path[LKS__CKPT_PATH];
    LKS__TRY(file_path(path, dir, LKS__CKPT_STATE));
    LKS__TRY(open_state(path, &ckpt->state));
    ckpt->iter = (uint64_t)json_integer_value(json_object_get(ckpt->state, "iter"));
    lks__entry e = lks__entry_parse(ckpt->name);
    if (e.kind != LKS__ENTRY_OTHER && e.iter != ckpt->iter)
        return bad_state(path, "its \"iter\" differs from the folder's name");

    if (parts == LKS__CKPT_ONLY_STATE)
        return LKS_OK;
    LKS__TRY(open_tensors(dir, LKS__CKPT_MODEL, ckpt->state, &ckpt->model, &hashes));
    const char *hash = lks__hex(XXH3_64bits(hashes, lks__st_count(ckpt->model) * sizeof *hashes));
    free(hashes);
    const char *stored = json_string_value(json_object_get(ckpt->state, "params_hash"));
    if (!stored || strcmp(stored, hash) != 0)
        return bad_state(path, "its \"params_hash\" differs from the hash of the model's tensors");
    if (parts == LKS__CKPT_ONLY_MODEL)
        return LKS_OK;
    LKS__TRY(open_tensors(dir, LKS__CKPT_OPTIMIZER, ckpt->state, &ckpt->optimizer, &hashes));
    free(hashes);
    return LKS_OK;
}

static lks_status open_folder(const char *dir, int parts, lks__ckpt *ckpt)
{
    lks__ckpt c = {.iter = 0};
    snprintf(c.path, sizeof c.path, "%s", dir);
    snprintf(c.name, sizeof c.name, "%s", lks__sys_name(dir));
    lks_status st = open_parts(dir, parts, &c);
    if (st == LKS_OK)
        *ckpt = c;
    else
        lks__ckpt_close(&c);
    return st;
}

void lks__ckpt_close(lks__ckpt *ckpt)
{
    json_decref(ckpt->state);
    lks__st_close(ckpt->model);
    lks__st_close(ckpt->optimizer);
    *ckpt = (lks__ckpt){.iter = 0};
}

static const char *const asked_words[] = {NULL, "end", "stop", "signal", "clock"};

const char *lks__asked_word(lks__asked asked)
{
    return asked_words[asked];
}

lks__asked lks__asked_of(const json_t *state)
{
    const char *word = json_string_value(json_object_get(state, "asked"));
    if (word == NULL)
        return LKS__ASKED_NOT;
    for (int i = LKS__ASKED_END; i <= LKS__ASKED_CLOCK; i++)
        if (strcmp(word, asked_words[i]) == 0)
            return (lks__asked)i;
    return LKS__ASKED_SIGNAL;
}

/* ---- choosing the folder -------------------------------------------------------------------- */

static lks_status no_checkpoint(const char *out)
{
    return lks__fail(LKS_ERR_IO, "there is no checkpoint in %s", lks__shown(out, 512));
}

lks_status lks__ckpt_open_newest(const char *out, const char *except, int parts, lks__ckpt *ckpt)
{
    lks__entry *entries;
    size_t n;
    char path[LKS__CKPT_PATH], first_cause[1024] = "";
    lks_status first = LKS_OK;
    LKS__TRY(lks__ckpt_scan(out, &entries, &n));
    for (size_t i = 0; i < n; i++) {
        if (entries[i].kind == LKS__ENTRY_TMP || (except && strcmp(entries[i].name, except) == 0))
            continue;
        lks_status st = lks__ckpt_join(path, out, entries[i].name);
        LKS__THEN(st, open_folder(path, parts, ckpt));
        if (st == LKS_OK || st == LKS_ERR_NOMEM || st == LKS_ERR_STOPPED) {
            free(entries);
            return st;
        }
        if (first == LKS_OK) {
            first = st;
            snprintf(first_cause, sizeof first_cause, "%s", lks_last_error());
        }
    }
    free(entries);
    if (first != LKS_OK)
        return lks__fail(first, "%s; no other checkpoint in %s is good", first_cause,
                         lks__shown(out, 512));
    return no_checkpoint(out);
}

/* Append a remedy to the recorded error: the newest good checkpoint of OUT except `except`. */
static lks_status offer(lks_status st, const char *out, const char *except, int parts)
{
    lks__ckpt good;
    char cause[1024];
    if (parts == LKS__CKPT_ALL_ALONE || (st != LKS_ERR_FORMAT && st != LKS_ERR_IO))
        return st;
    snprintf(cause, sizeof cause, "%s", lks_last_error());
    const lks_status other = lks__ckpt_open_newest(out, except, parts, &good);
    if (other == LKS_ERR_STOPPED || other == LKS_ERR_NOMEM)
        return other;
    if (other != LKS_OK)
        return lks__fail(st, "%s; there is no other good checkpoint in %s", cause,
                         lks__shown(out, 512));
    lks__fail(st, "%s; the newest good checkpoint is %s: give its folder, %s", cause, good.name,
              lks__shown(good.path, 512));
    lks__ckpt_close(&good);
    return st;
}

/* Find the folder of the checkpoint `e`. If a save of the same iter died between its two renames,
 * find the folder that it was replacing. False if both are gone. */
static bool find_folder(const char *out, lks__entry *e, char path[LKS__CKPT_PATH])
{
    for (int kind = LKS__ENTRY_CKPT; kind <= LKS__ENTRY_OLD; kind++) {
        lks__entry_name(e->name, (lks__entry_kind)kind, e->iter);
        if (lks__ckpt_join(path, out, e->name) == LKS_OK && lks__ckpt_is_folder(path))
            return true;
    }
    return false;
}

/* Read OUT/`name` and find its checkpoint. *found_p: false if either is missing. A run in progress
 * can delete a checkpoint as soon as the name has moved to another one, so read it twice. */
static lks_status find_named(const char *out, const char *name, lks__entry *e,
                             char path[LKS__CKPT_PATH], bool *found_p)
{
    *found_p = false;
    for (int i = 0; i < 2 && !*found_p; i++) {
        LKS__TRY(lks__name_read(out, name, e));
        *found_p = e->kind == LKS__ENTRY_CKPT && find_folder(out, e, path);
    }
    return LKS_OK;
}

/* `name`: latest or best, which has led to `path`; NULL: neither. */
static lks_status open_found(const char *out, const char *name, lks__entry *e,
                             char path[LKS__CKPT_PATH], int parts, lks__ckpt *ckpt)
{
    bool found = false;
    lks_status st = open_folder(path, parts, ckpt);
    if (st != LKS_OK && name != NULL && !lks__ckpt_is_folder(path) &&
        find_named(out, name, e, path, &found) == LKS_OK && found)
        st = open_folder(path, parts, ckpt);
    return st == LKS_OK ? st : offer(st, out, e->name, parts);
}

/* Find the newest checkpoint of OUT, even a damaged one. ERR_IO if OUT has none. */
static lks_status find_newest(const char *out, lks__entry *e, char path[LKS__CKPT_PATH])
{
    lks__entry *entries;
    size_t n, i = 0;
    LKS__TRY(lks__ckpt_scan(out, &entries, &n));
    while (i < n && entries[i].kind == LKS__ENTRY_TMP)
        i++;
    lks_status st = i < n ? lks__ckpt_join(path, out, entries[i].name) : no_checkpoint(out);
    if (st == LKS_OK)
        *e = entries[i];
    free(entries);
    return st;
}

/* True if OUT is a checkpoint, judged by its name or its files. */
static bool is_checkpoint(const char *dir)
{
    char path[LKS__CKPT_PATH];
    struct stat info;
    return lks__entry_parse(lks__sys_name(dir)).kind == LKS__ENTRY_CKPT ||
           (lks__ckpt_join(path, dir, LKS__CKPT_STATE) == LKS_OK && stat(path, &info) == 0) ||
           (lks__ckpt_join(path, dir, LKS__CKPT_MODEL) == LKS_OK && stat(path, &info) == 0);
}

/* OUT is a single checkpoint. If it is bad, its parent folder may contain others. */
static lks_status open_itself(const char *dir, int parts, lks__ckpt *ckpt)
{
    char parent[LKS__CKPT_PATH];
    const char *name = lks__sys_name(dir);
    lks_status st = open_folder(dir, parts, ckpt);
    if (st == LKS_OK)
        ckpt->itself = true;
    if (st == LKS_OK || lks__entry_parse(name).kind == LKS__ENTRY_OTHER)
        return st;
    lks__ckpt_parent(dir, parent);
    return offer(st, parent, name, parts);
}

/* Copy OUT without trailing slashes; it must exist. */
static lks_status clean_path(const char *out_dir, char out[LKS__CKPT_PATH])
{
    struct stat info;
    const size_t len = lks__sys_path_length(out_dir);
    if (len >= LKS__CKPT_PATH)
        return lks__fail(LKS_ERR_IO, "the folder's path is too long: %s", lks__shown(out_dir, 512));
    memcpy(out, out_dir, len);
    out[len] = '\0';
    if (stat(out, &info) < 0)
        return lks__sys_fail("there is no checkpoint: cannot read the folder", out);
    return LKS_OK;
}

lks_status lks__ckpt_open(const char *out_dir, int parts, lks__ckpt *ckpt)
{
    char out[LKS__CKPT_PATH], path[LKS__CKPT_PATH];
    lks__entry e;
    bool found;
    LKS__TRY(clean_path(out_dir, out));
    lks_status st = find_named(out, LKS__NAME_LATEST, &e, path, &found);
    if (st == LKS_ERR_FORMAT)
        return offer(st, out, NULL, parts);
    LKS__TRY(st);
    if (e.kind == LKS__ENTRY_OTHER && is_checkpoint(out))
        return open_itself(out, parts, ckpt);
    if (!found)
        LKS__TRY(find_newest(out, &e, path));
    return open_found(out, LKS__NAME_LATEST, &e, path, parts, ckpt);
}

lks_status lks__ckpt_open_best(const char *out_dir, int parts, lks__ckpt *ckpt)
{
    char out[LKS__CKPT_PATH], path[LKS__CKPT_PATH];
    lks__entry e;
    bool found;
    LKS__TRY(clean_path(out_dir, out));
    LKS__TRY(find_named(out, LKS__NAME_BEST, &e, path, &found));
    if (!found)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s has no best checkpoint: none has been evaluated, or it was deleted; "
                         "a resume finds it again",
                         lks__shown(out, 512));
    return open_found(out, LKS__NAME_BEST, &e, path, parts, ckpt);
}

/* "; it has ckpt-00000020, ckpt-00000010": the newest checkpoints of OUT; "" if there are none. */
static void list_checkpoints(const char *out, char text[160])
{
    enum { MOST = 4 };
    lks__entry *entries;
    size_t n, listed = 0;
    text[0] = '\0';
    if (lks__ckpt_scan(out, &entries, &n) != LKS_OK)
        return;
    for (size_t i = 0; i < n; i++)
        if (entries[i].kind == LKS__ENTRY_CKPT && ++listed <= MOST)
            lks__append(text, 160, ", ", "%s%s", listed == 1 ? "; it has " : "", entries[i].name);
    free(entries);
    if (listed > MOST)
        lks__append(text, 160, "", " and %zu older", listed - MOST);
}

lks_status lks__ckpt_open_iter(const char *out_dir, uint64_t iter, int parts, lks__ckpt *ckpt)
{
    char out[LKS__CKPT_PATH], path[LKS__CKPT_PATH], name[LKS__CKPT_NAME], others[160];
    lks__entry e = {.iter = iter};
    LKS__TRY(clean_path(out_dir, out));
    lks__entry_name(name, LKS__ENTRY_CKPT, iter);
    if (!find_folder(out, &e, path)) {
        list_checkpoints(out, others);
        return lks__fail(LKS_ERR_CONFIG, "there is no checkpoint %s in %s%s", name,
                         lks__shown(out, 512), others);
    }
    return open_found(out, NULL, &e, path, parts, ckpt);
}

lks_status lks__entry_asked(const char *out, const lks__entry *e, lks__asked *asked_p)
{
    char path[LKS__CKPT_PATH];
    lks__ckpt ckpt = {.iter = 0};
    LKS__TRY(lks__ckpt_join(path, out, e->name));
    LKS__TRY(open_folder(path, LKS__CKPT_ONLY_STATE, &ckpt));
    *asked_p = lks__asked_of(ckpt.state);
    lks__ckpt_close(&ckpt);
    return LKS_OK;
}

/* *yes_p: true if entry `i` is the target. If an iteration has two folders, the first counts. */
static lks_status is_target(const char *out, const lks__entry *entries, size_t i, bool *yes_p)
{
    lks__asked asked;
    *yes_p = false;
    if (entries[i].kind == LKS__ENTRY_TMP || (i > 0 && entries[i - 1].iter == entries[i].iter))
        return LKS_OK;
    lks_status st = lks__entry_asked(out, &entries[i], &asked);
    if (st == LKS_ERR_FORMAT)
        return lks__fail(st, "%s: to go back further, move %s out of the folder, then resume",
                         lks_last_error(), entries[i].name);
    LKS__TRY(st);
    *yes_p = asked == LKS__ASKED_NOT;
    return LKS_OK;
}

lks_status lks__ckpt_open_target(const char *out_dir, uint64_t iter, int parts, lks__ckpt *ckpt)
{
    char out[LKS__CKPT_PATH], path[LKS__CKPT_PATH];
    lks__entry *entries;
    size_t n, i;
    bool yes = false;
    LKS__TRY(clean_path(out_dir, out));
    LKS__TRY(lks__ckpt_scan(out, &entries, &n));
    lks_status st = LKS_OK;
    for (i = 0; i < n && st == LKS_OK; i++) {
        if (entries[i].iter <= iter)
            st = is_target(out, entries, i, &yes);
        if (yes)
            break;
    }
    if (st == LKS_OK && !yes)
        st = lks__fail(LKS_ERR_IO,
                       "%s has no checkpoint up to iteration %" PRIu64
                       " that was on the schedule or improved the validation loss",
                       lks__shown(out, 512), iter);
    else if (st == LKS_OK)
        st = lks__ckpt_join(path, out, entries[i].name);
    free(entries);
    return st == LKS_OK ? open_folder(path, parts, ckpt) : st;
}
