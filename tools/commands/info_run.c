/* lockstep info RUN: describes a run in a few lines. */
#include "info.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../runs.h"
#include "../tool.h"
#include "base/system/sys.h"
#include "base/text/shell.h"
#include "files/checkpoint/folder.h"
#include "report/record/outdir.h"
#include "report/view/series.h"
#include "train/setup/remember.h"
#include "weights/forms/saved.h"

static void print_path(const char *topic, const char *path)
{
    printf("%-13s%s\n", topic, lks__shown(path, 4 * PATH_MAX));
}

static void print_model(const lks__series *s)
{
    static const char *const names[] = {"family", "n_layer", "n_head", "n_embd", "block_size"};
    char value[256];
    printf("%-13s", "model");
    for (int i = 0; i < 5; i++) {
        const char *text = lks__series_setting(s, names[i], value);
        printf("%s%s=%s", i > 0 ? " " : "", names[i], lks__shown(text, 256));
    }
    putchar('\n');
}

static void print_losses(const lks__series *s)
{
    const lks__eval_point *last = lks__series_last_eval(s), *best = lks__series_best(s);
    const double loss = lks__series_last_loss(s);
    if (!isnan(loss))
        printf("%-13s%.4f at iteration %" PRIu64 "\n", "loss", loss,
               s->points[s->n_points - 1].iter);
    if (last == NULL || isnan(last->val_loss))
        return;
    printf("%-13s%.4f at iteration %" PRIu64, "validation", last->val_loss, last->iter);
    if (best != NULL)
        printf(", the lowest %.4f at iteration %" PRIu64, best->val_loss, best->iter);
    putchar('\n');
}

/* The checkpoint that resume opens, or with `best` the best one. Its name is "" if it can't be
 * opened. */
static lks_status find_entry(const char *run, bool best, lks__entry *e)
{
    lks__ckpt ckpt;
    *e = (lks__entry){.name = ""};
    const lks_status st = best ? lks__ckpt_open_best(run, LKS__CKPT_ONLY_STATE, &ckpt)
                               : lks__ckpt_open(run, LKS__CKPT_ONLY_STATE, &ckpt);
    if (st != LKS_OK)
        return st;
    e->iter = ckpt.iter;
    memcpy(e->name, ckpt.name, sizeof e->name);
    lks__ckpt_close(&ckpt);
    return LKS_OK;
}

/* A resume starts at the newest checkpoint, and repeats the steps after it. */
static void print_stopped(const lks__series *s, const lks__entry *latest, const char *command)
{
    const uint64_t last = s->n_points > 0 ? s->points[s->n_points - 1].iter : 0;
    printf("%-13sstopped: `%s` continues it from iteration %" PRIu64, "state", command,
           latest->iter);
    if (s->n_points > 0 && last >= latest->iter)
        printf(", and repeats the steps up to iteration %" PRIu64, last);
    putchar('\n');
}

static void print_state(const char *run, const lks__series *s)
{
    char program[PATH_MAX], command[2 * PATH_MAX + 16];
    lks__entry best = {.name = ""}, latest;
    lks_status st = find_entry(run, false, &latest);
    LKS__THEN(st, find_entry(run, true, &best));
    if (st != LKS_OK && (latest.name[0] == '\0' || st != LKS_ERR_CONFIG)) /* there is none */
        printf("%-13s%s\n", "checkpoints", lks_last_error());
    const bool running = lks__outdir_free(run, true) != LKS_OK;
    const bool complete = lks__series_complete(s);
    lks__shell_program(program, sizeof program);
    const char *word = lks__quoted(run, PATH_MAX);
    snprintf(command, sizeof command, "%s resume %s", program, word);
    if (latest.name[0] != '\0')
        printf("%-13slatest is %s%s%s\n", "checkpoints", latest.name,
               best.name[0] != '\0' ? ", best is " : "", best.name);
    if (running)
        printf("%-13srunning: `%s watch --tty %s` shows its progress\n", "state", program, word);
    else if (latest.name[0] == '\0')
        printf("%-13s%s\n", "state", complete ? "complete" : "stopped");
    else if (complete)
        printf("%-13scomplete: `%s sample %s` writes text\n", "state", program, word);
    else
        print_stopped(s, &latest, command);
}

/* Print the folder that resume, eval and sample would use, as an absolute path, or that it is gone.
 */
static lks_status print_data(const char *run)
{
    char path[LKS__SETTING_STR], absolute[PATH_MAX];
    const lks_status st = lks__remembered_data(run, path);
    if (st == LKS_ERR_CONFIG)
        printf("%-13s%s\n", "data", lks_last_error());
    else if (path[0] != '\0')
        print_path("data", realpath(path, absolute) != NULL ? absolute : path);
    return st == LKS_ERR_CONFIG ? LKS_OK : st;
}

/* Describe `folder` if it contains a checkpoint of a program that uses liblockstep. ERR_FORMAT if
 * its checkpoint is damaged. */
static lks_status print_library(const char *folder, bool *yes_p)
{
    lks__ckpt ckpt;
    uint64_t bytes = 0;
    *yes_p = false;
    const lks_status st = lks__ckpt_open(folder, LKS__CKPT_ALL_ALONE, &ckpt);
    if (st != LKS_OK)
        return st == LKS_ERR_FORMAT ? st : LKS_OK;
    *yes_p = lks__state_of_library(&ckpt);
    if (*yes_p) {
        const size_t n = lks__st_count(ckpt.model);
        for (size_t i = 0; i < n; i++)
            bytes += lks__st_get(ckpt.model, i)->bytes;
        printf("%-13scheckpoint of a program that uses liblockstep\n", "kind");
        print_path("checkpoint", ckpt.path);
        printf("%-13s%" PRIu64 "\n", "step", ckpt.iter);
        printf("%-13s%zu in %s, %" PRIu64 " bytes\n", "tensors", n, LKS__CKPT_MODEL, bytes);
    }
    lks__ckpt_close(&ckpt);
    return LKS_OK;
}

static lks_status print_run(const char *folder)
{
    char run[PATH_MAX];
    lks__series s;
    bool found = false;
    lks__outdir_of(folder, run, sizeof run);
    if (lks__outdir_free(run, true) == LKS_OK) /* a run in progress may have no checkpoint yet */
        LKS__TRY(tool_run_check("info", folder));
    if (!lks__sys_has(run, "metrics.jsonl"))
        LKS__TRY(print_library(folder, &found));
    if (found)
        return LKS_OK;
    LKS__TRY(lks__series_open(run, &s));
    print_path("run", run);
    print_model(&s);
    const lks_status st = print_data(run);
    print_losses(&s);
    print_state(run, &s);
    lks__series_close(&s);
    return st;
}

int info_run(const char *folder)
{
    const lks_status st = print_run(folder);
    return st == LKS_OK ? TOOL_OK : tool_fail("info", st);
}
