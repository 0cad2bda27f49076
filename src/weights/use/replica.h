/* weights/use/replica.h - a trained model, opened from a checkpoint for sampling or evaluation. */
#pragma once

#include "compute/mirror.h"
#include "data/text/meta.h"
#include "model/model.h"
#include "session/session.h"
#include "settings/settings.h"

typedef struct lks__replica {
    char path[4096];       /* the checkpoint's folder */
    char origin[160];      /* see weights.h; or "artifact" */
    char run_dir[4096];    /* the run's folder; empty if the checkpoint isn't in one */
    char vocabulary[4096]; /* folder that may have the tokenizer's files; or empty */
    char params_hash[17];
    char data_digest[17]; /* of its training data; empty: not known */
    uint64_t iter;
    lks__settings run; /* the settings of its training */
    lks__meta meta;
    lks__model_config config;
    lks__table table;
    /* NULL until its user opens it for batches. lks__replica_close() closes it. */
    lks__model *model;
    lks__mirror params; /* an arena; the host's side is the group's memory */
} lks__replica;

/* Verify and load the checkpoint `s->checkpoint` in `out_dir` or, if `s` names weights (--init_from
 * on the command line), those instead. The session then computes in the run's dtype, unless `s`
 * sets another one. Collective. */
lks_status lks__replica_open(const char *out_dir, const lks__settings *s, lks__session *session,
                             lks__replica *r);
/* The same from an artifact (weights/artifact/artifact.h), a file that needs no other files. */
lks_status lks__replica_open_artifact(const char *path, const lks__settings *s,
                                      lks__session *session, lks__replica *r);
void lks__replica_close(lks__replica *r);
