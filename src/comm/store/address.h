/* comm/store/address.h - TCP addresses: parsing, formatting, and the options of every
 * connection. */
#pragma once

#include <netdb.h>
#include <stdbool.h>

#include "base/status.h"

enum {
    LKS__ADDRESS_BYTES = 320,  /* size of "HOST:PORT", escaped */
    LKS__NUMBER_BYTES = 64,    /* size of an address as a number */
    LKS__INTERFACE_BYTES = 16, /* IFNAMSIZ */
};

/* Copy an address without the brackets around it, as in [::1]. */
void lks__address_bare(char *out, size_t bytes, const char *host);

/* Find the addresses of `host` (a name, or an IPv4 or IPv6 number, which may be in brackets); free
 * them with freeaddrinfo(). `passive`: for bind(). ERR_CONFIG names the host and the resolver's
 * reason. */
lks_status lks__address_find(const char *host, int port, bool passive, struct addrinfo **list_p);

/* Format as "host:port" or "[::1]:port", safe on a terminal. Returns `text`. */
char *lks__address_text(char text[LKS__ADDRESS_BYTES], const char *host, int port);

/* Parse HOST, HOST:PORT or [HOST]:PORT; without a port *port_p is left unchanged. ERR_CONFIG if the
 * text is wrong; `what` names it in the message. */
lks_status lks__address_parse(const char *what, const char *text, char *host, size_t host_bytes,
                              int *port_p);

/* Write an IPv4 or IPv6 address as a number. Returns false if that fails. */
bool lks__address_number(const struct sockaddr *a, char number[LKS__NUMBER_BYTES]);
/* True if other machines can't reach `host`, because its first address, in *number, is one that
 * every machine has for itself, such as 127.0.1.1. False if no address is found. */
bool lks__address_is_loopback(const char *host, char number[LKS__NUMBER_BYTES]);
/* An address of this machine in a network, to use in advice; "ADDRESS" if it has none. */
void lks__address_advice(char number[LKS__NUMBER_BYTES]);

/* True if this host's interface with that address (a number) has no link, for example because its
 * cable is cut. `name` is the interface's name. */
bool lks__address_is_cut(const char *address, char name[LKS__INTERFACE_BYTES]);

/* Listen at `host` on `port` (0: a free one), at its first address only; *port_p is the port, and
 * *fd_p the non-blocking socket. ERR_CONFIG and ERR_IO name the address and the cause; ERR_SUPPORT
 * if the address isn't this machine's, or if another program already listens on it. */
lks_status lks__address_listen(const char *host, int port, int *fd_p, int *port_p);

/* Make a socket non-blocking, without delay, and closed once the peer's machine has been silent for
 * `link_s` seconds. */
void lks__address_tune(int fd, int link_s);
