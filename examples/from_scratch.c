/* from_scratch.c - data parallelism by hand: each rank has a part of the data, and each step one
 * all-reduce. lks_ddp adds accumulation, overlap with backward, uneven data, and bits that don't
 * depend on the number of ranks.
 *
 *     lockstep run --standalone --nproc-per-node=2 ./from_scratch
 */
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 1024, IN = 8, STEPS = 100 };

static void check(lks_status st)
{
    if (st == LKS_OK)
        return;
    fprintf(stderr, "%s\n", lks_last_error());
    exit(1);
}

/* Sample s: an invented input, and the output that the model has to learn. */
static float target(int s, float x[IN])
{
    float y = 0;
    for (int i = 0; i < IN; i++) {
        x[i] = (float)((s * 37 + i * 101) % 64) / 32 - 1;
        y += x[i] * (float)(i + 1);
    }
    return y;
}

int main(void)
{
    lks_comm *comm;
    setvbuf(stdout, NULL, _IOLBF, 0); /* stdout is a pipe: show each line at once */
    check(lks_comm_init(&comm));
    int rank = lks_comm_rank(comm), W = lks_comm_world_size(comm);
    float w[IN] = {0};
    check(lks_comm_broadcast(comm, w, IN, LKS_FLOAT32, 0));

    for (int step = 0; step < STEPS; step++) {
        float sums[IN + 1] = {0}; /* the gradient, then the loss: one message */
        for (int s = rank; s < SAMPLES; s += W) {
            float x[IN], error = -target(s, x);
            for (int i = 0; i < IN; i++)
                error += w[i] * x[i];
            for (int i = 0; i < IN; i++)
                sums[i] += error * x[i];
            sums[IN] += error * error / 2;
        }
        check(lks_comm_all_reduce(comm, sums, IN + 1, LKS_FLOAT32, LKS_SUM));
        for (int i = 0; i < IN; i++)
            w[i] -= 1.0f * sums[i] / SAMPLES;
        if (rank == 0 && (step + 1) % 20 == 0)
            printf("step %d: loss %.6g\n", step + 1, (double)sums[IN] / SAMPLES);
    }
    lks_comm_close(comm);
    return 0;
}
