/* A list of hosts, as a file and as an argument. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "launch/nodes/hosts.h"

const char *const fuzz_words[] = {
    ":", ",", "#", "[", "]", " slots=", "\n", "-", "1024", "1025", "-1", NULL};

void fuzz_seeds(void)
{
    fuzz_seed_text("# hosts\none\ntwo:2\nthree slots=3 # and no more\n\nfour.example.org\n");
    fuzz_seed_text("a:2,b,10.0.0.1:3,[fe80::1]:2,me@[::1]");
}

static void check(const struct lks__host *hosts, int n)
{
    FUZZ_HOLDS(n >= 1 && n <= LKS__MAX_HOSTS);
    for (int i = 0; i < n; i++) {
        FUZZ_HOLDS(hosts[i].slots >= 1 && hosts[i].slots <= 1024);
        FUZZ_HOLDS(hosts[i].name[0] != '\0' && hosts[i].name[0] != '-');
        for (const char *c = hosts[i].name; *c != '\0'; c++)
            FUZZ_HOLDS(*c > ' ' && *c < 0x7f && *c != ',');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct lks__host hosts[LKS__MAX_HOSTS];
    int n;
    if (lks__hosts_read(fuzz_file("hosts", data, bytes), 4, hosts, &n) == LKS_OK)
        check(hosts, n);
    char *text = strndup((const char *)data, bytes);
    FUZZ_HOLDS(text != NULL);
    if (lks__hosts_parse(text, 4, hosts, &n) == LKS_OK)
        check(hosts, n);
    free(text);
    return 0;
}
