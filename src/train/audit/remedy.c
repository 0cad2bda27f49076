#include "train/audit/diff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/checkpoint/folder.h"
#include "report/diff/diff.h"
#include "report/diff/facts.h"
#include "settings/config/recipe.h"
#include "settings/family.h"
#include "train/audit/points.h"
#include "train/audit/settings.h"
#include "train/procedure/procedure.h"
#include "train/setup/remember.h"

enum { MOST_WORDS = 64 };

static lks_status out_of_memory(void)
{
    return lks__no_memory("for a command");
}

/* A word that isn't UTF-8 becomes null. */
static void add_word(json_t *command, json_t *word)
{
    json_array_append_new(command, word != NULL ? word : json_null());
}

static void add_setting(json_t *command, const char *key, const json_t *value)
{
    char text[256];
    const char *whole = json_string_value(value);
    add_word(command,
             json_sprintf("--%s=%s", key, whole != NULL ? whole : lks__json_text(value, text)));
}

/* True if resumes after iteration `iter` changed more than the run's length. */
static bool changes_after(const lks__claims *c, json_int_t iter)
{
    const char *key;
    json_t *value;
    lks__each(start, c->starts) {
        if (lks__json_int(start, "resumed_iter") <= iter)
            continue;
        json_object_foreach(json_object_get(start, "changed"), key, value)
        {
            bool is_length = false;
            for (int f = 0; lks__families[f] != NULL; f++)
                is_length |= strcmp(lks__families[f]->procedure->length, key) == 0;
            if (!is_length)
                return true;
        }
    }
    return false;
}

/* --- from a checkpoint ------------------------------------------------------------------------ */

/* NULL if the checkpoint doesn't exist any more. */
static json_t *continue_from(const lks__history *run, const lks__history *target, uint64_t iter)
{
    char name[LKS__CKPT_NAME], path[LKS__CKPT_PATH];
    const char *key;
    json_t *value;
    struct stat info;
    const json_t *changed = lks__claims_changed(&run->claims, iter);
    lks__entry_name(name, LKS__ENTRY_CKPT, iter);
    if (changes_after(&target->claims, (json_int_t)iter) ||
        lks__ckpt_join(path, run->run, name) != LKS_OK || stat(path, &info) != 0)
        return NULL;
    json_t *command = json_pack("[s, s]", "resume", path);
    json_object_foreach((json_t *)changed, key, value)
    {
        if (!lks__facts_follow(changed, key))
            add_setting(command, key, json_object_get(target->settings, key));
    }
    return command;
}

/* Add --dataset if the folder of the run's data is gone. False if the data aren't available. */
static bool add_data(lks__history both[2], int side, const lks__settings *asked, char why[1024],
                     json_t *command)
{
    char data[LKS__SETTING_STR];
    if (lks__remembered_data(both[side].run, data) == LKS_OK)
        return true;
    if (lks__reads_check(both, side, asked) != LKS_OK) {
        snprintf(why, 1024, "%s", lks_last_error());
        return false;
    }
    add_word(command, json_sprintf("--dataset=%s", asked->dataset));
    return true;
}

/* --- from the start --------------------------------------------------------------------------- */

/* Add the config files of the run's own command. */
static void add_files(json_t *command, const lks__history *run)
{
    char path[PATH_MAX];
    size_t i;
    json_t *word;
    const json_t *words = json_object_get(json_array_get(run->claims.starts, 0), "command");
    json_array_foreach(words, i, word)
    {
        const char *text = json_string_value(word);
        if (i > 1 && text != NULL && text[0] != '-' && json_array_size(command) < MOST_WORDS &&
            lks__recipe_find(text, path) != LKS__RECIPE_NONE)
            json_array_append(command, word);
    }
}

/* Read the settings that a command gives. */
static lks_status parse(const json_t *command, lks__settings *s)
{
    char *words[MOST_WORDS + 2];
    size_t i;
    json_t *word;
    lks__args *args = malloc(sizeof *args);
    if (args == NULL)
        return out_of_memory();
    json_array_foreach(command, i, word) words[i] = (char *)json_string_value(word);
    lks__settings_defaults(s);
    lks_status st = lks__settings_parse(s, LKS__CMD_TRAIN, (int)i - 1, words + 1, 0, args);
    free(args);
    return st == LKS_OK ? lks__settings_complete(s, 1) : st;
}

/* Add each setting that the command's words don't give, and those in which the runs differ. */
static lks_status add_settings(json_t *command, const lks__settings *given, const lks__settings *s,
                               const json_t *differ)
{
    json_t *x = lks__settings_to_json(given);
    json_t *y = lks__settings_to_json(s);
    json_t *rows = json_array();
    if (x != NULL && y != NULL && rows != NULL)
        lks__facts_members(rows, x, y);
    lks__each(row, rows) {
        const char *name = lks__json_str(row, "name");
        const json_t *value = json_object_get(row, "b");
        if (!json_is_null(value) && strcmp(name, "family") != 0 && !lks__facts_follow(y, name) &&
            !lks__settings_unused(s, name))
            add_setting(command, name, value);
    }
    lks__each(row, differ) {
        const char *name = lks__json_str(row, "name");
        const json_t *value = json_object_get(y, name);
        if (value != NULL && json_equal(value, json_object_get(x, name)) &&
            !lks__settings_unused(s, name))
            add_setting(command, name, value);
    }
    json_decref(rows);
    json_decref(x);
    json_decref(y);
    if (strcmp(given->dataset, s->dataset) != 0)
        add_word(command, json_sprintf("--dataset=%s", s->dataset));
    if (strcmp(s->device, "cpu") != 0)
        add_word(command, json_sprintf("--device=%s", s->device));
    return x != NULL && y != NULL && rows != NULL ? LKS_OK : out_of_memory();
}

/* The settings of a run that was made without other changes than of its length. */
static lks_status settings_of(const lks__history *h, const lks__settings *asked, lks__settings *s)
{
    const lks__replay r = {.asked = asked, .own_data = true, .run = h->run, .claims = &h->claims};
    LKS__TRY(lks__audit_settings(&r, 0, s));
    lks__each(start, h->claims.starts)
        LKS__TRY(lks__audit_change(s, json_object_get(start, "changed")));
    return lks__settings_complete(s, 1);
}

static lks_status write_command(const lks__history *run, const lks__settings *s,
                                lks__settings *given, const json_t *differ, json_t *command)
{
    json_array_append_new(command, json_string("train"));
    add_files(command, run);
    lks_status st = parse(command, given);
    while (st != LKS_OK && json_array_size(command) > 1) { /* a file has changed or is gone */
        json_array_remove(command, json_array_size(command) - 1);
        st = parse(command, given);
    }
    if (st == LKS_OK && given->family != s->family) {
        add_word(command, json_sprintf("--family=%s", lks__setting_word(s, LKS__SETTING_family)));
        st = parse(command, given);
    }
    LKS__TRY(st);
    lks__choose_optimizer(given);
    if (given->dtype == LKS__dtype_auto && strcmp(s->device, "cpu") == 0)
        given->dtype = LKS__dtype_float32;
    LKS__TRY(add_settings(command, given, s, differ));
    add_word(command,
             json_sprintf("--out_dir=%.*s-equal", (int)lks__sys_path_length(run->run), run->run));
    return LKS_OK;
}

/* Repeat the other run with the config files of both[side], next to it. *command_p is NULL if one
 * command can't do that; `why` then says if the other run's data are missing. */
static lks_status from_start(lks__history both[2], int side, const lks__settings *asked,
                             const json_t *differ, char why[1024], json_t **command_p)
{
    const lks__history *target = &both[!side];
    if (!lks__points_seed(&target->claims) || changes_after(&target->claims, -1))
        return LKS_OK;
    lks_status st = lks__reads_check(both, !side, asked);
    if (st != LKS_OK) {
        if (why[0] == '\0')
            snprintf(why, 1024, "%s", lks_last_error());
        return st == LKS_ERR_NOMEM ? st : LKS_OK;
    }
    json_t *command = json_array();
    lks__settings *s = malloc(2 * sizeof *s);
    st = s != NULL && command != NULL ? settings_of(target, asked, s) : out_of_memory();
    LKS__THEN(st, write_command(&both[side], s, s + 1, differ, command));
    free(s);
    if (st == LKS_OK)
        *command_p = command;
    else
        json_decref(command);
    return st == LKS_ERR_NOMEM ? st : LKS_OK;
}

/* --- the choice ------------------------------------------------------------------------------- */

/* The resume of one run that made all differences; -1 if there is no such. */
static json_int_t resumed_at(const json_t *rows, const char *since, const char *other)
{
    json_int_t iter = -1;
    lks__each(row, rows) {
        const json_t *at = json_object_get(row, since);
        if (at == NULL || json_object_get(row, other) != NULL ||
            (iter >= 0 && json_integer_value(at) != iter))
            return -1;
        iter = json_integer_value(at);
    }
    return iter;
}

/* True if settings or data can explain the difference. */
static bool is_explained(const json_t *rows, const json_t *report)
{
    const json_t *execution = json_object_get(report, "execution");
    lks__each(row, rows)
        if (!lks__facts_given(row))
            return false;
    return json_array_size(rows) > 0 && json_array_size(json_object_get(execution, "false")) == 0 &&
           !json_is_null(json_object_get(execution, "place"));
}

static bool is_whole(const json_t *command)
{
    lks__each(word, command)
        if (!json_is_string(word))
            return false;
    return true;
}

static lks_status add_remedy(lks__history both[2], const lks__settings *asked, const json_t *rows,
                             json_t *report)
{
    json_t *command = NULL;
    char why[1024] = "";
    int side = 1; /* the run that becomes equal to the other */
    json_int_t iter = resumed_at(rows, "since_b", "since_a");
    if (iter < 0 && (iter = resumed_at(rows, "since_a", "since_b")) >= 0)
        side = 0;
    if (iter >= 0)
        command = continue_from(&both[side], &both[!side], (uint64_t)iter);
    if (command != NULL && !add_data(both, side, asked, why, command)) {
        json_decref(command);
        command = NULL;
    }
    if (command == NULL) {
        iter = -1;
        LKS__TRY(from_start(both, side, asked, rows, why, &command));
    }
    if (command == NULL) {
        side = !side;
        LKS__TRY(from_start(both, side, asked, rows, why, &command));
    }
    if (command == NULL && why[0] != '\0') {
        json_object_set_new(report, "remedy", json_pack("{s:o}", "why_not", lks__json_utf8(why)));
        return LKS_OK;
    }
    if (command == NULL || !is_whole(command)) {
        json_decref(command);
        return LKS_OK;
    }
    json_t *remedy = json_pack("{s:s, s:o, s:o}", "run", side == 0 ? "a" : "b", "resumed",
                               iter >= 0 ? json_integer(iter) : json_null(), "command", command);
    return json_object_set_new(report, "remedy", remedy) == 0 ? LKS_OK : out_of_memory();
}

lks_status lks__remedy_add(lks__history both[2], const lks__settings *asked, json_t *report)
{
    if (both[0].run == NULL || lks__diff_same(report))
        return LKS_OK;
    lks_status st = lks__history_finish(&both[0]);
    LKS__THEN(st, lks__history_finish(&both[1]));
    if (st != LKS_OK)
        return st == LKS_ERR_CONFIG ? LKS_OK : st; /* no step */
    json_t *rows = lks__diff_causes(report);
    if (is_explained(rows, report))
        st = add_remedy(both, asked, rows, report);
    json_decref(rows);
    return st;
}
