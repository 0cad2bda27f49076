/* data/fetch/curl_module.c - HTTP by libcurl: the module lockstep_curl.so. */
#include "data/fetch/curl_module.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_S = 30, STALL_S = 60, STALL_BYTES = 100, REDIRECTS = 8 };

typedef struct transfer {
    CURL *curl;
    const lks__curl_sink *sink;
    bool began, stopped;
} transfer;

/* The header's value in the last response. */
static const char *header(CURL *curl, const char *name)
{
    struct curl_header *found;
    return curl_easy_header(curl, name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK ? found->value
                                                                                  : "";
}

static bool begin(transfer *t)
{
    curl_off_t length = -1;
    lks__curl_head head = {.length = -1};
    if (t->began)
        return true;
    t->began = true;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &head.code);
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    head.length = length;
    head.range = header(t->curl, "Content-Range");
    head.etag = header(t->curl, "ETag");
    head.modified = header(t->curl, "Last-Modified");
    t->stopped = !t->sink->head(t->sink->ctx, &head);
    return !t->stopped;
}

static size_t on_data(char *bytes, size_t size, size_t n, void *ctx)
{
    transfer *t = ctx;
    if (!begin(t))
        return CURL_WRITEFUNC_ERROR;
    t->stopped = !t->sink->data(t->sink->ctx, bytes, size * n);
    return t->stopped ? CURL_WRITEFUNC_ERROR : size * n;
}

static int on_wait(void *ctx, curl_off_t all, curl_off_t done, curl_off_t up, curl_off_t sent)
{
    transfer *t = ctx;
    t->stopped = t->stopped || !t->sink->wait(t->sink->ctx);
    return t->stopped;
}

/* True if another attempt may succeed. */
static bool is_cut(CURLcode code)
{
    return code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING ||
           code == CURLE_OPERATION_TIMEDOUT || code == CURLE_SEND_ERROR || code == CURLE_HTTP2 ||
           code == CURLE_HTTP2_STREAM;
}

static lks__curl_end get(const char *url, uint64_t offset, const lks__curl_sink *sink, char *why,
                         size_t why_bytes)
{
    char reason[CURL_ERROR_SIZE] = "", range[32];
    CURL *curl = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_easy_init() : NULL;
    transfer t = {.curl = curl, .sink = sink};
    if (curl == NULL) {
        snprintf(why, why_bytes, "libcurl can't start");
        return LKS__CURL_FAILED;
    }
    const char *protocols = strncasecmp(url, "https:", 6) == 0 ? "https" : "http,https";
    snprintf(range, sizeof range, "%" PRIu64 "-", offset);
    CURLcode code = curl_easy_setopt(curl, CURLOPT_URL, url);
    if (code == CURLE_OK)
        code = curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, protocols);
    if (code == CURLE_OK)
        code = curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, (long)REDIRECTS);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "lockstep");
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_wait);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    if (offset > 0)
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    if (code == CURLE_OK)
        code = curl_easy_perform(curl);
    if (code == CURLE_OK)
        begin(&t); /* a response without a body */
    snprintf(why, why_bytes, "%s", reason[0] != '\0' ? reason : curl_easy_strerror(code));
    curl_easy_cleanup(curl);
    return t.stopped          ? LKS__CURL_STOPPED
           : code == CURLE_OK ? LKS__CURL_COMPLETE
           : is_cut(code)     ? LKS__CURL_CUT
                              : LKS__CURL_FAILED;
}

LKS__MODULE_EXPORT const lks__curl_module lks__module_table = {LKS__CURL_MODULE_VERSION, get};
