/* report/live/serve.h - the page over HTTP, for browsers on this host unless told otherwise. */
#ifndef LKS_REPORT_LIVE_SERVE_H
#define LKS_REPORT_LIVE_SERVE_H

#include <stdbool.h>
#include <stddef.h>

#include "report/view/series.h"

/* Serve the page on `address`:`port` (0: a free one) until asked() is true; what the runs write is
 * shown as it comes. ready(url) is called once it is reachable. Answers GET of / and of /events,
 * whose Host header names the address, "localhost" or `host`; refuses everything else and changes
 * nothing. ERR_SUPPORT without the module; ERR_IO if the port is taken. */
lks_status lks__serve(lks__series *runs, size_t n, const char *address, int port,
                      void (*ready)(const char *url), bool (*asked)(void));
/* Can pages be served? ERR_SUPPORT says why not. */
lks_status lks__serve_available(void);

#endif
