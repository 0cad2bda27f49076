#include "report/live/serve.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/system/module.h"
#include "base/system/sys.h"
#include "report/live/feed.h"
#include "report/live/http_module.h"

enum { MOST_READERS = 64, FIND_EVERY = 4 };

static const double PAUSE_S = 0.25; /* between readings of the runs */
static const double SIGN_S = 10.0;  /* without a message: send a sign of life */

struct site {
    lks__runs *runs;
    int n_reads;
    struct reader *readers[MOST_READERS]; /* the oldest first */
    int n_readers;
    const char *address;
};

struct reader {
    struct site *site;
    lks__feed *feed;
    char *text; /* the message that is being sent */
    size_t at, bytes;
    double sign_at;
    bool ended, told_end; /* it made room for a newer one; the page was told */
};

/* --- readers ---------------------------------------------------------------------------------- */

static void remove_reader(struct site *site, const struct reader *r)
{
    int n = 0;
    for (int i = 0; i < site->n_readers; i++)
        if (site->readers[i] != r)
            site->readers[n++] = site->readers[i];
    site->n_readers = n;
}

/* A reader too many ends the oldest one. Otherwise forgotten pages would exclude new ones. */
static void *open_reader(void *ctx)
{
    struct site *site = ctx;
    struct reader *r = calloc(1, sizeof *r);
    if (r != NULL && site->n_readers == MOST_READERS) {
        site->readers[0]->ended = true;
        remove_reader(site, site->readers[0]);
    }
    if (r != NULL) {
        r->site = site;
        r->feed = lks__feed_open(site->runs);
        r->sign_at = lks__sys_now() + SIGN_S;
        site->readers[site->n_readers++] = r;
    }
    return r;
}

static void close_reader(void *p)
{
    struct reader *r = p;
    struct site *site = r->site;
    remove_reader(site, r);
    lks__feed_close(r->feed);
    free(r->text);
    free(r);
}

/* The next message as a server-sent event. */
static void next_message(struct reader *r)
{
    char *message = r->feed != NULL && !r->ended ? lks__feed_next(r->feed) : NULL;
    free(r->text);
    r->text = NULL;
    r->at = r->bytes = 0;
    if (message != NULL) {
        int bytes = asprintf(&r->text, "data: %s\n\n", message);
        if (bytes < 0)
            r->text = NULL; /* undefined then */
        r->bytes = bytes > 0 ? (size_t)bytes : 0;
        free(message);
    } else if (r->ended && (r->text = strdup("event: end\ndata: 0\n\n")) != NULL) {
        r->bytes = strlen(r->text); /* so that the page doesn't connect again */
        r->told_end = true;
    } else if (lks__sys_now() > r->sign_at &&
               (r->text = strdup("event: sign\ndata: 0\n\n")) != NULL) {
        r->bytes = strlen(r->text);
    }
    if (r->bytes > 0)
        r->sign_at = lks__sys_now() + SIGN_S;
}

static size_t read_reader(void *p, char *out, size_t room)
{
    struct reader *r = p;
    if (r->at == r->bytes && r->told_end)
        return LKS__HTTP_END;
    if (r->at == r->bytes)
        next_message(r);
    size_t n = r->bytes - r->at < room ? r->bytes - r->at : room;
    memcpy(out, r->text != NULL ? r->text + r->at : "", n);
    r->at += n;
    return n;
}

/* Refuse other host names than this host's: a web site could let its own name resolve to this
 * address, and its pages could then read the runs. The port may be a tunnel's. */
static bool host_ok(void *ctx, const char *host)
{
    const struct site *site = ctx;
    char own[65] = "", bare[80];
    const char *const names[] = {"localhost", site->address, "127.0.0.1", "::1", own};
    const bool any = strcmp(site->address, "0.0.0.0") == 0 || strcmp(site->address, "::") == 0;
    const bool v6 = host != NULL && host[0] == '[';
    struct in6_addr number;
    if (host == NULL || strlen(host) >= sizeof bare)
        return false;
    const size_t n = strcspn(host + v6, v6 ? "]" : ":");
    const char *port = host + v6 + n + (v6 && host[v6 + n] == ']');
    if ((v6 && host[v6 + n] != ']') || (*port != '\0' && *port != ':') ||
        (*port == ':' && port[1 + strspn(port + 1, "0123456789")] != '\0'))
        return false;
    snprintf(bare, sizeof bare, "%.*s", (int)n, host + v6);
    gethostname(own, sizeof own - 1);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (n > 0 && strcasecmp(bare, names[i]) == 0 && v6 == (strchr(names[i], ':') != NULL))
            return true;
    /* A server on all addresses accepts any of them. */
    return any && inet_pton(v6 ? AF_INET6 : AF_INET, bare, &number) == 1;
}

/* --- the server ------------------------------------------------------------------------------- */

static lks_status http_module(const lks__http_module **module_p)
{
    char why[256], advice[LKS__MODULE_ADVICE];
    *module_p = lks__module_load(LKS__HTTP_MODULE_FILE, LKS__HTTP_MODULE_VERSION, why, sizeof why);
    if (*module_p == NULL)
        return lks__fail(LKS_ERR_SUPPORT,
                         "this build of lockstep can't serve the page (%s): --html=FILE writes it "
                         "to a file; or %s",
                         why,
                         lks__module_advice(LKS__HTTP_MODULE_FILE, "libmicrohttpd-dev", advice));
    return LKS_OK;
}

lks_status lks__serve_available(void)
{
    const lks__http_module *module;
    return http_module(&module);
}

static lks_status follow(struct site *site)
{
    lks_status st = LKS_OK;
    for (size_t i = 0; i < site->runs->n && st == LKS_OK; i++)
        st = lks__series_read(&site->runs->all[i]);
    if (++site->n_reads % FIND_EVERY == 0)
        site->runs->find(site->runs);
    return st;
}

lks_status lks__serve(lks__runs *runs, const char *address, int port,
                      void (*ready)(const char *url), bool (*asked)(void))
{
    struct site site = {.runs = runs, .address = address};
    const lks__http_app app = {.ctx = &site,
                               .page = lks__page,
                               .page_bytes = lks__page_bytes,
                               .host_ok = host_ok,
                               .open = open_reader,
                               .read = read_reader,
                               .close = close_reader};
    const lks__http_module *module = NULL;
    char why[256] = "", url[128];
    LKS__TRY(http_module(&module));
    void *server = module->start(address, port, &app, why, sizeof why);
    if (server == NULL)
        return lks__fail(LKS_ERR_IO, "can't serve on %s, port %d: %s", address, port, why);
    snprintf(url, sizeof url,
             strchr(address, ':') != NULL ? "http://[%.60s]:%d/" : "http://%.60s:%d/", address,
             module->port(server));
    ready(url);
    lks_status st = LKS_OK;
    double follow_at = lks__sys_now() + PAUSE_S;
    while (st == LKS_OK && !asked()) {
        const double wait_s = follow_at - lks__sys_now();
        module->serve(server, wait_s > 0 ? 1 + (int)(1e3 * wait_s) : 0);
        if (lks__sys_now() < follow_at)
            continue;
        st = follow(&site);
        module->wake(server);
        follow_at = lks__sys_now() + PAUSE_S;
    }
    module->stop(server);
    return st;
}
