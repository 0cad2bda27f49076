/* chance.h - random numbers and pauses of the campaigns. */
#ifndef LKS_TESTS_CHANCE_H
#define LKS_TESTS_CHANCE_H

#include "support.h"

/* Begin the random numbers of run `index` of a campaign. */
void chance_begin(int seed, int index);

/* Read the options of a campaign: --runs=N, --seed=S, and --only=I for one run. Those that aren't
 * given stay as they are. False, after a message, if there is another argument. */
bool chance_options(int argc, char **argv, int *n_runs, int *seed, int *only);

int draw(int n); /* 0 .. n - 1 */

void sleep_us(int us); /* signals don't shorten it */

#endif
