#include <string.h>
#include <sys/random.h>

#include "comm/store/handshake.h"
#include "fuzz.h"

enum { NONCE = 7 }; /* every byte of a client's nonce */

/* Replaces the C library's function, which lks__random() uses only for nonces. */
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
