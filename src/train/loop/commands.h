/* train/loop/commands.h - --exec_on: commands that a run starts at its events.
 *
 * They run one at a time, in the order of the events, beside the run, which waits for them at its
 * end alone. The facts of the event are in a command's environment (docs/watch.md), and nothing is
 * put into its text. It gets no open file of ours but the streams: stdin is empty, what it writes
 * is appended to OUT/commands.log. A command that takes longer than exec_timeout is ended. */
#ifndef LKS_TRAIN_LOOP_COMMANDS_H
#define LKS_TRAIN_LOOP_COMMANDS_H

#include <stdint.h>

#include "settings/settings.h"

/* In the order of LKS__EVENT_CHOICES. */
typedef enum lks__command_event {
    LKS__ON_CHECKPOINT,
    LKS__ON_BEST,
    LKS__ON_END,
    LKS__ON_FAILURE,
} lks__command_event;

/* A number that is NAN, or negative, is left out. */
typedef struct lks__command_facts {
    int64_t iter;
    double loss, val_loss;
    int signal, exit_code;
} lks__command_facts;

typedef struct lks__commands lks__commands; /* opaque */

/* *commands_p = NULL if none were given; the calls below then do nothing. say(ctx, text) gets what
 * went wrong; the run goes on. ERR_NOMEM. */
lks_status lks__commands_open(const lks__settings *s, void (*say)(void *ctx, const char *text),
                              void *ctx, lks__commands **commands_p);
/* Closes, and leaves a command that runs alone. */
void lks__commands_close(lks__commands *c);

/* Start the commands of this event, or queue them. */
void lks__commands_on(lks__commands *c, lks__command_event event, const lks__command_facts *facts);
/* Call this now and then: starts what is queued, ends what takes too long. */
void lks__commands_look(lks__commands *c);
/* Wait until all have ended, and call alive(ctx) several times a second. */
void lks__commands_wait(lks__commands *c, void (*alive)(void *ctx), void *ctx);

/* Have commands of this event been given? */
bool lks__commands_given(const lks__settings *s, lks__command_event event);
/* Run those for a run that has failed, and wait for them. Messages begin with `name`. */
void lks__commands_failed(const lks__settings *s, const char *name, int exit_code);

#endif
