#include "report/diff/diff.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"
#include "report/diff/facts.h"
#include "report/diff/history.h"
#include "report/diff/records.h"
#include "report/diff/tensors.h"
#include "report/diff/trails.h"

static lks_status out_of_memory(void)
{
    return lks__no_memory("to compare runs");
}

/* --- checkpoints ------------------------------------------------------------------------------ */

static lks_status add_tensors(json_t *weights, const char *part, lks__st_file *a, lks__st_file *b,
                              bool verified)
{
    json_t *diff;
    LKS__TRY(lks__tensors_diff(part, a, b, verified, &diff));
    return diff == NULL || json_array_append_new(weights, diff) == 0 ? LKS_OK : out_of_memory();
}

static lks_status compare_open(const lks__ckpt *a, const lks__ckpt *b, json_t *weights)
{
    LKS__TRY(add_tensors(weights, "weights", a->model, b->model, true));
    return add_tensors(weights, "moments", a->optimizer, b->optimizer, true);
}

/* Open `parts` of both checkpoints, and verify their bytes. */
static lks_status open_both(const char *a, const char *b, int parts, lks__ckpt both[2])
{
    LKS__TRY(lks__ckpt_open(a, parts, &both[0]));
    return lks__ckpt_open(b, parts, &both[1]);
}

static void add_member(json_t *rows, const char *name, const json_t *a, const json_t *b)
{
    json_t *x = json_pack("{s:O*}", name, a), *y = json_pack("{s:O*}", name, b);
    lks__facts_members(rows, x, y);
    json_decref(x);
    json_decref(y);
}

static lks_status compare_checkpoints(const char *a, const char *b, json_t *report)
{
    static const char *const causes[] = {"iter",      "data_digest", "data_shift",
                                         "init_hash", "segment",     "nonfinite"};
    static const char *const outcomes[] = {"eval_done", "best_val_loss"};
    lks__ckpt both[2] = {{.iter = 0}, {.iter = 0}};
    json_t *weights = json_object_get(report, "weights"), *rows = json_array();
    lks_status st = open_both(a, b, LKS__CKPT_ALL_ALONE, both);
    if (st == LKS_OK) {
        const json_t *x = both[0].state, *y = both[1].state;
        const lks__history a_settings = {.settings = json_object_get(x, "settings")};
        const lks__history b_settings = {.settings = json_object_get(y, "settings")};
        lks__facts_add(report, &a_settings, &b_settings);
        for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++)
            add_member(rows, causes[i], json_object_get(x, causes[i]),
                       json_object_get(y, causes[i]));
        json_array_extend(json_object_get(report, "can_change_bits"), rows);
        for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; i++)
            add_member(rows, outcomes[i], json_object_get(x, outcomes[i]),
                       json_object_get(y, outcomes[i]));
        st = compare_open(&both[0], &both[1], weights);
    }
    if (json_array_size(rows) > 0)
        json_object_set(report, "state", rows);
    json_decref(rows);
    lks__ckpt_close(&both[0]);
    lks__ckpt_close(&both[1]);
    return st;
}

static lks_status compare_files(const char *a, const char *b, json_t *report)
{
    lks__st_file *x = NULL, *y = NULL;
    lks_status st = lks__st_open(a, &x);
    LKS__THEN(st, lks__st_open(b, &y));
    LKS__THEN(st, add_tensors(json_object_get(report, "weights"), "weights", x, y, false));
    lks__st_close(x);
    lks__st_close(y);
    return st;
}

/* --- runs ------------------------------------------------------------------------------------- */

static bool path_of(char out[LKS__CKPT_PATH], const char *run, const lks__entry *e,
                    const char *file)
{
    char folder[LKS__CKPT_PATH];
    struct stat info;
    return lks__ckpt_join(folder, run, e->name) == LKS_OK &&
           lks__ckpt_join(out, folder, file) == LKS_OK && lstat(out, &info) == 0;
}

/* Compare the hashes in the headers of one file of two checkpoints, except those of the tensor
 * `but`. *same_p is true, too, if one of the files is gone, for example because the run has deleted
 * an old checkpoint. */
static lks_status same_hashes(const char *a, const char *b, const lks__entry *e, const char *file,
                              const char *but, bool *same_p)
{
    char path[2][LKS__CKPT_PATH];
    lks__st_file *x = NULL, *y = NULL;
    *same_p = true;
    if (!path_of(path[0], a, e, file) || !path_of(path[1], b, e, file))
        return LKS_OK;
    lks_status st = lks__st_open(path[0], &x);
    LKS__THEN(st, lks__st_open(path[1], &y));
    if (st == LKS_OK)
        *same_p = lks__tensors_same_hashes(x, y, but);
    lks__st_close(x);
    lks__st_close(y);
    return st;
}

/* Compare optimizer.safetensors. A run that ended there, or was stopped, hasn't drawn the
 * evaluation's batches yet. */
static lks_status same_optimizers(const char *a, const char *b, const lks__entry *e, bool *same_p)
{
    char path[2][LKS__CKPT_PATH];
    lks__ckpt both[2] = {{.iter = 0}, {.iter = 0}};
    LKS__TRY(same_hashes(a, b, e, LKS__CKPT_OPTIMIZER, NULL, same_p));
    if (*same_p)
        return LKS_OK;
    LKS__TRY(lks__ckpt_join(path[0], a, e->name));
    LKS__TRY(lks__ckpt_join(path[1], b, e->name));
    const lks_status st = open_both(path[0], path[1], LKS__CKPT_ONLY_STATE, both);
    const bool alike = st != LKS_OK || json_equal(json_object_get(both[0].state, "eval_done"),
                                                  json_object_get(both[1].state, "eval_done"));
    lks__ckpt_close(&both[0]);
    lks__ckpt_close(&both[1]);
    return alike ? st : same_hashes(a, b, e, LKS__CKPT_OPTIMIZER, LKS__CKPT_SAMPLER, same_p);
}

/* Find the first checkpoint that both runs have, with different tensors, at an iteration up to
 * `end`. `found` has no name if there is none. */
static lks_status find_checkpoint(const char *a, const char *b, uint64_t end, lks__entry *found)
{
    lks__entry *entries;
    size_t n;
    bool same = true;
    *found = (lks__entry){.name = ""};
    LKS__TRY(lks__ckpt_scan(a, &entries, &n));
    lks_status st = LKS_OK;
    for (size_t i = n; i-- > 0 && st == LKS_OK && same;) { /* the newest is the first */
        if (entries[i].kind != LKS__ENTRY_CKPT || entries[i].iter > end)
            continue;
        st = same_hashes(a, b, &entries[i], LKS__CKPT_MODEL, NULL, &same);
        if (st == LKS_OK && same)
            st = same_optimizers(a, b, &entries[i], &same);
        if (!same)
            *found = entries[i];
    }
    free(entries);
    return st;
}

/* Name the tensor and element of the first checkpoint whose files differ although all steps before
 * it are equal. */
static lks_status compare_saved(const char *a, const char *b, json_t *report)
{
    const json_t *first = json_object_get(report, "first"), *iter = json_object_get(first, "iter");
    char paths[2][LKS__CKPT_PATH];
    lks__ckpt both[2] = {{.iter = 0}, {.iter = 0}};
    lks__entry e;
    const uint64_t end = iter != NULL ? (uint64_t)json_integer_value(iter) : UINT64_MAX;
    LKS__TRY(find_checkpoint(a, b, end, &e));
    if (e.name[0] == '\0')
        return LKS_OK;
    LKS__TRY(lks__ckpt_join(paths[0], a, e.name));
    LKS__TRY(lks__ckpt_join(paths[1], b, e.name));
    lks_status st = open_both(paths[0], paths[1], LKS__CKPT_ALL_ALONE, both);
    LKS__THEN(st, compare_open(&both[0], &both[1], json_object_get(report, "weights")));
    if (st == LKS_OK && json_object_set_new(report, "checkpoint", json_string(e.name)) != 0)
        st = out_of_memory();
    lks__ckpt_close(&both[0]);
    lks__ckpt_close(&both[1]);
    return st;
}

static lks_status compare_runs(const char *a, const char *b, lks__history both[2], json_t *report)
{
    LKS__TRY(lks__history_open(a, &both[0]));
    LKS__TRY(lks__history_open(b, &both[1]));
    both[0].lines.untimed = both[1].lines.untimed = true;
    both[1].lines.twin = &both[0].lines;
    LKS__TRY(lks__records_diff(&both[0], &both[1], report));
    LKS__TRY(lks__hashes_diff(a, b, report));
    lks__facts_add(report, &both[0], &both[1]);
    return compare_saved(a, b, report);
}

/* --- two things ------------------------------------------------------------------------------- */

enum kind { RUN, CHECKPOINT, WEIGHTS, TRAIL };

static const char *const kind_names[] = {"run", "checkpoint", "weights", "trail"};
static const char *const kind_phrases[] = {"a run", "a checkpoint", "a file of weights", "a trail"};

/* True if the file begins like weights, whose header comes after its length, or can't be opened:
 * reading weights then reports the reason. */
static bool begins_like_weights(const char *path)
{
    char text[9];
    const int fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return true;
    const bool is = lks__sys_read_at(fd, text, sizeof text, 0) == 0 && text[8] == '{';
    lks__sys_close(fd);
    return is;
}

static const char *what_it_lacks(const char *path, bool folder)
{
    if (!folder)
        return "a file of weights (.safetensors) nor a trail";
    if (lks__sys_has(path, LKS__NAME_LATEST))
        return "a run's folder nor a checkpoint, but contains checkpoints: give one of them, such "
               "as its " LKS__NAME_LATEST;
    return "a run's folder nor a checkpoint: it contains no metrics.jsonl and no state.json";
}

static lks_status kind_of(const char *path, enum kind *kind_p)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return lks__sys_fail("can't read", path);
    const bool folder = S_ISDIR(info.st_mode);
    if (folder && lks__sys_has(path, "metrics.jsonl"))
        *kind_p = RUN;
    else if (folder && lks__sys_has(path, LKS__CKPT_STATE))
        *kind_p = CHECKPOINT;
    else if (folder && errno != ENOENT) /* from the last lks__sys_has() */
        return lks__sys_fail("can't read", path);
    else if (!folder && lks__trail_is(path))
        *kind_p = TRAIL;
    else if (!folder && begins_like_weights(path))
        *kind_p = WEIGHTS;
    else
        return lks__fail(LKS_ERR_CONFIG, "%s is neither %s", lks__shown(path, 512),
                         what_it_lacks(path, folder));
    return LKS_OK;
}

bool lks__diff_same(const json_t *report)
{
    return json_is_true(json_object_get(report, "same"));
}

/* True if more than evaluations differ. */
static bool others_differ(const json_t *report)
{
    const json_t *gradients = json_object_get(report, "gradients");
    return json_array_size(json_object_get(report, "weights")) > 0 ||
           json_array_size(json_object_get(report, "state")) > 0 ||
           json_is_object(json_object_get(report, "first")) ||
           json_is_object(json_object_get(gradients, "first")) ||
           json_is_object(json_object_get(report, "place"));
}

bool lks__diff_same_steps(const json_t *report)
{
    return json_is_object(json_object_get(report, "evaluation")) && !others_differ(report);
}

static bool contains(const json_t *rows, const json_t *row)
{
    lks__each(other, rows)
        if (json_equal(other, row))
            return true;
    return false;
}

json_t *lks__diff_outcomes(const json_t *report)
{
    json_t *outcomes = json_array();
    lks__each(row, json_object_get(report, "state"))
        if (!contains(json_object_get(report, "can_change_bits"), row))
            json_array_append(outcomes, row);
    return outcomes;
}

/* True if two checkpoints differ only in what evaluations have found. */
static bool same_but_outcomes(const json_t *report)
{
    json_t *outcomes = lks__diff_outcomes(report);
    const size_t n = json_array_size(outcomes);
    json_decref(outcomes);
    return n > 0 && n == json_array_size(json_object_get(report, "state")) &&
           json_array_size(json_object_get(report, "weights")) == 0;
}

json_t *lks__diff_causes(const json_t *report)
{
    const json_t *evaluations = json_object_get(report, "changes_evaluations");
    const json_t *place = json_object_get(json_object_get(report, "execution"), "place");
    const bool use = (lks__diff_same_steps(report) || same_but_outcomes(report)) &&
                     json_array_size(evaluations) > 0;
    json_t *causes = json_array();
    lks__each(row, use ? evaluations : json_object_get(report, "can_change_bits"))
        if (!lks__facts_machine(row) || !json_is_object(place))
            json_array_append(causes, (json_t *)row);
    return causes;
}

static lks_status compare_kind(enum kind kind, const char *a, const char *b, lks__history both[2],
                               json_t *report)
{
    switch (kind) {
    case CHECKPOINT:
        return compare_checkpoints(a, b, report);
    case WEIGHTS:
        return compare_files(a, b, report);
    case TRAIL:
        return lks__trails_diff(a, b, report);
    case RUN:
        break;
    }
    return compare_runs(a, b, both, report);
}

static lks_status compare(const char *a, const char *b, lks__history both[2], json_t *report)
{
    enum kind kinds[2];
    LKS__TRY(kind_of(a, &kinds[0]));
    LKS__TRY(kind_of(b, &kinds[1]));
    if (kinds[0] != kinds[1])
        return lks__fail(LKS_ERR_CONFIG,
                         "%s can't be compared with %s: give two runs, two checkpoints, two "
                         "files of weights or two trails",
                         kind_phrases[kinds[0]], kind_phrases[kinds[1]]);
    json_object_set_new(report, "kind", json_string(kind_names[kinds[0]]));
    LKS__TRY(compare_kind(kinds[0], a, b, both, report));
    const bool same =
        !others_differ(report) && !json_is_object(json_object_get(report, "evaluation"));
    return json_object_set_new(report, "same", json_boolean(same)) == 0 ? LKS_OK : out_of_memory();
}

lks_status lks__diff(const char *a, const char *b, lks__history both[2], json_t **report_p)
{
    both[0] = both[1] = (lks__history){.run = NULL};
    json_t *report = json_pack("{s:o, s:o, s:[], s:[], s:[], s:[]}", "a", lks__json_utf8(a), "b",
                               lks__json_utf8(b), "changes_no_bit", "changes_evaluations",
                               "can_change_bits", "weights");
    const lks_status st = report != NULL ? compare(a, b, both, report) : out_of_memory();
    if (st == LKS_OK)
        *report_p = report;
    else
        json_decref(report);
    return st;
}
