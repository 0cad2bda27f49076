/* tools/commands/info_run.h - `lockstep info RUN`. */
#ifndef LKS_TOOLS_COMMANDS_INFO_RUN_H
#define LKS_TOOLS_COMMANDS_INFO_RUN_H

/* Print the model, data, losses and state of the run in `folder`, which may be one of its
 * checkpoints. Returns the exit code. */
int info_run(const char *folder);

#endif
