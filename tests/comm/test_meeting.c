/* How the leaders of hosts meet through a store: what they take from the environment. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/hier/hier.h"
#include "comm/store/store.h"

static const char token[] = "0123456789abcdef0123456789abcdef";

static int forget_all(void **state)
{
    static const char *const names[] = {"GROUP_RANK",
                                        "GROUP_WORLD_SIZE",
                                        "SLURM_NODEID",
                                        "SLURM_STEP_NUM_NODES",
                                        "SLURM_STEP_NUM_TASKS",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "LOCKSTEP_LOCAL_ADDR",
                                        LKS__STORE_ENV,
                                        LKS__TOKEN_ENV};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    return 0;
}

static void set(const char *name, const char *value)
{
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* A leader that hasn't met the others. */
struct leader {
    lks_comm comm;
    struct lks__hier h;
};

static lks_status meet(struct leader *l, lks_world world)
{
    *l = (struct leader){.comm = {.world = world, .timeout_s = 10 * lks_test_patience()}};
    l->h.comm = &l->comm;
    l->h.join = (lks__engine_join){.rank = world.rank,
                                   .world_size = world.world_size,
                                   .local_rank = world.local_rank,
                                   .local_world_size = world.local_world_size};
    return lks__hier_rendezvous_open(&l->h);
}

static void part(struct leader *l)
{
    lks__store_close(l->h.store);
    lks__store_stop(l->h.server);
}

/* The host's number is the launcher's, or follows from the ranks if all hosts have as many. */
TEST(test_places)
{
    static const struct {
        const char *host, *n_hosts;
        lks_world world;
        int expected[2]; /* {0, 0}: refused */
        const char *address, *says;
    } cases[] = {
        {"1", "3", {2, 5, 0, 2}, {1, 3}, NULL, NULL},
        {"0", "1", {0, 5, 0, 5}, {0, 1}, "192.0.2.7", NULL},
        {NULL, NULL, {4, 6, 0, 2}, {2, 3}, NULL, NULL},
        {"1", NULL, {4, 6, 0, 2}, {2, 3}, NULL, NULL},
        {NULL, "7", {2, 6, 0, 2}, {1, 3}, "fe80::1", NULL},
        {"x", "7", {2, 6, 0, 2}, {1, 3}, NULL, NULL},
        {NULL, NULL, {2, 5, 0, 2}, {0, 0}, NULL, "this host is number 1 of 0"},
        {"3", "3", {4, 6, 0, 2}, {0, 0}, NULL, "this host is number 3 of 3"},
        {"0", "0", {4, 6, 0, 2}, {0, 0}, NULL, "this host is number 0 of 0"},
    };
    lks__store_server *server;
    assert_ok(lks__store_serve("127.0.0.1", 0, token, &server));
    setenv(LKS__STORE_ENV, lks_test_text("127.0.0.1:%d", lks__store_port(server)), 1);
    setenv(LKS__TOKEN_ENV, token, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct leader l;
        set("GROUP_RANK", cases[i].host);
        set("GROUP_WORLD_SIZE", cases[i].n_hosts);
        set("LOCKSTEP_LOCAL_ADDR", cases[i].address);
        const lks_status st = meet(&l, cases[i].world);
        part(&l); /* a refused leader has reached the store, to tell the others */
        if (cases[i].says != NULL) {
            assert_fails(LKS_ERR_CONFIG, st, cases[i].says);
            continue;
        }
        assert_ok(st);
        assert_int_equal(l.h.join.host, cases[i].expected[0]);
        assert_int_equal(l.h.join.n_hosts, cases[i].expected[1]);
        assert_string_equal(l.h.join.address,
                            cases[i].address != NULL ? cases[i].address : "127.0.0.1");
    }
    /* srun started all ranks, in turn over the nodes; then only some of them. */
    struct leader l;
    set("GROUP_RANK", NULL);
    set("GROUP_WORLD_SIZE", NULL);
    setenv("SLURM_NODEID", "1", 1);
    setenv("SLURM_STEP_NUM_NODES", "3", 1);
    setenv("SLURM_STEP_NUM_TASKS", "6", 1);
    assert_ok(meet(&l, (lks_world){1, 6, 0, 2}));
    assert_int_equal(l.h.join.host, 1);
    assert_int_equal(l.h.join.n_hosts, 3);
    part(&l);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    assert_ok(meet(&l, (lks_world){4, 6, 0, 2}));
    assert_int_equal(l.h.join.host, 2);
    part(&l);
    lks__store_stop(server);
    forget_all(NULL);
}

/* Rank 0 serves a store at the master's address, or beside the agent that listens there already. */
TEST(test_master)
{
    static const struct {
        const char *agent;
        int beside;
    } cases[] = {{NULL, 0}, {"True", 1}, {"False", 0}};
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("TORCHELASTIC_RUN_ID", "17", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct leader first, second, stranger;
        void *data = NULL;
        size_t bytes;
        const int port = lks_test_two_free_ports();
        setenv("MASTER_PORT", lks_test_text("%d", port), 1);
        set("TORCHELASTIC_USE_AGENT_STORE", cases[i].agent);
        assert_ok(meet(&first, (lks_world){0, 4, 0, 2}));
        assert_int_equal(lks__store_port(first.h.server), port + cases[i].beside);
        assert_ok(meet(&second, (lks_world){2, 4, 0, 2}));
        assert_null(second.h.server);
        assert_fails(LKS_ERR_CONFIG, meet(&stranger, (lks_world){0, 4, 0, 2}),
                     "only one process may have RANK=0: can't listen on 127.0.0.1:");
        second.h.group = first.h.group; /* as in a separate process */
        lks__engine_join *a = &first.h.join, *b = &second.h.join;
        assert_int_equal(a->store_set(a->store, "key", "value", 6), 0);
        assert_int_equal(b->store_get(b->store, "key", 10 * lks_test_patience(), &data, &bytes), 0);
        assert_string_equal(data, "value");
        free(data);
        /* Of another run, or of a job with a secret. */
        setenv("TORCHELASTIC_RUN_ID", "18", 1);
        assert_fails(LKS_ERR_CONFIG, meet(&stranger, (lks_world){2, 4, 0, 2}), "another token");
        setenv("TORCHELASTIC_RUN_ID", "17", 1);
        setenv(LKS__TOKEN_ENV, token, 1);
        assert_fails(LKS_ERR_CONFIG, meet(&stranger, (lks_world){2, 4, 0, 2}), "another token");
        unsetenv(LKS__TOKEN_ENV);
        part(&second);
        part(&first); /* its port is free again */
        lks__store_server *next;
        assert_ok(lks__store_serve("127.0.0.1", port + cases[i].beside, token, &next));
        lks__store_stop(next);
    }
    forget_all(NULL);
}

TEST(test_wrong_ports)
{
    static const char *const ports[] = {"0", "65535", "-1", "29500x", "\x1b"};
    struct leader l;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    for (size_t i = 0; i < sizeof ports / sizeof ports[0]; i++) {
        setenv("MASTER_PORT", ports[i], 1);
        assert_fails(LKS_ERR_CONFIG, meet(&l, (lks_world){2, 4, 0, 2}),
                     "expected a number from 1 to 65534");
        assert_null(strchr(lks_last_error(), '\x1b'));
    }
    forget_all(NULL);
}

TEST(test_can_meet)
{
    assert_false(lks__hier_can_meet());
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    assert_false(lks__hier_can_meet());
    setenv("MASTER_PORT", "29500", 1);
    assert_true(lks__hier_can_meet());
    unsetenv("MASTER_ADDR");
    assert_false(lks__hier_can_meet());
    setenv(LKS__STORE_ENV, "127.0.0.1:29500", 1);
    assert_true(lks__hier_can_meet());
    forget_all(NULL);
}

int main(void)
{
    return lks_test_run_all(forget_all, NULL);
}
