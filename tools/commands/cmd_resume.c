/* lockstep resume: `lockstep train --out_dir=RUN --init_from=resume`, on all cores. */
#include <stdio.h>
#include <string.h>

#include "../longer.h"
#include "../runs.h"
#include "../tool.h"
#include "base/system/sys.h"
#include "files/checkpoint/ckpt.h"
#include "train/setup/continue.h"
#include "weights/forms/saved.h"

static const char usage[] =
    "Usage: lockstep resume RUN [--key=value ...]\n"
    "\n"
    "Continues the run in the folder RUN from its newest checkpoint, with the run's\n"
    "settings and data. RUN/ckpt-N continues from that checkpoint. The command stands\n"
    "for `lockstep train --out_dir=RUN --init_from=resume` with ranks for all cores\n"
    "of this machine, and prints it. The result has the same bytes on any number of\n"
    "ranks (--nproc_per_node=N). Settings that you leave out keep the run's values:\n"
    "the values below are train's defaults.\n"
    "\n"
    "  lockstep resume out/my\n"
    "  lockstep resume out/my --max_iters=4000\n";

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (lks__is_help(argv[i]))
            return true;
    return false;
}

/* The virtual ranks that were given, or else the run's; 1 if its checkpoint can't be read, which
 * `train` reports. */
static int64_t virtual_ranks(const lks__settings *given)
{
    lks__ckpt ckpt;
    lks__settings run;
    lks__settings_defaults(&run);
    if (given->virtual_ranks != 0)
        return given->virtual_ranks;
    if (lks__ckpt_open(given->out_dir, LKS__CKPT_ONLY_STATE, &ckpt) != LKS_OK)
        return 1;
    const bool known =
        lks__state_settings(&ckpt, &run) == LKS_OK && lks__settings_complete(&run, 1) == LKS_OK;
    lks__ckpt_close(&ckpt);
    return known ? run.virtual_ranks : 1;
}

static lks_status check(const lks__settings *s)
{
    if (lks__settings_init(s) != LKS__INIT_RESUME)
        return lks__fail(LKS_ERR_CONFIG, "a resumed run has its weights: leave --init_from out");
    return lks__continue_can(s->out_dir) ? LKS_OK : tool_run_check("resume", s->out_dir);
}

/* True if --checkpoint is given, as to `sample`. */
static bool names_checkpoint(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--checkpoint") == 0 || strncmp(argv[i], "--checkpoint=", 13) == 0)
            return true;
    return false;
}

/* The word that is the run's folder: the first one, or a folder after --key=value. 0: none. */
static int find_folder(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-' &&
            (i == 1 || (strchr(argv[i - 1], '=') != NULL && lks__sys_is_folder(argv[i]))))
            return i;
    return 0;
}

int tool_resume(int argc, char **argv)
{
    static longer l;
    lks__settings s;
    lks__args args;
    int code;
    char example[600], train[] = "train", init[] = "--init_from=resume";
    const int named = find_folder(argc, argv);
    if (asks_for_help(argc, argv)) {
        tool_settings("resume", LKS__CMD_TRAIN, usage, argc, argv, 0, &s, &args, &code);
        return code;
    }
    if (names_checkpoint(argc, argv))
        return tool_fail("resume",
                         lks__fail(LKS_ERR_CONFIG,
                                   "give the checkpoint's folder instead of --checkpoint, as in "
                                   "`lockstep resume out/my/ckpt-00002000`"));
    longer_begin(&l, train);
    if (named > 0)
        longer_add_text(&l, "--out_dir=%s", argv[named]);
    longer_add(&l, init);
    for (int i = 1; i < argc; i++)
        if (i != named)
            longer_add(&l, argv[i]);
    if (!tool_settings("resume", LKS__CMD_TRAIN, usage, l.n, l.words, 0, &s, &args, &code))
        return code;
    lks_status st = longer_check(&l);
    if (st == LKS_OK && named == 0 && s.from[LKS__SETTING_out_dir] != LKS__FROM_ARG)
        st = lks__fail(LKS_ERR_CONFIG,
                       "give the folder of the run to continue: `lockstep resume %s`",
                       tool_run_example(example));
    if (st == LKS_OK && named > 0 && strcmp(s.out_dir, argv[named]) != 0)
        st = lks__fail(LKS_ERR_CONFIG, "the run's folder was given twice: leave --out_dir out");
    LKS__THEN(st, check(&s));
    if (st != LKS_OK)
        return tool_fail("resume", st);
    if (!tool_is_rank()) {
        longer_add_ranks(&l, &s, virtual_ranks(&s));
        fputs("lockstep resume: the same as ", stderr);
        longer_print(stderr, &l);
    }
    return tool_train(l.n, l.words);
}
