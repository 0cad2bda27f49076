/* net/address.h - TCP addresses: from text, to text, and the options of every connection. */
#ifndef LKS_NET_ADDRESS_H
#define LKS_NET_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>

#include "base/status.h"

enum { LKS__ADDRESS_BYTES = 320 }; /* of "HOST:PORT", escaped */

/* Addresses of `host` (a name, or a number of IPv4 or IPv6), to be freed by freeaddrinfo().
 * `passive`: to bind. ERR_CONFIG names the host and the resolver's reason. */
lks_status lks__address_find(const char *host, int port, bool passive, struct addrinfo **list_p);

/* "host:port", "[::1]:port"; fit for a terminal. Returns `text`. */
char *lks__address_text(char text[LKS__ADDRESS_BYTES], const char *host, int port);

/* HOST, HOST:PORT or [HOST]:PORT; without a port *port_p stays. ERR_CONFIG says what is wrong;
 * `what` names the text in it. */
lks_status lks__address_parse(const char *what, const char *text, char *host, size_t host_bytes,
                              int *port_p);

/* Non-blocking, without delay, and given up when the peer's machine is silent for
 * LKS__STORE_DEAD_S. */
void lks__address_tune(int fd);

#endif
