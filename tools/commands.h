/* tools/commands.h - all commands of the tool, one row each. */
#pragma once

enum {
    /* It starts other programs, which inherit signal actions: leave these unchanged. */
    TOOL_LAUNCHES = 1,
    /* It installs handlers for signals: hold signals that arrive earlier until then. */
    TOOL_HANDLES = 2,
};

/* X(name, flags, text for --help); tool_NAME() is the main function. */
#define TOOL_COMMANDS(X)                                                                           \
    X(fetch, 0, "download data and weights that people know")                                      \
    X(prep, 0, "turn text into token files")                                                       \
    X(train, TOOL_HANDLES, "train a GPT on one or more ranks (processes)")                         \
    X(resume, TOOL_HANDLES, "continue a run on the cores of this machine")                         \
    X(plan, 0, "predict the memory and speed of a run on 1 to 1024 hosts")                         \
    X(sample, 0, "generate text with a trained model")                                             \
    X(eval, 0, "compute the loss of a model over a whole split")                                   \
    X(export, 0, "write a trained model for other programs")                                       \
    X(report, 0, "compare runs")                                                                   \
    X(diff, 0, "find the first difference between two runs")                                       \
    X(audit, 0, "compute steps of a run again, and compare them with its record")                  \
    X(plot, 0, "draw the losses of runs")                                                          \
    X(watch, 0, "show runs in a browser or a terminal")                                            \
    X(run, TOOL_LAUNCHES | TOOL_HANDLES, "start the ranks of any program, as torchrun does")       \
    X(bench, 0, "measure the speed of this machine and of training steps")                         \
    X(doctor, 0, "find problems on this host and between hosts")                                   \
    X(info, 0, "show the features of this build and this machine, or a run")
