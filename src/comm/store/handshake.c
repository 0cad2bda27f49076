#include "comm/store/handshake.h"

#include <errno.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "comm/store/store.h"

lks_status lks__random(void *out, size_t bytes)
{
    if (getrandom(out, bytes, 0) != (ssize_t)bytes)
        return lks__fail(LKS_ERR_IO, "can't get random bytes from the system: %s", strerror(errno));
    return LKS_OK;
}

lks_status lks__token_new(char token[LKS__TOKEN_BYTES])
{
    unsigned char raw[(LKS__TOKEN_BYTES - 1) / 2];
    LKS__TRY(lks__random(raw, sizeof raw));
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(token + 2 * i, 3, "%02x", raw[i]);
    return LKS_OK;
}

/* HMAC-SHA256, RFC 2104. */
void lks__prove(const char *token, const char *role, const unsigned char *nonce_s,
                const unsigned char *nonce_c, unsigned char mac[LKS__MAC_BYTES])
{
    unsigned char key[SHA256_BLOCK_LENGTH] = {0}, pad[SHA256_BLOCK_LENGTH];
    SHA2_CTX ctx;
    size_t n = strlen(token);
    if (n > sizeof key) {
        SHA256Init(&ctx);
        SHA256Update(&ctx, (const uint8_t *)token, n);
        SHA256Final(key, &ctx);
    } else {
        memcpy(key, token, n);
    }
    for (size_t i = 0; i < sizeof key; i++)
        pad[i] = key[i] ^ 0x36;
    SHA256Init(&ctx);
    SHA256Update(&ctx, pad, sizeof pad);
    SHA256Update(&ctx, (const uint8_t *)role, strlen(role));
    SHA256Update(&ctx, nonce_s, LKS__NONCE_BYTES);
    SHA256Update(&ctx, nonce_c, LKS__NONCE_BYTES);
    SHA256Final(mac, &ctx);
    for (size_t i = 0; i < sizeof key; i++)
        pad[i] = key[i] ^ 0x5c;
    SHA256Init(&ctx);
    SHA256Update(&ctx, pad, sizeof pad);
    SHA256Update(&ctx, mac, LKS__MAC_BYTES);
    SHA256Final(mac, &ctx);
}

bool lks__same_mac(const unsigned char *a, const unsigned char *b)
{
    unsigned char differs = 0;
    for (int i = 0; i < LKS__MAC_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}
