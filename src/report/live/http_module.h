/* report/live/http_module.h - the interface of the module lockstep_http.so to live/serve.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/system/module.h"

#define LKS__HTTP_MODULE_FILE "lockstep_http.so"

enum { LKS__HTTP_MODULE_VERSION = 3 }; /* increase it with every change below */

#define LKS__HTTP_END SIZE_MAX

/* The application to serve. serve() and stop() call its functions. */
typedef struct lks__http_app {
    void *ctx;
    const char *page;
    size_t page_bytes;
    bool (*host_ok)(void *ctx, const char *host); /* of the header */
    /* A reader of /events. open() returns NULL without memory; read() returns 0 if there are no
     * bytes yet, LKS__HTTP_END to end the stream. */
    void *(*open)(void *ctx);
    size_t (*read)(void *reader, char *out, size_t room);
    void (*close)(void *reader);
} lks__http_app;

typedef struct lks__http_module {
    int version;
    /* Serve on an IPv4 or IPv6 address; NULL on failure, with reason and advice. */
    void *(*start)(const char *address, int port, const lks__http_app *app, char *why,
                   size_t why_bytes);
    int (*port)(void *server);
    /* Wait up to `wait_ms` for clients, answer those that are ready, and return. */
    void (*serve)(void *server, int wait_ms);
    void (*wake)(void *server); /* readers may have something to read */
    void (*stop)(void *server);
} lks__http_module;
