/* launch/doctor/tcp.h - blocking TCP connections for measurements. A connection's waits end after
 * `limit_ms`, with errno EAGAIN. */
#pragma once

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>

#include "base/status.h"

/* Format the address as a number. False if other hosts can't use it: it is link-local, or neither
 * IPv4 nor IPv6. */
bool lks__tcp_address(const struct sockaddr *a, char text[INET6_ADDRSTRLEN]);
/* The same for an interface. False, too, if it is down or a loopback. */
bool lks__tcp_interface(const struct ifaddrs *i, char text[INET6_ADDRSTRLEN]);

/* Both return -1 after `wait_ms`, or on an error with errno. */
int lks__tcp_accept(int listener, int wait_ms, int limit_ms);
int lks__tcp_connect(const struct addrinfo *to, int wait_ms, int limit_ms);

/* Transfer all `bytes`. False with errno 0: the other side has closed the connection. */
bool lks__tcp_send(int fd, const void *data, size_t bytes);
bool lks__tcp_recv(int fd, void *data, size_t bytes);
