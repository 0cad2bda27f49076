/* report/record/metrics/events.h - OUT/events.out.tfevents.NNNNNN.lockstep: a run's curves for
 * TensorBoard.
 *
 * TensorBoard's format: records with masked CRC32C around protobuf messages (Event), of which few
 * fields are used. Every start of a run begins a file, whose name sorts after the earlier ones. Its
 * second record tells TensorBoard to drop the values of earlier files from that step on, because
 * the run repeats those steps. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__events lks__events; /* opaque; close with lks__events_close() */

/* Begin the next file in `out_dir`, for a run that starts or continues with iteration `step`. Cut
 * the evaluation of an earlier end ("final/…") off the previous file. ERR_IO names the file. */
lks_status lks__events_create(const char *out_dir, uint64_t step, lks__events **events_p);
lks_status lks__events_close(lks__events *e); /* NULL does nothing */

/* Record that the run went back to `step` and repeats the steps from there. */
lks_status lks__events_back(lks__events *e, uint64_t step);

/* Write the values of one step as one record: begin, add values, end. */
void lks__events_begin(lks__events *e, uint64_t step);
void lks__events_scalar(lks__events *e, const char *tag, double value); /* as float32 */
void lks__events_text(lks__events *e, const char *tag, const char *markdown);
lks_status lks__events_end(lks__events *e); /* ERR_NOMEM if they were too many for a record */

/* CRC32C (Castagnoli) of `bytes`; tests compare it with published values. */
uint32_t lks__crc32c(const void *data, size_t bytes);
