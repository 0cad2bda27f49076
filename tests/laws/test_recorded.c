/* Runs stay as they are: results of main before a redesign, as one hash for each run and each
 * kernel fingerprint (tests/figures/recorded_runs.txt). The other laws compare lockstep with
 * itself; this one compares it with its past.
 *
 * A hash covers the digits of losses, rates, norms and validation losses, and every tensor of the
 * last checkpoint: parameters, moments, sampler state. LKS_TEST_RECORD=FILE appends the lines of
 * this machine to FILE instead of comparing; that is right only if a change of bits was wanted.
 *
 * `test_recorded recompute` makes the same runs with --recompute, one way or the other; a resumed
 * run goes on without it. */
#include "laws.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/cpu.h"
#include "ckpt/safetensors.h"

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
    {"golf-untied", true, {GOLF_SMALL, "TIE_EMBEDDINGS=0", "GRAD_CLIP_NORM=0.3"}, NULL},
    {"golf-bf16", true, {GOLF_SMALL, "--dtype=bfloat16"}, NULL},
    {"golf-resumed", true, {GOLF_SMALL}, "--iterations=3"},
    {"golf-512", true, {GOLF_WIDE}, NULL},
    {"golf-512-bf16", true, {GOLF_WIDE, "--dtype=bfloat16", "--nproc_per_node=2"}, NULL},
};
enum { N_RUNS = sizeof runs / sizeof runs[0] };

static bool recomputes;

/* A setting, or NULL. */
static const char *recompute_of(const struct recorded_run *run)
{
    if (!recomputes)
        return NULL;
    return run->golf || (run - runs) % 2 == 0 ? "--recompute=block" : "--recompute=rows";
}

/* ---- running ------------------------------------------------------------------------------- */

static const char *golf_data(void)
{
    static const char *dir;
    if (dir == NULL) {
        dir = lks_test_folder();
        lks_test_short_golf(dir);
    }
    return dir;
}

static void add_base(const struct recorded_run *run, law_args *args, const char *out)
{
    static const char *const gpt2[] = {"--bias",
                                       "--n_layer=3",
                                       "--n_head=3",
                                       "--n_embd=48",
                                       "--block_size=24",
                                       "--batch_size=6",
                                       "--dropout=0.1",
                                       "--virtual_ranks=8",
                                       "--max_iters=9",
                                       "--eval_interval=4",
                                       "--eval_iters=2",
                                       "--learning_rate=1e-3",
                                       "--grad_clip=0.2",
                                       "--lr_decay_iters=8",
                                       "--warmup_iters=3",
                                       "--bucket_mb=0.02",
                                       "--keep=0",
                                       "--sampler=random",
                                       "--checkpoint_interval=5",
                                       "--timeout=60",
                                       "--gradient_accumulation_steps=16"};
    law_add(args, "lockstep");
    law_add(args, "train");
    if (run->golf) {
        law_add(args, "%s", LKS_TEST_SOURCE_DIR "/config/golf_baseline.conf");
    } else {
        law_add(args, "--dataset=%s", law_data());
        for (size_t i = 0; i < sizeof gpt2 / sizeof gpt2[0]; i++)
            law_add(args, "%s", gpt2[i]);
    }
    law_add(args, "--out_dir=%s", out);
}

static void train(const struct recorded_run *run, const char *out, const char *last,
                  const char *more_last)
{
    law_args args = {.n = 0};
    const char *env[MAX_MORE + 8];
    int n_env = 0;
    add_base(run, &args, out);
    if (run->golf) {
        env[n_env++] = lks_test_text("DATA_PATH=%s", golf_data());
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
    if (more_last != NULL)
        law_add(&args, "%s", more_last);
    lks_test_result r = lks_test_run(args.argv, env, 300);
    if (r.exit_code != 0)
        fail_msg("%s: exit code %d, signal %d: %s", run->name, r.exit_code, r.signal, r.err);
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

/* Lines train and eval of metrics.jsonl, with the fields that a run determines. */
static void add_lines(FILE *to, const char *out)
{
    static const char *const fields[] = {"iter",       "loss",     "lr",     "grad_norm",
                                         "train_loss", "val_loss", "val_bpb"};
    const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", out), NULL);
    int n = 0;
    while (*text != '\0') {
        const char *line = lks_test_text("%.*s", (int)strcspn(text, "\n"), text);
        text += strlen(line) + 1;
        if (strstr(line, "{\"kind\":\"train\"") != line &&
            strstr(line, "{\"kind\":\"eval\"") != line)
            continue;
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
        void *data = malloc(t->bytes + 1);
        assert_non_null(data);
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
    const json_t *hosts = lks_test_metrics(lks_test_text("%s/metrics.jsonl", out), "host");
    return json_string_value(lks_test_member(json_array_get(hosts, 0), "fingerprint"));
}

/* ---- comparing ----------------------------------------------------------------------------- */

/* The recorded hash of a run with kernels of this fingerprint, or NULL. */
static const char *recorded(const char *name, const char *fingerprint)
{
    const char *text = lks_test_read(LKS_TEST_SOURCE_DIR "/tests/figures/recorded_runs.txt", NULL);
    const char *at = strstr(text, lks_test_text("\n%s %s ", name, fingerprint));
    return at == NULL ? NULL : lks_test_text("%.16s", at + strlen(name) + strlen(fingerprint) + 3);
}

static void test_run(void **state)
{
    const struct recorded_run *run = *state;
    const char *out = lks_test_folder();
    if (run->resumed != NULL)
        train(run, out, run->resumed, recompute_of(run));
    if (run->resumed != NULL)
        train(run, out, "--init_from=resume", NULL);
    else
        train(run, out, recompute_of(run), NULL);
    const char *fingerprint = fingerprint_of(out), *hash = hash_of(out);
    const char *record = getenv("LKS_TEST_RECORD");
    if (record != NULL) {
        FILE *f = fopen(record, "a");
        assert_non_null(f);
        fprintf(f, "%s %s %s\n", run->name, fingerprint, hash);
        fclose(f);
        return;
    }
    const char *want = recorded(run->name, fingerprint);
    if (want == NULL)
        lks_test_lacks("recorded-kernels", lks_test_text("%s %s", run->name, fingerprint));
    assert_string_equal(hash, want);
}

/* Small enough for the reference kernels. */
static bool quick(const char *name)
{
    return strcmp(name, "gpt2-odd") == 0 || strcmp(name, "golf-untied") == 0;
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

/* Another device, whose kernels are the CPU's, and --recompute have each family and dtype with
 * smaller shapes. Neither a kernel level that isn't the machine's best, nor --recompute, changes
 * what the host does; each has that shape in float32, or this dtype with another shape. */
static bool left_out(const char *name)
{
    const char *level = getenv("LOCKSTEP_CPU");
    if (getenv("LKS_TEST_RECORD") != NULL)
        return false; /* another machine may have no better level */
    if ((recomputes || lks_test_on_device()) && is_large(name))
        return true;
    if (recomputes || (level != NULL && *level != '\0'))
        return differs_on_the_host(name) || strcmp(name, "golf-512-bf16") == 0;
    return false;
}

int main(int argc, char **argv)
{
    recomputes = argc > 1 && strcmp(argv[1], "recompute") == 0;
    lks_test_need_level(NULL);
    lks__cpu_level level;
    if (lks__cpu_level_get(&level) != LKS_OK)
        return EXIT_FAILURE;
    struct CMUnitTest tests[N_RUNS] = {{0}};
    for (int i = 0; i < N_RUNS; i++)
        if ((quick(runs[i].name) || level != LKS__CPU_REF) && !left_out(runs[i].name))
            tests[i] = (struct CMUnitTest){runs[i].name, test_run, NULL, NULL, (void *)&runs[i]};
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
