/* --device of the tool, and of the tests' own tool, which has one more device. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *deferred_tool;

static lks_test_result dry(const char *tool, const char *device)
{
    return lks_test_run((const char *const[]){tool, "train", "--dry_run", "--dataset=/nowhere",
                                              lks_test_text("--device=%s", device), NULL},
                        NULL, 60);
}

/* Both tools accept exactly the words of their lists; with a valid one they fail later, at the
 * data. */
TEST(test_choices)
{
    static const char *const good[] = {"auto", "cpu"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_contains(dry("lockstep", good[i]).err, "there is no such folder");
        assert_contains(dry(deferred_tool, good[i]).err, "there is no such folder");
    }
    assert_contains(dry(deferred_tool, "deferred").err, "there is no such folder");
    assert_exits(2, dry("lockstep", "deferred"),
                 "device must be auto, cuda, cuda:N or cpu in this build, not \"deferred\"");
    assert_exits(2, dry(deferred_tool, "cuda"),
                 "device must be auto, deferred, deferred:N or cpu in this build, not \"cuda\"");
    static const char *const wrong[] = {
        "deferred:",        "deferred:N", "deferred:-1", "deferred:1x",
        "deferred:1234567", "deferred1",  "cpu:0",       ""};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_exits(2, dry(deferred_tool, wrong[i]),
                     "device must be auto, deferred, deferred:N or cpu in this build");
    assert_contains(dry(deferred_tool, "deferred:0").err, "there is no such folder");
}

/* The device that a short run reports. */
static const char *device_of(const char *tool, const char *device)
{
    const char *data = lks_test_folder(), *out = lks_test_folder();
    lks_test_generated_tokens(data);
    assert_exits(0, lks_test_run(
                        (const char *const[]){
                            tool, "train", lks_test_text("--dataset=%s", data),
                            lks_test_text("--out_dir=%s", out), "--n_layer=1", "--n_head=1",
                            "--n_embd=8", "--block_size=8", "--batch_size=1", "--vocab_size=65",
                            "--gradient_accumulation_steps=1", "--max_iters=0", "--eval_iters=1",
                            lks_test_text("--device=%s", device), NULL},
                        NULL, 60));
    return lks_test_string(lks_test_record(out, "host"), "0.device");
}

/* The bytes of activations that `plan` counts. */
static double activations_on(const char *device, const char *family, const char *sampler)
{
    const bool host = strcmp(device, "cpu") == 0;
    lks_test_result r =
        lks_test_run((const char *const[]){deferred_tool, "plan", "--json", "--vocab_size=1024",
                                           "--gradient_accumulation_steps=8", family, sampler,
                                           lks_test_text("--device=%s", device), NULL},
                     NULL, 60);
    json_t *plan = json_loads(r.out, 0, NULL);
    if (r.exit_code != 0 || plan == NULL)
        fail_msg("exit code %d: %s%s", r.exit_code, r.out, r.err);
    const json_t *memory = lks_test_member(lks_test_member(plan, "points"), "0.memory");
    const double bytes = lks_test_number(memory, host ? "activations" : "device.activations");
    json_decref(plan);
    return bytes;
}

/* This device's layers need 1 MiB more than the CPU's: see MORE_FLOATS in operations.c. */
TEST(test_plan_asks_the_device)
{
    static const char *const families[][2] = {{"--family=gpt2", "--sampler=random"},
                                              {"--family=golf", "--sampler=stream"}};
    for (int i = 0; i < 2; i++) {
        double cpu = activations_on("cpu", families[i][0], families[i][1]);
        double deferred = activations_on("deferred", families[i][0], families[i][1]);
        assert_near(deferred - cpu, 1048576.0, 0.5);
    }
}

/* The bytes of device memory of each rank of a short run: sum, and the largest. */
struct peaks {
    size_t sum, most;
};

static struct peaks peaks_of(const char *data, const char *const family[], const char *optimizer,
                             int W)
{
    const char *out = lks_test_folder(), *file = lks_test_text("%s/peaks", lks_test_folder());
    const char *argv[40] = {deferred_tool, "train"},
               *env[] = {lks_test_text("DEFERRED_PEAK=%s", file), NULL};
    int n = 2;
    for (; *family != NULL; family++)
        argv[n++] = *family;
    argv[n++] = lks_test_text("--dataset=%s", data);
    argv[n++] = lks_test_text("--out_dir=%s", out);
    argv[n++] = lks_test_text("--optimizer=%s", optimizer);
    argv[n++] = lks_test_text("--nproc_per_node=%d", W);
    argv[n++] = "--gradient_accumulation_steps=2";
    argv[n++] = "--virtual_ranks=2";
    argv[n++] = "--threads=1";
    argv[n++] = "--skip_fit_check"; /* it opens the device in the launcher, too */
    assert_exits(0, lks_test_run(argv, env, 60));
    struct peaks p = {0, 0};
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    int ranks = 0;
    for (size_t bytes; fscanf(f, "%zu", &bytes) == 1; ranks++) {
        p.sum += bytes;
        p.most = bytes > p.most ? bytes : p.most;
    }
    fclose(f);
    assert_int_equal(ranks, W);
    return p;
}

/* AdamW keeps two numbers of each parameter, SGD one. The difference is one state, of which each
 * rank's device has its pieces alone: all ranks together have as much as one rank has. */
TEST(test_moments_are_divided)
{
    static const char *const gpt2[] = {"--n_layer=3",     "--n_head=2",     "--n_embd=64",
                                       "--block_size=16", "--batch_size=1", "--vocab_size=65",
                                       "--max_iters=1",   "--eval_iters=1", NULL};
    static const char *const golf[] = {"--family=golf",           "--sampler=stream",
                                       "--vocab_size=1024",       "--num_layers=3",
                                       "--model_dim=64",          "--num_heads=2",
                                       "--num_kv_heads=1",        "--train_seq_len=16",
                                       "--train_batch_tokens=64", "--val_batch_size=1024",
                                       "--iterations=1",          "--max_wallclock_seconds=0",
                                       "--val_loss_every=0",      NULL};
    static const struct {
        const char *const *args;
        void (*tokens)(const char *folder);
    } families[] = {{gpt2, lks_test_generated_tokens}, {golf, lks_test_generated_golf}};
    enum { BLOCK = 4096 * sizeof(float) };
    for (int i = 0; i < 2; i++) {
        const char *data = lks_test_folder();
        families[i].tokens(data);
        struct peaks one[2], two[2];
        for (int k = 0; k < 2; k++) {
            one[k] = peaks_of(data, families[i].args, k == 0 ? "sgd" : "adamw", 1);
            two[k] = peaks_of(data, families[i].args, k == 0 ? "sgd" : "adamw", 2);
        }
        const size_t whole = one[1].sum - one[0].sum;
        assert_true(whole > 16 * BLOCK);
        assert_int_equal(two[1].sum - two[0].sum, whole);
        assert_true(two[1].most - two[0].most < whole / 4 * 3);
    }
}

TEST(test_named_in_metrics)
{
    assert_string_equal(device_of("lockstep", "auto"), "cpu");
    assert_string_equal(device_of("lockstep", "cpu"), "cpu");
    assert_string_equal(device_of(deferred_tool, "cpu"), "cpu");
}

int main(int argc, char **argv)
{
    deferred_tool = argv[1];
    return lks_test_run_all(NULL, NULL);
}
