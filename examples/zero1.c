/* zero1.c - ZeRO-1 by hand: each rank updates its part of the parameters, and stores the
 * optimizer's momentum only for this part. A reduce-scatter gives each rank its part of the
 * gradient, and an all-gather brings the new parameters together. 1, 2, 4 and 8 ranks print the
 * same.
 *
 *     lockstep run --standalone --nproc-per-node=4 ./zero1
 */
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>

/* The samples are dealt to V virtual ranks, whose sums are added in pairs. */
enum { SAMPLES = 1024, N = 64, V = 8, STEPS = 100 };

static void check(lks_status st)
{
    if (st == LKS_OK)
        return;
    fprintf(stderr, "%s\n", lks_last_error());
    exit(1);
}

/* Add the gradient of virtual rank v to g. Returns its loss. */
static float gradient(int v, const float w[N], float g[N])
{
    float loss = 0;
    for (int s = v; s < SAMPLES; s += V) {
        float x[N], error = 0;
        for (int i = 0; i < N; i++) {
            x[i] = (float)((s * 37 + i * 101) % 64) / 32 - 1;
            error += (w[i] - (float)(i % 8)) * x[i];
        }
        for (int i = 0; i < N; i++)
            g[i] += error * x[i] / SAMPLES;
        loss += error * error / 2 / SAMPLES;
    }
    return loss;
}

int main(void)
{
    lks_comm *comm;
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(lks_comm_init(&comm));
    const int rank = lks_comm_rank(comm), W = lks_comm_world_size(comm);
    if (V % W != 0) {
        fprintf(stderr, "zero1: %d ranks: use 1, 2, 4 or 8\n", W);
        return 1;
    }
    const int mine = V / W, part = N / W; /* virtual ranks and parameters of this rank */
    float w[N] = {0}, momentum[N] = {0};  /* momentum: [part] */
    for (int step = 1; step <= STEPS; step++) {
        float g[V][N] = {{0}}, loss[V] = {0}, own[N];
        for (int k = 0; k < mine; k++)
            loss[k] = gradient(rank * mine + k, w, g[k]);
        for (int gap = 1; gap < mine; gap *= 2) /* in pairs, as the ranks' sums are */
            for (int k = 0; k < mine; k += 2 * gap) {
                for (int i = 0; i < N; i++)
                    g[k][i] += g[k + gap][i];
                loss[k] += loss[k + gap];
            }
        check(lks_comm_reduce_scatter(comm, g[0], own, (size_t)part, LKS_FLOAT32, LKS_SUM));
        check(lks_comm_all_reduce(comm, loss, 1, LKS_FLOAT32, LKS_SUM));
        float *my_w = w + rank * part;
        for (int i = 0; i < part; i++) {
            momentum[i] = 0.9f * momentum[i] + own[i];
            my_w[i] -= 0.01f * momentum[i];
        }
        check(lks_comm_all_gather(comm, my_w, w, (size_t)part, LKS_FLOAT32));
        if (rank == 0 && step % 20 == 0)
            printf("step %d: loss %.9g\n", step, (double)loss[0]);
    }
    lks_comm_close(comm);
    return 0;
}
