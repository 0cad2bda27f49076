#include "comm/ranks.h"
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/backend.h"

static int run_in_group(int (*body)(lks_comm *comm))
{
    lks_comm *comm = ranks_open(60);
    EXPECT(comm != NULL);
    const int code = body(comm);
    lks_comm_close(comm);
    return code;
}

static struct rank_body *ranks_added;

void ranks_add(struct rank_body *rank)
{
    rank->next = ranks_added;
    ranks_added = rank;
}

void ranks_main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], "--rank") != 0)
        return;
    for (const struct rank_body *r = ranks_added; r != NULL; r = r->next)
        if (strcmp(argv[2], r->name) == 0)
            exit(r->run != NULL ? r->run() : run_in_group(r->in_group));
    fprintf(stderr, "no rank body %s\n", argv[2]);
    exit(99);
}

void ranks_set(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

void ranks_inherit(const lks__segment *segment)
{
    char text[LKS__SEGMENT_ENV_BYTES];
    lks__segment_env(segment, text);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fcntl(lks__segment_fd(segment), F_SETFD, 0);
    setenv(LKS__SEGMENT_ENV, text, 1);
}

void ranks_start(struct ranks *r, int n, const char *body, const char *env)
{
    r->n = n;
    r->start_s = lks__sys_now();
    assert_int_equal(lks__segment_create(n, &r->segment), LKS_OK);
    for (int i = 0; i < n; i++) {
        r->status[i] = -1;
        r->pids[i] = fork();
        assert_true(r->pids[i] >= 0);
        if (r->pids[i] > 0)
            continue;
        ranks_inherit(r->segment);
        ranks_set("RANK", i);
        ranks_set("LOCAL_RANK", i);
        ranks_set("WORLD_SIZE", n);
        ranks_set("LOCAL_WORLD_SIZE", n);
        if (env != NULL)
            putenv((char *)env);
        char *argv[] = {"rank", "--rank", (char *)body, NULL};
        execv("/proc/self/exe", argv);
        _exit(98);
    }
}

void ranks_wait(struct ranks *r, double limit_s)
{
    int left = r->n;
    bool late = false;
    while (left > 0) {
        for (int i = 0; i < r->n; i++) {
            if (r->status[i] != -1 || waitpid(r->pids[i], &r->status[i], WNOHANG) != r->pids[i])
                continue;
            r->ended_s[i] = lks__sys_now() - r->start_s;
            left--;
        }
        if (left > 0 && !late && lks__sys_now() - r->start_s > limit_s * lks_test_patience()) {
            late = true;
            for (int i = 0; i < r->n; i++)
                if (r->status[i] == -1)
                    kill(r->pids[i], SIGKILL);
        }
        usleep(1000);
    }
    lks__segment_close(r->segment);
    r->segment = NULL;
    assert_false(late);
}

void ranks_run(int n, const char *body, const char *env, double limit_s)
{
    struct ranks r;
    ranks_start(&r, n, body, env);
    ranks_wait(&r, limit_s);
    for (int i = 0; i < n; i++)
        if (r.status[i] != 0)
            fail_msg("rank %d of %d in %s: wait status %#x", i, n, body, r.status[i]);
}

lks_comm *ranks_open(double timeout_s)
{
    lks_world world;
    const char *engine = getenv("ENGINE");
    lks_comm_options options = {engine != NULL ? engine : "auto", timeout_s};
    lks_comm *comm = NULL;
    if (lks_world_from_env(&world) != LKS_OK || lks_comm_open(&world, &options, &comm) != LKS_OK)
        fprintf(stderr, "rank %s can't open the group: %s\n", getenv("RANK"), lks_last_error());
    return comm;
}

struct thread {
    pthread_t id;
    lks_comm *comm;
    void (*body)(lks_comm *comm, void *rank);
    void *rank;
};

static void *thread_main(void *arg)
{
    const struct thread *t = arg;
    t->body(t->comm, t->rank);
    return NULL;
}

void ranks_as_threads(int n, double timeout_s, void (*body)(lks_comm *comm, void *rank),
                      void *ranks, size_t bytes)
{
    struct thread threads[RANKS_MAX_THREADS];
    lks_comm *comms[RANKS_MAX_THREADS];
    assert_true(n <= RANKS_MAX_THREADS);
    assert_ok(lks__comm_open_threads(n, timeout_s, comms));
    for (int i = 0; i < n; i++) {
        threads[i] = (struct thread){
            .comm = comms[i], .body = body, .rank = (char *)ranks + (size_t)i * bytes};
        assert_int_equal(pthread_create(&threads[i].id, NULL, thread_main, &threads[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i].id, NULL);
    for (int i = 0; i < n; i++)
        lks_comm_close(comms[i]);
}

struct beater {
    _Atomic(lks_comm *) comm;
    atomic_bool stop;
    atomic_uint rounds;
    bool aborts;
};

static void *beat_on(void *arg)
{
    struct beater *b = arg;
    for (; !b->stop; b->rounds++) {
        lks_comm_beat(b->comm);
        if (b->aborts)
            lks_comm_abort(b->comm, "too late");
    }
    return NULL;
}

static void wait_for_rounds(const struct beater *b, unsigned n)
{
    for (unsigned now = b->rounds; b->rounds - now < n;)
        sched_yield();
}

void ranks_close_in_beats(int n, bool aborts)
{
    const lks_world alone = {0, 1, 0, 1};
    const lks_comm_options options = {"shm", 10};
    struct beater b = {.aborts = aborts};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, beat_on, &b), 0);
    for (int i = 0; i < n; i++) {
        lks_comm *comm;
        assert_ok(lks_comm_open(&alone, &options, &comm));
        b.comm = comm;
        wait_for_rounds(&b, 1); /* it has begun */
        lks_comm_close(comm);
        if (aborts) {
            b.comm = NULL;
            wait_for_rounds(&b, 2); /* it uses this group no longer */
        }
    }
    b.stop = true;
    pthread_join(thread, NULL);
}
