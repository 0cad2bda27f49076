/* train/run.h - a run on one rank, as set-up has found it. Nothing in it changes afterwards, and it
 * points to nothing that does. */
#ifndef LKS_TRAIN_RUN_H
#define LKS_TRAIN_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "data/read/shards.h"
#include "data/text/meta.h"
#include "files/checkpoint/ckpt.h"
#include "model/model.h"
#include "settings/settings.h"
#include "weights/forms/nanogpt.h"
#include "weights/weights.h"

typedef struct lks__run {
    lks__settings s;
    double fit_room;    /* bytes of this host for batch_size=auto; 0: it wasn't given */
    int V, A, N;        /* virtual ranks, micro-steps of each, micro-batches of a step */
    int first_v, end_v; /* this rank's virtual ranks */
    bool shared;        /* one replica for all ranks of the host */
    const struct lks__procedure *procedure;
    char shown_out_dir[512], shown_data_dir[512]; /* escaped, for lines */

    /* data */
    char data_dir[LKS__SETTING_STR + 8];
    lks__shards *data[2]; /* by split; NULL: no validation, which no evaluation needs */
    uint64_t data_digest;
    lks__meta meta;                  /* vocab_size, and the tokenizer if there is one */
    const char *meta_file;           /* the folder's file with the vocabulary; NULL: it has none */
    char vocabulary[LKS__CKPT_PATH]; /* folder of the tokenizer's files */
    struct lks__golf_run *golf;      /* data of the golf procedure */

    lks__model_config model_config;
    lks__table table;

    /* Where it begins. */
    lks__weights *weights; /* given ones; NULL: the seed's, or those of a checkpoint */
    char init_hash[17];    /* their hash, as params_hash; "": the run began with the seed's */
    bool continued;        /* a run of nanoGPT goes on; `weights` is its ckpt.pt */
    lks__nanogpt_run from_nanogpt;
    bool resumed;
    lks__settings resumed_from;   /* after a resume, the checkpoint's settings, ... */
    char resumed_hash[17];        /* ... its params_hash, ... */
    char resumed_fingerprint[17]; /* ... the fingerprint of its kernels, ... */
    lks__asked resumed_asked;     /* ... and why it was written */
} lks__run;

#endif
