/* report/live/http_module.c - HTTP by libmicrohttpd: the module lockstep_http.so. */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/live/http_module.h"

enum {
    MOST_CONNECTIONS = 128,
    TIMEOUT_S = 10,          /* of a client that doesn't finish its request */
    REQUEST_BYTES = 8 << 10, /* memory of a connection: a longer request is refused */
    PIECE = 16 << 10,
};

struct server {
    struct MHD_Daemon *daemon;
    lks__http_app app;
    /* Connections whose readers have nothing to read. */
    struct MHD_Connection *idle[MOST_CONNECTIONS];
    int n_idle;
    int error; /* errno at the first message of libmicrohttpd; 0: none */
};

struct stream {
    struct server *server;
    struct MHD_Connection *connection;
    void *reader;
};

/* True if the reader has closed its connection with unread bytes: libmicrohttpd looks at an idle
 * connection only when there is more to send. Other closed ones fail at the next sign of life. */
static bool has_left(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd p = {.fd = info != NULL ? info->connect_fd : -1};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLERR | POLLHUP)) != 0;
}

static ssize_t read_stream(void *ctx, uint64_t at, char *out, size_t room)
{
    struct stream *s = ctx;
    size_t n = s->server->app.read(s->reader, out, room);
    if (n == LKS__HTTP_END)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n > 0)
        return (ssize_t)n;
    if (has_left(s->connection))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (s->server->n_idle < MOST_CONNECTIONS) {
        MHD_suspend_connection(s->connection);
        s->server->idle[s->server->n_idle++] = s->connection;
    }
    return 0;
}

static void close_stream(void *ctx)
{
    struct stream *s = ctx;
    s->server->app.close(s->reader);
    free(s);
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, struct MHD_Response *r,
                              const char *type)
{
    if (r == NULL)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'none'; script-src 'unsafe-inline'; style-src "
                            "'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
                            "form-action 'none'; frame-ancestors 'none'");
    enum MHD_Result result = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned code, const char *text)
{
    return answer(c, code,
                  MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
                                                  MHD_RESPMEM_PERSISTENT),
                  "text/plain; charset=utf-8");
}

static enum MHD_Result stream(struct server *server, struct MHD_Connection *c)
{
    struct stream *s = calloc(1, sizeof *s);
    void *reader = s != NULL ? server->app.open(server->app.ctx) : NULL;
    if (reader == NULL) {
        free(s);
        return refuse(c, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
    }
    *s = (struct stream){.server = server, .connection = c, .reader = reader};
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE, read_stream, s, close_stream);
    if (r == NULL)
        close_stream(s);
    return answer(c, MHD_HTTP_OK, r, "text/event-stream");
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_bytes, void **seen)
{
    struct server *server = ctx;
    const lks__http_app *app = &server->app;
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const bool head = strcmp(method, "HEAD") == 0;
    if (*seen == NULL) { /* only the headers have arrived */
        *seen = ctx;
        return MHD_YES;
    }
    if (*data_bytes > 0) { /* ignore a body */
        *data_bytes = 0;
        return MHD_YES;
    }
    if (!app->host_ok(app->ctx, host))
        return refuse(c, MHD_HTTP_FORBIDDEN, "this address is served under another name\n");
    if (strcmp(method, "GET") != 0 && !head)
        return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
    if (strcmp(url, "/") == 0)
        return answer(c, MHD_HTTP_OK,
                      MHD_create_response_from_buffer(app->page_bytes, (void *)(uintptr_t)app->page,
                                                      MHD_RESPMEM_PERSISTENT),
                      "text/html; charset=utf-8");
    if (strcmp(url, "/events") == 0 && !head)
        return stream(server, c);
    return refuse(c, MHD_HTTP_NOT_FOUND, "not here\n");
}

static void wake(void *p)
{
    struct server *server = p;
    for (int i = 0; i < server->n_idle; i++)
        MHD_resume_connection(server->idle[i]);
    server->n_idle = 0;
}

/* libmicrohttpd reports a port that it can't bind, and later clients that misbehave. Keep only the
 * first error, because version 1 changes errno before it returns. */
static void keep_error(void *ctx, const char *format, va_list ap)
{
    struct server *server = ctx;
    if (server->error == 0)
        server->error = errno;
}

static void *start(const char *address, int port, const lks__http_app *app, char *why,
                   size_t why_bytes)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    const bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
    struct server *server = calloc(1, sizeof *server);
    if (server == NULL || (!is_v4 && inet_pton(AF_INET6, address, &v6.sin6_addr) != 1)) {
        snprintf(why, why_bytes, "%s",
                 server == NULL ? "no memory" : "the address must be written in numbers");
        free(server);
        return NULL;
    }
    server->app = *app;
    errno = 0;
    server->daemon = MHD_start_daemon(
        MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (is_v4 ? 0 : MHD_USE_IPv6), (uint16_t)port,
        NULL, NULL, on_request, server, MHD_OPTION_EXTERNAL_LOGGER, keep_error, server,
        MHD_OPTION_SOCK_ADDR, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(REQUEST_BYTES + PIECE),
        MHD_OPTION_END);
    if (server->daemon == NULL) {
        const int error = server->error != 0 ? server->error : errno;
        snprintf(why, why_bytes, "%s%s", error != 0 ? strerror(error) : "libmicrohttpd can't",
                 error == EADDRINUSE || error == EACCES
                     ? "; give another --port, or 0 for a free one"
                     : "; give an --address of this host");
        free(server);
        return NULL;
    }
    return server;
}

static int port_of(void *p)
{
    struct server *server = p;
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info != NULL ? info->port : 0;
}

/* Without a thread of libmicrohttpd: such a thread crashes if the server is stopped while it
 * refuses a request that isn't HTTP (seen with 0.9.75; 1.0.1 has the same lines). */
static void serve(void *p, int wait_ms)
{
    struct server *server = p;
    MHD_run_wait(server->daemon, wait_ms);
}

static void stop(void *p)
{
    struct server *server = p;
    wake(server); /* no connection may be suspended when the daemon stops */
    MHD_stop_daemon(server->daemon);
    free(server);
}

LKS__MODULE_EXPORT const lks__http_module lks__module_table = {
    LKS__HTTP_MODULE_VERSION, start, port_of, serve, wake, stop};
