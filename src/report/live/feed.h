/* report/live/feed.h - runs as messages for the page: JSON objects, one per line. A page that is
 * served receives them while the runs write; a page in a file contains all of them.
 *
 * {"kind":"runs","names":[…]}             first: the runs; again with those that begin later
 * {"kind":"run","run":0}                  forget earlier messages about run 0
 * {"kind":"about","run":0,"config":…,"host":…,"end":…,"state":lks__series_state()}
 * {"kind":"points","run":0,"rows":[[iter, loss, lr, grad_norm, tokens, seconds, tok_per_s, mfu,
 *   wait_ms, ms], …]}
 * {"kind":"evals","run":0,"rows":[[iter, train_loss, val_loss, val_bpb, tokens, seconds, final],
 * …]}
 * {"kind":"marks","run":0,"rows":[[iter, kind, text], …]}
 * {"kind":"samples","run":0,"rows":[[iter, text], …]}: replaces earlier samples
 * {"kind":"ranks","run":0,"rows":[[iter, tokens, seconds, compute_ms, wait_ms, memory_bytes], …]}:
 *   the last three by rank, or null; replaces earlier rows */
#pragma once

#include "report/view/series.h"

/* The page gets every 2nd, 4th, … point of a run with more points. */
enum { LKS__FEED_POINTS = 8192 };

typedef struct lks__feed lks__feed; /* a reader's position */

lks__feed *lks__feed_open(const lks__runs *runs); /* NULL if out of memory */
/* The next message, which free() frees; NULL if there is none yet, or memory runs out. */
char *lks__feed_next(lks__feed *feed);
void lks__feed_close(lks__feed *feed);

/* The page with all messages, which free() frees; NULL if out of memory. */
char *lks__feed_page(const lks__runs *runs, size_t *bytes_p);

/* The page of live/page, without messages. */
extern const char lks__page[];
extern const size_t lks__page_bytes;
