/* Training with --device=cuda on stand-ins (standins.h): the same bytes on any number of ranks and
 * after a resume, figures of the CPU, and ends of runs. argv[1] is lockstep_cuda_standin,
 * argv[2] the test to run if not all. */
#include "../../laws/laws.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "files/safetensors/safetensors.h"

static const char *tool;
static const char *all_calls; /* file of all that was used of NVIDIA's libraries */
static const char *gpt2_data, *golf_data;

static const char *dtype = "float32"; /* of the runs that begin now; "auto": bfloat16 on a GPU */

enum { VAL = 129 };

/* A run of a small model into `out`: 8 virtual ranks, dropout, several buckets. */
static law_args run_of(bool golf, const char *out)
{
    static const char *const small[2][24] = {
        {"--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=8", "--batch_size=1", "--bias",
         "--dropout=0.1", "--max_iters=4", "--eval_interval=2", "--eval_iters=1",
         "--checkpoint_interval=2", "--learning_rate=1e-3", "--warmup_iters=1",
         "--lr_decay_iters=100", "--grad_clip=0.25"},
        {"--family=golf", "--sampler=stream", "--vocab_size=1024", "--n_layer=3", "--n_head=2",
         "--num_kv_heads=1", "--n_embd=16", "--block_size=8", "--train_batch_tokens=64",
         "--val_batch_size=64", "--warmdown_iters=0", "--iterations=4", "--max_wallclock_seconds=0",
         "--eval_interval=0", "--checkpoint_interval=2", "--matrix_lr=0.01", "--scalar_lr=0.01",
         "--tied_embed_lr=0.01"},
    };
    law_args args = {.n = 0};
    law_add(&args, "%s", tool);
    law_add(&args, "train");
    law_add(&args, "--dataset=%s", golf ? golf_data : gpt2_data);
    law_add(&args, "--out_dir=%s", out);
    law_add_words(&args, small[golf]);
    law_add_all(&args, "--gradient_accumulation_steps=8", "--virtual_ranks=8", "--keep=0",
                "--bucket_mb=0.002", "--threads=1");
    law_add(&args, "--dtype=%s", dtype);
    return args;
}

static const char *run(bool golf, const char *const more[], const char *const env[])
{
    const char *out = lks_test_folder();
    law_args args = run_of(golf, out);
    law_add_words(&args, more);
    assert_exits(0, lks_test_run(args.argv, env, 120));
    return out;
}

#define RUN(golf, ...) run((golf), (const char *const[]){__VA_ARGS__, NULL}, NULL)

/* --- the same bytes -------------------------------------------------------------------------- */

static const char *whole[2];   /* runs of one rank, by family */
static const char *rounded[2]; /* the same in bfloat16 */

static int train_whole(void **state)
{
    uint16_t few[VAL]; /* an evaluation reads all of them */
    char text[20001];
    for (int i = 0; i < 20000; i++)
        text[i] = (char)('a' + (i * i / 7 + i / 3) % 26);
    text[20000] = '\0';
    gpt2_data = lks_test_text("%s/data", lks_test_folder());
    const char *input = lks_test_text("%s/text", lks_test_folder());
    lks_test_write(input, text, sizeof text - 1);
    assert_exits(0, lks_test_run((const char *const[]){"lockstep", "prep", "char",
                                                       lks_test_text("--input=%s", input),
                                                       lks_test_text("--out=%s", gpt2_data), NULL},
                                 NULL, 60));
    golf_data = lks_test_folder();
    lks_test_short_golf(golf_data);
    for (int i = 0; i < VAL; i++)
        few[i] = (uint16_t)(i * 37 % 26);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", golf_data), few, VAL);
    for (int golf = 0; golf < 2; golf++) {
        dtype = "float32";
        whole[golf] = RUN(golf, "--nproc_per_node=1");
        dtype = "auto";
        rounded[golf] = RUN(golf, "--nproc_per_node=1");
    }
    return 0;
}

static int use_float32(void **state)
{
    dtype = "float32";
    return 0;
}

static int use_bf16(void **state)
{
    dtype = "auto";
    return 0;
}

/* How the run's GPUs exchanged gradients. */
static void assert_exchange(const char *out, const char *way)
{
    assert_string_equal(lks_test_string(lks_test_record(out, "host"), "0.exchange"), way);
}

TEST_WITH(test_ranks, use_float32, NULL)
{
    for (int W = 2; W <= 8; W *= 2)
        law_assert_same(RUN(false, lks_test_text("--nproc_per_node=%d", W)), whole[0]);
    const char *out = RUN(true, "--nproc_per_node=4");
    law_assert_same(out, whole[1]);
    assert_exchange(out, "nccl");
}

TEST_WITH(test_ranks_bf16, use_bf16, NULL)
{
    for (int W = 2; W <= 8; W *= 4)
        law_assert_same(RUN(true, lks_test_text("--nproc_per_node=%d", W)), rounded[1]);
    law_assert_same(RUN(false, "--nproc_per_node=4"), rounded[0]);
}

/* What is computed again is rounded as before. */
TEST_WITH(test_recompute_bf16, use_bf16, NULL)
{
    law_assert_same(RUN(false, "--recompute=rows"), rounded[0]);
    law_assert_same(RUN(false, "--recompute=block"), rounded[0]);
    law_assert_same(RUN(true, "--recompute=block"), rounded[1]);
    law_assert_same(RUN(true, "--recompute=none"), rounded[1]);
}

static const char *recorded_dtype(const char *out)
{
    return lks_test_text("%s", lks_test_string(lks_test_record(out, "config"), "0.dtype"));
}

/* What auto is, is recorded, and a resume takes it. Another one may be asked for: parameters and
 * moments are float32 in either, so the run goes on from the same ones; that kernels are others is
 * no surprise. */
TEST_WITH(test_dtype, use_bf16, NULL)
{
    for (int golf = 0; golf < 2; golf++) {
        assert_string_equal(recorded_dtype(whole[golf]), "float32");
        assert_string_equal(recorded_dtype(rounded[golf]), "bfloat16");
        assert_contains(lks_test_read(lks_test_text("%s/train.log", rounded[golf]), NULL),
                        ", bfloat16 on cuda, peak ");
    }
    dtype = "float32";
    const char *out = RUN(false, "--max_iters=2");
    dtype = "auto";
    law_args args = run_of(false, out);
    law_add(&args, "--init_from=resume");
    law_run(&args);
    law_assert_same_checkpoint(out, whole[0], "ckpt-00000005");
    const char *outs[2];
    for (int i = 0; i < 2; i++) {
        dtype = "float32";
        outs[i] = RUN(true, "--iterations=2");
        dtype = "bfloat16";
        args = run_of(true, outs[i]);
        law_add_line(&args, "--init_from=resume --nproc_per_node=%d", i + 1);
        lks_test_result r = lks_test_run(args.argv, NULL, 120);
        if (r.exit_code != 0 || strstr(r.err, "fingerprint") != NULL)
            fail_msg("exit code %d: %s", r.exit_code, r.err);
    }
    law_assert_same_checkpoint(outs[0], outs[1], "ckpt-00000004");
    const json_t *lines[3];
    const char *runs[3] = {outs[0], whole[1], rounded[1]};
    for (int i = 0; i < 3; i++) {
        lines[i] = lks_test_record(runs[i], "train");
        assert_int_equal(json_array_size(lines[i]), 4);
    }
#define LOSS(run, i) lks_test_number(json_array_get(lines[run], (i)), "loss")
    assert_true(LOSS(0, 1) == LOSS(1, 1) && LOSS(0, 1) != LOSS(2, 1)); /* float32 */
    assert_true(LOSS(0, 2) != LOSS(1, 2));
    assert_true(fabs(LOSS(0, 2) - LOSS(1, 2)) <= 5e-3);
#undef LOSS
}

/* The same bytes by NCCL and through the host: uneven ranks, replicas of their own on the host, one
 * rank, no module for NCCL. */
TEST_WITH(test_exchanges, use_float32, NULL)
{
    const char *out = RUN(false, "--nproc_per_node=3", "--allow_uneven");
    law_assert_same(out, whole[0]);
    assert_exchange(out, "nccl");
    out = RUN(true, "--nproc_per_node=2", "--replicas=private");
    law_assert_same(out, whole[1]);
    assert_exchange(out, "nccl");
    law_assert_same(RUN(true, "--nproc_per_node=1", "--exchange=nccl"), whole[1]);
    assert_exchange(whole[0], "none");
    out = RUN(false, "--nproc_per_node=1", "--exchange=staged");
    law_assert_same(out, whole[0]);
    assert_exchange(out, "staged");
    out = RUN(true, "--nproc_per_node=2", "--exchange=staged");
    law_assert_same(out, whole[1]);
    assert_exchange(out, "staged");
}

/* A folder with the module for GPUs alone. In a build that has NCCL's beside the program, an empty
 * file takes its place. *says: what lockstep says of it. */
static const char *without_nccl(const char **says)
{
    const char *modules = lks_test_folder();
    const int folder = (int)(strrchr(tool, '/') - tool);
    const char *program = LKS_TEST_TOOL;
    *says = "rank 0: this build of lockstep has no module";
    if (lks_test_exists(lks_test_text("%.*s/lockstep_nccl.so",
                                      (int)(strrchr(program, '/') - program), program))) {
        *says = lks_test_text("rank 0: %s/lockstep_nccl.so: file too short", modules);
        lks_test_write(lks_test_text("%s/lockstep_nccl.so", modules), "", 0);
    }
    assert_int_equal(symlink(lks_test_text("%.*s/standin/lockstep_cuda.so", folder, tool),
                             lks_test_text("%s/lockstep_cuda.so", modules)),
                     0);
    return lks_test_text("CUDA_STANDIN_MODULES=%s", modules);
}

TEST_WITH(test_without_nccl, use_float32, NULL)
{
    const char *says, *const env[] = {without_nccl(&says), NULL};
    law_args args = run_of(false, lks_test_folder());
    law_add_all(&args, "--nproc_per_node=2", "--max_iters=0");
    assert_exits(0, lks_test_run(args.argv, env, 120),
                 lks_test_text("go from GPU to GPU through the host's memory: %s", says));
    law_add(&args, "--exchange=nccl");
    assert_exits(1, lks_test_run(args.argv, env, 120), lks_test_text("--exchange=nccl: %s", says));
}

/* Ranks that share a GPU or see one of their own each, and memory for activations that are computed
 * again. */
TEST_WITH(test_shared_gpu, use_float32, NULL)
{
    const char *const env[] = {"CUDA_STANDIN_GPUS=1", NULL};
    law_assert_same(
        run(false, (const char *const[]){"--nproc_per_node=2", "--share_gpu", NULL}, env),
        whole[0]);
    law_assert_same(RUN(false, "--recompute=block"), whole[0]);
    const char *const own[] = {"CUDA_STANDIN_GPUS=1", "CUDA_STANDIN_OWN=1", NULL};
    law_assert_same(run(false, (const char *const[]){"--nproc_per_node=2", NULL}, own), whole[0]);
}

/* A rank dies after the first checkpoint; the run continues with other ranks. */
TEST_WITH(test_resume, use_bf16, NULL)
{
    const char *out = lks_test_folder();
    law_args args = run_of(false, out);
    law_add(&args, "--nproc_per_node=2");
    const char *const env[] = {"LOCKSTEP_FAULT=read:22:die", "LOCKSTEP_FAULT_RANK=1", NULL};
    assert_exits(128 + SIGKILL, lks_test_run(args.argv, env, 120));
    assert_true(law_count_checkpoints(out) > 0);
    assert_false(lks_test_exists(lks_test_text("%s/ckpt-00000005", out)));
    args = run_of(false, out);
    law_add_all(&args, "--init_from=resume", "--nproc_per_node=4");
    law_run(&args);
    law_assert_same(out, rounded[0]);
}

/* Each process's heuristic chooses other algorithms: all ranks, and a resume, use those of rank 0
 * at the run's start. So a run is the one without such differences. */
TEST_WITH(test_algorithms, use_bf16, NULL)
{
    const char *const other[] = {"CUDA_STANDIN_ALGORITHMS=7", NULL};
    const char *const of_rank[] = {other[0], "CUDA_STANDIN_ONLY_RANK=1", NULL};
    for (int golf = 0; golf < 2; golf++) {
        const char *const ranks[] = {"--nproc_per_node=2", NULL};
        law_assert_same(run(golf, ranks, of_rank), rounded[golf]);
        const char *outs[2];
        for (int i = 0; i < 2; i++) {
            outs[i] = RUN(golf, golf ? "--iterations=2" : "--max_iters=1");
            law_args args = run_of(golf, outs[i]);
            law_add_line(&args, "--init_from=resume --nproc_per_node=%d", i + 1);
            lks_test_result r = lks_test_run(args.argv, i == 1 ? other : NULL, 120);
            if (r.exit_code != 0 || strstr(r.err, "warning") != NULL)
                fail_msg("exit code %d: %s", r.exit_code, r.err);
        }
        law_assert_same_checkpoint(outs[0], outs[1], golf ? "ckpt-00000004" : "ckpt-00000005");
    }
    /* That other algorithms have other bits. */
    const char *const *none = (const char *const[]){NULL};
    assert_false(strcmp(law_lines(run(false, none, other)), law_lines(rounded[0])) == 0);
}

/* A resume that can't use the checkpoint's table says why, and makes a new one. */
TEST_WITH(test_new_algorithms, use_float32, NULL)
{
    static const struct {
        const char *env, *says;
    } resumes[] = {{"CUDA_STANDIN_PROCESSORS=108",
                    "it is of Stand-in capability=9.0 "
                    "multiprocessors=132 cublaslt=130100, and GPU 0 "
                    "is Stand-in capability=9.0 multiprocessors=108"},
                   {"CUDA_STANDIN_REFUSED=0", "GPU 0 (Stand-in) can't use its algorithm for the "
                                              "matrix product NT m=8 n=48 k=16"}};
    for (int i = 0; i < 2; i++) {
        const char *const env[] = {resumes[i].env, "CUDA_STANDIN_ALGORITHMS=7", NULL};
        const char *out = RUN(false, "--max_iters=2");
        for (int again = 0; again < 2; again++) { /* the second resume has the new table */
            law_args args = run_of(false, out);
            law_add_line(&args, "--init_from=resume --nproc_per_node=2 --max_iters=%d", 3 + again);
            lks_test_result r = assert_exits(0, lks_test_run(args.argv, env, 120));
            const bool warns = strstr(r.err, resumes[i].says) != NULL &&
                               strstr(r.err, "warning: new algorithms for matrix products were "
                                             "chosen, because the checkpoint's can't be used "
                                             "here: the table of") != NULL &&
                               strstr(r.err, "made with kernels of fingerprint") != NULL;
            if (warns != (again == 0))
                fail_msg("resume %d, %s: %s", again, resumes[i].env, r.err);
        }
    }
}

/* A signal: all ranks stop after the same step, with a checkpoint from which the run goes on. */
TEST_WITH(test_stop, use_bf16, NULL)
{
    for (int attempt = 0; attempt < 10; attempt++) {
        const char *out = lks_test_folder();
        law_args args = run_of(true, out);
        law_add(&args, "--nproc_per_node=2");
        const char *const env[] = {"LOCKSTEP_FAULT=read:12:slower", NULL};
        lks_test_child child = lks_test_start(args.argv, env);
        lks_test_wait_for_text(lks_test_text("%s/metrics.jsonl", out), "{\"kind\":\"train\",");
        kill(child.pid, SIGTERM);
        lks_test_result r = lks_test_wait(&child, 120);
        if (r.exit_code == 0) /* it ended first */
            continue;
        assert_exits(128 + SIGTERM, r);
        args = run_of(true, out);
        law_add(&args, "--init_from=resume");
        law_run(&args);
        law_assert_same_checkpoint(out, rounded[1], "ckpt-00000004");
        return;
    }
    fail_msg("ten runs ended before the signal reached them");
}

/* --- beside the CPU -------------------------------------------------------------------------- */

static double difference(const char *kind, const char *what, const char *a, const char *b,
                         size_t *n_p)
{
    const json_t *x = lks_test_record(a, kind);
    const json_t *y = lks_test_record(b, kind);
    double most = 0;
    *n_p = json_array_size(x);
    assert_int_equal(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < *n_p; i++)
        most = fmax(most, fabs(lks_test_number(json_array_get(x, i), what) -
                               lks_test_number(json_array_get(y, i), what)));
    return most;
}

/* Losses of 20 iterations are the CPU's within 1e-4, and within 5e-3 in bfloat16: the CPU rounds
 * only the operands of products. */
static void check_losses(const char *cpus_dtype, double tolerance, int n_iters)
{
    for (int golf = 0; golf < 2; golf++) {
        const char *length = golf ? lks_test_text("--iterations=%d", n_iters)
                                  : lks_test_text("--max_iters=%d", n_iters - 1);
        size_t n;
        const char *keep = dtype;
        const char *cuda = RUN(golf, length, "--checkpoint_interval=0", "--nproc_per_node=2");
        dtype = cpus_dtype;
        const char *cpu = RUN(golf, length, "--checkpoint_interval=0", "--device=cpu");
        dtype = keep;
        const double most = difference("train", "loss", cuda, cpu, &n);
        assert_true(n >= (size_t)n_iters);
        assert_true(golf || difference("eval", "val_loss", cuda, cpu, &n) <= tolerance);
        if (!(most <= tolerance))
            fail_msg("%s: losses differ by %g", golf ? "golf" : "gpt2", most);
        print_message("%s, %s: losses differ by %.2g\n", golf ? "golf" : "gpt2", cpus_dtype, most);
    }
}

TEST_WITH(test_losses, use_float32, NULL)
{
    check_losses("float32", 1e-4, 20);
}

TEST_WITH(test_losses_bf16, use_bf16, NULL)
{
    check_losses("bfloat16", 5e-3, 20);
}

static float *tensor_of(lks__st_file *file, const lks__st_tensor *t)
{
    float *x = lks_test_malloc(t->bytes);
    assert_ok(lks__st_read(file, t, x));
    return x;
}

static lks__st_file *weights_of(const char *out, const char *name)
{
    lks__st_file *file;
    assert_ok(lks__st_open(lks_test_text("%s/%s/model.safetensors", out, name), &file));
    return file;
}

/* One step of SGD moves a parameter by its gradient: of every tensor, the CPU's and ours. */
static void check_gradients(const char *of, double tolerance, double least_cosine)
{
    double worst = 0, cosine = 1;
    dtype = of;
    for (int golf = 0; golf < 2; golf++) {
        static const char *const lengths[2][3] = {{"--max_iters=0", "--checkpoint_interval=0"},
                                                  {"--iterations=1", "--checkpoint_interval=0"}};
        static const char *const rates[2][5] = {
            {"--learning_rate=64", "--min_lr=64", "--decay_lr=false", NULL},
            {"--matrix_lr=64", "--scalar_lr=64", "--tied_embed_lr=64", NULL}};
        const char *outs[3];
        for (int k = 0; k < 3; k++) { /* ours, the CPU's, and the initial values */
            const char *out = outs[k] = lks_test_folder();
            law_args args = run_of(golf, out);
            law_add_words(&args, lengths[golf]);
            for (int i = 0; rates[golf][i] != NULL; i++)
                law_add(
                    &args, "%s",
                    k < 2 ? rates[golf][i]
                    : strchr(rates[golf][i], '=')[1] == '6'
                        ? lks_test_text("%.*s=0", (int)strcspn(rates[golf][i], "="), rates[golf][i])
                        : rates[golf][i]);
            law_add(&args, "--init_from=%s/%s", whole[golf],
                    golf ? "ckpt-00000004" : "ckpt-00000005");
            law_add_all(&args, "--optimizer=sgd", "--beta1=0", "--weight_decay=0", "--grad_clip=0");
            law_add(&args, "--device=%s", k == 0 ? "cuda" : "cpu");
            law_run(&args);
        }
        const char *name = "ckpt-00000001";
        lks__st_file *ours = weights_of(outs[0], name), *cpus = weights_of(outs[1], name);
        lks__st_file *first = weights_of(outs[2], name);
        assert_true(lks__st_count(ours) > 10);
        for (size_t i = 0; i < lks__st_count(ours); i++) {
            const lks__st_tensor *t = lks__st_get(ours, i);
            float *a = tensor_of(ours, t), *b = tensor_of(cpus, lks__st_find(cpus, t->name));
            float *p = tensor_of(first, lks__st_find(first, t->name));
            double norm = 0, off = 0, size = 0, ours_norm = 0, product = 0;
            for (size_t e = 0; e < t->bytes / sizeof *a; e++) {
                const double x = (double)a[e] - (double)p[e], y = (double)b[e] - (double)p[e];
                norm += y * y;
                ours_norm += x * x;
                product += x * y;
                off += (x - y) * (x - y);
                size += (double)b[e] * (double)b[e];
            }
            /* the parameter itself is rounded after the step */
            const double distance = (sqrt(off) - 6e-8 * sqrt(size)) / sqrt(norm);
            const double angle = product / sqrt(norm * ours_norm);
            worst = fmax(worst, distance);
            cosine = fmin(cosine, angle);
            if (!(norm > 0))
                fail_msg("%s: no gradient", t->name);
            if (!(distance <= tolerance && angle >= least_cosine))
                fail_msg("%s: its gradient is off by %g of its norm, with a cosine of %g", t->name,
                         distance, angle);
            lks_test_free(a, b, p);
        }
        lks__st_close(ours);
        lks__st_close(cpus);
        lks__st_close(first);
    }
    print_message("%s: gradients are off by %.2g of their norm, 1 - cosine is %.2g\n", of, worst,
                  1 - cosine);
}

TEST_WITH(test_gradients, use_float32, NULL)
{
    check_gradients("float32", 1e-4, 0.999999);
}

TEST_WITH(test_gradients_bf16, use_float32, NULL)
{
    check_gradients("bfloat16", 5e-2, 0.9995);
}

/* --- ends ------------------------------------------------------------------------------------ */

/* Rank 1's device fails in the middle of a step: the run ends, and names call and GPU. */
TEST_WITH(test_failures, use_bf16, NULL)
{
    static const struct {
        const char *fails, *says;
    } calls[] = {
        {"cudaMemcpyAsync:60", "cudaMemcpyAsync failed on GPU 1"},
        {"cudaEventRecord:40", "cudaEventRecord failed on GPU 1"},
        {"cudaEventQuery:30", "cudaEventQuery failed on GPU 1"},
        {"cudaStreamWaitEvent:20", "cudaStreamWaitEvent failed on GPU 1"},
        {"cudaLaunchHostFunc:9", "cudaLaunchHostFunc failed on GPU 1"},
        {"cudaMalloc:5", "cudaMalloc failed on GPU 1"},
        {"cublasLtMatmul:50", "cublasLtMatmul failed on GPU 1"},
        {"kernel:200", "can't be started on GPU 1"},
        {"ncclCommInitRankConfig:1", "ncclCommInitRankConfig failed: unhandled system error"},
        {"ncclRecv:9", "ncclRecv failed: unhandled system error: a cable is missing, on GPU 1"},
        {"ncclGroupEnd:12", "at step 1, phase update: ncclGroupEnd failed"},
        {"asynchronous:60", "NCCL failed: remote process exited or there was a network error"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        law_args args = run_of(false, lks_test_folder());
        law_add(&args, "--nproc_per_node=2");
        const char *const env[] = {lks_test_text("CUDA_STANDIN_FAIL=%s", calls[i].fails),
                                   "CUDA_STANDIN_ONLY_RANK=1", NULL};
        lks_test_result r = lks_test_run(args.argv, env, 120);
        if (r.exit_code != 1 || strstr(r.err, calls[i].says) == NULL ||
            strstr(r.err, "rank 1") == NULL)
            fail_msg("%s: exit code %d: %s", calls[i].fails, r.exit_code, r.err);
    }
}

/* A rank is killed in an exchange: it is named, and all end. */
TEST_WITH(test_killed, use_bf16, NULL)
{
    const char *const env[] = {"CUDA_STANDIN_KILL=ncclGroupEnd:12", "CUDA_STANDIN_ONLY_RANK=1",
                               NULL};
    law_args args = run_of(true, lks_test_folder());
    law_add(&args, "--nproc_per_node=4");
    lks_test_result r = assert_exits(128 + SIGKILL, lks_test_run(args.argv, env, 120), "rank 1",
                                     "was killed by signal 9 (SIGKILL)");
    assert_null(strstr(r.err, "NCCL failed"));
}

/* The launcher's sentence about the end: the last one that begins with a rank. How to continue
 * follows it. */
static const char *last_line(const char *err)
{
    const char *last = err, *line = err;
    while ((line = strstr(line, "lockstep train: rank ")) != NULL)
        last = line++;
    return lks_test_text("%.*s", (int)strcspn(last, "\n"), last);
}

/* Rank 1, or the only one, stands still: a kernel never ends, its process is stopped, or hangs in a
 * call because the GPU takes no more work. The run ends, and names that rank and its GPU, although
 * all the others stand still, too: they only wait for it. */
TEST_WITH(test_hanging, use_bf16, NULL)
{
    const double limit_s = lks_test_patience();
    const char *kernels =
        lks_test_text("has finished nothing for %g s (--timeout): its kernels hang", limit_s);
    const char *waited =
        lks_test_text("no answer for %g s in an exchange between GPUs from rank 1 (pid ", limit_s);
    const struct {
        const char *ranks, *more, *event, *says, *also;
    } runs[] = {
        {"--nproc_per_node=1", "--exchange=auto", "HANG=kernel:200", kernels, "GPU 0 (Stand-in"},
        {"--nproc_per_node=2", "--exchange=staged", "HANG=kernel:200", "rank 1", "GPU 1 (Stand-in"},
        {"--nproc_per_node=2", "--exchange=nccl", "HANG=kernel:200", kernels, "GPU 1 (Stand-in"},
        {"--nproc_per_node=4", "--exchange=nccl", "HANG=kernel:200", kernels, "GPU 1 (Stand-in"},
        /* in an update, while parameters go to all ranks */
        {"--nproc_per_node=4", "--exchange=nccl", "HANG=kernel:350", kernels, "GPU 1 (Stand-in"},
        {"--nproc_per_node=4", "--exchange=nccl", "STOP=ncclGroupEnd:3", waited,
         "stopped by a signal"},
        {"--nproc_per_node=2", "--exchange=nccl", "STOP=ncclGroupStart:1", waited,
         "stopped by a signal"},
        {"--nproc_per_node=2", "--exchange=nccl", "HANG=cudaEventRecord:30", waited, ", at step "},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const bool alone = i == 0;
        const char *const env[] = {lks_test_text("CUDA_STANDIN_%s", runs[i].event),
                                   alone ? NULL : "CUDA_STANDIN_ONLY_RANK=1", NULL};
        law_args args = run_of(false, lks_test_folder());
        law_add(&args, "%s", runs[i].ranks);
        law_add(&args, "%s", runs[i].more);
        law_add(&args, "--timeout=%g", limit_s);
        lks_test_result r = lks_test_run(args.argv, env, 120);
        const char *last = last_line(r.err);
        if (r.exit_code != 1 || strstr(last, runs[i].says) == NULL ||
            strstr(last, runs[i].also) == NULL ||
            strstr(last, alone ? "GPU 0 (Stand-in" : "GPU 1 (Stand-in") == NULL ||
            strstr(last, alone ? "rank 0, at iteration " : "rank 1 ") == NULL)
            fail_msg("%s %s %s: exit code %d, signal %d: %s", runs[i].ranks, runs[i].more,
                     runs[i].event, r.exit_code, r.signal, r.err);
    }
}

/* Rank 1 stops in a checkpoint's exchange. More copies follow than rank 0 can queue. */
TEST_WITH(test_hanging_checkpoint, use_float32, NULL)
{
    const char *const env[] = {"CUDA_STANDIN_STOP=ncclGroupStart:4", "CUDA_STANDIN_ONLY_RANK=1",
                               NULL};
    law_args args = run_of(false, lks_test_folder());
    law_add_line(&args,
                 "--nproc_per_node=2 --exchange=nccl --n_layer=50 --max_iters=1 "
                 "--checkpoint_interval=1 --eval_interval=0 --gradient_accumulation_steps=2 "
                 "--virtual_ranks=2 --bucket_mb=25 --timeout=%g",
                 lks_test_patience());
    const lks_test_result r = assert_exits(1, lks_test_run(args.argv, env, 120));
    assert_contains(last_line(r.err),
                    lks_test_text("no answer for %g s in an exchange between GPUs from rank 1 (",
                                  lks_test_patience()),
                    "stopped by a signal");
}

TEST_WITH(test_refused, use_float32, NULL)
{
    static const struct {
        const char *env, *more, *says;
    } runs[] = {
        {"CUDA_STANDIN_REFUSED=0", "--nproc_per_node=2",
         "the table of algorithms for matrix products: GPU 1 (Stand-in) can't use its algorithm "
         "for the matrix product NT m=8 n=48 k=16 ld=16,16,48 float32 aligned=16: "
         "cublasLtMatmulAlgoCheck: the functionality is not supported"},
        {"CUDA_STANDIN_PROCESSORS=108", "--nproc_per_node=2",
         "the GPU's kind, its driver or CUDA's libraries differs between ranks: rank 0 (host "},
        {"CUDA_STANDIN_GPUS=2", "--nproc_per_node=4",
         "4 ranks on this host, but 2 GPUs: ranks 0 and 2 both have GPU 0 (Stand-in, PCI "
         "0000:10:00.0); "
         "start at most 2 ranks here"},
        {"CUDA_STANDIN_GPUS=none", "--nproc_per_node=1", "cudaGetDeviceCount failed"},
        {"CUDA_STANDIN_MAJOR=7", "--nproc_per_node=1", "has capability 7.0"},
        {"CUDA_STANDIN_MB=1", "--nproc_per_node=1", "(CUDA error 2); other programs use its mem"},
        {"CUDA_STANDIN_MB=32", "--nproc_per_node=1", "and 0.0 MB of it are free"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        law_args args = run_of(false, lks_test_folder());
        law_add(&args, "%s", runs[i].more);
        const char *const env[] = {runs[i].env, "CUDA_STANDIN_ONLY_RANK=1", NULL};
        lks_test_result r = lks_test_run(args.argv, env, 120);
        if (r.exit_code == 0 || strstr(r.err, runs[i].says) == NULL)
            fail_msg("%s %s: exit code %d: %s", runs[i].env, runs[i].more, r.exit_code, r.err);
    }
}

/* A checkpoint goes from the CPU to the GPU, with a warning. */
TEST_WITH(test_from_cpu, use_float32, NULL)
{
    const char *out = RUN(false, "--device=cpu");
    law_args args = run_of(false, out);
    law_add_all(&args, "--init_from=resume", "--max_iters=5");
    assert_exits(0, lks_test_run(args.argv, NULL, 120),
                 "the checkpoint was made with kernels of fingerprint");
}

TEST_WITH(test_list, use_float32, NULL)
{
    calls_assert_listed(all_calls, 90);
}

int main(int argc, char **argv)
{
    tool = argv[1];
    all_calls = lks_test_text("%s/calls", lks_test_folder());
    setenv("CUDA_STANDIN_CALLS", all_calls, 1);
    setenv("CUDA_STANDIN_NCCL", lks_test_folder_in_memory(), 1);
    if (argc > 2)
        lks_test_only(argv[2]);
    return lks_test_run_all(train_whole, NULL);
}
