/* plan/bytes/process.h - what a rank's process takes, measured; and a run's memory, printed. */
#ifndef LKS_PLAN_BYTES_PROCESS_H
#define LKS_PLAN_BYTES_PROCESS_H

#include "plan/bytes/needs.h"

/* Measure it in a child process that opens what a rank of `place` opens: ERR_IO. */
lks_status lks__process_measure(const lks__settings *s, const lks__place *place,
                                lks__process *process);

/* Print a line for each kind to standard output. */
void lks__needs_print(const lks__needs *needs);

#endif
