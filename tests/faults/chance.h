/* chance.h - random numbers and pauses of the campaigns. */
#pragma once

#include "support.h"

/* A campaign's options --runs=N, --seed=S, and --only=I for one run; and the run in progress. */
extern struct chance {
    int n_runs, seed, only; /* only: -1 for all */
    int run;
} chance;

/* Read and print the options; without --runs there are `n_runs`. False, after a message, if there
 * is another argument. */
bool chance_options(int argc, char **argv, int n_runs);
/* Begin the next run and its random numbers. False after the last one. */
bool chance_next(void);
/* A new folder in TMPDIR, which stays if the test fails. */
const char *chance_folder(void);

int draw(int n); /* 0 .. n - 1 */

void sleep_us(int us); /* signals don't shorten it */
