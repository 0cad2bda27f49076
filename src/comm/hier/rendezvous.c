/* How leaders find each other where the engine has no launcher of its own: by the job's store. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/hier/hier.h"
#include "net/store.h"

/* Keys of one attempt: a restarted job must not meet the one before. */
static lks_status key_of(const char *key, char out[LKS__STORE_KEY_BYTES])
{
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    int n = snprintf(out, LKS__STORE_KEY_BYTES, "engine/%.16s/%s", attempt != NULL ? attempt : "0",
                     key);
    return n < LKS__STORE_KEY_BYTES ? LKS_OK : LKS_ERR_ARG;
}

static int store_set(void *store, const char *key, const void *data, size_t bytes)
{
    char full[LKS__STORE_KEY_BYTES];
    return key_of(key, full) != LKS_OK || lks__store_set(store, full, data, bytes) != LKS_OK;
}

static int store_get(void *store, const char *key, double timeout_s, void **data_p, size_t *bytes_p)
{
    char full[LKS__STORE_KEY_BYTES];
    return key_of(key, full) != LKS_OK ||
           lks__store_get(store, full, timeout_s, data_p, bytes_p) != LKS_OK;
}

static bool read_int(const char *name, int *value_p)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL || text[0] == '\0')
        return false;
    errno = 0;
    long value = strtol(text, &end, 10);
    *value_p = (int)value;
    return errno == 0 && *end == '\0' && value >= 0 && value <= LKS__HIER_MAX_HOSTS;
}

/* GROUP_RANK and GROUP_WORLD_SIZE, or, without them, hosts of equal size in the order of ranks. */
static lks_status find_place(lks__engine_join *j)
{
    bool even = j->world_size % j->local_world_size == 0;
    if (!read_int("GROUP_RANK", &j->host) || !read_int("GROUP_WORLD_SIZE", &j->n_hosts)) {
        j->n_hosts = even ? j->world_size / j->local_world_size : 0;
        j->host = j->rank / j->local_world_size;
    }
    if (j->n_hosts < 1 || j->host >= j->n_hosts)
        return lks__fail(LKS_ERR_CONFIG,
                         "this host is number %d of %d: GROUP_RANK and GROUP_WORLD_SIZE say which "
                         "host it is, where hosts have different numbers of ranks",
                         j->host, j->n_hosts);
    return LKS_OK;
}

lks_status lks__hier_rendezvous_open(struct lks__hier *h)
{
    lks__engine_join *j = &h->join;
    lks__store *store;
    LKS__TRY(find_place(j));
    LKS__TRY(lks__store_open_env(h->comm->timeout_s, &store));
    j->store = store;
    j->store_set = store_set;
    j->store_get = store_get;
    const char *given =
        getenv("LOCKSTEP_LOCAL_ADDR"); /* the launcher's --local-addr, or as below */
    if (given == NULL)
        return lks__store_local_address(store, j->address, sizeof j->address);
    snprintf(j->address, sizeof j->address, "%s", given);
    return LKS_OK;
}

void lks__hier_rendezvous_close(struct lks__hier *h)
{
    lks__store_close(h->join.store);
    h->join.store = NULL;
}
