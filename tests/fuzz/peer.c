#include <string.h>
#include <sys/random.h>

#include "fuzz.h"
#include "net/handshake.h"

enum { NONCE = 7 }; /* each byte of a client's */

/* In place of the C library's: for lks__random(), which nothing but nonces come from. */
ssize_t getrandom(void *out, size_t bytes, unsigned flags)
{
    memset(out, NONCE, bytes);
    return (ssize_t)bytes;
}

size_t fuzz_greeting(uint8_t *out)
{
    struct lks__hello hello = {.magic = LKS__NET_MAGIC};
    struct lks__verdict verdict = {0};
    unsigned char nonce[LKS__NONCE_BYTES];
    memset(nonce, NONCE, sizeof nonce);
    lks__prove(FUZZ_TOKEN, "server", hello.nonce, nonce, verdict.mac);
    memcpy(out, &hello, sizeof hello);
    memcpy(out + sizeof hello, &verdict, sizeof verdict);
    return sizeof hello + sizeof verdict;
}
