/* multinode.c - a whole program: lks_ddp, an optimizer of the library, a sampler and checkpoints,
 * on several hosts and with restarts. Run the same commands on each of two hosts, with the first
 * host's address and one secret for both (openssl rand -hex 16 makes one):
 *
 *     export LOCKSTEP_TOKEN=...
 *     lockstep run --nnodes=2 --nproc-per-node=2 --rdzv-endpoint=HOST:29400 --max-restarts=3 \
 *         ./multinode out
 *
 * On one host:
 *
 *     lockstep run --standalone --nproc-per-node=2 --max-restarts=3 ./multinode out
 *
 * If it is killed, or started again with another number of ranks, it continues after the last whole
 * epoch. It ends with the same bytes in out/ckpt-00000010 as an undisturbed run. The folder is on
 * rank 0's host. A second argument sets the number of epochs. */
#define _POSIX_C_SOURCE 200809L /* gethostname() */
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 4096, IN = 16, V = 8, BATCH = 32, KEEP = 3 };

static lks_comm *comm;
static float w[IN], grad[IN];

/* The launcher learns the cause from lks_comm_abort(), and doesn't restart over a full disk. */
static void check(lks_status st)
{
    if (st == LKS_OK)
        return;
    fprintf(stderr, "%s\n", lks_last_error());
    lks_comm_abort(comm, lks_last_error());
    exit(1);
}

/* Forward and backward of one sample. */
static double sample(unsigned s)
{
    float x[IN], error = 0;
    for (int i = 0; i < IN; i++) {
        x[i] = (float)((s * 29 + (unsigned)i * 83) % 128) / 64 - 1;
        error += (w[i] - (float)(i % 4)) * x[i];
    }
    for (int i = 0; i < IN; i++)
        grad[i] += error * x[i];
    return 0.5 * error * error;
}

/* Everything the next epoch depends on, besides its number, which sets the order of samples. Call
 * it before each load and save: it gathers the optimizer's parts from all ranks. */
static size_t list_state(lks_optimizer *optimizer, lks_tensor state[3])
{
    const lks_tensor *own; /* optimizer.steps and w.momentum */
    size_t n;
    check(lks_optimizer_state(optimizer, &own, &n));
    state[0] = (lks_tensor){"w", LKS_FLOAT32, 1, {IN}, w};
    memcpy(state + 1, own, n * sizeof *own);
    return 1 + n;
}

static double epoch(lks_ddp *ddp, lks_optimizer *optimizer, lks_sampler *sampler, uint64_t number)
{
    const lks_rates rates = {.learning_rate = 0.25, .beta1 = 0.5}; /* beta1: SGD's momentum */
    lks_ddp_result r = {0};
    lks_sampler_set_epoch(sampler, number);
    for (unsigned at = 0; at < lks_sampler_count(sampler); at += BATCH) {
        lks_comm_note(comm, number, "training"); /* shown if this rank fails */
        for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
            check(lks_ddp_begin(ddp, v));
            for (unsigned i = at; i < at + BATCH; i++)
                check(lks_ddp_add_loss(ddp, sample((unsigned)lks_sampler_index(sampler, v, i))));
            check(lks_ddp_accumulate(ddp, BATCH));
        }
        check(lks_ddp_step(ddp, &r));
        check(lks_optimizer_step(optimizer, &rates));
    }
    return r.loss;
}

int main(int argc, char **argv)
{
    lks_ddp *ddp;
    lks_optimizer *optimizer;
    lks_sampler *sampler;
    lks_tensor state[3];
    size_t n;
    uint64_t epochs = 0, last = argc > 2 ? strtoull(argv[2], NULL, 10) : 10;
    bool found;
    const char *dir = argc > 1 ? argv[1] : "out";
    const lks_param params[] = {{"w", w, grad, IN}};
    const lks_optimizer_param updated[] = {{"w", w, grad, LKS_PARAM_VECTOR, IN, 1}};
    setvbuf(stdout, NULL, _IOLBF, 0); /* stdout is a pipe: show each line at once */
    check(lks_comm_init(&comm));
    check(lks_ddp_open(comm, params, 1, &(lks_ddp_options){.virtual_ranks = V}, &ddp));
    check(lks_ddp_broadcast(ddp)); /* rank 0's initial values; here all ranks have zeros */
    check(lks_optimizer_open(comm, LKS_SGD, updated, 1, &optimizer));
    check(
        lks_sampler_open(&(lks_sampler_options){.dataset_size = SAMPLES, .replicas = V}, &sampler));
    n = list_state(optimizer, state);
    check(lks_checkpoint_load(comm, dir, state, n, &epochs, &found));

    char host[256] = "";
    gethostname(host, sizeof host - 1);
    fprintf(stderr, "rank %d of %d on %s: %s epoch %llu\n", lks_comm_rank(comm),
            lks_comm_world_size(comm), host, found ? "continues from" : "starts at",
            (unsigned long long)epochs);

    while (epochs < last) {
        double loss = epoch(ddp, optimizer, sampler, epochs++);
        n = list_state(optimizer, state);
        check(lks_checkpoint_save(comm, dir, epochs, state, n, KEEP));
        if (lks_comm_rank(comm) == 0)
            printf("epoch %llu: loss %.9g\n", (unsigned long long)epochs, loss);
    }
    lks_sampler_close(sampler);
    lks_optimizer_close(optimizer);
    lks_ddp_close(ddp);
    lks_comm_close(comm);
    return 0;
}
