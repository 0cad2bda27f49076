/* What a trained model is used for, on stand-ins for GPUs (standins.h) and beside the CPU: eval,
 * golf's bits per byte and artifact, samples. Besides: several hosts, and what `lockstep info`
 * says. argv[1] is lockstep_cuda_standin, argv[2] the test to run if not all. */
#include "../../laws/laws.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"

static const char *tool, *text_data, *byte_data, *all_calls;

/* `lockstep train` of a small model into `out`. */
static law_args run_of(bool golf, const char *dtype, int steps, const char *out)
{
    static const char *const small[2][14] = {
        {"--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=8", "--batch_size=1",
         "--gradient_accumulation_steps=8", "--eval_interval=8", "--eval_iters=1",
         "--learning_rate=1e-2"},
        {"--family=golf", "--num_layers=3", "--num_heads=2", "--num_kv_heads=1", "--model_dim=16",
         "--train_seq_len=8", "--train_batch_tokens=64", "--val_batch_size=64",
         "--warmdown_iters=0", "--max_wallclock_seconds=0"},
    };
    law_args args = {.n = 0};
    law_add(&args, "%s", tool);
    law_add(&args, "train");
    law_add(&args, "--dataset=%s", golf ? byte_data : text_data);
    law_add(&args, "--out_dir=%s", out);
    law_add_words(&args, small[golf]);
    law_add(&args, golf ? "--iterations=%d" : "--max_iters=%d", steps);
    law_add(&args, "--dtype=%s", dtype);
    law_add(&args, "--threads=1");
    return args;
}

/* `more`: ranks on GPUs, or "--device=cpu". */
static const char *train_steps(bool golf, const char *dtype, int steps, const char *more)
{
    const char *out = lks_test_folder();
    law_args args = run_of(golf, dtype, steps, out);
    law_add(&args, "%s", more);
    assert_exits(0, lks_test_run(args.argv, NULL, 120));
    return out;
}

static const char *train(bool golf, const char *dtype, const char *more)
{
    return train_steps(golf, dtype, 8, more);
}

/* --- golf's figures -------------------------------------------------------------------------- */

static double last_bpb(const char *out)
{
    const json_t *lines = lks_test_record(out, "final");
    assert_true(json_array_size(lines) > 0);
    return lks_test_number(lines, "-1.val_bpb");
}

/* The bits per byte that the run found for its artifact, read back from the file. */
static double artifacts_bpb(const char *out)
{
    static const char name[] = "final_int8_zlib_roundtrip_exact ";
    const char *log = lks_test_read(lks_test_text("%s/train.log", out), NULL);
    const char *line = strstr(log, name);
    double loss, bpb;
    assert_non_null(line);
    assert_int_equal(sscanf(line + strlen(name), "val_loss:%lf val_bpb:%lf", &loss, &bpb), 2);
    return bpb;
}

/* The loss of a run's checkpoint or of an artifact, and, of golf, its bits per byte. */
static double evaluate(bool golf, const char *what, const char *device, double *bpb_p)
{
    lks_test_result r = lks_test_run(
        (const char *const[]){tool, "eval", what,
                              golf ? lks_test_text("--dataset=%s/fineweb_val_*.bin", byte_data)
                                   : lks_test_text("--dataset=%s", text_data),
                              device, "--block_size=8", NULL},
        NULL, 120);
    double loss;
    if (r.exit_code != 0 || strstr(r.out, " loss ") == NULL)
        fail_msg("eval %s %s: exit code %d: %s%s", what, device, r.exit_code, r.out, r.err);
    assert_int_equal(sscanf(strstr(r.out, " loss "), " loss %lf", &loss), 1);
    if (golf)
        assert_int_equal(sscanf(strstr(r.out, ", ") + 2, "%lf bits", bpb_p), 1);
    return loss;
}

/* A run on GPUs ends with the CPU's bits per byte, of the model and of its artifact; and the
 * artifact of either has the same loss on both. */
static void check_golf(const char *dtype, double tolerance)
{
    const char *runs[2] = {train(true, dtype, "--nproc_per_node=2"),
                           train(true, dtype, "--device=cpu")};
    const double off[2] = {fabs(last_bpb(runs[0]) - last_bpb(runs[1])),
                           fabs(artifacts_bpb(runs[0]) - artifacts_bpb(runs[1]))};
    assert_true(last_bpb(runs[1]) < 7.9); /* 8 before the first step */
    print_message("%s: val_bpb differs by %.2g, the artifact's by %.2g\n", dtype, off[0], off[1]);
    if (!(off[0] <= tolerance && off[1] <= tolerance))
        fail_msg("%s: val_bpb differs by %g, the artifact's by %g", dtype, off[0], off[1]);
    for (int i = 0; i < 2; i++) {
        const char *artifact = lks_test_text("--artifact=%s/final_model.int8.ptz", runs[i]);
        double cuda_bpb, cpu_bpb;
        const double cuda = evaluate(true, artifact, "--device=cuda", &cuda_bpb),
                     cpu = evaluate(true, artifact, "--device=cpu", &cpu_bpb);
        if (!(fabs(cuda - cpu) <= tolerance && fabs(cuda_bpb - cpu_bpb) <= 2 * tolerance))
            fail_msg("%s: the artifact's loss is %g, on the CPU %g", dtype, cuda, cpu);
        assert_true(fabs(artifacts_bpb(runs[i]) - cpu_bpb) <= 2 * tolerance);
    }
}

TEST(test_golf)
{
    check_golf("float32", 1e-4);
}

TEST(test_golf_bf16)
{
    check_golf("bfloat16", 5e-3);
}

/* --- eval and sample ------------------------------------------------------------------------- */

/* eval gives the CPU's loss. Samples are the CPU's, whatever the order in which the device works:
 * drawn, and of the likeliest tokens, before and after the context of 8 is full. In bfloat16 logits
 * are too far apart for that, and cuda_models compares them; but the order doesn't matter. */
static void check_use(const char *dtype, double tolerance)
{
    for (int golf = 0; golf < 2; golf++) {
        const char *run = lks_test_text("--out_dir=%s", train(golf, dtype, "--device=cpu"));
        double bpb;
        assert_true(fabs(evaluate(golf, run, "--device=cuda", &bpb) -
                         evaluate(golf, run, "--device=cpu", &bpb)) <= tolerance);
        for (int likeliest = 0; likeliest < 2; likeliest++) {
            const char *texts[3];
            for (int k = 0; k < 3; k++) {
                lks_test_result r = assert_exits(
                    0,
                    lks_test_run(
                        (const char *const[]){
                            tool, "sample", run, k == 0 ? "--device=cpu" : "--device=cuda",
                            likeliest ? "--temperature=0" : "--temperature=0.8", "--num_samples=3",
                            "--max_new_tokens=12", "--start=a", "--threads=1", NULL},
                        (const char *const[]){lks_test_text("CUDA_STANDIN_SEED=%d", 2 * k), NULL},
                        120));
                texts[k] = lks_test_text("%s", r.out);
            }
            assert_true(strlen(texts[0]) > 3 * 12);
            assert_string_equal(texts[2], texts[1]);
            if (strcmp(dtype, "float32") == 0)
                assert_string_equal(texts[1], texts[0]);
        }
    }
}

TEST(test_use)
{
    check_use("float32", 1e-4);
}

/* More samples at once than the GPU has room for: it is named, and what eval can change. */
TEST(test_no_room)
{
    const char *run = train(false, "float32", "--device=cpu");
    const char *const argv[] = {tool,
                                "eval",
                                lks_test_text("--out_dir=%s", run),
                                lks_test_text("--dataset=%s", text_data),
                                "--device=cuda",
                                "--batch_size=65536",
                                NULL};
    assert_exits(1, lks_test_run(argv, (const char *const[]){"CUDA_STANDIN_MB=100", NULL}, 120),
                 "no memory on GPU 0 (Stand-in",
                 "(524288 tokens at once): use a smaller --batch_size");
}

TEST(test_use_bf16)
{
    check_use("bfloat16", 5e-3);
}

/* --- hosts ----------------------------------------------------------------------------------- */

/* Two launchers with two ranks each, as on two hosts; options[i]: one of the i-th one's. */
static void run_hosts(const char *const options[2], const char *out, lks_test_result results[2])
{
    const char *port = lks_test_text("--master-port=%d", lks_test_free_port());
    lks_test_child nodes[2];
    for (int i = 0; i < 2; i++) {
        const law_args train = run_of(true, "bfloat16", 8, out);
        law_args args = {.n = 0};
        law_add_all(&args, "lockstep", "run");
        law_add(&args, "%s", port);
        law_add_line(&args, "--nnodes=2 --node-rank=%d --nproc-per-node=2", i);
        law_add_words(&args, train.argv);
        law_add(&args, "%s", options[i]);
        nodes[i] =
            lks_test_start(args.argv, (const char *const[]){"LOCKSTEP_TOKEN=0123456789abcdef-ab",
                                                            "CUDA_STANDIN_OWN=1", NULL});
    }
    for (int i = 0; i < 2; i++)
        results[i] = lks_test_wait(&nodes[i], 120);
}

/* NCCL's id comes over the group, and the bytes are those of one rank. */
TEST(test_hosts)
{
    const char *want = train(true, "bfloat16", "--nproc_per_node=1"), *out = lks_test_folder();
    lks_test_result r[2];
    run_hosts((const char *const[]){"--device=cuda", "--device=cuda"}, out, r);
    for (int i = 0; i < 2; i++)
        if (r[i].exit_code != 0)
            fail_msg("node %d: exit code %d: %s", i, r[i].exit_code, r[i].err);
    law_assert_same(out, want);
    const json_t *host = json_array_get(lks_test_record(out, "host"), 0);
    assert_int_equal(lks_test_number(host, "world_size"), 4);
    assert_string_equal(lks_test_string(host, "exchange"), "nccl");
}

/* GPUs on one host and the CPU on the other one, or other settings there of what GPUs do: refused,
 * with both ranks. */
TEST(test_mixed_hosts)
{
    static const struct {
        const char *options[2], *what, *first, *second;
    } runs[] = {
        {{"--device=cuda", "--device=cpu"}, "device", "cuda", "cpu"},
        {{"--dtype=float32", "--dtype=bfloat16"}, "dtype", "float32", "bfloat16"},
        {{"--exchange=nccl", "--share_gpu"}, "exchange", "nccl", "staged"},
    };
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) {
        lks_test_result r[2];
        run_hosts(runs[k].options, lks_test_folder(), r);
        for (int i = 0; i < 2; i++) {
            assert_exits(1, r[i],
                         lks_test_text("%s differs between ranks: rank 0 (host %s) has %s, "
                                       "rank 2 (host %s) has %s",
                                       runs[k].what, host, runs[k].first, host, runs[k].second));
        }
    }
}

/* --- info ------------------------------------------------------------------------------------ */

TEST(test_info)
{
    const char *const argv[] = {tool, "info", NULL};
    lks_test_result r =
        assert_exits(0, lks_test_run(argv, (const char *const[]){"CUDA_STANDIN_GPUS=2", NULL}, 60));
    assert_contains(r.out, "device       cuda: 2 GPUs; CUDA runtime 13.0, driver 13.0, cuBLASLt",
                    "\ndevice       cuda:1: Stand-in, ", "\ndevice       cuda: NCCL 2.28.9\n");
}

/* Sampling has kernels of its own. */
TEST(test_list)
{
    assert_contains(lks_test_read(all_calls, NULL), "kernel attention_cached<float>\n");
    calls_assert_listed(all_calls, 90);
}

/* --- steps ----------------------------------------------------------------------------------- */

/* How often a run of that many steps made the call: on one GPU, without evaluation, checkpoint or
 * artifact behind the first step. */
static long count_calls(bool golf, int steps, const char *call)
{
    static const char *counts[2][2];
    static const int lengths[2] = {3, 7};
    const int which = steps == lengths[1];
    if (counts[golf][which] == NULL) {
        counts[golf][which] = lks_test_text("%s/counts", lks_test_folder());
        setenv("CUDA_STANDIN_COUNTS", counts[golf][which], 1);
        train_steps(golf, "bfloat16", steps, "--nproc_per_node=1");
        unsetenv("CUDA_STANDIN_COUNTS");
    }
    const char *text = lks_test_read(counts[golf][which], NULL);
    const char *line = strstr(text, lks_test_text("%s: ", call));
    return line == NULL ? 0 : atol(line + strlen(call) + 2);
}

/* A step allocates nothing and opens nothing. Tokens and targets of its 8 micro-batches go to the
 * device; their losses, and the blocks' sums of squares, come back. */
TEST(test_steps)
{
    enum { COPIES = 2 * 8 + 2 };
    static const char *const none[] = {"cudaMalloc",
                                       "cudaFree",
                                       "cudaHostAlloc cudaHostAllocDefault",
                                       "cudaFreeHost",
                                       "cudaEventCreateWithFlags cudaEventDisableTiming",
                                       "cudaStreamCreateWithFlags cudaStreamNonBlocking",
                                       "cublasLtMatmulAlgoGetHeuristic 1 result"};
    for (int golf = 0; golf < 2; golf++) {
        for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
            const long few = count_calls(golf, 3, none[i]), more = count_calls(golf, 7, none[i]);
            if (few == 0 || few != more)
                fail_msg("%s: %ld times in 3 steps, %ld times in 7", none[i], few, more);
        }
        static const struct {
            const char *call;
            long a_step;
        } copies[] = {{"cudaMemcpyAsync cudaMemcpyDefault", COPIES},
                      {"cudaMemcpyAsync cudaMemcpyDeviceToHost", 0},
                      {"cudaMemcpyAsync cudaMemcpyHostToDevice", 0}};
        for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
            const long few = count_calls(golf, 3, copies[i].call),
                       more = count_calls(golf, 7, copies[i].call);
            if (more - few != 4 * copies[i].a_step)
                fail_msg("%s: %ld times in 3 steps, %ld times in 7", copies[i].call, few, more);
        }
    }
}

/* --- data ------------------------------------------------------------------------------------ */

static int prepare(void **state)
{
    char text[6001];
    for (int i = 0; i < 6000; i++)
        text[i] = (char)(i % 7 == 6 ? ' ' : 'a' + (i * i / 7 + i / 3) % 26);
    const char *input = lks_test_text("%s/text", lks_test_folder());
    const char *lines = lks_test_text("%s/docs.jsonl", lks_test_folder());
    text_data = lks_test_text("%s/data", lks_test_folder());
    byte_data = lks_test_text("%s/data", lks_test_folder());
    lks_test_write(input, text, 6000);
    const char *docs = "";
    for (int i = 0; i < 60; i++)
        docs = lks_test_text("%s{\"text\":\"%.100s\"}\n", docs, text + 100 * i);
    lks_test_write(lines, docs, strlen(docs));
    assert_exits(0, lks_test_tool("prep", "char", lks_test_text("--input=%s", input),
                                  lks_test_text("--out=%s", text_data)));
    assert_exits(0, lks_test_tool("prep", "bytes", lks_test_text("--input=%s", lines),
                                  lks_test_text("--out=%s", byte_data), "--num_val_docs=2",
                                  "--shards=4000"));
    return 0;
}

int main(int argc, char **argv)
{
    tool = argv[1];
    all_calls = lks_test_text("%s/calls", lks_test_folder());
    setenv("CUDA_STANDIN_CALLS", all_calls, 1);
    setenv("CUDA_STANDIN_NCCL", lks_test_folder_in_memory(), 1);
    if (argc > 2)
        lks_test_only(argv[2]);
    return lks_test_run_all(prepare, NULL);
}
