/* mlp.c - data-parallel training of a small network, with liblockstep.
 *
 *     lockstep run --standalone --nproc-per-node=4 ./mlp
 *
 * Any number of ranks up to 8 prints the same lines, digit for digit. */
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 2048, IN = 20, HIDDEN = 32, V = 8, BATCH = 16, EPOCHS = 5 };

static float x[SAMPLES][IN], y[SAMPLES];                 /* the dataset */
static float w1[HIDDEN][IN], b1[HIDDEN], w2[HIDDEN], b2; /* the model */
static float gw1[HIDDEN][IN], gb1[HIDDEN], gw2[HIDDEN], gb2;
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

/* Forward and backward of one sample. Returns half its squared error. */
static double sample(size_t s)
{
    float h[HIDDEN], out = b2;
    for (int j = 0; j < HIDDEN; j++) {
        float a = b1[j];
        for (int i = 0; i < IN; i++)
            a += w1[j][i] * x[s][i];
        h[j] = tanhf(a);
        out += w2[j] * h[j];
    }
    float d = out - y[s];
    gb2 += d;
    for (int j = 0; j < HIDDEN; j++) {
        float da = d * w2[j] * (1 - h[j] * h[j]);
        gw2[j] += d * h[j];
        gb1[j] += da;
        for (int i = 0; i < IN; i++)
            gw1[j][i] += da * x[s][i];
    }
    return 0.5 * d * d;
}

static void update(const lks_param *params, size_t n, float rate)
{
    for (size_t p = 0; p < n; p++)
        for (size_t i = 0; i < params[p].count; i++)
            params[p].value[i] -= rate * params[p].grad[i];
}

int main(void)
{
    lks_comm *comm;
    lks_sampler *sampler;
    setvbuf(stdout, NULL, _IOLBF, 0); /* stdout is a pipe: show each line at once */
    check(lks_comm_init(&comm));
    const lks_param params[] = {{"w1", w1[0], gw1[0], HIDDEN * IN},
                                {"b1", b1, gb1, HIDDEN},
                                {"w2", w2, gw2, HIDDEN},
                                {"b2", &b2, &gb2, 1}};
    check(lks_ddp_open(comm, params, 4, &(lks_ddp_options){.virtual_ranks = V}, &ddp));
    check(
        lks_sampler_open(&(lks_sampler_options){.dataset_size = SAMPLES, .replicas = V}, &sampler));

    unsigned seed = 1;
    for (size_t s = 0; s < SAMPLES; s++)
        for (int i = 0; i < IN; i++)
            y[s] += (x[s][i] = uniform(&seed)) * (i % 3 == 0);
    for (int j = 0; j < HIDDEN; j++) {
        w2[j] = uniform(&seed) * 0.2f;
        for (int i = 0; i < IN; i++)
            w1[j][i] = uniform(&seed) * 0.2f;
    }
    check(lks_ddp_broadcast(ddp));

    for (unsigned epoch = 0; epoch < EPOCHS; epoch++) {
        lks_ddp_result r;
        double loss = 0;
        lks_sampler_set_epoch(sampler, epoch);
        for (unsigned at = 0; at < lks_sampler_count(sampler); at += BATCH) {
            for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
                check(lks_ddp_begin(ddp, v));
                for (unsigned i = at; i < at + BATCH; i++)
                    check(lks_ddp_add_loss(ddp, sample(lks_sampler_index(sampler, v, i))));
                check(lks_ddp_accumulate(ddp, BATCH));
            }
            check(lks_ddp_step(ddp, &r));
            if (!isfinite(r.norm)) { /* the same on every rank, so all end here */
                fprintf(stderr, "epoch %u: the gradient isn't finite\n", epoch);
                exit(1);
            }
            update(params, 4, 0.1f);
            loss += r.loss * BATCH * V / SAMPLES;
        }
        if (lks_comm_rank(comm) == 0)
            printf("epoch %u: loss %.9g\n", epoch, loss);
    }
    check(lks_ddp_verify(ddp));
    lks_sampler_close(sampler);
    lks_ddp_close(ddp);
    lks_comm_close(comm);
    return 0;
}
