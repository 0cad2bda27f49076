#include "ddp/library/checkpoint_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"

/* --- types ------------------------------------------------------------------------------------ */

static const char *const names[] = {
    [LKS_FLOAT32] = "F32", [LKS_FLOAT64] = "F64", [LKS_INT32] = "I32",     [LKS_INT64] = "I64",
    [LKS_UINT8] = "U8",    [LKS_FLOAT16] = "F16", [LKS_BFLOAT16] = "BF16", [LKS_UINT64] = "U64",
    [LKS_INT8] = "I8",     [LKS_BOOL] = "BOOL",
};

const char *lks__st_dtype_name(lks_dtype dtype)
{
    return lks_dtype_bytes(dtype) > 0 ? names[dtype] : NULL;
}

lks_dtype lks__st_dtype_of(const char *name)
{
#define X(type, value, bytes, text)                                                                \
    if (strcmp(names[LKS_##type], name) == 0)                                                      \
        return LKS_##type;
    LKS_DTYPE_MAP(X)
#undef X
    return (lks_dtype)0;
}

/* --- the result on rank 0 --------------------------------------------------------------------- */

lks_status lks__share_outcome(lks_comm *comm, const char *call, lks_status st,
                              struct lks__outcome *o)
{
    o->status = st;
    if (st != LKS_OK)
        snprintf(o->text, sizeof o->text, "%s", lks_last_error());
    o->lasting = st != LKS_OK && lks__sys_is_lasting(o->text);
    LKS__TRY(lks_comm_broadcast(comm, o, sizeof *o, LKS_UINT8, 0));
    o->text[sizeof o->text - 1] = '\0';
    if (o->status == LKS_OK)
        return LKS_OK;
    lks__utf8_printable(o->text, false);
    if (o->lasting) /* the launcher gets it from the rank that calls lks_comm_abort() first */
        lks__sys_set_lasting(o->text);
    return lks__fail((lks_status)o->status, "%s: rank 0: %s", call, o->text);
}

lks_status lks__checkpoint_check_dir(const char *call, const lks_comm *comm, const char *dir)
{
    LKS__NEED(call, comm);
    LKS__NEED(call, dir);
    return dir[0] != '\0' ? LKS_OK : lks__fail(LKS_ERR_ARG, "%s: dir is empty", call);
}

char *lks__name_of_rank(const char *name, int rank)
{
    char *text;
    return asprintf(&text, "%s@%d", name, rank) < 0 ? NULL : text;
}

void lks__begin_files(lks_comm *comm, bool save, sigset_t *before)
{
    lks__sys_limit_begin(before);
    lks__sys_on_progress(lks__comm_beats(comm));
    lks__comm_saving(comm, save);
}

void lks__end_files(lks_comm *comm, const sigset_t *before)
{
    lks__sys_limit_end(before);
    lks__comm_saving(comm, false);
    lks__sys_on_progress((lks__beat){NULL, NULL});
}

/* --- finding ---------------------------------------------------------------------------------- */

/* *any_p: `dir` contains anything that could be a checkpoint, even a broken one. */
static lks_status find_any(const char *dir, bool *any_p)
{
    struct stat info;
    char path[LKS__CKPT_PATH];
    *any_p = false;
    if (stat(dir, &info) < 0 && errno == ENOENT)
        return LKS_OK;
    LKS__TRY(lks__ckpt_any(dir, any_p));
    const char *const signs[] = {LKS__NAME_LATEST, LKS__CKPT_STATE, LKS__CKPT_MODEL};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        LKS__TRY(lks__ckpt_join(path, dir, signs[i]));
        *any_p |= lstat(path, &info) == 0;
    }
    return LKS_OK;
}

/* The recorded sentence advises to give another folder to `lockstep`. Replace that by advice
 * about `dir`, which is a folder of checkpoints or one of them. */
static lks_status advise(lks_status st, const char *dir, bool any)
{
    static const char option[] = ": give its folder, ", none[] = "there is no checkpoint in ";
    char text[2048], shown[512];
    snprintf(text, sizeof text, "%s", lks_last_error());
    char *good = strstr(text, option);
    const size_t n = strlen(lks__escape(shown, sizeof shown, dir, strlen(dir)));
    if (any && strncmp(text, none, sizeof none - 1) == 0)
        return lks__fail(st, "%s, but there was: delete %s/%s to begin without one", text, shown,
                         LKS__NAME_LATEST);
    if (good == NULL)
        return st;
    *good = '\0';
    good += sizeof option - 1;
    if (strncmp(good, shown, n) != 0)
        return lks__fail(st, "%s: pass dir = \"%s\" to load it", text, good);
    const char *name = strrchr(good, '/') + 1;
    if (strstr(text, "/" LKS__NAME_LATEST " ") != NULL)
        return lks__fail(st, "%s: delete %s/%s, and the next load takes %s", text, shown,
                         LKS__NAME_LATEST, name);
    return lks__fail(st, "%s: move newer ones out of %s, and the next load takes %s", text, shown,
                     name);
}

lks_status lks__find_checkpoint(const char *dir, bool needed, lks__ckpt *ckpt,
                                struct lks__outcome *o)
{
    bool any;
    LKS__TRY(find_any(dir, &any));
    if (!any && !needed)
        return LKS_OK;
    lks_status st = lks__ckpt_open(dir, LKS__CKPT_ALL, ckpt);
    if (st != LKS_OK)
        return advise(st, dir, any);
    o->found = 1;
    o->step = ckpt->iter;
    return LKS_OK;
}

/* Broadcast rank 0's block to every rank. On rank 0 *block_p is the block, elsewhere NULL. */
static lks_status share_block(lks_comm *comm, const char *call, const char *what, char **block_p,
                              size_t bytes)
{
    if (*block_p == NULL)
        *block_p = malloc(bytes);
    if (*block_p != NULL)
        return lks_comm_broadcast(comm, *block_p, bytes, LKS_UINT8, 0);
    return lks__comm_fail_call(
        comm, lks__fail(LKS_ERR_NOMEM, "%s: no memory for %s of %zu bytes", call, what, bytes));
}

lks_status lks__read_block(lks_comm *comm, const char *call, const char *dir, const char *what,
                           lks_status (*pack)(const lks__ckpt *ckpt, char **block_p,
                                              struct lks__outcome *o),
                           char **block_p, struct lks__outcome *o)
{
    lks_status st = LKS_OK;
    LKS__TRY(lks__checkpoint_check_dir(call, comm, dir));
    LKS__TRY(lks__comm_check_open(comm, call));
    if (lks_comm_rank(comm) == 0) {
        lks__ckpt ckpt = {0};
        sigset_t before;
        lks__begin_files(comm, false, &before);
        st = lks__find_checkpoint(dir, false, &ckpt, o);
        if (st == LKS_OK && o->found)
            st = pack(&ckpt, block_p, o);
        lks__ckpt_close(&ckpt);
        lks__end_files(comm, &before);
    }
    st = lks__share_outcome(comm, call, st, o);
    if (st == LKS_OK && o->bytes > 0)
        st = share_block(comm, call, what, block_p, o->bytes);
    if (st != LKS_OK) {
        free(*block_p);
        *block_p = NULL;
    }
    return st;
}
