/* The costs of a training step on a GPU: bytes of its memory, floating-point operations, kernels,
 * products and copies, for a small model of each family on stand-ins (standins.h). The numbers are
 * exact, so that none of them grows unnoticed: who changes one on purpose changes the table.
 *
 * A process counts its calls when it ends, so the program runs itself: a run of one step more has
 * the calls of that step. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/setup/trainer.h"
#include "train/step.h"

enum { FIRST_STEPS = 1 };

static const char *data[2]; /* by family */

struct costs {
    double bytes, flops;
    int kernels, products, copies;
};

/* --- a process that makes some steps -----------------------------------------------------------
 */

/* Four micro-batches on two virtual ranks, with heads of 64 elements. */
static int make_steps(bool golf, const char *of_data, const char *dtype, int n)
{
    static const char *const small[2][20] = {
        {"--device=cuda", "--threads=1", "--gradient_accumulation_steps=4", "--virtual_ranks=2",
         "--n_layer=2", "--n_head=2", "--n_embd=128", "--block_size=16", "--batch_size=2",
         "--vocab_size=65", "--bias"},
        {"--device=cuda", "--threads=1", "--gradient_accumulation_steps=4", "--virtual_ranks=2",
         "--family=golf", "--sampler=stream", "--n_layer=3", "--n_head=2", "--num_kv_heads=1",
         "--n_embd=128", "--block_size=8", "--vocab_size=1024", "--train_batch_tokens=64",
         "--val_batch_size=64", "--warmup_steps=0", "--max_wallclock_seconds=0",
         "--muon_backend_steps=2"},
    };
    const char *argv[24];
    int n_args = 0;
    lks__settings s;
    lks__args args;
    lks__trainer t = {0};
    lks__step_result r;
    lks__device_counts before = {0}, after;
    for (; small[golf][n_args] != NULL; n_args++)
        argv[n_args] = small[golf][n_args];
    argv[n_args++] = lks_test_text("--dataset=%s", of_data);
    argv[n_args++] = lks_test_text("--dtype=%s", dtype);
    argv[n_args++] = lks_test_text("--out_dir=%s", lks_test_folder());
    lks__settings_defaults(&s);
    lks_status st =
        lks__settings_parse(&s, LKS__CMD_TRAIN, n_args, (char *const *)(uintptr_t)argv, 0, &args);
    if (st == LKS_OK)
        st = lks__trainer_open(&s, &t, &(int){0});
    if (st == LKS_OK)
        after = t.ses.device->ops->counts(t.ses.device);
    for (int i = 0; i < n && st == LKS_OK; i++) {
        before = after;
        st = lks__train_step(&t, &r);
        after = t.ses.device->ops->counts(t.ses.device);
    }
    if (st != LKS_OK)
        fprintf(stderr, "%s\n", lks_last_error());
    else
        printf("%.17g %.17g\n", after.bytes - before.bytes, after.flops - before.flops);
    lks__trainer_close(&t);
    return st == LKS_OK ? 0 : 1;
}

/* --- the costs of the last of n steps -------------------------------------------------------- */

/* The calls of a kind in a list of lines "KIND: N". */
static int calls_of(const char *list, const char *kind)
{
    int n = 0;
    for (const char *line = list; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        if (strncmp(line, kind, strlen(kind)) == 0) {
            while (*end != ':')
                end--;
            n += atoi(end + 1);
            end = strchr(end, '\n');
        }
        line = end == NULL ? NULL : end + 1;
    }
    return n;
}

/* Bytes and operations of the last step, calls of all. */
static struct costs run(bool golf, const char *dtype, int n)
{
    const char *path = lks_test_text("%s/counts", lks_test_folder());
    const char *const argv[] = {
        "/proc/self/exe", golf ? "golf" : "gpt2", data[golf], dtype, lks_test_text("%d", n), NULL};
    const char *const env[] = {lks_test_text("CUDA_STANDIN_COUNTS=%s", path), NULL};
    struct costs c;
    const lks_test_result r = lks_test_run(argv, env, 60);
    if (r.exit_code != 0 || sscanf(r.out, "%lf %lf", &c.bytes, &c.flops) != 2)
        fail_msg("exit code %d, signal %d: %s%s", r.exit_code, r.signal, r.out, r.err);
    const char *list = lks_test_read(path, NULL);
    c.kernels = calls_of(list, "kernel ");
    c.products = calls_of(list, "cublasLtMatmul ");
    c.copies = calls_of(list, "cudaMemcpyAsync");
    return c;
}

TEST(test_steps)
{
    static const struct {
        bool golf;
        const char *dtype;
        struct costs want;
    } cases[] = {
        {false, "float32", {56069120, 328858880, 203, 108, 10}},
        {false, "bfloat16", {42680064, 328367360, 180, 108, 10}},
        {true, "float32", {94372984, 635215452, 372, 312, 10}},
        {true, "bfloat16", {93299832, 635067996, 485, 312, 10}},
    };
    bool same = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct costs first = run(cases[i].golf, cases[i].dtype, FIRST_STEPS);
        struct costs got = run(cases[i].golf, cases[i].dtype, FIRST_STEPS + 1);
        got.kernels -= first.kernels;
        got.products -= first.products;
        got.copies -= first.copies;
        const struct costs *want = &cases[i].want;
        if (got.bytes == want->bytes && got.flops == want->flops && got.kernels == want->kernels &&
            got.products == want->products && got.copies == want->copies)
            continue;
        same = false;
        print_error("%s, %s: the step costs {%.0f, %.0f, %d, %d, %d}\n",
                    cases[i].golf ? "golf" : "gpt2", cases[i].dtype, got.bytes, got.flops,
                    got.kernels, got.products, got.copies);
    }
    assert_true(same);
}

int main(int argc, char **argv)
{
    if (argc == 5)
        return make_steps(strcmp(argv[1], "golf") == 0, argv[2], argv[3], atoi(argv[4]));
    data[0] = lks_test_folder();
    lks_test_generated_tokens(data[0]);
    data[1] = lks_test_folder();
    lks_test_short_golf(data[1]);
    return lks_test_run_all(NULL, NULL);
}
