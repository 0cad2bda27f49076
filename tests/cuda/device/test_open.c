/* --device=cuda and auto, without a module, with one that finds no GPU, and with fewer GPUs than
 * ranks; what lockstep info says. The module is fake_module.c. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute/cuda/module.h"

static const char *modules, *pretend; /* the fake module's folder; pretend.so */
static const char *data;

static lks_test_result train(const char *const env[], const char *device, const char *more,
                             const char *ranks)
{
    const char *out = lks_test_folder();
    return lks_test_run(
        (const char *const[]){"lockstep", "train", lks_test_text("--dataset=%s", data),
                              lks_test_text("--out_dir=%s", out), "--n_layer=1", "--n_head=1",
                              "--n_embd=8", "--block_size=8", "--batch_size=1", "--vocab_size=65",
                              "--gradient_accumulation_steps=4", "--max_iters=0", "--eval_iters=1",
                              "--threads=1", "--skip_fit_check",
                              lks_test_text("--device=%s", device),
                              lks_test_text("--nproc_per_node=%s", ranks), more, NULL},
        env, 60);
}

static bool has_real_module(void)
{
    const char *tool = LKS_TEST_TOOL;
    return lks_test_exists(
        lks_test_text("%.*s/%s", (int)(strrchr(tool, '/') - tool), tool, LKS__CUDA_MODULE_FILE));
}

/* The module as it is built, with NVIDIA's libraries, on a machine without their driver. */
TEST(test_no_driver)
{
    if (!has_real_module())
        lks_test_lacks("cuda-toolkit", "the module for GPUs was not built");
    if (access("/dev/nvidiactl", F_OK) == 0)
        lks_test_lacks("no-driver", "this machine has NVIDIA's driver");
    assert_exits(1, train(NULL, "cuda", NULL, "1"), "--device=cuda: cudaGetDeviceCount failed: ",
                 "NVIDIA's driver is missing, or too old for this CUDA");
    lks_test_result r = assert_exits(0, lks_test_tool("info"));
    assert_contains(r.out, "device       cuda: cudaGetDeviceCount failed: ");
}

/* No module: a copy of the program in a folder that has none, and the first folder to look into has
 * something else. */
TEST(test_no_module)
{
    const char *folder = lks_test_folder(), *copy = lks_test_text("%s/lockstep", folder);
    const char *no_module = lks_test_text("%s/modules", folder);
    const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", no_module), NULL};
    const char *const cp =
        lks_test_text("cp '%s' '%s' && mkdir '%s' && echo 'no library' >'%s/%s'", LKS_TEST_TOOL,
                      copy, no_module, no_module, LKS__CUDA_MODULE_FILE);
    assert_exits(0, lks_test_shell(cp));
    assert_int_equal(setenv("LKS_TEST_PROGRAM", copy, 1), 0);
    assert_exits(1, train(env, "cuda", NULL, "1"), "--device=cuda: ", "lockstep_cuda.so",
                 "docs/guides/cuda.md");
    lks_test_result r = assert_exits(0, train(env, "auto", NULL, "1"));
    assert_null(strstr(r.err, "NVIDIA"));
    assert_int_equal(unsetenv("LKS_TEST_PROGRAM"), 0);
}

/* A file that the loader can't take: cut off, as by a full disk, or a pipe. */
TEST(test_damaged_module)
{
    static const struct {
        const char *make, *says;
    } files[] = {{"head -c 3000 \"$0\" >\"$1\"", "the file is cut off"},
                 {"head -c -1 \"$0\" >\"$1\"", "the file is cut off"},
                 {"mkfifo \"$1\"", "it is not a file"}};
    const char *whole = lks_test_text("%s/%s", modules, LKS__CUDA_MODULE_FILE);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *folder = lks_test_folder();
        const char *path = lks_test_text("%s/%s", folder, LKS__CUDA_MODULE_FILE);
        const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", folder), NULL};
        assert_exits(
            0, lks_test_run((const char *const[]){"sh", "-c", files[i].make, whole, path, NULL},
                            NULL, 60));
        lks_test_result r =
            assert_exits(0, lks_test_run((const char *const[]){"lockstep", "info", NULL}, env, 60));
        assert_contains(r.out, lks_test_text("device       cuda: %s: %s", path, files[i].says));
    }
}

static lks_test_result with_gpus(const char *gpus, const char *ranks, const char *more)
{
    const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules),
                         lks_test_text("FAKE_GPUS=%s", gpus), NULL};
    return train(env, "cuda", more, ranks);
}

TEST(test_no_gpu)
{
    assert_exits(1, with_gpus("none", "1", NULL),
                 "--device=cuda: cudaGetDeviceCount failed: no driver: look at nvidia-smi");
    assert_exits(1, with_gpus("0", "1", NULL), "this process sees no NVIDIA GPU");
}

TEST(test_old_gpu)
{
    const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=1",
                         "FAKE_MAJOR=7", NULL};
    assert_exits(1, train(env, "cuda", NULL, "1"),
                 "GPU 0 (Fake) has capability 7.0, and lockstep needs 8.0 or more");
    lks_test_result r = lks_test_run((const char *const[]){"lockstep", "info", NULL}, env, 60);
    assert_contains(r.out, "cuda:0: Fake, 80.0 GB, capability 7.0 (too old), PCI");
    const char *least[] = {env[0], env[1], "FAKE_MAJOR=8", NULL};
    r = train(least, "cuda", NULL, "1");
    assert_contains(r.err, "the fake module was asked for GPU 0");
    r = lks_test_run((const char *const[]){"lockstep", "info", NULL}, least, 60);
    assert_contains(r.out, "cuda:0: Fake, 80.0 GB, capability 8.0, PCI");
}

TEST(test_ranks_and_gpus)
{
    lks_test_result r = with_gpus("1", "1", NULL);
    assert_contains(r.err, "the fake module was asked for GPU 0");
    const char *one[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=1",
                         "FAKE_OPENS=1", NULL};
    assert_exits(2, train(one, "cuda", NULL, "2"),
                 "2 ranks on this host, but 1 GPU: ranks 0 and 1 both have GPU of a "
                 "test; start at most 1 rank here, or let several compute on one GPU "
                 "with --share_gpu");
    const char *hidden[] = {one[0], "FAKE_GPUS=3", one[2], "CUDA_VISIBLE_DEVICES=0,2,5", NULL};
    r = train(hidden, "cuda", NULL, "4");
    assert_contains(r.err, "4 ranks on this host, but 3 GPUs: ranks 0 and 3 both have GPU of a "
                           "test, with CUDA_VISIBLE_DEVICES=0,2,5; start at most 3 ranks here");
    r = with_gpus("1", "2", "--share_gpu");
    assert_contains(r.err, "the fake module was asked for GPU 0");
}

/* --device=cuda:N is for each rank the GPU N of those that it sees. */
TEST(test_number)
{
    const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=4", NULL};
    lks_test_result r = train(env, "cuda:3", NULL, "1");
    assert_contains(r.err, "the fake module was asked for GPU 3");
    assert_exits(2, train(env, "cuda:4", NULL, "1"),
                 "--device=cuda:4: this process sees 4 GPUs, counted from 0: use cuda:3, "
                 "or cuda without a number");
    const char *hidden[] = {env[0], "FAKE_GPUS=1", "CUDA_VISIBLE_DEVICES=7", NULL};
    r = train(hidden, "cuda:7", NULL, "1");
    assert_contains(r.err, "--device=cuda:7: this process sees 1 GPU, with CUDA_VISIBLE_DEVICES=7, "
                           "counted from 0: use cuda:0");
    const char *opens[] = {env[0], "FAKE_GPUS=4", "FAKE_OPENS=1", NULL};
    assert_exits(2, train(opens, "cuda:2", NULL, "2"),
                 "2 ranks on this host, but 1 GPU: ranks 0 and 1 both have");
}

/* A rank has the GPU of its number on the host. */
TEST(test_local_rank)
{
    const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=4", NULL};
    lks_test_result r = train(env, "cuda", NULL, "2");
    assert_contains(r.err, "GPU 0 was asked for", "GPU 1 was asked for");
    const char *shared[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=4",
                            "FAKE_MAJOR=0", NULL};
    r = train(shared, "cuda", NULL, "1");
    assert_contains(r.err, "GPU 0: GPU 0 is lost");
}

/* One line if there is a GPU or its driver, and nothing new if not. */
TEST(test_auto)
{
    const char *none[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=2", NULL};
    lks_test_result r = assert_exits(0, train(none, "auto", NULL, "1"));
    assert_null(strstr(r.err, "NVIDIA"));
#ifdef LKS_TEST_INSTRUMENTED
    lks_test_lacks("plain-build", "sanitizers come before other libraries");
#else
    const char *env[] = {none[0], "FAKE_GPUS=2", lks_test_text("LD_PRELOAD=%s", pretend), NULL};
    r = assert_exits(0, train(env, "auto", NULL, "2"));
    const char *line = lks_test_find(r.err, "this machine has an NVIDIA GPU or its driver");
    assert_contains(line, "--device=cuda uses it");
    assert_null(strstr(line + 1, "this machine has")); /* rank 0 alone */
    const char *broken[] = {none[0], "FAKE_GPUS=none", env[2], "PRETEND=/proc/driver/nvidia", NULL};
    assert_exits(0, train(broken, "auto", NULL, "1"),
                 "device=auto uses the CPU: cudaGetDeviceCount failed: no driver");
#endif
}

TEST(test_info)
{
    const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=2", NULL};
    lks_test_result r =
        assert_exits(0, lks_test_run((const char *const[]){"lockstep", "info", NULL}, env, 60));
    assert_contains(r.out,
                    "device       cuda: 2 GPUs; CUDA 0.0; experimental: docs/guides/cuda.md has "
                    "results from GPUs\n"
                    "device       cuda:0: Fake, 80.0 GB, capability 9.0, PCI 0000:19:00.0\n"
                    "device       cuda:1: Fake, 80.0 GB, capability 9.0, PCI 0000:19:00.0\n");
    /* As many as fit into the text. */
    const char *many[] = {env[0], "FAKE_GPUS=200", NULL};
    r = assert_exits(0, lks_test_run((const char *const[]){"lockstep", "info", NULL}, many, 60));
    assert_contains(r.out, "\ndevice       cuda:50: Fake, 80.0 GB");
    assert_null(strstr(r.out, "cuda:199"));
    const char *broken[] = {env[0], "FAKE_GPUS=none", NULL};
    r = assert_exits(0, lks_test_run((const char *const[]){"lockstep", "info", NULL}, broken, 60));
    assert_contains(r.out, "device       cuda: cudaGetDeviceCount failed: no driver: look at "
                           "nvidia-smi, and at CUDA_VISIBLE_DEVICES if it is set; built with CUDA "
                           "0.0\n");
}

/* nanoGPT's files have device = 'cuda', and run on machines without. */
TEST(test_config_file)
{
    const char *path = lks_test_text("%s/gpu.py", lks_test_folder());
    lks_test_write_text(path, "device = 'cuda:1'\n");
    const char *env[] = {lks_test_text("LOCKSTEP_MODULES=%s", modules), "FAKE_GPUS=none", NULL};
    const char *const argv[] = {"lockstep",
                                "train",
                                path,
                                lks_test_text("--dataset=%s", data),
                                lks_test_text("--out_dir=%s", lks_test_folder()),
                                "--dry_run",
                                "--vocab_size=65",
                                NULL};
    assert_exits(0, lks_test_run(argv, env, 60), "gpu.py:1: device = 'cuda:1'");
    const char *here[] = {env[0], "FAKE_GPUS=1", NULL};
    lks_test_result r = lks_test_run(argv, here, 60);
    assert_null(strstr(r.err, "gpu.py:1"));
}

int main(int argc, char **argv)
{
    modules = argv[1];
    pretend = argv[2];
    data = lks_test_folder();
    lks_test_generated_tokens(data);
    lks_test_part(argc > 3, "test_no_driver");
    return lks_test_run_all(NULL, NULL);
}
