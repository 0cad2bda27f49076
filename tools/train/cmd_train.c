/* lockstep train: checks the settings, then trains as a rank or starts the ranks. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../run/run.h"
#include "../runs.h"
#include "../tool.h"
#include "base/number/units.h"
#include "base/system/early.h"
#include "base/system/memory.h"
#include "base/text/shell.h"
#include "files/checkpoint/ckpt.h"
#include "plan/bytes/process.h"
#include "report/record/metrics/metrics.h"
#include "report/record/outdir.h"
#include "session/signals.h"
#include "settings/family.h"
#include "settings/settings_table.h"
#include "train/loop/commands.h"
#include "train/loop/loop.h"
#include "train/setup/continue.h"
#include "train/setup/dryrun.h"
#include "train/setup/trainer.h"
#include "train_text.h"
#include "weights/forms/saved.h"

static const char usage[] =
    "Usage: lockstep train TEXT [--key=value ...]\n"
    "       lockstep train [config/NAME.conf] [--key=value ...]\n"
    "\n"
    "Trains a GPT on TEXT, a text file or a folder of texts: prepares TEXT, chooses a\n"
    "recipe for it, trains in out/NAME on all cores, and prints the longer commands\n"
    "that do the same.\n"
    "\n"
    "Without TEXT it trains on the token files in --dataset=DIR, which\n"
    "`lockstep prep` makes. Checkpoints, metrics.jsonl and train.log are written to\n"
    "--out_dir=DIR. A recipe, such as config/quickstart.conf, contains settings;\n"
    "`quickstart` is enough.\n"
    "\n"
    "--nproc_per_node=N starts N ranks (processes). Under `lockstep run` each process\n"
    "is one rank. The result has the same bytes on any number of ranks and threads.\n"
    "Ctrl-C saves the run's state and stops; `lockstep resume out/my` continues.\n"
    "\n"
    "  lockstep train my.txt\n"
    "  lockstep train quickstart --dataset=data/my --out_dir=out/q --nproc_per_node=2\n"
    "  lockstep train --init_from=gpt2 --dataset=data/my --learning_rate=3e-5 \\\n"
    "                 --max_iters=200\n";

static int stop_early(int signo)
{
    if (tool_speaks())
        fprintf(stderr,
                "lockstep train: stopped by signal %d (SIG%s) during setup: nothing was trained or "
                "written\n",
                signo, lks__signal_name(signo));
    return TOOL_SIGNAL + signo;
}

/* Set for ranks that `lockstep train` has started. It notices their failure, and then runs the
 * commands of exec_on=failure. */
static const char started_env[] = "LOCKSTEP_TRAIN";

static lks_status check_failure_commands(const lks__settings *s)
{
    if (!tool_is_rank() || getenv(started_env) != NULL || !lks__commands_any(s, LKS__ON_FAILURE))
        return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        "exec_on=failure: works if `lockstep train` starts the ranks itself "
        "(--nproc_per_node); with another launcher use the shell: lockstep run ... || COMMAND");
}

/* True if the run has failed. A run that a signal stopped has not. */
static bool failed(const lks__settings *s, int code)
{
    const int stops[] = {SIGINT, SIGTERM, SIGHUP,
                         s->stop_signal == LKS__stop_signal_USR1   ? SIGUSR1
                         : s->stop_signal == LKS__stop_signal_USR2 ? SIGUSR2
                                                                   : SIGTERM};
    bool stopped = code == TOOL_OK;
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++)
        stopped = stopped || code == TOOL_SIGNAL + stops[i];
    return !stopped;
}

/* The time and inode of the run's metrics.jsonl; zeros if there is none. */
static struct stat stat_metrics(const lks__settings *s)
{
    char run[LKS__SETTING_STR], path[LKS__SETTING_STR + 16];
    struct stat info;
    lks__outdir_of(s->out_dir, run, sizeof run);
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    return stat(path, &info) == 0 ? info : (struct stat){.st_ino = 0};
}

/* After a rank has failed: print the checkpoint that is left, and the command that continues
 * from it. Prints nothing unless metrics.jsonl has changed since `before`, when the ranks were
 * started. */
static void print_how_to_continue(const lks__settings *s, const struct stat *before)
{
    char tool[600], run[LKS__SETTING_STR];
    const struct stat now = stat_metrics(s);
    lks__ckpt ckpt;
    if (now.st_ino == 0)
        return; /* nothing has begun, or it was moved */
    if (now.st_ino == before->st_ino && now.st_mtim.tv_sec == before->st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == before->st_mtim.tv_nsec)
        return;
    lks__outdir_of(s->out_dir, run, sizeof run);
    const char *shown = lks__shown(run, 4 * LKS__SETTING_STR);
    const lks_status st = lks__ckpt_open(run, LKS__CKPT_ONLY_STATE, &ckpt);
    if (st == LKS_ERR_IO)
        fprintf(stderr,
                "lockstep train: there is no checkpoint in %s yet; the same command starts again\n",
                shown);
    else if (st != LKS_OK)
        tool_fail("train", st);
    else
        fprintf(stderr,
                "lockstep train: the newest checkpoint in %s is %s; to continue from iteration "
                "%" PRIu64 ": %s resume %s\n",
                shown, ckpt.name, ckpt.iter, lks__shell_program(tool, sizeof tool),
                lks__quoted(run, 600));
    if (st == LKS_OK)
        lks__ckpt_close(&ckpt);
}

static int run_rank(const lks__settings *s)
{
    static lks__trainer trainer; /* 76 KB, and `ulimit -s` may leave few */
    int stopped;
    lks__signals_install(lks__setting_word(s, LKS__SETTING_stop_signal));
    lks_status st = lks__trainer_open(s, &trainer, &stopped);
    const bool stopped_early = st == LKS_ERR_STOPPED;
    LKS__THEN(st, lks__train_loop(&trainer, &stopped));
    const int code = stopped_early  ? stop_early(stopped)
                     : st == LKS_OK ? TOOL_OK
                                    : tool_fail("train", st);
    lks__trainer_close(&trainer);
    return code == TOOL_OK && stopped != 0 ? TOOL_SIGNAL + stopped : code;
}

/* True for options that only `lockstep run` has. */
static bool is_launcher_option(const char *arg)
{
    char key[LKS__SETTING_KEY];
    if (!run_has_option(arg))
        return false;
    snprintf(key, sizeof key, "%.*s", (int)strcspn(arg, "="), arg);
    const int setting = lks__setting_find(key + 2);
    return strcmp(key, "--help") != 0 &&
           (setting < 0 || (lks__setting_table[setting].commands & LKS__CMD_TRAIN) == 0);
}

/* For --dry_run: copy the model's shape from the weights of --init_from. */
static lks_status copy_shape(lks__settings *s)
{
    lks__weights *w;
    LKS__TRY(lks__weights_open_init(s, &w));
    lks_status st = lks__settings_begin(s, &w->model, w->shown);
    lks__weights_close(w);
    return st;
}

/* Recipes for small machines, the smallest first. Megabytes are --dry_run's total on one rank
 * without the process and its libraries, whose size depends on the system. */
static const struct {
    const char *name, *parameters;
    double megabytes;
} recipes[] = {
    {"config/quickstart.conf", "0.8M", 33},
    {"config/train_shakespeare_char.conf", "10.7M", 2825},
};

/* The default size is GPT-2's, as in nanoGPT's script: a CPU needs months for such a run. If no
 * setting chose a size, print the memory that it needs and the recipes that fit. */
static lks_status print_size(const lks__settings *s, int n_ranks)
{
    static const int shape[] = {LKS__SETTING_family, LKS__SETTING_n_layer, LKS__SETTING_n_head,
                                LKS__SETTING_n_embd, LKS__SETTING_block_size};
    const double room = (double)lks__memory_available() / 1e6;
    const lks__place one = {1, 1};
    lks__process process;
    char fit[200] = "", dir[LKS__SETTING_STR + 8];
    double bytes;
    if (lks__settings_data_dir(s, dir) != LKS_OK) /* the ranks report that the data are missing */
        return LKS_OK;
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        if (s->from[shape[i]] != LKS__FROM_DEFAULT)
            return LKS_OK;
    LKS__TRY(lks__plan_bytes(s, n_ranks, &bytes));
    LKS__TRY(lks__process_measure(s, &one, &process));
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        const double all = recipes[i].megabytes + (process.own + process.libraries) / 1e6;
        if (i == 0 || all < room)
            lks__append(fit, sizeof fit, ", ", "%s (%s parameters, %s)", recipes[i].name,
                        recipes[i].parameters, lks__units_memory(all * 1e6));
    }
    fprintf(stderr,
            "lockstep train: no size was given, so the model is GPT-2's: %" PRId64
            " layers of %" PRId64 ", %.0f GB on %d rank%s; recipes that fit this machine: %s\n",
            s->n_layer, s->n_embd, bytes / 1e9, n_ranks, n_ranks == 1 ? "" : "s", fit);
    return LKS_OK;
}

/* Check the settings of a resume as its ranks will, so that a usage error isn't reported as a
 * rank's failure. The ranks report files that can't be read. */
static lks_status check_resume(lks__settings *s)
{
    lks__ckpt ckpt;
    char run_dir[LKS__SETTING_STR];
    json_t *kept = NULL;
    if (lks__ckpt_open(s->out_dir, LKS__CKPT_ONLY_STATE, &ckpt) != LKS_OK)
        return LKS_OK;
    lks__outdir_of(s->out_dir, run_dir, sizeof run_dir);
    lks__settings *run = malloc(sizeof *run);
    lks_status st = run == NULL ? lks__no_memory("for a run's settings")
                                : lks__outdir_continues(s->out_dir, &ckpt);
    if (run != NULL)
        lks__settings_defaults(run);
    if (st == LKS_OK && lks__metrics_settings(run_dir, &kept) == LKS_OK &&
        lks__settings_keep(s, kept, run_dir) == LKS_OK &&
        lks__state_settings(&ckpt, run) == LKS_OK) {
        lks__choose_optimizer(run);
        st = lks__settings_resume(s, run, lks__shown(ckpt.path, 512));
        LKS__THEN(st, lks__settings_complete(s, (int)s->nproc_per_node));
    }
    json_decref(kept);
    free(run);
    lks__ckpt_close(&ckpt);
    return st;
}

/* Print how to train with parameter-golf's variables if some are set but its model isn't chosen. */
static void suggest_golf(const lks__settings *s, const lks__args *args)
{
    static const char begins[] = "environment, for --family=golf";
    const int n = args->n_notes < LKS__ARGS_NOTES ? args->n_notes : LKS__ARGS_NOTES;
    bool set = false;
    for (int i = 0; i < n; i++)
        set = set || strncmp(args->notes[i], begins, sizeof begins - 1) == 0;
    if (set && args->n_files == 0 && s->from[LKS__SETTING_family] == LKS__FROM_DEFAULT)
        fputs("lockstep train: to use these variables: " LKS__GOLF_WAYS "\n", stderr);
}

/* Check the settings before ranks start, as far as they don't depend on a checkpoint or on weights,
 * and print the result of --dry_run. */
static lks_status check_start(const lks__settings *s)
{
    const int n_ranks = (int)s->nproc_per_node;
    const lks__init_kind init = lks__settings_init(s);
    lks__settings checked = *s;
    if (s->dry_run && init == LKS__INIT_RESUME)
        return lks__fail(LKS_ERR_CONFIG, "--dry_run is for new runs: leave out --init_from=resume");
    if (s->dry_run && init == LKS__INIT_WEIGHTS)
        LKS__TRY(copy_shape(&checked));
    if (init == LKS__INIT_RESUME && s->nnodes == 1 && !lks__continue_can(s->out_dir))
        LKS__TRY(tool_run_check("resume", s->out_dir));
    if (init == LKS__INIT_RESUME && tool_launches(s))
        LKS__TRY(check_resume(&checked));
    if (!s->dry_run && init != LKS__INIT_SCRATCH)
        return LKS_OK;
    LKS__TRY(lks__settings_complete(&checked, n_ranks));
    LKS__TRY(s->dry_run ? lks__plan_dry_run(&checked, n_ranks) : lks__plan_fits(&checked, n_ranks));
    return init == LKS__INIT_SCRATCH ? print_size(&checked, n_ranks) : LKS_OK;
}

static lks_status check_dry_run(const lks__settings *s)
{
    if (!s->dry_run || !tool_is_rank())
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG, "--dry_run starts no ranks: use --nproc_per_node instead of a "
                                     "launcher, and unset RANK if an earlier one left it");
}

static lks_status check_no_launcher_option(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const int n = (int)strcspn(argv[i], "=");
        if (is_launcher_option(argv[i]))
            return lks__fail(LKS_ERR_CONFIG,
                             "%.*s is an option of the launcher: `lockstep run %.*s ... lockstep "
                             "train ...`, see docs/reference/launch.md",
                             n, argv[i], n, argv[i]);
    }
    return LKS_OK;
}

static lks_status check_memory(const lks__settings *s)
{
    if (s->memory[0] == '\0' || s->auto_batch != 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "memory=%s is for batch_size=auto: give that, too, or leave --memory out",
                     lks__shown(s->memory, 120));
}

/* Train with settings that name prepared data. */
static int train(int argc, char **argv, const lks__settings *s, const lks__args *args)
{
    if (check_failure_commands(s) != LKS_OK || check_dry_run(s) != LKS_OK)
        return tool_fail("train", LKS_ERR_CONFIG);
    if (tool_is_rank())
        return run_rank(s);
    tool_print_notes("train", args);
    suggest_golf(s, args);
    const lks_status st = check_start(s);
    if (st != LKS_OK)
        return tool_fail("train", st);
    if (s->dry_run)
        return TOOL_OK;
    const bool launches = tool_launches(s);
    const struct stat before = stat_metrics(s);
    if (launches)
        setenv(started_env, "launched", 1);
    const int code = launches ? tool_launch("train", s, argc, argv) : run_rank(s);
    if (failed(s, code)) {
        if (code != TOOL_USAGE) /* the same command would be refused again */
            print_how_to_continue(s, &before);
        lks__commands_failed(s, "lockstep train", code);
    }
    return code;
}

int tool_train(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    const char *env = getenv(TRAIN_TEXT_MOVED);
    char moved[LKS__SYS_PATH] = "";
    if (env != NULL) {
        snprintf(moved, sizeof moved, "%s", env);
        unsetenv(TRAIN_TEXT_MOVED); /* not for ranks */
    }
    if (check_no_launcher_option(argc, argv) != LKS_OK)
        return tool_fail("train", LKS_ERR_CONFIG);
    if (!tool_settings("train", LKS__CMD_TRAIN, usage, argc, argv, LKS__ARGS_POSITIONAL, &s, &args,
                       &code))
        return code;
    if (check_memory(&s) != LKS_OK)
        return tool_fail("train", LKS_ERR_CONFIG);
    if (args.n_positional > 0)
        return train_text(argc, argv, &s, &args);
    code = train(argc, argv, &s, &args);
    if (env != NULL && code != TOOL_OK)
        train_text_undo(s.out_dir, s.lock == LKS__lock_on, moved);
    return code;
}
