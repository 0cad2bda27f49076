#include "weights/choice/same_checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/checkpoint/folder.h"

static const char way_out[] = "all ranks must use one checkpoint: copy rank 0's to every host, or "
                              "give an --out_dir that all hosts share";

enum { FAILED = -1, NONE = 0, FOUND = 1 };

/* The checkpoint that one rank has opened. */
struct file_note {
    int32_t found;
    uint64_t iter, hash;
    char host[LKS__HOST_NAME], path[256]; /* of the checkpoint, else of out_dir; escaped */
};

static void describe_file(lks_status st, const lks__ckpt *ckpt, const char *out_dir,
                          struct file_note *note)
{
    memset(note, 0, sizeof *note); /* no stray bytes of the stack for other ranks */
    note->found = st != LKS_OK ? FAILED : ckpt == NULL ? NONE : FOUND;
    const char *path = note->found == FOUND ? ckpt->path : out_dir;
    lks__escape(note->path, sizeof note->path, path, strlen(path));
    lks__session_host(note->host);
    if (note->found != FOUND)
        return;
    const char *digits = json_string_value(json_object_get(ckpt->state, "state_hash"));
    note->iter = ckpt->iter;
    /* lks__ckpt_open() has verified it. */
    note->hash = digits == NULL ? 0 : strtoull(digits, NULL, 16);
}

static void describe_choice(const struct file_note *note, char text[512])
{
    if (note->found == FOUND)
        snprintf(text, 512, "has %s (iteration %" PRIu64 ", state_hash %016" PRIx64 ")", note->path,
                 note->iter, note->hash);
    else
        snprintf(text, 512, "has no checkpoint to continue from in %s", note->path);
}

/* This rank couldn't open a checkpoint: return its own error, together with another rank's choice.
 */
static lks_status report_failed(lks_status st, const struct file_note *all, int W, int rank)
{
    char choice[512];
    int other = 0;
    while (other < W && all[other].found != FOUND)
        other++;
    if (other == W || (st != LKS_ERR_IO && st != LKS_ERR_FORMAT))
        return st;
    describe_choice(&all[other], choice);
    return lks__fail(st, "%s: %s; but %s %s: %s", lks__session_place(rank, all[rank].host).text,
                     lks_last_error(), lks__session_place(other, all[other].host).text, choice,
                     way_out);
}

/* Fails with the same sentence on all ranks, except those that have failed already. */
static lks_status judge_files(const struct file_note *all, int W)
{
    for (int r = 1; r < W; r++) {
        char theirs[512], rank0s[512];
        if (all[r].found == FAILED || all[0].found == FAILED)
            continue;
        if (all[r].found == all[0].found && all[r].iter == all[0].iter &&
            all[r].hash == all[0].hash)
            continue;
        describe_choice(&all[r], theirs);
        describe_choice(&all[0], rank0s);
        return lks__fail(LKS_ERR_DIVERGED, "%s %s, but %s %s: %s",
                         lks__session_place(r, all[r].host).text, theirs,
                         lks__session_place(0, all[0].host).text, rank0s, way_out);
    }
    return LKS_OK;
}

/* `context` begins the sentence: "" or "on_nan=rollback at iteration 5: ". */
static lks_status compare_files(lks__session *ses, lks_status st, const lks__ckpt *ckpt,
                                const char *out_dir, const char *context)
{
    const int W = ses->world.world_size;
    char cause[1024]; /* the exchange below may overwrite it */
    snprintf(cause, sizeof cause, "%s", lks_last_error());
    struct file_note mine;
    lks_status comm = LKS_OK;
    describe_file(st, ckpt, out_dir, &mine);
    struct file_note *all = lks__session_gather(ses, &mine, sizeof mine, &comm);
    if (st != LKS_OK) {
        lks__fail(st, "%s", cause);
        if (comm == LKS_OK)
            report_failed(st, all, W, ses->world.rank);
    } else {
        st = comm != LKS_OK ? comm : judge_files(all, W);
    }
    free(all);
    if (comm != LKS_OK)
        return st;
    if (st != LKS_OK)
        lks__fail(st, "%s%s", context, lks_last_error());
    return lks__session_agree(ses, st);
}

lks_status lks__same_checkpoint(lks__session *ses, lks_status st, const lks__ckpt *ckpt,
                                const char *out_dir)
{
    return ses->world.world_size == 1 ? st : compare_files(ses, st, ckpt, out_dir, "");
}

lks_status lks__same_target(lks__session *ses, const char *out_dir, uint64_t bad_iter,
                            lks__ckpt *ckpt)
{
    char name[sizeof ckpt->name] = "", path[LKS__CKPT_PATH], context[64];
    lks_status st = LKS_OK;
    snprintf(context, sizeof context, "on_nan=rollback at iteration %" PRIu64, bad_iter);
    if (ses->world.rank == 0) {
        st = lks__ckpt_open_target(out_dir, bad_iter, LKS__CKPT_ALL, ckpt);
        if (st != LKS_OK)
            lks__fail_in(st, "%s", context);
        memcpy(name, ckpt->name, sizeof name);
    }
    LKS__TRY(lks__session_agree(ses, st));
    if (ses->world.world_size == 1)
        return LKS_OK;
    LKS__TRY(lks_comm_broadcast(ses->comm, name, sizeof name, LKS_UINT8, 0));
    if (ses->world.rank != 0) {
        st = lks__ckpt_join(path, out_dir, name);
        LKS__THEN(st, lks__ckpt_open(path, LKS__CKPT_ALL, ckpt));
    }
    strcat(context, ": ");
    return compare_files(ses, st, st == LKS_OK ? ckpt : NULL, out_dir, context);
}
