/* Runs stay as they are: results of main before a redesign, as one hash for each run and each
 * kernel fingerprint (tests/figures/recorded_runs.txt). The other laws compare lockstep with
 * itself; this one compares it with its past.
 *
 * A hash covers the digits of losses, rates, norms and validation losses, and every tensor of the
 * last checkpoint: parameters, moments, sampler state. LKS_TEST_RECORD=FILE appends the lines of
 * this machine to FILE instead of comparing; that is right only if a change of bits was wanted.
 *
 * `test_recorded modes` makes two short runs in each memory mode that the program has (host,
 * staged, joined), on 1 and 3 ranks and with --zero=1. */
#include "laws.h"

#include <gnu/libc-version.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/cpu.h"
#include "comm/hosts.h"
#include "files/safetensors/safetensors.h"

enum { MAX_MORE = 20 };

struct recorded_run {
    const char *name;
    bool golf;
    const char *more[MAX_MORE]; /* settings, or golf's variables */
    const char *resumed;        /* NULL, or the setting that ends the first half */
};

#define WIDE                                                                                       \
    "--n_layer=2", "--n_head=6", "--n_embd=384", "--block_size=64", "--batch_size=3",              \
        "--max_iters=1", "--eval_iters=1", "--checkpoint_interval=2", "--bucket_mb=1",             \
        "--gradient_accumulation_steps=2", "--virtual_ranks=2"

#define GOLF_SMALL                                                                                 \
    "NUM_LAYERS=3", "MODEL_DIM=48", "NUM_HEADS=4", "NUM_KV_HEADS=2", "TRAIN_SEQ_LEN=32",           \
        "TRAIN_BATCH_TOKENS=1024", "ITERATIONS=6", "WARMDOWN_ITERS=4", "VAL_LOSS_EVERY=3",         \
        "VAL_BATCH_SIZE=2048"

#define GOLF_WIDE                                                                                  \
    "NUM_LAYERS=2", "MODEL_DIM=512", "NUM_HEADS=8", "NUM_KV_HEADS=4", "TRAIN_SEQ_LEN=64",          \
        "TRAIN_BATCH_TOKENS=512", "ITERATIONS=2", "WARMDOWN_ITERS=1", "VAL_LOSS_EVERY=0"

static const struct recorded_run runs[] = {
    {"gpt2", false, {NULL}, NULL},
    {"gpt2-3-ranks", false, {"--nproc_per_node=3", "--allow_uneven"}, NULL},
    {"gpt2-private", false, {"--nproc_per_node=2", "--replicas=private"}, NULL},
    {"gpt2-resumed", false, {"--sampler=nanogpt"}, "--max_iters=6"},
    {"gpt2-nanogpt", false, {"--sampler=nanogpt", "--virtual_ranks=2"}, NULL},
    {"gpt2-epoch", false, {"--sampler=epoch", "--bias=0"}, NULL},
    {"gpt2-bf16", false, {"--dtype=bfloat16", "--nproc_per_node=2"}, NULL},
    {"gpt2-odd",
     false,
     {"--n_layer=1", "--n_head=5", "--n_embd=35", "--block_size=17", "--batch_size=3"},
     NULL},
    {"gpt2-384", false, {WIDE}, NULL},
    {"gpt2-384-bf16", false, {WIDE, "--dtype=bfloat16"}, NULL},
    {"gpt2-768", false, {WIDE, "--n_head=12", "--n_embd=768", "--n_layer=1"}, NULL},
    {"golf", true, {GOLF_SMALL}, NULL},
    {"golf-2-ranks", true, {GOLF_SMALL, "--nproc_per_node=2"}, NULL},
    {"golf-untied",
     true,
     {GOLF_SMALL, "TIE_EMBEDDINGS=0", "GRAD_CLIP_NORM=0.3", "--iterations=3",
      "--train_batch_tokens=512", "--eval_interval=0"},
     NULL},
    {"golf-bf16", true, {GOLF_SMALL, "--dtype=bfloat16"}, NULL},
    {"golf-resumed", true, {GOLF_SMALL}, "--iterations=3"},
    {"golf-512", true, {GOLF_WIDE}, NULL},
    {"golf-512-bf16", true, {GOLF_WIDE, "--dtype=bfloat16", "--nproc_per_node=2"}, NULL},
};
enum { N_RUNS = sizeof runs / sizeof runs[0] };

/* ---- running ------------------------------------------------------------------------------- */

static void add_base(const struct recorded_run *run, law_args *args, const char *out)
{
    law_add_all(args, "lockstep", "train");
    if (run->golf) {
        law_add(args, "%s", LKS_TEST_SOURCE_DIR "/config/golf_baseline.conf");
    } else {
        law_add(args, "--dataset=%s", law_data());
        law_add_all(args, "--bias", "--n_layer=3", "--n_head=3", "--n_embd=48", "--block_size=24",
                    "--batch_size=6", "--dropout=0.1", "--virtual_ranks=8", "--max_iters=9",
                    "--eval_interval=4", "--eval_iters=2", "--learning_rate=1e-3",
                    "--grad_clip=0.2", "--lr_decay_iters=8", "--warmup_iters=3", "--bucket_mb=0.02",
                    "--keep=0", "--sampler=random", "--checkpoint_interval=5", "--timeout=60",
                    "--gradient_accumulation_steps=16");
    }
    law_add(args, "--out_dir=%s", out);
}

static void train(const struct recorded_run *run, const char *out, const char *last)
{
    law_args args = {.n = 0};
    const char *env[MAX_MORE + 8];
    int n_env = 0;
    add_base(run, &args, out);
    if (run->golf) {
        env[n_env++] = lks_test_text("DATA_PATH=%s", law_golf_data(2500));
        env[n_env++] = "TOKENIZER_PATH=";
        env[n_env++] = "VOCAB_SIZE=1024";
        env[n_env++] = "MAX_WALLCLOCK_SECONDS=0";
    }
    for (int i = 0; i < MAX_MORE && run->more[i] != NULL; i++)
        if (run->more[i][0] == '-')
            law_add(&args, "%s", run->more[i]);
        else
            env[n_env++] = run->more[i];
    env[n_env] = NULL;
    if (last != NULL)
        law_add(&args, "%s", last);
    assert_exits(0, lks_test_run(args.argv, env, 300));
}

/* ---- hashing ------------------------------------------------------------------------------- */

/* The digits of `"field":` in a line, unchanged; "" if it has none. */
static const char *digits(const char *line, const char *field)
{
    const char *at = strstr(line, lks_test_text(",\"%s\":", field));
    if (at == NULL)
        return "";
    at = strchr(at + 1, ':') + 1;
    return lks_test_text("%.*s", (int)strcspn(at, ",}"), at);
}

/* Lines train and eval of metrics.jsonl, with the fields that a run determines; and golf's `final`
 * line, without train_loss, if the end has no eval line. */
static void add_lines(FILE *to, const char *out)
{
    static const char *const fields[] = {"iter",       "loss",     "lr",     "grad_norm",
                                         "train_loss", "val_loss", "val_bpb"};
    const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", out), NULL);
    const char *evaluated = "";
    int n = 0;
    while (*text != '\0') {
        const char *line = lks_test_text("%.*s", (int)strcspn(text, "\n"), text);
        text += strlen(line) + 1;
        const bool eval = strstr(line, "{\"kind\":\"eval\"") == line;
        const bool final = strstr(line, "{\"kind\":\"final\"") == line &&
                           *digits(line, "train_loss") == '\0' &&
                           strcmp(digits(line, "iter"), evaluated) != 0;
        if (strstr(line, "{\"kind\":\"train\"") != line && !eval && !final)
            continue;
        if (eval)
            evaluated = digits(line, "iter");
        for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
            fprintf(to, "%s ", digits(line, fields[f]));
        fputc('\n', to);
        n++;
    }
    assert_true(n >= 2);
}

static void add_tensors(FILE *to, const char *path)
{
    lks__st_file *file;
    assert_ok(lks__st_open(path, &file));
    assert_true(lks__st_count(file) > 4);
    for (size_t i = 0; i < lks__st_count(file); i++) {
        const lks__st_tensor *t = lks__st_get(file, i);
        void *data = lks_test_malloc(t->bytes + 1);
        assert_ok(lks__st_read(file, t, data));
        fprintf(to, "%s %s %016" PRIx64 "\n", t->name, t->dtype, XXH3_64bits(data, t->bytes));
        free(data);
    }
    lks__st_close(file);
}

static const char *hash_of(const char *out)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    add_lines(to, out);
    add_tensors(to, lks_test_text("%s/latest/model.safetensors", out));
    add_tensors(to, lks_test_text("%s/latest/optimizer.safetensors", out));
    fclose(to);
    const char *hash = lks_test_text("%016" PRIx64, XXH3_64bits(text, bytes));
    if (getenv("LKS_TEST_SHOW") != NULL)
        print_message("%s", text);
    free(text);
    return hash;
}

static const char *fingerprint_of(const char *out)
{
    return lks_test_string(lks_test_record(out, "host"), "0.fingerprint");
}

/* ---- comparing ----------------------------------------------------------------------------- */

/* The recorded hash of a run with kernels of this fingerprint, or NULL. */
static const char *recorded(const char *name, const char *fingerprint)
{
    const char *text = lks_test_read(LKS_TEST_SOURCE_DIR "/tests/figures/recorded_runs.txt", NULL);
    const char *at = strstr(text, lks_test_text("\n%s %s ", name, fingerprint));
    return at == NULL ? NULL : lks_test_text("%.16s", at + strlen(name) + strlen(fingerprint) + 3);
}

/* Compare with the recorded hash, or record this one. */
static void compare(const char *name, const char *fingerprint, const char *hash)
{
    const char *record = getenv("LKS_TEST_RECORD");
    if (record != NULL) {
        FILE *f = fopen(record, "a");
        assert_non_null(f);
        fprintf(f, "%s %s %s\n", name, fingerprint, hash);
        fclose(f);
        return;
    }
    const char *want = recorded(name, fingerprint);
    /* Those of float32 are the same on all machines. */
    if (want == NULL && strstr(name, "bf16") == NULL &&
        strcmp(fingerprint, lks_test_text("%016" PRIx64, LKS__FINGERPRINT)) == 0)
        fail_msg("no hash of %s is recorded for %s. If kernels were only added, write this "
                 "fingerprint in place of the old one: the hashes must stay",
                 name, fingerprint);
    if (want == NULL)
        lks_test_lacks("recorded-kernels", lks_test_text("%s %s", name, fingerprint));
    assert_string_equal(hash, want);
}

static void test_run(void **state)
{
    const struct recorded_run *run = *state;
    const char *out = lks_test_folder();
    train(run, out, run->resumed);
    if (run->resumed != NULL)
        train(run, out, "--init_from=resume");
    compare(run->name, fingerprint_of(out), hash_of(out));
}

/* What differs between these runs and others is the host's work: ranks, replicas, samplers. */
static bool differs_on_the_host(const char *name)
{
    static const char *const names[] = {"gpt2-3-ranks", "gpt2-private", "gpt2-nanogpt",
                                        "gpt2-epoch",   "golf-2-ranks", "golf-resumed"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* The largest shapes. */
static bool is_large(const char *name)
{
    static const char *const names[] = {"gpt2-384-bf16", "gpt2-768", "golf-512", "golf-512-bf16"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Another device, whose kernels are the CPU's, and levels below the machine's best have each family
 * and dtype with smaller shapes; laws_levels has wide models at each level. A level doesn't change
 * the host's part of a run, either. */
static bool left_out(const char *name)
{
    const char *level = getenv("LOCKSTEP_CPU");
    const bool other_level = level != NULL && *level != '\0';
    if (getenv("LKS_TEST_RECORD") != NULL)
        return false; /* another machine may have no better level */
    return ((other_level || lks_test_on_device()) && is_large(name)) ||
           (other_level && differs_on_the_host(name));
}

/* ---- memory modes -------------------------------------------------------------------------- */

/* The program decides between host and staged: its device has memory of its own, or hasn't. */
struct mode {
    const char *name;
    const char *hosts; /* NULL: one host, by the program's own launcher */
    const char *more[3];
    const char *exchange; /* on the host line of its metrics; NULL: anything */
};

static const struct mode modes[] = {
    {"one", NULL, {"--nproc_per_node=1"}, NULL},
    {"three", NULL, {"--nproc_per_node=3", "--allow_uneven"}, NULL},
    {"private", NULL, {"--nproc_per_node=3", "--allow_uneven", "--replicas=private"}, NULL},
    {"two-hosts", "21", {"--backend=gloo", "--allow_uneven", "--zero=1"}, NULL},
};

/* On stand-ins for a GPU and for NCCL (tests/cuda/device). */
static const struct mode gpu_modes[] = {
    {"staged", NULL, {"--nproc_per_node=1", "--exchange=staged"}, "staged"},
    {"three-staged", NULL, {"--nproc_per_node=3", "--allow_uneven", "--exchange=staged"}, "staged"},
    {"joined", NULL, {"--nproc_per_node=1", "--exchange=nccl"}, "nccl"},
    {"three-joined", NULL, {"--nproc_per_node=3", "--allow_uneven", "--exchange=nccl"}, "nccl"},
};

static bool on_standins(void)
{
    return strstr(lks_test_program(), "standin") != NULL;
}

/* A stand-in's own fingerprint has the version of lockstep; its bits are those of its libm. */
static const char *bits_of(const char *out)
{
    return on_standins() ? lks_test_text("standin-%s", gnu_get_libc_version())
                         : fingerprint_of(out);
}

/* Some steps of several small buckets; gpt2 has two micro-batches for each virtual rank. */
static law_args mode_settings(bool golf, const char *out)
{
    static const char *const settings[2][24] = {
        {"--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=8", "--batch_size=1", "--bias",
         "--dropout=0.1", "--max_iters=3", "--eval_interval=2", "--eval_iters=1",
         "--learning_rate=1e-2", "--warmup_iters=1", "--lr_decay_iters=100", "--grad_clip=0.25",
         "--gradient_accumulation_steps=12", "--virtual_ranks=6"},
        {"--family=golf", "--sampler=stream", "--vocab_size=1024", "--n_layer=3", "--n_head=2",
         "--num_kv_heads=1", "--n_embd=16", "--block_size=8", "--train_batch_tokens=64",
         "--val_batch_size=64", "--warmdown_iters=0", "--iterations=3", "--max_wallclock_seconds=0",
         "--eval_interval=0", "--matrix_lr=0.01", "--gradient_accumulation_steps=8",
         "--virtual_ranks=8"},
    };
    law_args args = law_begin(golf ? law_golf_data(65) : law_data(), out);
    law_add_words(&args, settings[golf]);
    law_add_all(&args, "--bucket_mb=0.002", "--threads=1", "--dtype=float32");
    return args;
}

static void run_mode(const struct mode *mode, bool golf, law_args *args)
{
    for (int i = 0; i < 3 && mode->more[i] != NULL; i++)
        if (!golf || strcmp(mode->more[i], "--zero=1") != 0) /* Muon's state can't be divided */
            law_add(args, "%s", mode->more[i]);
    if (mode->hosts == NULL) {
        law_run(args);
        return;
    }
    lks_test_need_gloo();
    args->argv[0] = lks_test_program();
    assert_int_equal(hosts_run("gloo", mode->hosts, args->argv), 0);
}

static void test_mode(void **state)
{
    const struct mode *mode = *state;
    for (int golf = 0; golf < 2; golf++) {
        const char *out = lks_test_folder();
        law_args args = mode_settings(golf, out);
        run_mode(mode, golf, &args);
        if (mode->exchange != NULL) {
            const json_t *host = json_array_get(lks_test_record(out, "host"), 0);
            assert_string_equal(lks_test_string(host, "exchange"), mode->exchange);
        }
        compare(golf ? "modes-golf" : "modes-gpt2", bits_of(out), hash_of(out));
    }
}

int main(int argc, char **argv)
{
    lks__cpu_level level;
    lks_test_need_level(NULL);
    if (lks__cpu_level_get(&level) != LKS_OK)
        return EXIT_FAILURE;
    const bool of_modes = argc > 1 && strcmp(argv[1], "modes") == 0;
    for (int i = 0; of_modes && i < 4; i++) {
        const struct mode *mode = on_standins() ? &gpu_modes[i] : &modes[i];
        lks_test_add((struct CMUnitTest){mode->name, test_mode, NULL, NULL, (void *)mode}, i);
    }
    if (of_modes && on_standins())
        setenv("CUDA_STANDIN_NCCL", lks_test_folder_in_memory(), 1);
    /* With the reference kernels only one run is short enough; laws_recorded_modes_plain has golf.
     */
    for (int i = 0; !of_modes && i < N_RUNS; i++)
        if ((strcmp(runs[i].name, "gpt2-odd") == 0 || level != LKS__CPU_PLAIN) &&
            !left_out(runs[i].name))
            lks_test_add((struct CMUnitTest){runs[i].name, test_run, NULL, NULL, (void *)&runs[i]},
                         i);
    return lks_test_run_all(NULL, NULL);
}
