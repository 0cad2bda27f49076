/* overlap.c - gradients are sent while backward continues: lks_ddp_mark_ready() after each layer. A
 * deep chain of layers has small buckets, so that most of them are on their way before the first
 * layer is reached. 1, 2, 3, 4 and 8 ranks print the same.
 *
 *     lockstep run --standalone --nproc-per-node=4 ./overlap
 *
 * With LOCKSTEP_CHECK=1 in the environment it would find a mark that is too early.
 */
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 6, N = 64, SAMPLES = 256, V = 8, A = 2, STEPS = 25 };

static float w[LAYERS][N][N], g[LAYERS][N][N]; /* parameters and gradients */
static float h[LAYERS + 1][N];                 /* a sample's activations */
static lks_ddp *ddp;

static void check(lks_status st)
{
    if (st == LKS_OK)
        return;
    fprintf(stderr, "%s\n", lks_last_error());
    exit(1);
}

static float uniform(unsigned *state) /* in [-1, 1) */
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

static double forward(int sample)
{
    double loss = 0;
    for (int i = 0; i < N; i++)
        h[0][i] = (float)((sample * 37 + i * 101) % 64) / 32 - 1;
    for (int l = 0; l < LAYERS; l++)
        for (int j = 0; j < N; j++) {
            float a = h[l][j]; /* a residual */
            for (int i = 0; i < N; i++)
                a += w[l][j][i] * h[l][i];
            h[l + 1][j] = tanhf(a);
        }
    for (int i = 0; i < N; i++)
        loss += 0.5 * pow((double)(h[LAYERS][i] - h[0][N - 1 - i]), 2);
    return loss;
}

/* `last`: the micro-batch has no more samples, so this layer's gradient is complete. */
static void backward(int last)
{
    float d[N], below[N];
    for (int i = 0; i < N; i++)
        d[i] = h[LAYERS][i] - h[0][N - 1 - i];
    for (int l = LAYERS - 1; l >= 0; l--) {
        for (int j = 0; j < N; j++)
            d[j] *= 1 - h[l + 1][j] * h[l + 1][j];
        for (int i = 0; i < N; i++)
            below[i] = d[i];
        for (int j = 0; j < N; j++)
            for (int i = 0; i < N; i++) {
                g[l][j][i] += d[j] * h[l][i];
                below[i] += w[l][j][i] * d[j];
            }
        for (int i = 0; i < N; i++)
            d[i] = below[i];
        if (last) /* starts to send it in the last micro-step; does nothing in the others */
            check(lks_ddp_mark_ready(ddp, (size_t)l));
    }
}

/* Micro-step m of virtual rank v. */
static void micro_step(int v, int m)
{
    const int n = SAMPLES / (V * A), first = (v * A + m) * n;
    for (int s = first; s < first + n; s++) {
        check(lks_ddp_add_loss(ddp, forward(s)));
        backward(s + 1 == first + n);
    }
    check(lks_ddp_accumulate(ddp, n));
}

int main(void)
{
    static const char *const names[LAYERS] = {"w0", "w1", "w2", "w3", "w4", "w5"};
    const lks_ddp_options options = {.virtual_ranks = V, .micro_steps = A, .bucket_mb = 0.03};
    lks_param params[LAYERS];
    lks_comm *comm;
    unsigned seed = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(lks_comm_init(&comm));
    for (int l = 0; l < LAYERS; l++) { /* in forward's order: buckets are filled from the end */
        params[l] = (lks_param){names[l], w[l][0], g[l][0], (size_t)N * N};
        for (int i = 0; i < N * N; i++)
            w[l][i / N][i % N] = uniform(&seed) * 0.05f;
    }
    check(lks_ddp_open(comm, params, LAYERS, &options, &ddp));
    for (int step = 1; step <= STEPS; step++) {
        lks_ddp_result result;
        for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
            check(lks_ddp_begin(ddp, v));
            for (int m = 0; m < A; m++)
                micro_step(v, m);
        }
        check(lks_ddp_step(ddp, &result));
        for (int l = 0; l < LAYERS; l++)
            for (int i = 0; i < N * N; i++)
                w[l][i / N][i % N] -= 0.05f * g[l][i / N][i % N];
        if (lks_comm_rank(comm) == 0 && step % 5 == 0)
            printf("step %d: loss %.9g, norm %.9g\n", step, result.loss, result.norm);
    }
    lks_ddp_close(ddp);
    lks_comm_close(comm);
    return 0;
}
