/* tools/train/train_text.h - `lockstep train TEXT`, and the part of `lockstep prep` that it uses.
 */
#pragma once

#include "data/prep/prep.h"
#include "settings/settings.h"

/* Prepare `input` in `out` with the defaults and the progress line of `lockstep prep KIND`; with a
 * `tokenizer` (else ""), a tenth of the text is for validation. Notes begin with "lockstep
 * COMMAND".
 */
lks_status prep_text(const char *command, const char *kind, const char *input,
                     const char *tokenizer, const char *out, lks__prep_result *result);

/* The environment variable by which train_text() tells the process that it becomes where an earlier
 * run was moved; empty if there was none. */
#define TRAIN_TEXT_MOVED "LOCKSTEP_TRAIN_MOVED"

/* Prepare the text args->positional[0] in OUT/data, choose settings for it, print the longer
 * commands, and replace this process by `lockstep train` with them. Returns the exit code if that
 * fails. */
int train_text(int argc, char **argv, const lks__settings *given, const lks__args *args);

/* After a failure or stop of the longer command: if it has not begun a run in `out`, remove the
 * tokens that train_text() left there, and move the earlier run back from `moved`. */
void train_text_undo(const char *out, bool lock, const char *moved);
