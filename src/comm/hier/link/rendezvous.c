/* Leaders find each other through the job's store if the engine doesn't have a launcher. `lockstep
 * run` serves a store. Under torchrun, and any launcher that sets rank 0's address (MASTER_ADDR,
 * MASTER_PORT), rank 0 serves one until all are connected. */
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/hier/hier.h"
#include "comm/store/store.h"
#include "comm/world.h"

/* Keys include the attempt, because a restarted job must not meet its predecessor, and the number
 * of the group, because a program may open several. */
static lks_status key_of(const struct lks__hier *h, const char *key, char out[LKS__STORE_KEY_BYTES])
{
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    int n = snprintf(out, LKS__STORE_KEY_BYTES, LKS__STORE_GROUP_KEY,
                     attempt != NULL ? attempt : "0", h->group, key);
    return n < LKS__STORE_KEY_BYTES ? LKS_OK : LKS_ERR_ARG;
}

/* If rank 0 serves the store, the store ends with rank 0: let the message say so. */
static lks_status name_server(const struct lks__hier *h, lks_status st)
{
    if (st != LKS_ERR_PEER || h->part != NULL || lks__env_set(LKS__STORE_ENV))
        return st;
    return lks__fail_in(st,
                        "rank 0 failed before all hosts had joined (its message has the reason)");
}

static int explain(struct lks__hier *h, lks_status st)
{
    if (name_server(h, st) != LKS_OK)
        snprintf(h->join.store_why, sizeof h->join.store_why, "%s", lks_last_error());
    return st != LKS_OK;
}

static void set_meets(struct lks__hier *h, int meets)
{
    pthread_mutex_lock(&h->lock);
    h->meets = meets;
    h->met_s = lks__sys_now();
    pthread_mutex_unlock(&h->lock);
}

static int store_set(void *hier, const char *key, const void *data, size_t bytes)
{
    char full[LKS__STORE_KEY_BYTES];
    struct lks__hier *h = hier;
    set_meets(h, 0);
    lks_status st = key_of(h, key, full);
    LKS__THEN(st, lks__store_set(h->store, full, data, bytes));
    return explain(h, st);
}

/* --- failures of hosts that haven't met all others -------------------------------------------- */

/* Instead of LKS__TOLD_S, after the others have had the whole timeout to come. */
static const double TOLD_LATE_S = 1.0;

/* The group's failure if a host has stored one, else `st`. */
static lks_status failure_or(struct lks__hier *h, lks_status st)
{
    char key[LKS__STORE_KEY_BYTES], before[1024], text[1024];
    void *data;
    size_t bytes;
    snprintf(before, sizeof before, "%s", lks_last_error());
    if (key_of(h, "failed", key) != LKS_OK ||
        lks__store_get(h->store, key, 0, &data, &bytes) != LKS_OK)
        return lks__fail(st, "%s", before);
    snprintf(text, sizeof text, "%s", (const char *)data);
    free(data);
    return lks__hier_fail(h, LKS_ERR_PEER, -1, text); /* makes it safe to print */
}

/* A peer without the token can't end the job: only name it. */
static void say_refused(const struct lks__hier *h)
{
    const char *from;
    while (h->server != NULL && (from = lks__store_refused(h->server)) != NULL)
        fprintf(stderr,
                "lockstep: rank %d refused a process from %s: it has another LOCKSTEP_TOKEN, or if "
                "none is set, another MASTER_ADDR, MASTER_PORT or TORCHELASTIC_RUN_ID\n",
                h->join.rank, from);
}

static lks_status key_of_number(const struct lks__hier *h, char out[LKS__STORE_KEY_BYTES])
{
    char key[32];
    snprintf(key, sizeof key, "host/%d", h->join.host);
    return key_of(h, key, out);
}

/* Fail if another host has stored its first rank under this host's number. */
static lks_status check_number(const struct lks__hier *h)
{
    const int mine = h->join.rank;
    int theirs = mine;
    char key[LKS__STORE_KEY_BYTES];
    void *data = NULL;
    size_t bytes = 0;
    LKS__TRY(key_of_number(h, key));
    const lks_status st = lks__store_get(h->store, key, 0, &data, &bytes);
    if (st == LKS_OK && bytes == sizeof theirs)
        memcpy(&theirs, data, sizeof theirs);
    free(data);
    if (theirs != mine)
        return lks__fail(LKS_ERR_CONFIG,
                         "rank %d and rank %d are on hosts with the same number, %d: GROUP_RANK "
                         "must differ between hosts",
                         mine, theirs, h->join.host);
    return st == LKS_ERR_TIMEOUT ? LKS_OK : st;
}

/* Wait until time `end` for a value, for the failure of a host, or for a second host with our
 * number: of two that come at once, the first sees only itself. */
static lks_status await(struct lks__hier *h, const char *key, double end, void **data_p,
                        size_t *bytes_p)
{
    static const double LOOK_S = 0.1;
    lks_status st;
    do {
        lks_comm_beat(h->local); /* keeps the host's other ranks from reporting us */
        say_refused(h);
        st = lks__store_get(h->store, key, LOOK_S, data_p, bytes_p);
        if (st == LKS_ERR_TIMEOUT && h->part == NULL)
            LKS__TRY(check_number(h));
        if (st == LKS_ERR_TIMEOUT)
            st = failure_or(h, st);
    } while (st == LKS_ERR_TIMEOUT && lks__sys_now() < end);
    return st;
}

static int store_get(void *hier, const char *key, double timeout_s, void **data_p, size_t *bytes_p)
{
    char full[LKS__STORE_KEY_BYTES];
    struct lks__hier *h = hier;
    const char *number = strrchr(key, '/'); /* Gloo's key of a host's address ends in its number */
    set_meets(h, 0);
    lks_status st = key_of(h, key, full);
    LKS__THEN(st, await(h, full, h->met_s + timeout_s + LKS__HIER_LATER_S, data_p, bytes_p));
    if (st == LKS_OK && number != NULL)
        set_meets(h, atoi(number + 1) + 1);
    return explain(h, st);
}

static lks_status key_of_meets(const struct lks__hier *h, int host, char out[LKS__STORE_KEY_BYTES])
{
    char key[32];
    snprintf(key, sizeof key, "meets/%d", host);
    return key_of(h, key, out);
}

bool lks__hier_apart(struct lks__hier *h)
{
    const int mine = h->join.host + 1;
    char key[LKS__STORE_KEY_BYTES];
    void *data = NULL;
    size_t bytes = 0;
    if (h->meets == 0 || key_of_meets(h, h->join.host, key) != LKS_OK ||
        lks__store_set(h->store, key, &h->meets, sizeof h->meets) != LKS_OK ||
        key_of_meets(h, h->meets - 1, key) != LKS_OK ||
        lks__store_get(h->store, key, 0, &data, &bytes) != LKS_OK)
        return false;
    const bool apart = bytes == sizeof mine && memcmp(data, &mine, sizeof mine) == 0;
    free(data);
    return apart;
}

/* Store the failure, if there is one to store, and count this host among those that know. The host
 * that serves the store waits for all others. */
static void tell(struct lks__hier *h, const char *text, double wait_s)
{
    char key[LKS__STORE_KEY_BYTES];
    const double end = lks__sys_now() + wait_s;
    int64_t n_told = 0;
    if (text[0] != '\0' && key_of(h, "failed", key) == LKS_OK)
        (void)lks__store_set(h->store, key, text, strlen(text));
    for (int more = 1; key_of(h, "told", key) == LKS_OK &&
                       lks__store_add(h->store, key, more, &n_told) == LKS_OK &&
                       h->server != NULL && n_told < h->join.n_hosts && lks__sys_now() < end;
         more = 0) {
        lks_comm_beat(h->local);
        usleep(10000);
    }
}

lks_status lks__hier_tell(struct lks__hier *h, lks_status st)
{
    char why[1024], text[sizeof why + 128] = "";
    const double wait_s = st == LKS_ERR_TIMEOUT ? TOLD_LATE_S : LKS__TOLD_S;
    if (h->store == NULL || h->part != NULL || st == LKS_ERR_STOPPED)
        return st;
    if (st == LKS_ERR_PEER || st == LKS_ERR_TIMEOUT)
        st = failure_or(h, st);
    snprintf(why, sizeof why, "%s", lks_last_error());
    if (!lks__segment_aborted(lks__shm_segment(h->local)))
        snprintf(text, sizeof text, "rank %d (host %s) failed: %s", h->join.rank, h->name, why);
    tell(h, text, wait_s);
    return lks__fail(st, "%s", why);
}

/* srun has started each of the ranks; its variables are in the environment of other launchers, too.
 */
static bool find_slurm_node(lks__engine_join *j)
{
    int tasks;
    return lks__env_int("SLURM_STEP_NUM_TASKS", INT_MAX, &tasks) && tasks == j->world_size &&
           lks__env_int("SLURM_STEP_NUM_NODES", LKS__HIER_MAX_HOSTS, &j->n_hosts) &&
           lks__env_int("SLURM_NODEID", LKS__HIER_MAX_HOSTS, &j->host);
}

/* Use GROUP_RANK and GROUP_WORLD_SIZE, or srun's variables. Without them, assume hosts of equal
 * size in the order of ranks. */
static lks_status find_host(lks__engine_join *j)
{
    bool even = j->world_size % j->local_world_size == 0;
    if ((!lks__env_int("GROUP_RANK", LKS__HIER_MAX_HOSTS, &j->host) ||
         !lks__env_int("GROUP_WORLD_SIZE", LKS__HIER_MAX_HOSTS, &j->n_hosts)) &&
        !find_slurm_node(j)) {
        j->n_hosts = even ? j->world_size / j->local_world_size : 0;
        j->host = j->rank / j->local_world_size;
    }
    if (j->n_hosts >= 1 && j->host < j->n_hosts)
        return LKS_OK;
    const int n_hosts = j->n_hosts;
    j->n_hosts = j->world_size; /* each rank may wait to be told */
    return lks__fail(LKS_ERR_CONFIG,
                     "this host is number %d of %d: GROUP_RANK and GROUP_WORLD_SIZE must "
                     "be set if hosts have different numbers of ranks",
                     j->host, n_hosts);
}

bool lks__hier_can_meet(void)
{
    return lks__env_set(LKS__STORE_ENV) ||
           (lks__env_set("MASTER_ADDR") && lks__env_set("MASTER_PORT"));
}

/* If the job has no secret, the store uses none, as torchrun's own store does: then only the values
 * that all ranks have from their launcher keep jobs apart. */
static void find_token(char *token, size_t bytes)
{
    const char *given = getenv(LKS__TOKEN_ENV), *run = getenv("TORCHELASTIC_RUN_ID");
    if (given != NULL)
        snprintf(token, bytes, "%s", given);
    else
        snprintf(token, bytes, "%s:%s %s", getenv("MASTER_ADDR"), getenv("MASTER_PORT"),
                 run != NULL ? run : "");
}

/* torchrun's agent may already listen on MASTER_PORT: then use the next port. */
static lks_status find_port(int *port_p)
{
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (lks__env_int("MASTER_PORT", 65534, port_p) && *port_p > 0) {
        *port_p += agent != NULL && strcmp(agent, "True") == 0;
        return LKS_OK;
    }
    const char *text = getenv("MASTER_PORT");
    return lks__fail(LKS_ERR_CONFIG, "MASTER_PORT is \"%s\": expected a number from 1 to 65534",
                     lks__shown(text, 64));
}

/* On rank 0: serve the store at the master's address. */
static lks_status serve_at_master(struct lks__hier *h)
{
    char token[512];
    int port;
    LKS__TRY(find_port(&port));
    find_token(token, sizeof token);
    const lks_status st = lks__store_serve(getenv("MASTER_ADDR"), port, token, &h->server);
    if (st == LKS_ERR_SUPPORT)
        return lks__fail_in(LKS_ERR_CONFIG,
                            "rank 0 listens at MASTER_ADDR and MASTER_PORT, so only "
                            "one process may have RANK=0");
    return st;
}

/* Try for `timeout_s` to reach the store at which the hosts of this group meet. */
static lks_status try_store(struct lks__hier *h, double timeout_s)
{
    const struct lks__hier_part *part = h->part;
    const char *host = part != NULL ? part->store_address : getenv("MASTER_ADDR");
    int port = part != NULL ? part->store_port : 0;
    char token[512];
    if (part == NULL && lks__env_set(LKS__STORE_ENV))
        return lks__store_open_env(timeout_s, &h->store);
    if (part == NULL)
        LKS__TRY(find_port(&port));
    find_token(token, sizeof token);
    return lks__store_open(host, port, token, timeout_s, &h->store);
}

/* Connect in tries of 2 to 5 s. In between, a heartbeat keeps the host's other ranks from reporting
 * us: only we know the address that doesn't answer. A part's store is gone if its first rank has
 * ended. */
static lks_status open_store(struct lks__hier *h)
{
    const double limit = h->comm->timeout_s, end = lks__sys_now() + limit;
    lks_status st = LKS_ERR_TIMEOUT;
    for (double left; st == LKS_ERR_TIMEOUT && (left = end - lks__sys_now()) > 0;) {
        lks_comm_beat(h->local);
        LKS__TRY(lks__hier_whole_failed(h, false));
        st = try_store(h, fmin(left, fmin(lks__store_try_s(limit - left), limit / 2)));
    }
    return st == LKS_ERR_TIMEOUT ? lks__fail_in(st, "tried for %g s", limit) : st;
}

/* The size of the world and the number of its hosts, as a host knows them. */
struct world {
    int n_ranks, n_hosts;
};

static lks_status key_of_world(const struct lks__hier *h, int host, char out[LKS__STORE_KEY_BYTES])
{
    char key[32];
    snprintf(key, sizeof key, "world/%d", host);
    return key_of(h, key, out);
}

/* Wait until another host has stored its world. */
static lks_status world_of(struct lks__hier *h, int host, double end, struct world *world)
{
    char key[LKS__STORE_KEY_BYTES];
    void *data = NULL;
    size_t bytes = 0;
    LKS__TRY(key_of_world(h, host, key));
    lks_status st = await(h, key, end, &data, &bytes);
    if (st == LKS_ERR_TIMEOUT)
        return lks__fail(st, "host %d of %d has not joined within %g s", host, h->join.n_hosts,
                         h->comm->timeout_s);
    LKS__TRY(st);
    if (bytes == sizeof *world)
        memcpy(world, data, sizeof *world);
    else
        st = lks__fail(LKS_ERR_FORMAT, "the store has no world of host %d", host);
    free(data);
    return st;
}

static lks_status same_world(const struct lks__hier *h, const struct world *mine, int host,
                             const struct world *theirs)
{
    if (theirs->n_ranks == mine->n_ranks && theirs->n_hosts == mine->n_hosts)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "host %d has a world of %d ranks on %d hosts, and host %d one of %d ranks on "
                     "%d: WORLD_SIZE and GROUP_WORLD_SIZE must be the same everywhere",
                     h->join.host, mine->n_ranks, mine->n_hosts, host, theirs->n_ranks,
                     theirs->n_hosts);
}

/* Host 0 compares itself with all others, and they with host 0. They have read its world before it
 * can read theirs: if the worlds differ, it ends, and the store may end with it. */
static lks_status compare_worlds(struct lks__hier *h)
{
    const lks__engine_join *j = &h->join;
    const struct world mine = {j->world_size, j->n_hosts};
    const double end = lks__sys_now() + h->comm->timeout_s;
    struct world theirs = mine;
    char key[LKS__STORE_KEY_BYTES];
    if (h->part != NULL)
        return LKS_OK;
    if (j->host != 0)
        LKS__TRY(world_of(h, 0, end, &theirs));
    LKS__TRY(key_of_world(h, j->host, key));
    LKS__TRY(lks__store_set(h->store, key, &mine, sizeof mine));
    LKS__TRY(same_world(h, &mine, 0, &theirs));
    for (int host = 1; j->host == 0 && host < j->n_hosts; host++) {
        LKS__TRY(world_of(h, host, end, &theirs));
        LKS__TRY(same_world(h, &mine, host, &theirs));
    }
    return LKS_OK;
}

lks_status lks__hier_compare_worlds(struct lks__hier *h)
{
    return name_server(h, compare_worlds(h));
}

static lks_status claim_number(struct lks__hier *h)
{
    const int mine = h->join.rank;
    char key[LKS__STORE_KEY_BYTES];
    LKS__TRY(check_number(h));
    LKS__TRY(key_of_number(h, key));
    return lks__store_set(h->store, key, &mine, sizeof mine);
}

static lks_status reach_store(struct lks__hier *h)
{
    static atomic_uint n_groups; /* all hosts open the same groups in the same order */
    h->group = atomic_fetch_add(&n_groups, 1);
    if (h->join.rank == 0 && !lks__env_set(LKS__STORE_ENV))
        LKS__TRY(serve_at_master(h));
    return open_store(h);
}

lks_status lks__hier_tell_early(struct lks__hier *h, lks_status st)
{
    char why[1024], text[sizeof why + sizeof h->name + 16];
    const lks__segment *segment = lks__shm_segment(h->local);
    if (segment == NULL)
        return st;
    st = lks__comm_not_opened(h->local, st);
    if (!h->leads || !h->ops->needs_store || h->part != NULL || !lks__segment_aborted(segment) ||
        lks__segment_given_up(segment))
        return st;
    st = lks__shm_failure(h->local);
    snprintf(why, sizeof why, "%s", lks_last_error());
    h->comm->timeout_s = fmin(h->comm->timeout_s, LKS__TOLD_S);
    if (reach_store(h) == LKS_OK) {
        (void)find_host(&h->join);
        snprintf(text, sizeof text, "on host %s, %s", h->name, why);
        tell(h, text, LKS__TOLD_S);
        lks__store_close(h->store);
    }
    return lks__fail(st, "%s", why);
}

static lks_status meet_world(struct lks__hier *h)
{
    lks__engine_join *j = &h->join;
    LKS__TRY(reach_store(h));
    LKS__TRY(find_host(j)); /* after it, so that the other hosts learn of a failure */
    LKS__TRY(claim_number(h));
    const char *given =
        getenv("LOCKSTEP_LOCAL_ADDR"); /* the launcher's --local-addr; otherwise see below */
    if (given == NULL)
        return lks__store_local_address(h->store, j->address, sizeof j->address);
    snprintf(j->address, sizeof j->address, "%s", given);
    return LKS_OK;
}

/* --- parts of a group ------------------------------------------------------------------------ */

lks_status lks__hier_address(lks_comm *comm, char address[64])
{
    struct lks__hier *h = comm->state;
    memcpy(address, h->join.address, sizeof h->join.address);
    return lks_comm_broadcast(h->local, address, sizeof h->join.address, LKS_UINT8, 0);
}

lks_status lks__hier_part_serve(struct lks__hier_part *part)
{
    char token[512];
    find_token(token, sizeof token);
    memcpy(part->store_address, part->address, sizeof part->store_address);
    LKS__TRY(lks__store_serve(part->address, 0, token, &part->server));
    part->store_port = lks__store_port(part->server);
    return LKS_OK;
}

void lks__hier_part_free(struct lks__hier_part *part)
{
    if (part == NULL)
        return;
    lks__store_stop(part->server);
    free(part->numbers);
    free(part);
}

static lks_status meet_part(struct lks__hier *h)
{
    struct lks__hier_part *part = h->part;
    h->server = part->server;
    part->server = NULL;
    h->join.host = part->host;
    h->join.n_hosts = part->n_hosts;
    memcpy(h->join.address, part->address, sizeof h->join.address);
    return open_store(h);
}

lks_status lks__hier_rendezvous_open(struct lks__hier *h)
{
    h->join.store = h;
    h->join.store_set = store_set;
    h->join.store_get = store_get;
    return h->part != NULL ? meet_part(h) : meet_world(h);
}
