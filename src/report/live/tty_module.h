/* report/live/tty_module.h - the interface of the module lockstep_tty.so to live/screen.c. */
#pragma once

#include "base/system/module.h"

#define LKS__TTY_MODULE_FILE "lockstep_tty.so"

enum { LKS__TTY_MODULE_VERSION = 2 }; /* increase it with every change below */

enum { LKS__TTY_UP = 1000, LKS__TTY_DOWN };

typedef struct lks__tty_module {
    int version;
    int (*open)(void); /* nonzero: ncurses doesn't know this terminal */
    void (*size)(int *rows, int *columns);
    void (*draw)(const char *text); /* lines; the rest of the screen is cleared */
    int (*key)(int milliseconds);   /* the next key, or one of those above; -1: none in time */
    void (*close)(void);
} lks__tty_module;
