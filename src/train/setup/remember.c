#include "train/setup/remember.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "data/text/meta.h"
#include "report/record/files.h"
#include "report/record/metrics/metrics.h"

/* Choose the path as the run used it, if it leads to the same folder from here, else the absolute
 * path. If neither exists (the whole tree may have moved), choose the path as used. */
lks_status lks__remembered_data(const char *run_dir, char out[LKS__SETTING_STR])
{
    char used[LKS__METRICS_PATH], absolute[LKS__METRICS_PATH];
    bool found;
    out[0] = '\0';
    LKS__TRY(lks__metrics_dataset(run_dir, used, absolute, &found));
    if (!found && lks__run_has_data(run_dir) && /* the record is lost */
        snprintf(out, LKS__SETTING_STR, "%s/" LKS__DATA_FOLDER, run_dir) >= LKS__SETTING_STR)
        out[0] = '\0';
    if (!found && !lks__sys_is_folder(run_dir)) /* moved, while its checkpoint was read */
        return lks__sys_fail("cannot read the folder", run_dir);
    if (!found)
        return LKS_OK;
    const char *path =
        lks__sys_is_folder(absolute) && !lks__sys_same(used, absolute) ? absolute : used;
    if (lks__run_own_data(run_dir, path, out, LKS__SETTING_STR))
        return LKS_OK;
    if (!lks__sys_is_folder(path)) {
        const char *was = absolute[0] != '\0' ? absolute : used;
        return lks__fail(LKS_ERR_CONFIG,
                         "the data of the run in %s was in %s, but that folder doesn't exist now: "
                         "give --dataset=DIR, or move it back",
                         lks__shown(run_dir, 512), lks__shown(was, 512));
    }
    if (strlen(path) < LKS__SETTING_STR)
        strcpy(out, path);
    return LKS_OK;
}

/* Set the setting to rank 0's path on all ranks; "": leave it unchanged. */
static lks_status share(lks__session *ses, lks__settings *s, int setting,
                        char path[LKS__SETTING_STR], char value[LKS__SETTING_STR])
{
    LKS__TRY(lks_comm_broadcast(ses->comm, path, LKS__SETTING_STR, LKS_UINT8, 0));
    if (path[0] == '\0')
        return LKS_OK;
    strcpy(value, path);
    s->from[setting] = LKS__FROM_CHECKPOINT;
    return LKS_OK;
}

lks_status lks__remember_data(lks__session *ses, const char *run_dir, const char *family,
                              lks__settings *s)
{
    char path[LKS__SETTING_STR] = "";
    lks_status st = LKS_OK;
    if (lks__settings_given_for(s, LKS__SETTING_dataset, family))
        return LKS_OK;
    if (ses->world.rank == 0)
        st = lks__remembered_data(run_dir, path);
    LKS__TRY(lks__session_agree(ses, st));
    return share(ses, s, LKS__SETTING_dataset, path, s->dataset);
}

/* The tokenizer that the run was given, else the SentencePiece model next to its data, or "". */
static lks_status choose_tokenizer(const char *run_dir, char path[LKS__SETTING_STR], bool *gone_p)
{
    json_t *settings;
    char data[LKS__SETTING_STR], model[LKS__SETTING_STR];
    struct stat info;
    LKS__TRY(lks__metrics_settings(run_dir, &settings));
    const char *text = lks__json_str(settings, "tokenizer_path");
    if (text != NULL && strlen(text) < LKS__SETTING_STR)
        strcpy(path, text);
    json_decref(settings);
    const bool given = path[0] != '\0';
    *gone_p = given && stat(path, &info) != 0;
    if (!given && lks__remembered_data(run_dir, data) == LKS_OK && data[0] != '\0' &&
        snprintf(model, sizeof model, "%s/" LKS__META_MODEL, data) < (int)sizeof model &&
        stat(model, &info) == 0)
        strcpy(path, model);
    return LKS_OK;
}

lks_status lks__remember_tokenizer(lks__session *ses, const char *run_dir, const char *family,
                                   lks__settings *s, char gone[LKS__SETTING_STR])
{
    char path[LKS__SETTING_STR] = "";
    bool is_gone = false;
    lks_status st = LKS_OK;
    gone[0] = '\0';
    if (lks__settings_given_for(s, LKS__SETTING_tokenizer_path, family))
        return LKS_OK;
    if (ses->world.rank == 0)
        st = choose_tokenizer(run_dir, path, &is_gone);
    LKS__TRY(lks__session_agree(ses, st));
    if (is_gone) {
        strcpy(gone, path);
        path[0] = '\0';
    }
    return share(ses, s, LKS__SETTING_tokenizer_path, path, s->tokenizer_path);
}

enum { KEPT_BYTES = 8 * LKS__SETTING_STR };

/* Rank 0's recorded values as JSON text, because other hosts may not have the file; "": none. */
static lks_status read_settings(const char *run_dir, char text[KEPT_BYTES])
{
    json_t *settings;
    lks_status st = LKS_OK;
    LKS__TRY(lks__metrics_settings(run_dir, &settings));
    char *dumped = json_is_object(settings) ? lks__json_dump(settings, JSON_COMPACT) : NULL;
    if (dumped == NULL && json_is_object(settings))
        st = lks__no_memory("for the settings in %s/metrics.jsonl", lks__shown(run_dir, 512));
    else if (dumped != NULL && snprintf(text, KEPT_BYTES, "%s", dumped) >= KEPT_BYTES)
        st = lks__fail(LKS_ERR_FORMAT, "%s/metrics.jsonl: the settings have over %d bytes",
                       lks__shown(run_dir, 512), KEPT_BYTES - 1);
    free(dumped);
    json_decref(settings);
    return st;
}

lks_status lks__remember_settings(lks__session *ses, const char *run_dir, lks__settings *s)
{
    char text[KEPT_BYTES] = "", where[600];
    json_error_t error;
    lks_status st = ses->world.rank == 0 ? read_settings(run_dir, text) : LKS_OK;
    LKS__TRY(lks__session_agree(ses, st));
    LKS__TRY(lks_comm_broadcast(ses->comm, text, sizeof text, LKS_UINT8, 0));
    snprintf(where, sizeof where, "%s/metrics.jsonl", lks__shown(run_dir, 512));
    json_t *settings = lks__json_load(text, strlen(text), JSON_REJECT_DUPLICATES, &error);
    if (settings == NULL && text[0] != '\0')
        st = lks__no_memory("for the settings in %s", where);
    else
        st = lks__settings_keep(s, settings, where);
    json_decref(settings);
    return lks__session_agree(ses, st);
}
