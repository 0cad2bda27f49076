/* lockstep audit: executes parts of a run again, and compares them with its record. */
#include <stdio.h>

#include "../runs.h"
#include "../tool.h"
#include "train/audit/audit.h"

static const char usage[] =
    "Usage: lockstep audit RUN [--step=I [--leaf=V] [--trail=FILE]] [--from=I --to=J]\n"
    "                     [--sample=N [--draw=HEX]] [--seal[=SHA-256 or FILE]]\n"
    "\n"
    "Executes steps of the run in the folder RUN again, and compares each loss,\n"
    "gradient, norm, rate, token count, evaluation and checkpoint with the record:\n"
    "metrics.jsonl, leaves.bin and the checkpoints. --step leaves evaluations out.\n"
    "Times, hosts and other files are not compared. Without settings it executes the\n"
    "whole run. It starts from the nearest checkpoint or from the seed, in this\n"
    "process only. The run may be in progress. Only --trail writes a file: the\n"
    "results of one step in causal order, for `lockstep diff`.\n"
    "\n"
    "--seal prints the SHA-256 of each file of the run and of its data, and one of\n"
    "this list, the seal. Publish them. --seal=SEAL, or a file with the list,\n"
    "compares the files with it, and executes only the steps that other settings ask\n"
    "for.\n"
    "\n"
    "The exit code is 0 if all is equal, 3 if a claim of the record is false, and 4\n"
    "if a part can't be executed here.\n"
    "\n"
    "  lockstep audit out/my\n"
    "  lockstep audit out/my --from=1000 --to=1250\n"
    "  lockstep audit out/my --step=1010 --leaf=5\n"
    "  lockstep audit out/my --step=1010 --trail=my.trail\n"
    "  lockstep audit out/my --sample=2\n"
    "  lockstep audit out/my --seal >my.seal\n"
    "  lockstep audit out/my --seal=my.seal\n";

static const int codes[] = {
    [LKS__VERDICT_EQUAL] = TOOL_OK,
    [LKS__VERDICT_FALSE] = TOOL_DIFFERENT,
    [LKS__VERDICT_IMPOSSIBLE] = TOOL_IMPOSSIBLE,
};

int tool_audit(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    enum lks__verdict verdict;
    int code;
    if (!tool_settings("audit", LKS__CMD_AUDIT, usage, argc, argv, LKS__ARGS_POSITIONAL, &s, &args,
                       &code))
        return code;
    const char *run = args.positional[0];
    lks_status st = args.n_positional == 1
                        ? tool_run_folder("audit", run)
                        : lks__fail(LKS_ERR_CONFIG, "give the folder of a run, for example "
                                                    "`lockstep audit out/my`");
    LKS__THEN(st, lks__audit(run, &s, stdout, &verdict));
    LKS__THEN(st, tool_flush());
    return st == LKS_OK ? codes[verdict] : tool_fail("audit", st);
}
