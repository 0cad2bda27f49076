/* The memory of GPUs: what `lockstep plan` counts is what runs allocate from the stand-ins; runs
 * that don't fit are refused, and batch_size=auto fits. argv[1] is lockstep_cuda_standin. */
#include "../../laws/laws.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cuda/questions.h"

static const char *tool;
static const char *data[2]; /* by family */

enum { VAL = 129 };

/* A small model, whose run takes some MB. */
static void add_model(law_args *args, bool golf)
{
    static const char *const small[2][16] = {
        {"--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=8", "--batch_size=2",
         "--eval_iters=1", "--gradient_accumulation_steps=4", "--virtual_ranks=4", "--bias"},
        {"--family=golf", "--sampler=stream", "--vocab_size=1024", "--n_layer=3", "--n_head=2",
         "--num_kv_heads=1", "--n_embd=32", "--block_size=8", "--train_batch_tokens=256",
         "--val_batch_size=64", "--warmdown_iters=0", "--max_wallclock_seconds=0",
         "--gradient_accumulation_steps=4", "--virtual_ranks=4"},
    };
    law_add(args, "--dataset=%s", data[golf]);
    law_add_words(args, small[golf]);
    law_add(args, golf ? "--iterations=2" : "--max_iters=0");
    law_add_all(args, "--threads=1", "--check_interval=1");
}

static law_args args_of(const char *command, bool golf, const char *const more[])
{
    law_args args = {.n = 0};
    law_add(&args, "%s", tool);
    law_add(&args, "%s", command);
    add_model(&args, golf);
    law_add_words(&args, more);
    return args;
}

static lks_test_result train(bool golf, const char *const more[], const char *const env[])
{
    law_args args = args_of("train", golf, more);
    law_add(&args, "--out_dir=%s", lks_test_folder());
    return lks_test_run(args.argv, env, 120);
}

/* What plan counts for a rank's GPU behind its opening. */
static double planned(bool golf, const char *const more[])
{
    json_error_t error;
    law_args args = args_of("plan", golf, more);
    law_add_all(&args, "--device=cuda", "--json");
    lks_test_result r = lks_test_run(args.argv, NULL, 60);
    json_t *plan = json_loads(r.out, 0, &error);
    if (r.exit_code != 0 || plan == NULL)
        fail_msg("exit code %d: %s%s", r.exit_code, r.out, r.err);
    const json_t *point = json_array_get(json_object_get(plan, "points"), 0);
    const json_t *device = lks_test_member(point, "memory.device");
    const double bytes = lks_test_number(device, "bytes") - lks_test_number(device, "opened");
    json_decref(plan);
    return bytes;
}

/* The most that a rank of the run allocated, behind its opening. */
static double measured(bool golf, const char *const more[])
{
    const char *path = lks_test_text("%s/peak", lks_test_folder());
    const char *const env[] = {lks_test_text("CUDA_STANDIN_PEAK=%s", path), NULL};
    lks_test_result r = train(golf, more, env);
    double most = 0.0;
    char line[40];
    assert_exits(0, r);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        most = fmax(most, strtod(line, NULL));
    fclose(f);
    return most - LKS__CUDA_PRODUCT_BYTES;
}

#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(test_planned_is_measured)
{
    static const struct {
        bool golf;
        const char *more[6];
    } runs[] = {
        {false, {"--nproc_per_node=1"}},
        {false, {"--nproc_per_node=3", "--allow_uneven", "--recompute=block", "--max_iters=2"}},
        {false,
         {"--batch_size=12", "--virtual_ranks=1", "--freeze=wte", "--optimizer=sgd",
          "--dtype=float32"}},
        {false,
         {"--nproc_per_node=2", "--replicas=private", "--check_interval=0", "--exchange=staged"}},
        {false, {"--sample_tokens=7", "--eval_interval=1", "--recompute=rows"}},
        {true, {"--nproc_per_node=1"}},
        {true, {"--nproc_per_node=2", "--tie_embeddings=false", "--exchange=staged"}},
        {true, {"--nproc_per_node=1", "--recompute=none"}},
        {true, {"--nproc_per_node=4"}},
        {true, {"--nproc_per_node=1", "--eval_stride=3", "--optimizer=adamw"}},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const double plan = planned(runs[i].golf, runs[i].more);
        const double run = measured(runs[i].golf, runs[i].more);
        if (!(plan >= run && plan - run <= 0.004 * run))
            fail_msg("run %zu: %.0f bytes planned, %.0f allocated", i, plan, run);
    }
}

static const char *with_memory(double bytes)
{
    return lks_test_text("CUDA_STANDIN_MB=%.6f", (bytes + LKS__CUDA_PRODUCT_BYTES) / (1 << 20));
}

/* Gradients of V virtual ranks on one GPU take an arena for each node of the tree that is held at
 * once, log2(V) + 1, and no more: in order, no sum of the same bits does with less. */
TEST(test_virtual_ranks)
{
    double before = 0.0, arena = 0.0;
    for (int V = 1; V <= 8; V *= 2) {
        const char *const *more =
            MORE("--gradient_accumulation_steps=8", lks_test_text("--virtual_ranks=%d", V));
        const double plan = planned(false, more), run = measured(false, more);
        if (!(fabs(plan - run) <= 0.01 * run))
            fail_msg("%d virtual ranks: %.0f bytes planned, %.0f allocated", V, plan, run);
        if (V == 2)
            arena = run - before;
        if (V > 2)
            assert_true(fabs(run - before - arena) <= 0.01 * arena);
        before = run;
    }
    assert_true(arena >= 4.0 * 2 * 12 * 32 * 32); /* the weights of two layers */
}

/* Refused before anything is allocated, with both numbers and what fits; that does fit. */
TEST(test_refused)
{
    const double need = planned(false, MORE("--batch_size=20", "--dtype=float32"));
    const char *path = lks_test_text("%s/peak", lks_test_folder());
    const char *const env[] = {with_memory(0.85 * need),
                               lks_test_text("CUDA_STANDIN_PEAK=%s", path), NULL};
    lks_test_result r =
        assert_exits(1, train(false, MORE("--batch_size=20", "--dtype=float32"), env),
                     lks_test_text("the run takes %.1f MB of GPU 0 (Stand-in, PCI "
                                   "0000:10:00.0) for 1 rank, and ",
                                   need / 1e6),
                     " MB of it are free; these fit: --recompute=");
    const char *smaller = lks_test_find(r.err, "--batch_size=");
    assert_int_equal(atoi(lks_test_read(path, NULL)), LKS__CUDA_PRODUCT_BYTES);
    char batch[40], steps[60];
    assert_int_equal(sscanf(smaller, "%39s %59[^:]", batch, steps), 2);
    assert_exits(0, train(false, MORE(batch, steps, "--dtype=float32"), env));
}

/* A run that is tried all the same names the memory that isn't there. */
static void check_tried(bool golf, const char *const more[], double memory)
{
    const char *const env[] = {with_memory(memory), NULL};
    lks_test_result r = train(golf, more, env);
    if (r.exit_code != 1 || strstr(r.err, "no GPU memory for ") == NULL ||
        strstr(r.err, " MB: GPU 0 (Stand-in) has ") == NULL)
        fail_msg("%.0f bytes: exit code %d: %s", memory, r.exit_code, r.err);
}

/* Arenas, and at some of these sizes what operations take when they first need it. */
TEST(test_tried)
{
    check_tried(false, MORE("--batch_size=20", "--dtype=float32", "--skip_fit_check"),
                0.85 * planned(false, MORE("--batch_size=20", "--dtype=float32")));
    const double need = planned(true, MORE("--dtype=bfloat16"));
    for (int part = 20; part < 100; part += 13)
        check_tried(true, MORE("--dtype=bfloat16", "--skip_fit_check"), part / 100.0 * need);
}

/* Ranks that share a GPU share its memory. */
TEST(test_shared)
{
    const double need = planned(false, MORE("--nproc_per_node=2", "--share_gpu"));
    const char *const env[] = {"CUDA_STANDIN_GPUS=1", with_memory(1.6 * need), NULL};
    assert_exits(1, train(false, MORE("--nproc_per_node=2", "--share_gpu"), env),
                 lks_test_text("the run takes %.1f MB of GPU 0", 2 * need / 1e6),
                 " for 2 ranks, and ");
    const char *const own[] = {"CUDA_STANDIN_GPUS=2", env[1], NULL};
    assert_exits(0, train(false, MORE("--nproc_per_node=2", "--share_gpu"), own));
}

/* batch_size=auto takes the largest micro-batch that fits beside what CUDA may need. */
TEST(test_auto)
{
    static const char *const sizes[] = {"--batch_size=20", "--batch_size=auto", "--dtype=float32",
                                        NULL};
    const double room = 0.75 * planned(false, MORE("--batch_size=20", "--dtype=float32"));
    const char *env[] = {with_memory(room + LKS__CUDA_LATER_BYTES), NULL};
    lks_test_result r = train(false, sizes, env);
    const char *line = strstr(r.out, "batch_size=auto: ");
    if (r.exit_code != 0 || line == NULL)
        fail_msg("exit code %d: %s%s", r.exit_code, r.out, r.err);
    const int batch = atoi(line + strlen("batch_size=auto: "));
    assert_true(batch > 1 && batch < 20);
    int next = batch + 1;
    while (80 % next != 0 || 80 / next % 4 != 0)
        next++;
    const double least =
        planned(false, MORE(lks_test_text("--batch_size=%d", batch), "--dtype=float32"));
    const double more =
        planned(false, MORE(lks_test_text("--batch_size=%d", next), "--dtype=float32"));
    const double free = room;
    assert_true(least <= free && free < more);
    /* plan chooses the same for a GPU of which as much is left. */
    law_args args = args_of("plan", false, sizes);
    law_add(&args, "--device=cuda");
    law_add(&args, "--memory=%.0f",
            free + LKS__CUDA_LATER_BYTES + LKS__CUDA_PRODUCT_BYTES + LKS__CUDA_CONTEXT_BYTES);
    r = assert_exits(0, lks_test_run(args.argv, NULL, 60));
    assert_contains(r.out, lks_test_text("batch_size=auto:   %d, for at most ", batch));
    assert_null(strstr(r.out, "doesn't fit"));
    const char *tight_memory =
        lks_test_text("--memory=%.0f", least + LKS__CUDA_LATER_BYTES + LKS__CUDA_PRODUCT_BYTES +
                                           LKS__CUDA_CONTEXT_BYTES);
    args = args_of("plan", false,
                   MORE("--batch_size=20", "--dtype=float32", "--device=cuda", tight_memory));
    r = lks_test_run(args.argv, NULL, 60);
    assert_contains(r.out, "  doesn't fit\n",
                    "MB per GPU; these fit: --batch_size=5 --gradient_accumulation_steps=16: ");
    /* A run that isn't started has no GPU to ask. */
    args = args_of("train", false, MORE("--batch_size=auto", "--dry_run"));
    assert_exits(2, lks_test_run(args.argv, NULL, 60),
                 "so give the size of its memory, for example --memory=16G");
    const char *const tight[] = {with_memory(LKS__CUDA_LATER_BYTES), NULL};
    assert_exits(1, train(false, sizes, tight), "batch_size=auto: the smallest micro-batch needs ",
                 " MB on GPU 0 (Stand-in");
    const char *const less[] = {with_memory(LKS__CUDA_LATER_BYTES / 2), NULL};
    r = train(false, sizes, less);
    assert_contains(r.err, ", and it may use 0.0 MB: ");
}

int main(int argc, char **argv)
{
    char text[20001];
    tool = argv[1];
    for (int i = 0; i < 20000; i++)
        text[i] = (char)('a' + (i * i / 7 + i / 3) % 26);
    const char *input = lks_test_text("%s/text", lks_test_folder());
    lks_test_write(input, text, 20000);
    data[0] = lks_test_text("%s/data", lks_test_folder());
    lks_test_result r = lks_test_run(
        (const char *const[]){"lockstep", "prep", "char", lks_test_text("--input=%s", input),
                              lks_test_text("--out=%s", data[0]), NULL},
        NULL, 60);
    if (r.exit_code != 0)
        return 1;
    data[1] = lks_test_folder();
    lks_test_short_golf(data[1]);
    uint16_t few[VAL]; /* an evaluation reads all of them */
    for (int i = 0; i < VAL; i++)
        few[i] = (uint16_t)(i * 37 % 26);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", data[1]), few, VAL);
    return lks_test_run_all(NULL, NULL);
}
