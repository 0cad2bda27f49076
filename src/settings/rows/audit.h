/* settings/rows/audit.h - rows of LKS__SETTING_MAP (settings/map.h): `lockstep audit`. */
#pragma once

#define LKS__SETTING_ROWS_AUDIT(X)                                                                 \
    X(INT, step, 0, INTS(0, 4294967294), AUDIT, HOST, AUDITS,                                      \
      "the only step to audit; without it: all steps")                                             \
    X(INT, leaf, 0, INTS(0, 1023), AUDIT, HOST, AUDITS,                                            \
      "virtual rank: of --step compute only its gradient, and compare the hash")                   \
    X(STR, trail, "", ANY, AUDIT, HOST, AUDITS,                                                    \
      "file for the results of --step in causal order, to compare them with `lockstep diff`")      \
    X(INT, execute, 100, INTS(0, 4294967294), DIFF, HOST, AUDITS,                                  \
      "steps of each run that `diff` may execute to find the place of a difference; 0: none")      \
    X(INT, from_step, 0, INTS(0, 4294967294) ALSO(from), AUDIT, HOST, AUDITS,                      \
      "first step to audit")                                                                       \
    X(INT, to_step, 0, INTS(0, 4294967294) ALSO(to), AUDIT, HOST, AUDITS,                          \
      "step before which the audit ends, usually a checkpoint; 0: the run's end")                  \
    X(INT, sample, 0, INTS(0, 1000000), AUDIT, HOST, AUDITS,                                       \
      "number of segments to draw and audit; a segment lies between two checkpoints; 0: all")      \
    X(STR, draw, "", ANY, AUDIT, HOST, AUDITS,                                                     \
      "up to 16 hexadecimal digits that an earlier audit printed: draw the same segments; empty: " \
      "new ones")                                                                                  \
    X(STR, seal, "", ANY, AUDIT, HOST | BARE, AUDITS,                                              \
      "without a value: print the SHA-256 of each file of the run and of its data, and of this "   \
      "list; a sum that was printed, or a file with the list: compare it with the files, and "     \
      "execute only the steps that other settings ask for")
