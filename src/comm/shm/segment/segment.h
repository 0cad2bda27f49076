/* comm/shm/segment/segment.h - the shared memory of one job on one host.
 *
 * It is one memfd, which the launcher makes before it starts the ranks. They inherit its file
 * descriptor, which LOCKSTEP_SEGMENT=FD:TOKEN names. It has no name in any file system and ends
 * with the processes that hold it. This header is for code that starts or watches ranks; only
 * comm/shm knows the segment's contents (segment_layout.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "lockstep/comm.h"

#define LKS__SEGMENT_ENV "LOCKSTEP_SEGMENT"

enum { LKS__SEGMENT_MAX_RANKS = 1024 };

/* This process's handle of the segment. Ranks that are threads of one process share it. */
typedef struct lks__segment lks__segment;

/* Bytes of a segment for `world_size` ranks before they allocate memory. */
uint64_t lks__segment_base_bytes(int world_size);

/* Make a segment for `world_size` ranks; the descriptor is close-on-exec. ERR_NOMEM gives the size
 * and what to do. */
lks_status lks__segment_create(int world_size, lks__segment **segment_p);

/* The value of LOCKSTEP_SEGMENT for the ranks; `text` has LKS__SEGMENT_ENV_BYTES. */
enum { LKS__SEGMENT_ENV_BYTES = 64 };
void lks__segment_env(const lks__segment *segment, char *text);

/* Take over the descriptor that the environment names, after checking that it is this job's segment
 * for `world_size` ranks. It becomes close-on-exec and leaves the environment. ERR_SUPPORT if the
 * variable is not set, ERR_FORMAT if it names something else. */
lks_status lks__segment_inherit(int world_size, lks__segment **segment_p);
/* lks__segment_inherit() of "FD:TOKEN" instead of the environment. On failure the descriptor stays
 * open. */
lks_status lks__segment_attach(const char *text, int world_size, lks__segment **segment_p);

/* A segment's name for other processes of this user: "PID:FD:TOKEN". They open it through /proc;
 * the token is checked. ERR_FORMAT, ERR_PEER if that process has ended, or ERR_IO with the path. */
enum { LKS__SEGMENT_OFFER_BYTES = 80 };
void lks__segment_offer(const lks__segment *segment, char offer[LKS__SEGMENT_OFFER_BYTES]);
lks_status lks__segment_take(const char *offer, int world_size, lks__segment **segment_p);

/* The segment of this host's ranks if another program launched them (share.c). All ranks call it;
 * local rank 0 makes the segment. `group` is the number of the group among those that each of the
 * ranks opens. `failure` of local rank 0, if it isn't "", is recorded at once, so that ranks which
 * attach learn it. After a recorded failure rank 0 waits a few seconds for the others, and returns
 * OK. ERR_TIMEOUT names the missing rank. */
lks_status lks__segment_share(const lks_world *world, unsigned group, double timeout_s,
                              const char *failure, lks__segment **segment_p);

lks__segment *lks__segment_ref(lks__segment *segment); /* returns `segment` with another owner */
void lks__segment_close(lks__segment *segment);        /* NULL does nothing */

int lks__segment_fd(const lks__segment *segment);
int lks__segment_world_size(const lks__segment *segment); /* ranks of this host */

/* --- only for comm/shm: the contents (segment_layout.h) --------------------------------------- */

struct lks__segment_header;
struct lks__rank_line;
struct lks__shm_slot;
struct lks__shm_descriptor;

struct lks__segment_header *lks__segment_header(const lks__segment *segment);
struct lks__rank_line *lks__segment_line(const lks__segment *segment, int rank);
struct lks__shm_slot *lks__segment_slot(const lks__segment *segment, uint32_t seq);
struct lks__shm_descriptor *lks__segment_descriptor(const lks__segment *segment, int rank,
                                                    uint32_t seq);
void *lks__segment_bounce(const lks__segment *segment, int rank, int half);

/* ERR_NOMEM, with the available bytes, if `bytes` more don't fit into the limits of the machine and
 * its control groups. A memfd takes pages until the kernel kills a process, so ask before
 * lks__segment_reserve(). */
lks_status lks__segment_fits(uint64_t bytes);

/* Regions are memory after the base, at offsets that all ranks compute alike. Reserve makes
 * [offset, offset + bytes) usable permanently; map makes it visible in this process (ranks that are
 * threads get one address). Both page-aligned. ERR_NOMEM with sizes and advice. */
lks_status lks__segment_reserve(lks__segment *segment, uint64_t offset, uint64_t bytes);
/* Extend the file to `end` without taking memory, for regions whose pages are allocated on first
 * use. */
lks_status lks__segment_extend(lks__segment *segment, uint64_t end);
void lks__segment_release(lks__segment *segment, uint64_t offset, uint64_t bytes);
lks_status lks__segment_map(lks__segment *segment, uint64_t offset, uint64_t bytes, void **mem_p);
void lks__segment_unmap(lks__segment *segment, void *mem); /* once per map */
