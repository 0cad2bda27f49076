/* plan/choose.h - the choices of `lockstep train TEXT` and `lockstep resume`: ranks for this
 * machine, and settings that fit a text. */
#pragma once

#include <stdint.h>

#include "settings/settings.h"

/* Cores that this process may use: its affinity mask, and the quota of its control groups. */
int lks__choose_cores(void);

/* Ranks for `cores`: the largest number that divides the virtual ranks and leaves at most a quarter
 * of the cores without a thread, if each rank has cores / ranks threads. */
int lks__choose_ranks(int cores, int64_t virtual_ranks);

/* A text as tokens. */
typedef struct lks__choose_text {
    uint64_t n_train, n_val;
} lks__choose_text;

enum { LKS__CHOOSE_SETTINGS = 12, LKS__CHOOSE_VALUE = 24 };

typedef struct lks__choice {
    const char *recipe; /* "quickstart" or "finetune_shakespeare" */
    int n;              /* settings that differ from the recipe's, in order */
    int setting[LKS__CHOOSE_SETTINGS];
    char value[LKS__CHOOSE_SETTINGS][LKS__CHOOSE_VALUE];
} lks__choice;

/* Choose a recipe and its settings for a text. Settings that `given` has from the command line are
 * not changed, and the others follow them (--max_iters sets the schedule's length). ERR_CONFIG if
 * the text is too short for any context. */
lks_status lks__choose(const lks__choose_text *text, int cores, const lks__settings *given,
                       lks__choice *choice);

/* The same for weights with this context, which are trained further. A text shorter than the
 * context makes it smaller. `gpt2_width` is the width of a model of GPT-2's tokens, 0 for other
 * tokens. The recipe is for GPT-2: smaller models, and all models of characters or bytes, need more
 * steps at a higher rate. */
void lks__choose_tuning(const lks__choose_text *text, int64_t block_size, int64_t gpt2_width,
                        const lks__settings *given, lks__choice *choice);
