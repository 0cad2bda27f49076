#include "tool.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/number/units.h"
#include "base/place.h"
#include "base/system/early.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "comm/world.h"
#include "files/checkpoint/folder.h"
#include "launch/launch.h"
#include "progress.h"
#include "session/session.h"
#include "session/signals.h"
#include "table.h"

/* True if lockstep's launcher started this rank, and so reports which rank failed. Opening the
 * group unsets the variable that tells. */
static bool launched;
static const lks__settings *rank; /* of a command whose processes may be ranks */

int tool_fail(const char *name, lks_status st)
{
    const char *number = getenv("RANK"), *world = getenv("WORLD_SIZE");
    bool several = tool_is_rank() && world != NULL && strcmp(world, "1") != 0;
    progress_end();
    fflush(stdout);
    if (!launched)
        fputs(lks__explanation(), stderr);
    if (!several)
        fprintf(stderr, "lockstep %s: %s\n", name, lks_last_error());
    else if (!launched || (st != LKS_ERR_PEER && !lks__session_on_record()))
        fprintf(stderr, "lockstep %s: rank %s: %s\n", name, lks__shown(number, 32),
                lks_last_error());
    if (several && !launched && rank != NULL) /* with auto, if that backend can't be used here */
        lks__session_tell(st == LKS_ERR_SUPPORT ? "auto" : rank->backend, st);
    return st == LKS_ERR_CONFIG ? TOOL_USAGE : TOOL_FAILED;
}

/* A rank starts no others: refuse settings that ask for more, instead of training as one in
 * silence. */
static lks_status check_ranks(const lks__settings *s)
{
    lks_world w;
    if (s->as_ranks && s->nnodes > 1)
        return lks__fail(LKS_ERR_CONFIG,
                         "--ranks is for one host; on several, --nproc_per_node=%" PRId64
                         " counts the ranks of each",
                         s->nproc_per_node);
    if (!tool_is_rank() || (s->nproc_per_node == 1 && !s->as_ranks))
        return LKS_OK;
    LKS__TRY(lks_world_from_env(&w));
    if (s->as_ranks && w.local_world_size < w.world_size)
        return lks__fail(LKS_ERR_CONFIG,
                         "--ranks is for one host; on several, the launcher starts the ranks: "
                         "`lockstep run --nproc-per-node=%" PRId64 " ...`",
                         s->nproc_per_node);
    if (s->nproc_per_node == 1 || w.world_size > 1)
        return LKS_OK;
    const char *number = getenv("RANK");
    return lks__fail(LKS_ERR_CONFIG,
                     "the environment has RANK=%s, as if a launcher had started a single rank, but "
                     "--nproc_per_node=%" PRId64
                     " asks for more: unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE, or let "
                     "that launcher start all ranks and leave --nproc_per_node out",
                     lks__shown(number, 32), s->nproc_per_node);
}

bool tool_settings(const char *name, unsigned command, const char *usage, int argc, char **argv,
                   int max_positional, lks__settings *s, lks__args *args, int *exit_p)
{
    launched = getenv("LOCKSTEP_SEGMENT") != NULL;
    lks__settings_defaults(s);
    const unsigned ranks = LKS__CMD_TRAIN | LKS__CMD_EVAL | LKS__CMD_BENCH;
    rank = command & ranks ? s : NULL;
    lks_status st = command & ranks ? lks__world_adopt() : LKS_OK;
    LKS__THEN(st, lks__settings_parse(s, command, argc - 1, argv + 1, max_positional, args));
    if (st != LKS_OK) {
        *exit_p = tool_fail(name, st);
        return false;
    }
    if (args->help) {
        if (table_asked) {
            table_usage(name, usage);
            table_settings(name, command);
        } else {
            if (args->help_group == NULL || strcmp(args->help_group, "all") == 0)
                fputs(usage, stdout);
            lks__settings_help(stdout, command, args->help_group);
        }
        *exit_p = TOOL_OK;
        return false;
    }
    if (command & ranks && check_ranks(s) != LKS_OK) {
        *exit_p = tool_fail(name, LKS_ERR_CONFIG);
        return false;
    }
    return true;
}

void tool_print_notes(const char *name, const lks__args *args)
{
    if (args->recipe[0] != '\0')
        fprintf(stderr, "lockstep %s: the recipe is %s\n", name, args->recipe);
    int n = args->n_notes < LKS__ARGS_NOTES ? args->n_notes : LKS__ARGS_NOTES;
    for (int i = 0; i < n; i++)
        fprintf(stderr, "lockstep %s: not used here: %s%s\n", name, args->notes[i],
                strstr(args->notes[i], "wandb_log") != NULL
                    ? " (scripts/to_wandb.py copies runs to Weights & Biases)"
                    : "");
    if (n < args->n_notes)
        fprintf(stderr, "lockstep %s: not used here: %d more\n", name, args->n_notes - n);
}

void tool_print_device_note(const char *name, const lks__session *session)
{
    const char *note = lks__session_device_note(session);
    if (note != NULL)
        fprintf(stderr, "lockstep %s: %s\n", name, note);
}

static bool stop_requested(void)
{
    return lks__stop_requested != 0;
}

void tool_stoppable(void)
{
    lks__signals_install("");
    lks__sys_stop_when(stop_requested);
}

int tool_stopped(const char *name, int signo, const char *left)
{
    progress_end();
    fflush(stdout);
    fprintf(stderr, "lockstep %s: stopped by SIG%s: %s\n", name, lks__signal_name(signo), left);
    return TOOL_SIGNAL + signo;
}

bool tool_reader_left(void)
{
    struct pollfd out = {.fd = 1};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

lks_status tool_flush(void)
{
    static int err; /* if an earlier write failed, its bytes are still there and fail again */
    if (fflush(stdout) != 0)
        err = errno;
    if (!ferror(stdout) || tool_reader_left())
        return LKS_OK;
    return lks__fail(LKS_ERR_IO, "writing to the standard output failed%s%s", err != 0 ? ": " : "",
                     err != 0 ? strerror(err) : "");
}

lks_status tool_print_json(const json_t *report)
{
    char *text = lks__json_dump(report, JSON_INDENT(1));
    LKS__MEMORY(text, "for the report");
    puts(text);
    free(text);
    return LKS_OK;
}

void tool_wrote(const char *name, const char *path)
{
    char file[LKS__SETTING_STR + 32];
    snprintf(file, sizeof file, "%s%s", path, lks__sys_is_folder(path) ? "/" LKS__CKPT_MODEL : "");
    struct stat info;
    if (stat(file, &info) == 0 && S_ISREG(info.st_mode))
        fprintf(stderr, "lockstep %s: wrote %s (%s)\n", name,
                lks__shown(file, 4 * LKS__SETTING_STR), lks__units_bytes((double)info.st_size));
}

bool tool_is_rank(void)
{
    return lks__env_set("RANK");
}

bool tool_speaks(void)
{
    return !tool_is_rank() || strcmp(getenv("RANK"), "0") == 0 || lks__world_foreign();
}

bool tool_launches(const lks__settings *s)
{
    return !tool_is_rank() && (s->nproc_per_node > 1 || s->max_restarts > 0);
}

int tool_launch(const char *name, const lks__settings *s, int argc, char **argv)
{
    char self[64];
    int code = TOOL_FAILED;
    char **words = calloc((size_t)argc + 2, sizeof *words);
    if (words == NULL)
        return tool_fail(name, lks__no_memory("for %d arguments", argc));
    words[0] = program_invocation_name;
    for (int i = 0; i < argc; i++)
        words[i + 1] = argv[i];
    snprintf(self, sizeof self, "lockstep %s", name);
    lks__launch_options launch = {.nproc = (int)s->nproc_per_node,
                                  .argv = words,
                                  .file = lks__program_file(),
                                  .self = self,
                                  .trains = strcmp(name, "train") == 0,
                                  .usage_code = TOOL_USAGE,
                                  .max_restarts = (int)s->max_restarts,
                                  .shutdown_timeout_s = s->shutdown_timeout,
                                  .one_writer = true};
    lks_status st = lks__launch(&launch, &code);
    free(words);
    return st == LKS_OK ? code : tool_fail(name, st);
}
