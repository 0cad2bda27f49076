#include "train/audit/steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "data/read/hashes.h"
#include "files/checkpoint/ckpt.h"
#include "train/audit/settings.h"
#include "train/procedure/procedure.h"

/* The digest samples large files. If the run recorded a hash of whole files, compare that, once. */
static lks_status check_files(lks__replay *r, const lks__trainer *t)
{
    const char *hash = lks__json_str(r->claims->config, "data_hash");
    const double began = lks__sys_now();
    if (hash == NULL || strlen(hash) != 16 || r->leaf >= 0 || r->files_checked)
        return LKS_OK;
    fprintf(r->out, "          all token files are read and hashed, because the digest samples "
                    "them: ");
    fflush(r->out);
    const lks_status st = lks__hashes_check(t->run.data_dir, t->run.data, hash);
    fprintf(r->out, "%s (%.1f s)\n", st == LKS_OK ? "equal" : "not equal", lks__sys_now() - began);
    r->files_checked = st == LKS_OK;
    return st;
}

/* The config line has the digest of the run's data. Checkpoints are compared with their own. */
static lks_status check_data(const lks__replay *r, const lks__trainer *t, uint64_t start)
{
    const char *digest = lks__json_str(r->claims->config, "data_digest");
    const char *have = lks__hex(t->run.data_digest);
    if (start > 0 || digest == NULL || strcmp(digest, have) == 0)
        return LKS_OK;
    return lks__fail(
        LKS_ERR_SUPPORT, "the data in %s are not the run's: their digest is %s, not %s%s",
        t->run.shown_data_dir, have, lks__shown(digest, 128),
        r->own_data ? "" : "; give the run's by --dataset"); /* diff has given advice */
}

static lks_status check_start(lks__replay *r, uint64_t start)
{
    lks__ckpt c = {.iter = 0};
    if (start == 0)
        return LKS_OK;
    const lks_status st = lks__ckpt_open_iter(r->run, start, LKS__CKPT_ONLY_STATE, &c);
    if (st == LKS_OK)
        lks__audit_state(r, &c);
    lks__ckpt_close(&c);
    return st;
}

/* True if the checkpoint doesn't match its own hashes. */
static bool is_damaged(const lks__replay *r, uint64_t start)
{
    lks__ckpt c = {.iter = 0};
    const bool damaged =
        start > 0 && lks__ckpt_open_iter(r->run, start, LKS__CKPT_ALL_ALONE, &c) == LKS_ERR_FORMAT;
    lks__ckpt_close(&c);
    return damaged;
}

/* True if the folder of the run's data is known, but contains no tokens. */
static bool lacks_data(const lks__replay *r, lks__settings *s)
{
    char dir[LKS__SETTING_STR + 8];
    lks__shards *shards = NULL;
    if (lks__audit_settings(r, 0, s) != LKS_OK)
        return false;
    const bool lacks =
        lks__settings_data_dir(s, dir) != LKS_OK ||
        lks__procedure_open_split(s, dir, LKS__SPLIT_TRAIN, UINT32_MAX, &shards) != LKS_OK;
    lks__shards_close(shards);
    return lacks;
}

/* The trainer couldn't be opened, and its message is for someone who trains. Changes *s. */
static lks_status explain(lks__replay *r, uint64_t start, lks_status st, lks__settings *s)
{
    char cause[1024];
    if (st == LKS_OK || st == LKS_ERR_NOMEM)
        return st;
    if (st == LKS_ERR_FORMAT && is_damaged(r, start)) {
        lks__replay_false(r, "checkpoint %" PRIu64 ": %s", start, lks_last_error());
        return lks__fail(st, "%s: --from below %" PRIu64 " with --to starts before this checkpoint",
                         lks_last_error(), start);
    }
    snprintf(cause, sizeof cause, "%s", lks_last_error());
    if (lacks_data(r, s))
        return lks__fail(st, "%s has no token files of the run: give their folder by --dataset",
                         lks__shown(s->dataset, 512));
    return lks__fail(st, "%s", cause);
}

static lks_status compare(lks__replay *r, uint64_t start, const lks__trainer *t)
{
    LKS__TRY(check_data(r, t, start));
    LKS__TRY(check_start(r, start));
    return check_files(r, t);
}

lks_status lks__audit_open(lks__replay *r, uint64_t start, lks__trainer *t)
{
    lks__settings *s = malloc(sizeof *s);
    int stopped;
    LKS__MEMORY(s, "for an audit");
    lks_status st = lks__audit_settings(r, start, s);
    if (st == LKS_OK) {
        st = explain(r, start, lks__trainer_open(s, t, &stopped), s);
        LKS__THEN(st, compare(r, start, t));
        if (st != LKS_OK)
            lks__trainer_close(t);
    }
    free(s);
    return st;
}
