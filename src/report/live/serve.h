/* report/live/serve.h - serves the page over HTTP. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "report/view/series.h"

/* Serve the page on `address`:`port` (0: a free one) until asked() is true, and follow the runs,
 * with those that begin later. ready(url) is called once it is reachable. Answers GET of / and of
 * /events if the Host header names `address` or this host, and refuses everything else. ERR_SUPPORT
 * without the module; ERR_IO if the port is taken. */
lks_status lks__serve(lks__runs *runs, const char *address, int port,
                      void (*ready)(const char *url), bool (*asked)(void));
/* ERR_SUPPORT, with the reason, if pages can't be served. */
lks_status lks__serve_available(void);
