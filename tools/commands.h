/* commands.h - all commands of the tool, a row each. */
#ifndef LKS_TOOLS_COMMANDS_H
#define LKS_TOOLS_COMMANDS_H

enum {
    /* Starts other programs, which inherit our signal actions, so these stay unchanged. */
    TOOL_LAUNCHES = 1,
    /* It installs handlers for signals; signals that arrive earlier wait for them. */
    TOOL_HANDLES = 2,
};

/* X(name, flags, text for --help): tool_NAME() of cmd_NAME.c is its main function. */
#define TOOL_COMMANDS(X)                                                                           \
    X(prep, 0, "turn a text into token files")                                                     \
    X(train, TOOL_HANDLES, "train a GPT on one or more ranks")                                     \
    X(plan, 0, "what a run will take, and how fast it will be, on 1 to 1024 hosts")                \
    X(sample, 0, "write text with a model of a checkpoint")                                        \
    X(eval, 0, "loss of a checkpoint over a whole split")                                          \
    X(export, 0, "write a trained model as one file")                                              \
    X(report, 0, "compare runs")                                                                   \
    X(plot, 0, "draw the losses of runs")                                                          \
    X(watch, 0, "show runs in a browser")                                                          \
    X(run, TOOL_LAUNCHES | TOOL_HANDLES, "start the ranks of any program")                         \
    X(bench, 0, "speed of this machine and of a training step on it")                              \
    X(doctor, 0, "find problems on this host and between hosts")                                   \
    X(info, 0, "what this build and this machine support")

#endif
