/* fake.h - folders of runs, written by the test. */
#pragma once

#include "support.h"

/* A folder NAME (of a new one) with a run of `steps` steps of 100 ms and 1,000 tokens, an
 * evaluation every 10, whose losses end at `last`; it has ended. `settings` are more members of the
 * config line ("\"n_layer\":2"). */
const char *fake_run(const char *name, int seed, int steps, double last, const char *settings);
/* Append lines to its metrics.jsonl; ' stands for ". */
void fake_append(const char *dir, const char *lines);

/* Replace its ranks.jsonl. */
void fake_ranks(const char *dir, const char *lines);
