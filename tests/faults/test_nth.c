/* The n-th call for files or shared memory fails, or the n-th allocation, for every n (for some in
 * the short run): each command ends with one sentence and a code, or with success, and what it
 * leaves is complete or absent.
 *
 *     faults_nth [--points=N] [COMMAND]    N: how many of each; 0: all, of slow commands too */
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/checkpoint/ckpt.h"
#include "laws/marked.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static int points = 4;   /* number tested for each command and fault; 0: all */
static const char *only; /* the command to test; NULL: all of them */

/* ---- commands -------------------------------------------------------------------------------- */

static struct {
    const char *text, *tokens, *golf_tokens; /* inputs */
    const char *gpt2, *golf;                 /* folders of finished runs */
    const char *artifact_hash, *gguf_hash, *folder, *picture, *report, *diff, *seal;
} have;

static fault_run made(const char *out, const char *const words[])
{
    fault_run run = {.data = have.tokens, .out = out};
    law_add_words(&run.args, words);
    return run;
}
#define TOOL(out, ...)     made((out), (const char *const[]){"lockstep", __VA_ARGS__, NULL})
#define PATH(option, path) lks_test_text("--%s=%s", (option), (path))

static fault_run gpt2(const char *out, int W)
{
    return TOOL(out, "train", PATH("dataset", have.tokens), PATH("out_dir", out),
                lks_test_text("--nproc_per_node=%d", W), "--n_layer=1", "--n_head=2", "--n_embd=16",
                "--block_size=8", "--batch_size=2", "--gradient_accumulation_steps=2",
                "--max_iters=2", "--eval_interval=2", "--eval_iters=1", "--threads=1",
                "--sampler=nanogpt", "--keep=1", "--virtual_ranks=2", "--checkpoint_interval=1");
}

static fault_run train(const char *out)
{
    return gpt2(out, 1);
}

static fault_run train_ranks(const char *out)
{
    return gpt2(out, 2);
}

static fault_run resume(const char *out)
{
    lks_test_do("cp", "-a", have.gpt2, out);
    fault_run run = gpt2(out, 1);
    law_add_all(&run.args, "--init_from=resume", "--max_iters=4");
    return run;
}

static fault_run golf(const char *out)
{
    return TOOL(out, "train", PATH("dataset", have.golf_tokens), PATH("out_dir", out),
                "--family=golf", "--sampler=stream", "--vocab_size=1024", "--num_layers=1",
                "--model_dim=8", "--num_heads=2", "--num_kv_heads=1", "--train_seq_len=8",
                "--train_batch_tokens=64", "--val_batch_size=512", "--iterations=2",
                "--max_wallclock_seconds=0", "--threads=1", "--val_loss_every=0",
                "--gradient_accumulation_steps=1");
}

static fault_run prep(const char *out)
{
    return TOOL(out, "prep", "char", PATH("input", have.text), PATH("out", out));
}

static fault_run eval(const char *out)
{
    return TOOL(out, "eval", PATH("dataset", have.tokens), PATH("out_dir", have.gpt2),
                "--threads=1", "--batch_size=4");
}

static fault_run sample(const char *out)
{
    return TOOL(out, "sample", PATH("out_dir", have.gpt2), "--num_samples=1", "--max_new_tokens=4",
                "--threads=1");
}

static fault_run export(const char *out)
{
    return TOOL(out, "export", "--format=golf", PATH("out_dir", have.golf), PATH("out", out));
}

static fault_run export_hf(const char *out)
{
    return TOOL(out, "export", "--format=hf", PATH("out_dir", have.gpt2), PATH("out", out));
}

static fault_run export_gguf(const char *out)
{
    return TOOL(out, "export", "--format=gguf", PATH("out_dir", have.gpt2), PATH("out", out));
}

static fault_run report(const char *out)
{
    return TOOL(out, "report", have.gpt2, have.golf);
}

/* Compares a run with itself, so the exit code is 0. */
static fault_run diff(const char *out)
{
    return TOOL(out, "diff", have.gpt2, have.gpt2, "--json");
}

static fault_run seal(const char *out)
{
    return TOOL(out, "audit", have.gpt2, "--seal");
}

static fault_run draw(const char *out)
{
    return TOOL(out, "plot", lks_test_text("--out=%s.svg", out), have.gpt2, have.golf);
}

static fault_run page(const char *out)
{
    return TOOL(out, "watch", lks_test_text("--html=%s.html", out), have.gpt2, have.golf);
}

/* A coordinator, which waits some time for others. */
static fault_run coordinate(const char *out)
{
    return TOOL(out, "run", "--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:0", "true");
}

/* ---- what they leave ------------------------------------------------------------------------- */

static void leaves_nothing(const char *out, bool ok)
{
    assert_false(lks_test_exists(out));
}

/* All of the new tokens or none; nothing half-written. */
static void leaves_tokens(const char *out, bool ok)
{
    int files = lks_test_exists(out) ? lks_test_count_files(out) : 0;
    if (files != 3 && (ok || files != 0))
        fail_msg("%s", fault_snapshot(out));
}

static void leaves_artifact(const char *out, bool ok)
{
    if (ok || lks_test_exists(out))
        assert_string_equal(lks_test_sha256(out), have.artifact_hash);
}

static void leaves_gguf(const char *out, bool ok)
{
    if (ok || lks_test_exists(out))
        assert_string_equal(lks_test_sha256(out), have.gguf_hash);
}

/* A folder without config.json, or the whole of it. */
static void leaves_folder(const char *out, bool ok)
{
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                        "model.safetensors"};
    if (!ok && !lks_test_exists(lks_test_text("%s/config.json", out)))
        return;
    for (size_t i = 0; i < COUNT(files); i++)
        assert_same_file(lks_test_text("%s/%s", out, files[i]),
                         lks_test_text("%s/%s", have.folder, files[i]));
}

static void leaves_picture(const char *out, bool ok)
{
    if (ok)
        assert_same_file(lks_test_text("%s.svg", out), lks_test_text("%s.svg", have.picture));
}

static void leaves_page(const char *out, bool ok)
{
    if (ok)
        assert_same_file(lks_test_text("%s.html", out), lks_test_text("%s.html", have.picture));
}

/* No checkpoint, or one that loads. (The next save deletes what this one could not.) */
static void leaves_checkpoint(const char *out, bool ok)
{
    lks__ckpt ckpt;
    if (!ok && !lks_test_exists(lks_test_text("%s/latest", out)))
        return;
    assert_ok(lks__ckpt_open(out, 1, &ckpt));
    lks__ckpt_close(&ckpt);
}

static const struct command {
    const char *name;
    fault_run (*make)(const char *out);
    void (*leaves)(const char *out, bool ok);
    const char *rank; /* the rank that is hit; NULL: there is one process */
    bool slow;        /* left out of the short run */
} commands[] = {
    {"prep", prep, leaves_tokens, NULL, false},
    {"train", train, leaves_checkpoint, NULL, false},
    {"train, launcher", train_ranks, leaves_checkpoint, "", false},
    {"train, rank 0", train_ranks, leaves_checkpoint, "0", false},
    {"train, rank 1", train_ranks, leaves_checkpoint, "1", false},
    {"resume", resume, leaves_checkpoint, NULL, false},
    {"golf", golf, leaves_checkpoint, NULL, false},
    {"eval", eval, leaves_nothing, NULL, false},
    {"sample", sample, leaves_nothing, NULL, false},
    {"export", export, leaves_artifact, NULL, false},
    {"export, hf", export_hf, leaves_folder, NULL, false},
    {"export, gguf", export_gguf, leaves_gguf, NULL, false},
    {"report", report, leaves_nothing, NULL, false},
    {"diff", diff, leaves_nothing, NULL, false},
    {"audit --seal", seal, leaves_nothing, NULL, false},
    {"plot", draw, leaves_picture, NULL, false},
    {"watch --html", page, leaves_page, NULL, false},
    {"run, coordinator", coordinate, leaves_nothing, "", true},
};

static bool chosen(const struct command *c)
{
    return only != NULL ? strcmp(only, c->name) == 0 : points == 0 || !c->slow;
}

/* Run it to its end; returns its output. */
static const char *ended(fault_run run)
{
    return assert_exits(0, lks_test_run(run.args.argv, NULL, 30)).out;
}

static int make_inputs(void **state)
{
    char text[3000];
    /* Two batches: golf makes the same calls and allocations as with more. */
    uint16_t validation[1100];
    setenv("LOCKSTEP_TOKEN", "0123456789abcdef", 1);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i % 11 == 10 ? '\n' : 'a' + i * i % 23);
    const char *folder = lks_test_folder();
    have.text = lks_test_text("%s/text", folder);
    lks_test_write(have.text, text, sizeof text);
    have.tokens = lks_test_text("%s/tokens", folder);
    have.golf_tokens = lks_test_folder();
    have.gpt2 = lks_test_text("%s/gpt2", folder);
    have.golf = lks_test_text("%s/golf", folder);
    lks_test_generated_golf(have.golf_tokens);
    for (size_t i = 0; i < COUNT(validation); i++)
        validation[i] = (uint16_t)(i * i % 1024);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", have.golf_tokens), validation,
                         COUNT(validation));
    ended(prep(have.tokens));
    ended(train(have.gpt2));
    ended(golf(have.golf));
    const char *artifact = lks_test_text("%s/artifact", folder);
    ended(export(artifact));
    have.artifact_hash = lks_test_sha256(artifact);
    const char *gguf = lks_test_text("%s/gguf", folder);
    ended(export_gguf(gguf));
    have.gguf_hash = lks_test_sha256(gguf);
    have.folder = lks_test_text("%s/hf", folder);
    ended(export_hf(have.folder));
    have.report = ended(report(artifact));
    have.diff = ended(diff(folder));
    have.seal = ended(seal(folder));
    have.picture = lks_test_text("%s/picture", folder);
    ended(draw(have.picture));
    ended(page(have.picture));
    return 0;
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Run it with up to four more variables; it succeeds, or fails with a sentence. */
static bool survives(const struct command *c, const char *fault, const char *const more[4])
{
    const char *folder = lks_test_folder(), *out = lks_test_text("%s/out", folder);
    const char *mark = marked_variable(), *env[6] = {mark};
    for (int i = 0; i < 4 && more[i] != NULL; i++)
        env[i + 1] = more[i];
    fault_run run = c->make(out);
    lks_test_result r = lks_test_run(run.args.argv, env, 30);
    const char *where = lks_test_text("%s, %s", c->name, fault);
    if (r.signal != 0 || r.exit_code > 2)
        fail_msg("%s: exit code %d, signal %d: %s", where, r.exit_code, r.signal, r.err);
    if (r.exit_code != 0 && strstr(r.err, "lockstep") == NULL)
        fail_msg("%s: it failed without a sentence: %s", where, r.err);
    const char *whole = c->make == report ? have.report
                        : c->make == diff ? have.diff
                        : c->make == seal ? have.seal
                                          : r.out;
    if (r.exit_code == 0 && strcmp(r.out, whole) != 0)
        fail_msg("%s: it succeeded without the whole report: %s", where, r.out);
    marked_assert_gone(mark, 2);
    c->leaves(out, r.exit_code == 0);
    lks_test_command("rm", "-rf", folder);
    return r.exit_code == 0;
}

static const char *rank_variable(const struct command *c, const char *name)
{
    return c->rank != NULL ? lks_test_text("%s=%s", name, c->rank) : NULL;
}

/* Does the command make an n-th call? If so, it is killed there. */
static bool has_call(const struct command *c, int n)
{
    const char *out = lks_test_text("%s/out", lks_test_folder());
    fault_run run = c->make(out);
    const char *env[] = {lks_test_text("LOCKSTEP_FAULT=any:%d:die", n),
                         rank_variable(c, "LOCKSTEP_FAULT_RANK"), NULL};
    return lks_test_run(run.args.argv, env, 30).exit_code != 0;
}

/* How many calls it makes; in the short run at most an eighth too few, which takes fewer runs. */
static int count_calls(const struct command *c)
{
    int there = 0, beyond = 1;
    while (has_call(c, beyond)) {
        there = beyond;
        beyond *= 2;
    }
    while (beyond - there > (points == 0 ? 1 : 1 + there / 8)) {
        int n = (there + beyond) / 2;
        if (has_call(c, n))
            there = n;
        else
            beyond = n;
    }
    return there;
}

/* The next of `count` calls or allocations to test: the first, some between, which differ for each
 * command, and the last three, which complete a text. A report is quick. */
static int after(const struct command *c, int at, int count)
{
    const int n = c->make == report ? 16 * points : points, last = count - 2;
    const int next = at + (n == 0 || count <= n ? 1 : count / n);
    return at >= last ? at + 1 : next < last ? next : last;
}

TEST(test_calls)
{
    for (size_t i = 0; i < COUNT(commands); i++) {
        const struct command *c = &commands[i];
        if (!chosen(c) || (c->rank && *c->rank == '\0'))
            continue; /* the launcher has no RANK by which faults could choose it */
        if (c->make == page)
            continue; /* to watch, a ranks.jsonl that can't be read is an empty one */
        int calls = count_calls(c), passed = 0, tried = 0;
        assert_true(calls > 5);
        for (int n = 1; n <= calls; n = after(c, n, calls), tried++) {
            static const char *const causes[] = {"EIO", "ENOSPC", "ENOMEM", "EMFILE"};
            const char *fault = lks_test_text("any:%d:%s", n, causes[n % 4]);
            const char *env[4] = {lks_test_text("LOCKSTEP_FAULT=%s", fault),
                                  rank_variable(c, "LOCKSTEP_FAULT_RANK"), NULL};
            passed += survives(c, fault, env);
        }
        print_message("%s: %d of %d calls, %d of them without consequence\n", c->name, tried, calls,
                      passed);
        assert_true(passed < tried);
    }
}

/* ---- memory ----------------------------------------------------------------------------------
 * Uses lockstep's own matrix products: without memory, the GEMM library (C++) may end the
 * process. */

#define OWN_KERNELS "LOCKSTEP_CPU=plain"

static int count_allocations(const struct command *c, const char *preload)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/count", folder);
    fault_run run = c->make(lks_test_text("%s/out", folder));
    const char *env[] = {preload, OWN_KERNELS, lks_test_text("LKS_ALLOC_COUNT=%s", path),
                         rank_variable(c, "LKS_FAIL_RANK"), NULL};
    assert_exits(0, lks_test_run(run.args.argv, env, 60));
    return atoi(lks_test_read(path, NULL));
}

TEST(test_allocations)
{
#ifdef __SANITIZE_ADDRESS__
    lks_test_lacks("plain-build", "the address sanitizer has an allocator of its own");
#elif defined(__SANITIZE_THREAD__)
    lks_test_lacks("plain-build", "the thread sanitizer has an allocator of its own");
#elif defined(LKS_TEST_COVERAGE)
    lks_test_lacks("plain-build", "counting allocates, and takes it for granted");
#endif
    const char *preload = lks_test_preload(LKS_TEST_FAIL_ALLOC);
    for (size_t i = 0; i < COUNT(commands); i++) {
        const struct command *c = &commands[i];
        if (!chosen(c))
            continue;
        int count = count_allocations(c, preload), passed = 0, tried = 0;
        assert_true(count > 20);
        for (int n = 1; n <= count; n = after(c, n, count), tried++) {
            const char *fault = lks_test_text("allocation %d%s", n, tried % 2 ? "+" : "");
            const char *env[4] = {lks_test_text("LKS_FAIL_ALLOC=%s", fault + strlen("allocation ")),
                                  preload, OWN_KERNELS, rank_variable(c, "LKS_FAIL_RANK")};
            passed += survives(c, fault, env);
        }
        print_message("%s: %d of %d allocations, %d of them without consequence\n", c->name, tried,
                      count, passed);
        assert_true(passed < tried);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "--points=%d", &points) != 1)
            only = argv[i];
    }
    size_t i = 0;
    while (only != NULL && i < COUNT(commands) && strcmp(only, commands[i].name) != 0)
        i++;
    if (i == COUNT(commands)) {
        printf("no command is named %s\n", only);
        return 1;
    }
    return lks_test_run_all(make_inputs, NULL);
}
