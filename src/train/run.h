/* train/run.h - a run on one rank, as set-up has found it: nothing in it changes afterwards. */
#pragma once

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
    double fit_room;    /* bytes that batch_size=auto may use; 0: batch_size was given */
    int V, A, N;        /* virtual ranks, micro-steps per virtual rank, micro-batches per step */
    int first_v, end_v; /* this rank's virtual ranks */
    bool shared;        /* all ranks of the host share one replica */
    const struct lks__procedure *procedure;
    char shown_out_dir[512], shown_data_dir[512]; /* escaped, for messages */

    char data_dir[LKS__SETTING_STR + 8];
    lks__shards *data[2]; /* by split; NULL: no validation split, and no evaluation needs one */
    uint64_t data_digest;
    char data_hash[17];              /* of whole files (data/read/hashes.h); "": not recorded */
    lks__meta meta;                  /* vocab_size, and the tokenizer if the data have one */
    const char *meta_file;           /* file in data_dir with the vocabulary; NULL: none */
    char vocabulary[LKS__CKPT_PATH]; /* folder of the tokenizer's files */
    struct lks__golf_run *golf;      /* data of the golf procedure; else NULL */

    lks__model_config model_config;
    lks__table table;
    size_t trained_params; /* that the settings leave to be trained; eval_only freezes them too */

    /* Origin of the first state. */
    lks__weights *weights; /* of --init_from; NULL: new ones, or those of a checkpoint */
    char init_hash[17];    /* params_hash of these weights; "": the run began with new ones */
    bool continued;        /* continues a run of nanoGPT, whose ckpt.pt is `weights` */
    lks__nanogpt_run from_nanogpt;
    bool resumed;
    bool begins_segment;          /* with another batch than the checkpoint's */
    lks__settings resumed_from;   /* the checkpoint's settings, */
    char resumed_hash[17];        /* its params_hash, */
    char resumed_fingerprint[17]; /* the fingerprint of the kernels that made it, */
    lks__asked resumed_asked;     /* and the reason for writing it */
} lks__run;
