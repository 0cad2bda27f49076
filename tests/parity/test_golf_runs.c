/* The same run as parameter-golf's script: losses, norms, validation and final weights, step by
 * step; and the same bytes on any number of ranks. */
#include "parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "files/safetensors/safetensors.h"

enum { MAX_ENV = 64, MAX_ARGS = 16 };

/* The tokenizer that counts bytes for val_bpb may lie beside the repository; "" without it. */
static const char *tokenizer = "";

static void use_tokenizer(void)
{
    tokenizer = lks_test_shared("reference/golf-data/sp1024.model");
    lks_test_need_sentencepiece();
}

/* The figure's config as the script's environment variables, as its users set it. */
static void environment(const json_t *figure, const char *data_dir, const char *env[MAX_ENV])
{
    const char *key;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)lks_test_member(figure, "config"), key, value)
    {
        if (key[0] < 'A' || key[0] > 'Z')
            continue;
        assert_true(n < MAX_ENV - 3);
        env[n++] = json_is_boolean(value) ? lks_test_text("%s=%d", key, json_is_true(value))
                   : json_is_string(value)
                       ? lks_test_text("%s=%s", key, json_string_value(value))
                       : lks_test_text("%s=%.17g", key, json_number_value(value));
    }
    env[n++] = lks_test_text("DATA_PATH=%s", data_dir);
    env[n++] = lks_test_text("TOKENIZER_PATH=%s", tokenizer);
    env[n] = NULL;
}

static const char *train(const json_t *figure, const char *data_dir, const char *const more[])
{
    const char *env[MAX_ENV], *argv[MAX_ARGS], *out = lks_test_folder();
    int n = 0;
    environment(figure, data_dir, env);
    argv[n++] = "lockstep";
    argv[n++] = "train";
    argv[n++] = LKS_TEST_SOURCE_DIR "/config/golf_baseline.conf";
    argv[n++] = lks_test_text("--out_dir=%s", out);
    for (int i = 0; more != NULL && more[i] != NULL; i++)
        argv[n++] = more[i];
    argv[n] = NULL;
    assert_exits(0, lks_test_run(argv, env, 540));
    return out;
}

/* The distance between two correct fp32 programs grows with the number of steps: the reference
 * drifts from its own float64 run. */
static void check_steps(const char *name, const json_t *figure, const char *metrics, size_t n_steps)
{
    const json_t *lines = lks_test_metrics(metrics, "train");
    const json_t *loss = lks_test_member(figure, "train_loss");
    const json_t *scale = lks_test_member(figure, "lr_scale");
    const json_t *norm = lks_test_member(figure, "grad_norm");
    double rate = lks_test_number(figure, "config.MATRIX_LR");
    assert_int_equal(json_array_size(lines), n_steps);
    assert_in_range(n_steps, 1, json_array_size(loss));
    for (size_t i = 0; i < n_steps; i++) {
        const json_t *line = json_array_get(lines, i);
        const char *step = lks_test_text("step %zu", i);
        parity_hold_run(name,
                        i <= 50    ? "loss"
                        : i <= 100 ? "loss_100"
                                   : "loss_200",
                        step, lks_test_number(line, "loss"), parity_of_list(loss, i), 1.0);
        parity_hold_run(name, "lr", step, lks_test_number(line, "lr"),
                        rate * parity_of_list(scale, i), rate);
        if (i <= 50)
            parity_hold_run(name, "grad_norm", step, lks_test_number(line, "grad_norm"),
                            parity_of_list(norm, i), parity_of_list(norm, i));
    }
}

/* Those of the figure's first steps. */
static void check_evals(const char *name, const json_t *figure, const char *metrics, size_t n_steps)
{
    json_t *lines = json_copy((json_t *)lks_test_metrics(metrics, "eval"));
    json_t *final = json_array_get(lks_test_metrics(metrics, "final"), 0);
    const json_t *vals = lks_test_member(figure, "vals");
    size_t n = 0;
    /* An end that isn't on the schedule has no other line. */
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);
    if (last == NULL || lks_test_number(last, "iter") < lks_test_number(final, "iter"))
        json_array_append(lines, final);
    while (n < json_array_size(vals) &&
           lks_test_number(json_array_get(vals, n), "step") <= (double)n_steps)
        n++;
    /* A shortened run has an evaluation at its own end. */
    const bool shortened = n_steps < json_array_size(lks_test_member(figure, "train_loss"));
    assert_int_equal(json_array_size(lines), n + shortened);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        const json_t *line = json_array_get(lines, i), *want = json_array_get(vals, i);
        const char *quantity = lks_test_number(want, "step") <= 100.0 ? "val_loss" : "val_loss_200";
        const char *at = lks_test_text("evaluation %zu", i);
        assert_int_equal(lks_test_number(line, "iter"), lks_test_number(want, "step"));
        parity_hold_run(name, quantity, at, lks_test_number(line, "val_loss"),
                        lks_test_number(want, "val_loss"), 1.0);
        if (*tokenizer != '\0')
            parity_hold_run(name, quantity, at, lks_test_number(line, "val_bpb"),
                            lks_test_number(want, "val_bpb"), 1.0);
    }
    json_decref(lines);
}

/* Weights after the last step: their norms and sums, relative to each tensor's norm. */
static void check_final(const char *name, const json_t *figure, const char *out)
{
    lks__st_file *file;
    assert_ok(lks__st_open(lks_test_text("%s/latest/model.safetensors", out), &file));
    assert_int_equal(lks__st_count(file), json_object_size(lks_test_member(figure, "final")));
    for (size_t i = 0; i < lks__st_count(file); i++) {
        const lks__st_tensor *t = lks__st_get(file, i);
        const json_t *want = json_object_get(lks_test_member(figure, "final"), t->name);
        assert_non_null(want);
        float *x = lks_test_malloc(t->bytes);
        assert_ok(lks__st_read(file, t, x));
        parity_sums got = parity_sum(x, t->bytes / sizeof(float));
        double norm = sqrt(lks_test_number(want, "sumsq"));
        parity_hold(&(parity_place){name, "final_norm", "final", t->name}, "norm", sqrt(got.sumsq),
                    norm, norm);
        parity_hold(&(parity_place){name, "final_sum", "final", t->name}, "sum", got.sum,
                    lks_test_number(want, "sum"), norm);
        free(x);
    }
    lks__st_close(file);
}

/* The data of a figure, whose recorder may have left out most of the validation tokens. */
static const char *data_of(const json_t *figure)
{
    const char *dir = lks_test_folder();
    const json_t *n_val = json_object_get(lks_test_member(figure, "config"), "val_tokens");
    if (n_val == NULL)
        lks_test_generated_golf(dir);
    else
        lks_test_golf_tokens(dir, (size_t)json_integer_value(n_val));
    return dir;
}

/* The artifact's tensor bytes, and the loss of its model. */
static void check_artifact(const char *name, const json_t *figure, const char *metrics)
{
    const json_t *line = lks_test_member(lks_test_metrics(metrics, "artifact"), "0");
    assert_int_equal(lks_test_number(line, "payload_bytes"),
                     lks_test_number(figure, "quant.stats.int8_payload_bytes"));
    parity_hold_run(name, "roundtrip", "the artifact", lks_test_number(line, "val_loss"),
                    lks_test_number(figure, "roundtrip.val_loss"), 1.0);
}

static void check_generated(const char *name)
{
    const json_t *figure = lks_test_figure(name);
    const char *out = train(figure, data_of(figure), NULL);
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    const size_t n_steps = json_array_size(lks_test_member(figure, "train_loss"));
    check_steps(name, figure, metrics, n_steps);
    check_evals(name, figure, metrics, n_steps);
    check_artifact(name, figure, metrics);
    check_final(name, figure, out);
}

TEST(test_generated)
{
    /* Of a device one: deferred_recorded has the CPU's bytes. */
    for (const char *const *name = parity_golf_figures(); *name != NULL; name++)
        if (!lks_test_on_device() || strcmp(*name, "generated/golf_odd.json") == 0)
            check_generated(*name);
}

/* On the shards made from tinyshakespeare: the first 10 steps, in which the rates are constant.
 * LKS_TEST_FULL=yes checks all 200; the script drifts from its own float64 run after 50. */
TEST(test_shards)
{
    use_tokenizer();
    const char *model = tokenizer;
    char dir[512];
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(model, '/') - model), model);
    const char *name = "golf_small.json";
    const json_t *figure = lks_test_figure(name);
    const bool full = getenv("LKS_TEST_FULL") != NULL;
    const char *const few[] = {"--iterations=10", "--warmdown_iters=0", NULL};
    const size_t n_steps = full ? json_array_size(lks_test_member(figure, "train_loss")) : 10;
    const char *out = train(figure, dir, full ? NULL : few);
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    check_steps(name, figure, metrics, n_steps);
    check_evals(name, figure, metrics, n_steps);
}

/* With one sequence of validation data for each virtual rank and more: how much there is doesn't
 * matter for runs that are compared with each other. */
static const char *with_short_validation(void)
{
    const char *dir = lks_test_folder();
    lks_test_golf_tokens(dir, 1100);
    return dir;
}

/* Such runs have few steps, and in bfloat16 few tokens: golf.json's virtual ranks have one sequence
 * then. */
#define FEW_STEPS  "--iterations=4"
#define FEW_TOKENS "--train_batch_tokens=1024"

/* Muon's matrices are divided over ranks, which changes no bit. Returns one of the runs. */
static const char *check_ranks(const json_t *figure, const char *dir, const char *const both[2],
                               bool all_ways)
{
    static const char *const ways[][6] = {
        {"--nproc_per_node=1"}, {"--nproc_per_node=2"},
        {"--threads=3"},        {"--nproc_per_node=7", "--allow_uneven"},
        {"--nproc_per_node=8"}, {"--nproc_per_node=2", "--replicas=private"},
    };
    const size_t n_ways = all_ways ? sizeof ways / sizeof ways[0] : 4;
    const char *first = NULL;
    for (size_t i = 0; i < n_ways; i++) {
        const char *more[MAX_ARGS - 4];
        int n = 0;
        for (; ways[i][n] != NULL; n++)
            more[n] = ways[i][n];
        more[n++] = both[0];
        more[n++] = both[1];
        more[n++] = FEW_STEPS;
        more[n++] = "--eval_interval=0";
        more[n] = NULL;
        const char *out = train(figure, dir, more);
        static const char *const files[] = {"model.safetensors", "optimizer.safetensors",
                                            "state.json"};
        if (first != NULL)
            assert_same_file(lks_test_text("%s/final_model.int8.ptz", first),
                             lks_test_text("%s/final_model.int8.ptz", out));
        for (size_t f = 0; first != NULL && f < 3; f++)
            assert_same_file(lks_test_text("%s/latest/%s", first, files[f]),
                             lks_test_text("%s/latest/%s", out, files[f]));
        if (first == NULL)
            first = out;
    }
    return first;
}

TEST(test_ranks)
{
    const char *const both[2] = {"--dtype=float32", "--train_batch_tokens=512"};
    check_ranks(lks_test_figure("generated/golf_untied.json"), with_short_validation(), both,
                !lks_test_on_device());
}

/* Close to float32's run, and different from it. */
TEST(test_bf16)
{
    if (lks_test_on_device())
        return; /* deferred_recorded */
    const json_t *figure = lks_test_figure("generated/golf.json");
    const char *const both[2] = {"--dtype=bfloat16", FEW_TOKENS};
    const char *dir = with_short_validation(), *out = check_ranks(figure, dir, both, false);
    const char *more[] = {"--dtype=float32", FEW_TOKENS, FEW_STEPS, "--eval_interval=0", NULL};
    const char *full = train(figure, dir, more);
    const json_t *a = lks_test_record(out, "train");
    const json_t *b = lks_test_record(full, "train");
    int n_other = 0;
    assert_int_equal(json_array_size(a), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *line = json_array_get(a, i), *want = json_array_get(b, i);
        assert_near(lks_test_number(line, "loss"), lks_test_number(want, "loss"), 3e-2);
        double norm = lks_test_number(want, "grad_norm");
        assert_near(lks_test_number(line, "grad_norm"), norm, 3e-2 * norm);
        n_other += lks_test_number(line, "loss") != lks_test_number(want, "loss");
    }
    assert_true(n_other > 2);
}

int main(int argc, char **argv)
{
    lks_test_choose(argc, argv, "test_shards");
    return lks_test_run_all(NULL, parity_print_worst);
}
