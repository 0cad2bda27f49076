/* train/procedure/golf.h - data of a golf run, shared by procedure_golf.c and golf_lines.c. */
#pragma once

#include "data/read/stream.h"
#include "data/text/bpb.h"
#include "train/procedure/procedure.h"

struct lks__golf_run {
    lks__stream stream;
    uint64_t val_tokens; /* in whole sequences of the validation split, and one more */
    bool has_bpb;        /* the tokenizer is known, so losses can be given per byte */
    lks__byte_table bytes;
    uint64_t code_bytes; /* size of the file of --code */
};

/* See procedure.h. */
lks_status lks__golf_log_path(const lks__run *run, char out[LKS__SETTING_STR + 16]);
void lks__golf_head_lines(const lks__run *run, const lks__session *ses, lks__log *log);
void lks__golf_train_line(const lks__run *run, const lks__state *state, const lks__step_result *r,
                          double mfu, char out[200]);
void lks__golf_eval_line(const lks__run *run, const lks__state *state, const lks__eval_result *eval,
                         char out[200]);
void lks__golf_finish_lines(const lks__trainer *t, const lks__finish_result *r, lks__log *log);
