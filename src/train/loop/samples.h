/* train/loop/samples.h - a short text from a run's weights after each evaluation, to show its
 * progress. */
#pragma once

#include "train/trainer.h"

typedef struct lks__samples lks__samples; /* close with lks__samples_close() */

/* Open tokenizer, prompt and memory for texts of run->s.sample_tokens tokens. An error names that
 * setting. */
lks_status lks__samples_open(const lks__trainer *t, lks__samples **samples_p);
void lks__samples_close(lks__samples *s);

/* Draw the text that `lockstep sample --num_samples=1` writes from these weights with the run's
 * seed, without its prompt. The state of the run doesn't change. *text_p: at most LKS__SAMPLE_BYTES
 * bytes of UTF-8, valid until the next call. ERR_STOPPED if the run is to stop, ERR_FORMAT if
 * logits aren't finite numbers. */
lks_status lks__samples_draw(lks__samples *s, const lks__run *run, const char **text_p);

enum { LKS__SAMPLE_BYTES = 8000 }; /* fits into a line of metrics.jsonl */
