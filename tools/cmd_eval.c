/* lockstep eval: the loss of a checkpoint over a whole split. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tool.h"
#include "train/evaluate.h"

static const char usage[] =
    "Usage: lockstep eval --out_dir=DIR --dataset=DIR [--split=val] [--key=value ...]\n"
    "\n"
    "Mean loss of the newest checkpoint in --out_dir over all windows of block_size tokens of a\n"
    "split; the same figure on any number of ranks.\n";

static lks_status evaluate(const lks__settings *s, lks__session *session, lks__replica *replica,
                           lks__tokens **data, double *loss_p, uint64_t *windows_p)
{
    char dir[LKS__SETTING_STR + 8], path[2 * LKS__SETTING_STR + 16];
    lks_status st = lks__replica_open(s->out_dir, (int)s->batch_size, session, replica);
    if (st == LKS_OK)
        st = lks__settings_data_dir(s, dir);
    if (st == LKS_OK) {
        snprintf(path, sizeof path, "%s/%s.bin", dir, s->split);
        st = lks__tokens_open(path, (uint32_t)replica->config.vocab_size, data);
    }
    LKS__TRY(lks__session_agree(session, st));
    lks__split_eval e = {session, replica, *data, (size_t)s->batch_size};
    return lks__eval_split(&e, loss_p, windows_p);
}

static int run_rank(const lks__settings *s)
{
    lks__session session;
    lks__replica replica = {0};
    lks__tokens *data = NULL;
    double loss = 0.0;
    uint64_t windows = 0;
    lks_status st = lks__session_open(s->backend, s->timeout, (int)s->threads, &session);
    if (st != LKS_OK)
        return tool_fail("eval", st);
    st = evaluate(s, &session, &replica, &data, &loss, &windows);
    if (st == LKS_OK && session.world.rank == 0)
        printf("%s loss %.9g over %" PRIu64 " windows of %" PRId64
               " tokens (perplexity %.4f), %s\n",
               s->split, loss, windows, replica.run.block_size, exp(loss), replica.name);
    lks__session_fail(&session, st);
    int code = st == LKS_OK ? TOOL_OK : tool_fail("eval", st);
    lks__tokens_close(data);
    lks__replica_close(&replica);
    lks__session_close(&session);
    return code;
}

int tool_eval(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("eval", LKS__CMD_EVAL, usage, argc, argv, 0, &s, &args, &code))
        return code;
    if (tool_is_rank())
        return run_rank(&s);
    tool_print_notes("eval", &args);
    return s.nproc_per_node > 1 ? tool_launch("eval", (int)s.nproc_per_node, argc, argv)
                                : run_rank(&s);
}
