/* tools/sample/sample.h - the two files of `lockstep sample`. */
#ifndef LKS_TOOLS_SAMPLE_SAMPLE_H
#define LKS_TOOLS_SAMPLE_SAMPLE_H

#include "weights/use/write.h"

/* Standard input's lines, each followed by an answer, until it ends. ERR_STOPPED: by a signal that
 * came between two answers, or wasn't SIGINT. */
lks_status sample_chat(lks__writer *w, const lks__text *text);

#endif
