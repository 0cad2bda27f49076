/* multinode.c - several hosts, restarts and snapshots: what a training program of one's own needs
 * around lks_ddp. The same command on each of two hosts, the first one's address in both:
 *
 *     lockstep run --nnodes=2 --nproc-per-node=2 --rdzv-endpoint=HOST:29400 --max-restarts=3 \
 *         ./multinode snapshot.bin
 *
 * On one host:
 *
 *     lockstep run --standalone --nproc-per-node=2 --max-restarts=3 ./multinode snapshot.bin
 *
 * Killed at any moment, it goes on from the last whole epoch. The file lies where rank 0 runs. */
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SAMPLES = 4096, IN = 16, V = 8, BATCH = 32, EPOCHS = 10 };

static struct snapshot {
    unsigned epochs; /* done */
    float w[IN];
} now;
static float grad[IN];

static void check(lks_status st)
{
    if (st == LKS_OK)
        return;
    fprintf(stderr, "%s\n", lks_last_error());
    exit(1);
}

/* Written beside, then renamed: the file is whole at any moment. */
static void save(const char *path)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *f = fopen(temporary, "wb");
    if (f == NULL || fwrite(&now, sizeof now, 1, f) != 1 || fflush(f) != 0 ||
        fsync(fileno(f)) != 0 || fclose(f) != 0 || rename(temporary, path) != 0) {
        perror(path);
        exit(1);
    }
}

static void load(const char *path)
{
    struct snapshot read;
    FILE *f = fopen(path, "rb");
    if (f != NULL && fread(&read, sizeof read, 1, f) == 1)
        now = read;
    if (f != NULL)
        fclose(f);
}

static double sample(unsigned s)
{
    float x[IN], error = 0;
    for (int i = 0; i < IN; i++) {
        x[i] = (float)((s * 29 + (unsigned)i * 83) % 128) / 64 - 1;
        error += (now.w[i] - (float)(i % 4)) * x[i];
    }
    for (int i = 0; i < IN; i++)
        grad[i] += error * x[i];
    return 0.5 * error * error;
}

int main(int argc, char **argv)
{
    lks_comm *comm;
    lks_ddp *ddp;
    lks_sampler *sampler;
    const char *path = argc > 1 ? argv[1] : "snapshot.bin";
    const lks_param params[] = {{"w", now.w, grad, IN}};
    check(lks_comm_init(&comm));
    check(lks_ddp_open(comm, params, 1, &(lks_ddp_options){.virtual_ranks = V}, &ddp));
    check(
        lks_sampler_open(&(lks_sampler_options){.dataset_size = SAMPLES, .replicas = V}, &sampler));
    if (lks_comm_rank(comm) == 0)
        load(path);
    check(lks_comm_broadcast(comm, &now, sizeof now, LKS_UINT8, 0));

    char host[256] = "";
    gethostname(host, sizeof host - 1);
    fprintf(stderr, "rank %d of %d on %s: from epoch %u\n", lks_comm_rank(comm),
            lks_comm_world_size(comm), host, now.epochs);

    while (now.epochs < EPOCHS) {
        lks_ddp_result r = {0};
        lks_sampler_set_epoch(sampler, now.epochs);
        for (unsigned at = 0; at < lks_sampler_count(sampler); at += BATCH) {
            for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
                check(lks_ddp_begin(ddp, v));
                for (unsigned i = at; i < at + BATCH; i++)
                    check(
                        lks_ddp_add_loss(ddp, sample((unsigned)lks_sampler_index(sampler, v, i))));
                check(lks_ddp_accumulate(ddp, BATCH));
            }
            check(lks_ddp_step(ddp, &r));
            for (int i = 0; i < IN; i++)
                now.w[i] -= 0.5f * grad[i];
        }
        now.epochs++;
        if (lks_comm_rank(comm) == 0) {
            save(path);
            printf("epoch %u: loss %.9g\n", now.epochs, r.loss);
        }
    }
    lks_sampler_close(sampler);
    lks_ddp_close(ddp);
    lks_comm_close(comm);
    return 0;
}
