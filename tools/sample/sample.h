/* tools/sample/sample.h - the conversation of `lockstep sample --interactive`. */
#pragma once

#include "weights/use/write.h"

/* Answer each line of standard input, until it ends. ERR_STOPPED after SIGTERM or SIGHUP, or after
 * SIGINT between two answers. */
lks_status sample_chat(lks__writer *w, const lks__text *text);
