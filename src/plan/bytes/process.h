/* plan/bytes/process.h - measures the memory of a rank's process, and prints a run's memory. */
#pragma once

#include "plan/bytes/needs.h"

/* Measure it in a child process that opens everything that a rank of `place` opens. ERR_IO. */
lks_status lks__process_measure(const lks__settings *s, const lks__place *place,
                                lks__process *process);

/* Print a line for each kind to standard output. */
void lks__needs_print(const lks__needs *needs);
