#include "train/audit/seal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "data/fetch/sums.h"
#include "data/read/sampler.h"
#include "files/checkpoint/folder.h"
#include "report/record/files.h"
#include "report/record/leaves.h"
#include "train/audit/settings.h"
#include "train/procedure/procedure.h"

enum { DIGITS = LKS__SUM - 1, LIMIT = 16 << 20 };

/* --- the files -------------------------------------------------------------------------------- */

/* Add the line of a file, if the file exists. */
static lks_status add_file(FILE *list, const char *path, const char *name)
{
    char sum[LKS__SUM];
    if (access(path, F_OK) != 0)
        return LKS_OK;
    LKS__TRY(lks__sums_of(path, NULL, NULL, sum));
    fprintf(list, "%s  %s\n", sum, lks__shown(name, 512));
    return LKS_OK;
}

static lks_status add_inside(FILE *list, const char *run, const char *name)
{
    char path[LKS__CKPT_PATH];
    LKS__TRY(lks__ckpt_join(path, run, name));
    return add_file(list, path, name);
}

static lks_status add_checkpoints(FILE *list, const char *run)
{
    static const char *const files[] = {LKS__CKPT_MODEL, LKS__CKPT_OPTIMIZER, LKS__CKPT_STATE};
    lks__entry *entries;
    char name[LKS__CKPT_NAME + 64];
    size_t n;
    lks_status st = LKS_OK;
    LKS__TRY(lks__ckpt_scan(run, &entries, &n));
    for (size_t i = n; i-- > 0;) /* the newest is the first */
        for (size_t f = 0; f < sizeof files / sizeof files[0] && st == LKS_OK; f++) {
            snprintf(name, sizeof name, "%s/%s", entries[i].name, files[f]);
            if (entries[i].kind == LKS__ENTRY_CKPT)
                st = add_inside(list, run, name);
        }
    free(entries);
    return st;
}

static lks_status add_split(FILE *list, const lks__settings *s, const char *dir, int split)
{
    lks__shards *shards;
    char name[512];
    lks_status st = LKS_OK;
    LKS__TRY(lks__procedure_open_split(s, dir, split, UINT32_MAX, &shards));
    for (int i = 0; shards != NULL && i < lks__shards_n_files(shards) && st == LKS_OK; i++) {
        const char *path = lks__shards_path(shards, i);
        snprintf(name, sizeof name, LKS__DATA_FOLDER "/%s", lks__sys_name(path));
        st = add_file(list, path, name);
    }
    lks__shards_close(shards);
    return st;
}

static lks_status add_data(FILE *list, const lks__settings *s)
{
    char dir[LKS__SETTING_STR + 8], path[LKS__CKPT_PATH];
    LKS__TRY(lks__settings_data_dir(s, dir));
    LKS__TRY(lks__ckpt_join(path, dir, "meta.json"));
    LKS__TRY(add_file(list, path, LKS__DATA_FOLDER "/meta.json"));
    LKS__TRY(add_split(list, s, dir, LKS__SPLIT_TRAIN));
    return add_split(list, s, dir, LKS__SPLIT_VAL);
}

static lks_status add_all(FILE *list, const lks__replay *r, lks__settings *s)
{
    static const char *const record[] = {"metrics.jsonl", LKS__LEAVES_FILE, "tokenizer.json",
                                         LKS__ARTIFACT_FILE};
    LKS__TRY(lks__audit_settings(r, 0, s));
    for (size_t i = 0; i < sizeof record / sizeof record[0]; i++)
        LKS__TRY(add_inside(list, r->run, record[i]));
    LKS__TRY(add_checkpoints(list, r->run));
    return add_data(list, s);
}

/* The lines of all files. The caller frees *text_p. */
static lks_status make_list(const lks__replay *r, char **text_p)
{
    size_t n;
    lks__settings *s = malloc(sizeof *s);
    FILE *list = s != NULL ? open_memstream(text_p, &n) : NULL;
    if (list == NULL) {
        free(s);
        return lks__no_memory("for the list of a run's files");
    }
    lks_status st = add_all(list, r, s);
    if ((fclose(list) != 0 || *text_p == NULL) && st == LKS_OK)
        st = lks__no_memory("for the list of a run's files");
    free(s);
    if (st != LKS_OK)
        free(*text_p);
    return st;
}

lks_status lks__seal_print(const lks__replay *r)
{
    char *list, sum[LKS__SUM];
    LKS__TRY(make_list(r, &list));
    lks__sums_text(list, strlen(list), sum);
    fprintf(r->out, "%sseal      %s\n", list, sum);
    free(list);
    return LKS_OK;
}

/* --- comparing -------------------------------------------------------------------------------- */

struct line {
    const char *text; /* the sum, two blanks, and the name */
    int bytes;
};

/* Move *at_p past the next line of the list; false at the end. */
static bool next_line(const char **at_p, struct line *line)
{
    while (**at_p != '\0') {
        line->text = *at_p;
        line->bytes = (int)strcspn(*at_p, "\n");
        *at_p += line->bytes + (line->text[line->bytes] == '\n');
        if (line->bytes > DIGITS + 2 && lks__sums_line(line->text))
            return true;
    }
    return false;
}

/* Find the line of the same name. */
static bool find_name(const char *list, const struct line *of, struct line *found)
{
    while (next_line(&list, found))
        if (found->bytes == of->bytes &&
            memcmp(found->text + DIGITS, of->text + DIGITS, (size_t)(of->bytes - DIGITS)) == 0)
            return true;
    return false;
}

static void report_line(lks__replay *r, const struct line *line, const char *what)
{
    char shown[512];
    lks__escape(shown, sizeof shown, line->text + DIGITS + 2, (size_t)(line->bytes - DIGITS - 2));
    lks__replay_false(r, "%s %s", shown, what);
}

void lks__seal_compare(lks__replay *r, const char *sealed, const char *have)
{
    struct line line, other;
    for (const char *at = have; next_line(&at, &line);)
        if (!find_name(sealed, &line, &other))
            report_line(r, &line, "isn't in the seal");
        else if (memcmp(line.text, other.text, DIGITS) != 0)
            report_line(r, &line, "isn't the file that was sealed");
    for (const char *at = sealed; next_line(&at, &line);)
        if (!find_name(have, &line, &other))
            report_line(r, &line, "is in the seal, but doesn't exist here");
}

static bool is_sum(const char *text)
{
    return strlen(text) == DIGITS && strspn(text, "0123456789abcdef") == DIGITS;
}

/* The line of a list that is the seal of the lines before it; NULL: there is none. `after_p`: what
 * follows it. */
static const char *own_seal(const char *text, char sum[LKS__SUM], const char **after_p)
{
    static const char begin[] = "seal      ";
    const char *at = strstr(text, begin);
    while (at != NULL && at != text && at[-1] != '\n')
        at = strstr(at + 1, begin);
    if (at == NULL)
        return NULL;
    const char *digits = at + sizeof begin - 1, *end = digits + strcspn(digits, "\r\n");
    snprintf(sum, LKS__SUM, "%.*s", (int)(end - digits), digits);
    *after_p = end + strspn(end, "\r\n");
    return end - digits == DIGITS && is_sum(sum) ? at : NULL;
}

static void compare_sum(lks__replay *r, const char *wanted, const char *have)
{
    char sum[LKS__SUM];
    lks__sums_text(have, strlen(have), sum);
    if (strcmp(wanted, sum) != 0)
        lks__replay_false(r,
                          "the files have the seal %s, not %s: compare these lines with those "
                          "that were published\n%s",
                          sum, wanted, have);
}

/* Compare a published list, which must have its own seal, or a file that has only the seal. */
static lks_status compare_text(lks__replay *r, const char *shown, const char *text,
                               const char *have)
{
    char sum[LKS__SUM], own[LKS__SUM];
    struct line line;
    const char *lines = text, *after = "", *seal = own_seal(text, own, &after);
    if (seal == NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is no list that `lockstep audit RUN --seal` has printed: its last "
                         "line must be `seal` and a SHA-256",
                         shown);
    lks__sums_text(text, (size_t)(seal - text), sum);
    if (after[0] != '\0')
        lks__replay_false(r, "%s was changed: there is text after its seal", shown);
    else if (!next_line(&lines, &line))
        compare_sum(r, own, have);
    else if (strcmp(sum, own) != 0)
        lks__replay_false(r, "%s was changed: its lines have the seal %s, its last line says %s",
                          shown, sum, own);
    else
        lks__seal_compare(r, text, have);
    return LKS_OK;
}

static lks_status compare_file(lks__replay *r, const char *path, const char *have)
{
    char *text = NULL;
    size_t n;
    LKS__TRY(lks__sys_read_file(path, LIMIT, &text, &n));
    const char *shown = lks__shown(path, 512);
    const lks_status st = compare_text(r, shown, text, have);
    free(text);
    return st;
}

lks_status lks__seal_check(lks__replay *r, const char *wanted)
{
    char *list;
    const uint64_t findings = r->findings;
    const double began = lks__sys_now();
    if (!is_sum(wanted) && access(wanted, R_OK) != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "seal=%s is neither a SHA-256 (64 hexadecimal digits) nor a file with the "
                         "lines that `lockstep audit RUN --seal` printed",
                         lks__shown(wanted, 512));
    LKS__TRY(make_list(r, &list));
    lks_status st = LKS_OK;
    if (is_sum(wanted))
        compare_sum(r, wanted, list);
    else
        st = compare_file(r, wanted, list);
    free(list);
    if (st == LKS_OK && r->findings == findings)
        fprintf(r->out,
                "seal      equal: record, checkpoints and data are the files that were "
                "sealed (%.1f s)\n",
                lks__sys_now() - began);
    return st;
}
