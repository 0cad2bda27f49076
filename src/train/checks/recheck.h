/* train/checks/recheck.h - --recheck: finds a host that computes wrongly.
 *
 * In some steps each rank first computes the gradient of a virtual rank of another host, with the
 * memory of its own gradients, and keeps the hash. After the step's exchange of votes, all ranks
 * compare these hashes with those of the owners. Seed and iteration decide which steps and which
 * virtual ranks, so all ranks know each rank's share, and a resume draws the same ones.
 *
 * If a pair differs, all ranks compute that gradient, and the majority of hosts is right. The step
 * has changed nothing yet, and is made again. Only the first pair of a step counts: another one is
 * found when the step is made again. */
#pragma once

#include "files/checkpoint/ckpt.h"
#include "train/result.h"
#include "train/trainer.h"

typedef struct lks__recheck_host {
    char name[LKS__HOST_NAME];
    int first_rank, end_rank;
    bool wrong;     /* in the last step that was compared */
    int times;      /* steps of the run in which it was wrong */
    uint64_t right; /* newest iteration, plus 1, in which a gradient of it was right; 0: none */
} lks__recheck_host;

/* A rank's own result of a gradient. */
typedef struct lks__recheck_result {
    uint64_t hash;
    uint64_t finite; /* 0 or 1 */
} lks__recheck_result;

struct lks__recheck {
    lks__recheck_host *hosts; /* [n_hosts] in the order of ranks */
    int n_hosts;
    bool drawn;                     /* the current step is compared */
    lks__recheck_result mine, *all; /* of all ranks, [W] */
    uint64_t *hashes;               /* of the step's gradients, [V] */
    /* The first pair that differs: virtual rank, its rank, and the rank that computed it, too. */
    int v, owner, checker;
    uint64_t owner_hash, checker_hash;
    int agree; /* hosts that then had the hash `right`, a majority; 0: there was none */
    uint64_t right;
    uint64_t equal, different; /* gradients of the run so far; rank 0 counts over resumes */
};

/* Learn the hosts, if the run is to be checked. ERR_CONFIG if it was asked to be and can't: on one
 * host, or if gradients aren't in host memory. (A value that a resume keeps is then ignored.)
 * A resume continues to count gradients and each host's errors from its record. Collective. */
lks_status lks__recheck_open(lks__trainer *t, const lks__ckpt *resume);
void lks__recheck_close(const lks__checks *checks);

/* Compute this rank's share of the checks, if the step is drawn. Call it after begin_step(). */
lks_status lks__recheck_begin(lks__trainer *t);
/* Compare, after lks__votes_exchange(). If a pair differs, find out who is wrong, set r->outcome to
 * AGAIN, and put the sampler back; the step's gradient is then lost. ERR_STOPPED: a rank was asked
 * to stop meanwhile. Collective. */
lks_status lks__recheck_compare(lks__trainer *t, lks__step_result *r);

/* After AGAIN: "host c17 computed the gradient of virtual rank 5 wrongly: …". */
enum { LKS__RECHECK_TEXT = 1600 };
const char *lks__recheck_text(const lks__checks *checks, char out[LKS__RECHECK_TEXT]);
/* "recheck: 93 gradients computed again, all equal" */
enum { LKS__RECHECK_SUMMARY = 160 };
const char *lks__recheck_summary(const lks__checks *checks, char out[LKS__RECHECK_SUMMARY]);
/* ERR_DIVERGED, with the command that continues the run without it, if a host was wrong for the
 * third time. Ranks must agree on it, so that rank 0 reports the step before the group ends. */
lks_status lks__recheck_limit(const lks__trainer *t);
