/* ddp.c - one rank of ddp.py: fills gradients, and lets lks_ddp make them equal.
 *
 *     ddp MODE TENSORS ELEMENTS          MODE: copy or own, then + for a fixed weight and stored
 * gradients
 *
 * For each line "sync K" or "fill K" on standard input: K iterations with or without the exchange,
 * and the milliseconds of each on one line. */
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static lks_comm *comm;
static lks_ddp *ddp;
static size_t n_tensors, n_elements;
static float **grads;

static void check(lks_status st)
{
    if (st == LKS_OK)
        return;
    fprintf(stderr, "%s\n", lks_last_error());
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double iterate(int sync, float value)
{
    const double start = now();
    if (sync)
        check(lks_ddp_begin(ddp, lks_ddp_first(ddp)));
    for (size_t t = n_tensors; t-- > 0;) {
        for (size_t i = 0; i < n_elements; i++)
            grads[t][i] = value;
        if (sync)
            check(lks_ddp_mark_ready(ddp, t));
    }
    if (sync) {
        check(lks_ddp_accumulate(ddp, 1));
        check(lks_ddp_step(ddp, NULL));
    }
    return now() - start;
}

static void open_all(const char *mode)
{
    lks_param *params = calloc(n_tensors, sizeof *params);
    const int own = strncmp(mode, "own", 3) == 0, plus = strchr(mode, '+') != NULL;
    char(*names)[32] = calloc(n_tensors, sizeof *names);
    grads = calloc(n_tensors, sizeof *grads);
    for (size_t t = 0; t < n_tensors; t++) {
        snprintf(names[t], sizeof names[t], "p%zu", t);
        grads[t] = own ? NULL : calloc(n_elements, sizeof(float));
        params[t] = (lks_param){names[t], calloc(n_elements, sizeof(float)), grads[t], n_elements};
    }
    check(lks_comm_init(&comm));
    const lks_ddp_options options = {
        .own_gradients = own != 0, .weight = plus ? 1 : 0, .overwrites = plus != 0};
    check(lks_ddp_open(comm, params, n_tensors, &options, &ddp));
    for (size_t t = 0; t < n_tensors; t++)
        grads[t] = lks_ddp_gradient(ddp, t);
}

int main(int argc, char **argv)
{
    char line[64], verb[16];
    int k;
    if (argc != 4)
        return 2;
    n_tensors = strtoul(argv[2], NULL, 10);
    n_elements = strtoul(argv[3], NULL, 10);
    open_all(argv[1]);
    const float value = 0.5f * (float)(lks_comm_rank(comm) + 1);
    printf("ready %s\n", lks_comm_backend(comm));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && sscanf(line, "%15s %d", verb, &k) == 2) {
        const int sync = strcmp(verb, "sync") == 0;
        check(lks_comm_barrier(comm));
        for (int i = 0; i < k; i++)
            printf("%.3f ", iterate(sync, value));
        for (size_t t = 0; sync && t < n_tensors; t++)
            if (grads[t][0] != 0.75f || grads[t][n_elements - 1] != 0.75f) {
                fprintf(stderr, "gradient %zu is %g, not 0.75\n", t, (double)grads[t][0]);
                return 1;
            }
        printf("\n");
        fflush(stdout);
    }
    lks_ddp_close(ddp);
    lks_comm_close(comm);
    return 0;
}
