/* tools/commands/info_run.h - `lockstep info RUN`. */
#ifndef LKS_TOOLS_COMMANDS_INFO_RUN_H
#define LKS_TOOLS_COMMANDS_INFO_RUN_H

/* Print what the run in `folder` (or of a checkpoint's folder) is, and how far it has come; returns
 * the exit code. */
int info_run(const char *folder);

#endif
