/* data/text/bpe/bpe_pipe.h - encodes text with a byte-level BPE vocabulary and writes the tokens to
 * a split's files. Several threads encode chunks, which are written in order. */
#pragma once

#include "data/prep/prep_job.h"
#include "data/text/bpe/bpe.h"

typedef struct lks__bpe_pipe lks__bpe_pipe; /* opaque; close with lks__bpe_pipe_close() */

/* Writes to job->writer, with job->o.n_threads threads. Memory grows with the longest run of
 * characters without a possible cut, and with the longest text of a call. ERR_NOMEM. */
lks_status lks__bpe_pipe_open(lks__prep_job *job, const lks__bpe *bpe, lks__bpe_pipe **pipe_p);
void lks__bpe_pipe_close(lks__bpe_pipe *pipe); /* NULL does nothing */

/* Add bytes [from, to) of a file that is open as `fd`, or a text in memory. */
lks_status lks__bpe_pipe_range(lks__bpe_pipe *pipe, size_t file, int fd, uint64_t from,
                               uint64_t to);
lks_status lks__bpe_pipe_text(lks__bpe_pipe *pipe, const char *text, size_t bytes);
/* Add end-of-text; the following text is another document. */
lks_status lks__bpe_pipe_end(lks__bpe_pipe *pipe);
/* Write everything before a split ends. */
lks_status lks__bpe_pipe_flush(lks__bpe_pipe *pipe);
