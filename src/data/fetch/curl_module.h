/* data/fetch/curl_module.h - the interface of the module lockstep_curl.so to download.c: libcurl's
 * GET over HTTP and HTTPS, without its file access. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/system/module.h"

#define LKS__CURL_MODULE_FILE "lockstep_curl.so"

enum { LKS__CURL_MODULE_VERSION = 1 }; /* increase it with every change below */

/* The head of the last response, after redirects. Any bytes; "" for a missing header. */
typedef struct lks__curl_head {
    long code;
    int64_t length;    /* of the body; -1: unknown */
    const char *range; /* Content-Range */
    const char *etag, *modified;
} lks__curl_head;

/* Callbacks; true: continue. head() is called once, before the first data(). */
typedef struct lks__curl_sink {
    void *ctx;
    bool (*head)(void *ctx, const lks__curl_head *head);
    bool (*data)(void *ctx, const void *bytes, size_t n);
    bool (*wait)(void *ctx); /* several times per second */
} lks__curl_sink;

typedef enum lks__curl_end {
    LKS__CURL_COMPLETE,
    LKS__CURL_STOPPED, /* a callback returned false */
    LKS__CURL_CUT,     /* the connection failed: trying again may help */
    LKS__CURL_FAILED,
} lks__curl_end;

typedef struct lks__curl_module {
    int version;
    /* GET the bytes of `url` from `offset` on. Only http and https; redirects from https lead to
     * https only. On CUT and FAILED the reason is in `why`, which may contain any bytes. */
    lks__curl_end (*get)(const char *url, uint64_t offset, const lks__curl_sink *sink, char *why,
                         size_t why_bytes);
} lks__curl_module;
