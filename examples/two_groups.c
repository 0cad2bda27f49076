/* two_groups.c - two groups by lks_comm_split(): ranks with even numbers train with one learning
 * rate while those with odd numbers train with another one. Then all ranks compare the losses. A
 * single rank trains both, one after the other. 1, 2, 3, 4 and 8 ranks print the same.
 *
 *     lockstep run --standalone --nproc-per-node=4 ./two_groups
 */
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { GROUPS = 2, SAMPLES = 512, N = 32, V = 8, STEPS = 50 };

static const float learning_rates[GROUPS] = {0.05f, 0.5f};

static void check(lks_status st)
{
    if (st == LKS_OK)
        return;
    fprintf(stderr, "%s\n", lks_last_error());
    exit(1);
}

/* Add the gradient of virtual rank v's samples to g. Returns the sum of their losses. */
static double gradient(int v, const float w[N], float g[N])
{
    double loss = 0;
    for (int s = v; s < SAMPLES; s += V) {
        float x[N], error = 0;
        for (int i = 0; i < N; i++) {
            x[i] = (float)((s * 37 + i * 101) % 64) / 32 - 1;
            error += (w[i] - (float)(i % 8)) * x[i];
        }
        for (int i = 0; i < N; i++)
            g[i] += error * x[i];
        loss += 0.5 * (double)error * (double)error;
    }
    return loss;
}

/* Train a model with the ranks of `group`; returns its last loss. */
static double train(lks_comm *group, float learning_rate)
{
    float w[N] = {0}, g[N];
    const lks_param param = {"w", w, g, N};
    const lks_ddp_options options = {.virtual_ranks = V};
    lks_ddp_result result = {0};
    lks_ddp *ddp;
    check(lks_ddp_open(group, &param, 1, &options, &ddp));
    for (int step = 0; step < STEPS; step++) {
        for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
            check(lks_ddp_begin(ddp, v));
            check(lks_ddp_add_loss(ddp, gradient(v, w, g)));
            check(lks_ddp_accumulate(ddp, SAMPLES / V));
        }
        check(lks_ddp_step(ddp, &result));
        for (int i = 0; i < N; i++)
            w[i] -= learning_rate * g[i];
    }
    lks_ddp_close(ddp);
    return result.loss;
}

int main(void)
{
    lks_comm *comm, *group;
    double losses[GROUPS];
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(lks_comm_init(&comm));
    const int rank = lks_comm_rank(comm), W = lks_comm_world_size(comm);
    check(lks_comm_split(comm, rank % GROUPS, rank, &group));
    for (int i = 0; i < GROUPS; i++)
        losses[i] = W == 1 || rank % GROUPS == i ? train(group, learning_rates[i]) : INFINITY;
    lks_comm_close(group);
    check(lks_comm_all_reduce(comm, losses, GROUPS, LKS_FLOAT64, LKS_MIN)); /* among all ranks */
    for (int i = 0; i < GROUPS && rank == 0; i++)
        printf("learning rate %g: loss %.9g\n", (double)learning_rates[i], losses[i]);
    lks_comm_close(comm);
    return 0;
}
