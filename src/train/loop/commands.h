/* train/loop/commands.h - --exec_on: commands that a run starts at its events.
 *
 * They run one at a time, in the order of the events, while the run continues. The run waits for
 * them only at its end. A command gets the facts of its event as environment variables
 * (docs/guides/watch.md), an empty stdin, OUT/commands.log for its output, and no other open file
 * of ours. A command that runs longer than exec_timeout is ended. */
#pragma once

#include <stdint.h>

#include "settings/settings.h"

/* In the order of LKS__EVENT_CHOICES. */
typedef enum lks__command_event {
    LKS__ON_CHECKPOINT,
    LKS__ON_BEST,
    LKS__ON_END,
    LKS__ON_FAILURE,
} lks__command_event;

/* A number that is NAN or negative is left out. */
typedef struct lks__command_facts {
    int64_t iter;
    double loss, val_loss;
    int signal, exit_code;
} lks__command_facts;

typedef struct lks__commands lks__commands;

/* *commands_p = NULL without commands; the calls below then do nothing. say(ctx, text) reports a
 * failure, after which the run continues. ERR_NOMEM. */
lks_status lks__commands_open(const lks__settings *s, void (*say)(void *ctx, const char *text),
                              void *ctx, lks__commands **commands_p);
/* A command that still runs isn't ended. */
void lks__commands_close(lks__commands *c);

/* Start the event's commands, or queue them. */
void lks__commands_on(lks__commands *c, lks__command_event event, const lks__command_facts *facts);
/* Call this several times a second: starts queued commands, and ends those that run too long. */
void lks__commands_poll(lks__commands *c);
int lks__commands_waiting(const lks__commands *c); /* that haven't ended; of NULL: 0 */
/* Wait until all have ended, while calling alive(ctx) several times a second. */
void lks__commands_wait(lks__commands *c, void (*alive)(void *ctx), void *ctx);

/* True if there are commands for this event. */
bool lks__commands_any(const lks__settings *s, lks__command_event event);
/* Run the commands for LKS__ON_FAILURE, and wait for them. Messages begin with `name`. */
void lks__commands_failed(const lks__settings *s, const char *name, int exit_code);
