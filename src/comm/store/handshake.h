/* comm/store/handshake.h - how two ends of a connection prove to each other that they know the
 * job's token, and the frames that follow. Numbers are little-endian.
 *
 *     server: struct lks__hello            magic, nonce_s
 *     client: struct lks__proof            magic, nonce_c, HMAC("client", nonce_s, nonce_c)
 *     server: struct lks__verdict          refused, HMAC("server", nonce_s, nonce_c) if not
 *     client: struct lks__request, key, value       any number of times, one after the other
 *     server: struct lks__reply, value
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__NET_MAGIC "LKSTORE1" /* another version of the protocol has another number */

enum { LKS__NONCE_BYTES = 16, LKS__MAC_BYTES = 32 };

struct lks__hello {
    char magic[8];
    unsigned char nonce[LKS__NONCE_BYTES];
};

struct lks__proof {
    char magic[8];
    unsigned char nonce[LKS__NONCE_BYTES];
    unsigned char mac[LKS__MAC_BYTES];
};

struct lks__verdict {
    uint32_t refused; /* 0 or 1 */
    unsigned char mac[LKS__MAC_BYTES];
};

enum lks__store_op {
    LKS__OP_SET = 1,
    LKS__OP_GET,  /* value: uint32 milliseconds to wait; all ones: without limit */
    LKS__OP_ADD,  /* value: int64 */
    LKS__OP_POST, /* key: the list */
    LKS__OP_WILL, /* key: the list */
};

struct lks__request {
    uint32_t op;
    uint32_t key_bytes, value_bytes;
};

enum lks__answer { LKS__ANSWER_OK, LKS__ANSWER_TIMEOUT, LKS__ANSWER_FULL, LKS__ANSWER_BAD };

struct lks__reply {
    uint32_t answer; /* enum lks__answer */
    uint32_t value_bytes;
};

/* Fill `bytes` bytes with the system's random bytes. ERR_IO. */
lks_status lks__random(void *out, size_t bytes);

void lks__prove(const char *token, const char *role, const unsigned char *nonce_s,
                const unsigned char *nonce_c, unsigned char mac[LKS__MAC_BYTES]);
bool lks__same_mac(const unsigned char *a, const unsigned char *b); /* in constant time */
