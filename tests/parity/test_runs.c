/* The same run: what `lockstep train` writes equals what nanoGPT's script logged, step by step. */
#include "../weights/forge.h"
#include "parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "files/safetensors/safetensors.h"

/* The settings in a figure's config: names that the script and lockstep share. */
static const char *const keys[] = {
    "eval_interval",  "eval_iters",    "gradient_accumulation_steps",
    "batch_size",     "block_size",    "n_layer",
    "n_head",         "n_embd",        "dropout",
    "bias",           "learning_rate", "max_iters",
    "weight_decay",   "beta1",         "beta2",
    "grad_clip",      "decay_lr",      "warmup_iters",
    "lr_decay_iters", "min_lr",        "vocab_size",
    "seed",
};
enum { N_KEYS = sizeof keys / sizeof keys[0], MAX_ARGS = N_KEYS + 13 };

static const char *argument(const json_t *config, const char *key)
{
    const json_t *value = lks_test_member(config, key);
    if (json_is_boolean(value))
        return lks_test_text("--%s=%s", key, json_is_true(value) ? "true" : "false");
    if (json_is_integer(value))
        return lks_test_text("--%s=%" JSON_INTEGER_FORMAT, key, json_integer_value(value));
    return lks_test_text("--%s=%.17g", key, json_number_value(value));
}

/* Train with the figure's settings on `ranks` ranks, and `more` of them if not NULL (ended by
 * NULL); returns the output folder. */
static const char *train(const json_t *figure, const char *data_dir, int ranks,
                         const char *const *more)
{
    const char *argv[MAX_ARGS], *out = lks_test_folder();
    const json_t *config = lks_test_member(figure, "config");
    const json_t *processes = json_object_get(config, "world_size");
    int n = 0;
    argv[n++] = "lockstep";
    argv[n++] = "train";
    for (int i = 0; i < N_KEYS; i++)
        argv[n++] = argument(config, keys[i]);
    if (json_object_get(config, "freeze") != NULL)
        argv[n++] =
            lks_test_text("--freeze=%s", json_string_value(json_object_get(config, "freeze")));
    argv[n++] = "--sampler=nanogpt";
    argv[n++] = lks_test_text("--virtual_ranks=%d",
                              processes != NULL ? (int)json_integer_value(processes) : 1);
    argv[n++] = lks_test_text("--nproc_per_node=%d", ranks);
    argv[n++] = lks_test_text("--dataset=%s", data_dir);
    argv[n++] = lks_test_text("--out_dir=%s", out);
    for (; more != NULL && *more != NULL; more++)
        argv[n++] = *more;
    argv[n] = NULL;
    assert_exits(0, lks_test_run(argv, NULL, 240));
    return out;
}

/* Ours is the mean over the step's micro-batches; a figure with one micro-batch has just `loss`. */
static void check_steps(const char *name, const json_t *figure, const char *metrics, size_t n_steps)
{
    const json_t *lines = lks_test_metrics(metrics, "train");
    const json_t *loss = json_object_get(figure, "loss_mean");
    if (loss == NULL)
        loss = lks_test_member(figure, "loss");
    const json_t *lr = lks_test_member(figure, "lr"), *norm = lks_test_member(figure, "grad_norm");
    assert_int_equal(json_array_size(loss), lks_test_number(figure, "config.max_iters") + 1);
    assert_int_equal(json_array_size(lines), n_steps);
    assert_in_range(n_steps, 1, json_array_size(loss));
    for (size_t i = 0; i < n_steps; i++) {
        const json_t *line = json_array_get(lines, i);
        const char *step = lks_test_text("iteration %zu", i);
        assert_int_equal(lks_test_number(line, "iter"), i);
        parity_hold_run(name, "loss", step, lks_test_number(line, "loss"), parity_of_list(loss, i),
                        1.0);
        parity_hold_run(name, "lr", step, lks_test_number(line, "lr"), parity_of_list(lr, i),
                        parity_of_list(lr, i));
        parity_hold_run(name, "grad_norm", step, lks_test_number(line, "grad_norm"),
                        parity_of_list(norm, i), parity_of_list(norm, i));
    }
}

/* Those before the figure's iteration `n_steps`. */
static void check_evals(const char *name, const json_t *figure, const char *metrics, size_t n_steps)
{
    const json_t *lines = lks_test_metrics(metrics, "eval");
    const json_t *evals = lks_test_member(figure, "evals");
    size_t n = 0;
    while (n < json_array_size(evals) &&
           lks_test_number(json_array_get(evals, n), "iter") < (double)n_steps)
        n++;
    assert_int_equal(json_array_size(lines), n);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        const json_t *line = json_array_get(lines, i), *want = json_array_get(evals, i);
        const char *at = lks_test_text("evaluation %zu", i);
        assert_int_equal(lks_test_number(line, "iter"), lks_test_number(want, "iter"));
        parity_hold_run(name, "eval", at, lks_test_number(line, "train_loss"),
                        lks_test_number(want, "train"), 1.0);
        parity_hold_run(name, "eval", at, lks_test_number(line, "val_loss"),
                        lks_test_number(want, "val"), 1.0);
    }
}

/* The scale of which 1e-4 allows for the noise in keys' biases. A key's bias shifts all scores of a
 * row alike, and softmax cancels that. So its exact gradient is zero, and Adam moves it by the
 * rounding errors of each program. The length of our move is known, and the script's is alike.
 * Sums of both over the keys differ by a random number whose deviation is sqrt(2) of that length;
 * 6 lengths are more than four deviations. The length is at most `most`: a gradient would move the
 * biases by 0.01 and more. */
static double noise(const forge_model *m, double most, const char *name, const float *x, size_t n)
{
    if (strstr(name, ".attn.c_attn.bias") == NULL)
        return 0.0;
    const size_t n_keys = n / 3;
    const float *initial = m != NULL ? m->params + lks__table_find(&m->table, name)->offset : NULL;
    float *moved = parity_floats(n_keys);
    for (size_t i = 0; i < n_keys; i++)
        moved[i] = x[n_keys + i] - (initial != NULL ? initial[n_keys + i] : 0.0f);
    double length = sqrt(parity_sum(moved, n_keys).sumsq);
    free(moved);
    assert_true(length < most);
    return 6.0 * length / 1e-4;
}

/* Weights after the last step (m: the run began with those of m), within 1e-4 of each tensor's
 * norm. */
static void check_final(const char *name, const json_t *figure, const char *out,
                        const forge_model *m)
{
    lks__st_file *file;
    assert_ok(lks__st_open(lks_test_text("%s/latest/model.safetensors", out), &file));
    assert_int_equal(lks__st_count(file), json_object_size(lks_test_member(figure, "final")));
    for (size_t i = 0; i < lks__st_count(file); i++) {
        const lks__st_tensor *t = lks__st_get(file, i);
        const json_t *want = parity_tensor(figure, "final", t->name);
        size_t n = t->bytes / sizeof(float);
        float *x = lks_test_malloc(t->bytes);
        assert_ok(lks__st_read(file, t, x));
        parity_sums got = parity_sum(x, n);
        const double most = m != NULL || name[0] == '/' ? 1e-3 : 1e-5;
        double norm = sqrt(lks_test_number(want, "sumsq"));
        double scale = norm + noise(m, most, t->name, x, n);
        parity_place at = {name, "final", "final", t->name};
        parity_hold(&at, "norm", sqrt(got.sumsq), norm, scale);
        parity_hold(&at, "sum", got.sum, lks_test_number(want, "sum"), scale);
        for (size_t d = 0; d < 2 && json_object_get(want, "dots") != NULL; d++)
            parity_hold(&at, "dots", got.dots[d], parity_of_list(lks_test_member(want, "dots"), d),
                        scale);
        parity_hold_values(&at, x, n, scale, want);
        free(x);
    }
    lks__st_close(file);
}

static size_t steps_of(const json_t *figure)
{
    return (size_t)lks_test_number(figure, "config.max_iters") + 1;
}

static void check_run(const char *name, const char *data_dir, int ranks)
{
    const json_t *figure = lks_test_figure(name);
    const char *out = train(figure, data_dir, ranks, NULL);
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    check_steps(name, figure, metrics, steps_of(figure));
    check_evals(name, figure, metrics, steps_of(figure));
    check_final(name, figure, out, NULL);
}

/* Fine-tuning: made weights in Hugging Face's form, positions cut as by the script's
 * crop_block_size(). */
static void check_tuning(const char *name, const char *gelu)
{
    const char *data = lks_test_folder();
    const json_t *figure = lks_test_figure(name), *c = lks_test_member(figure, "config");
    const lks__model_config config = {.n_layer = (int)lks_test_number(c, "n_layer"),
                                      .n_head = (int)lks_test_number(c, "n_head"),
                                      .n_embd = (int)lks_test_number(c, "n_embd"),
                                      .block_size = (int)lks_test_number(c, "source_block"),
                                      .vocab_size = (int)lks_test_number(c, "vocab_size"),
                                      .bias = true};
    forge_model m = forge_open_as(&config);
    const forge_hf how = {0};
    const char *const more[] = {lks_test_text("--init_from=%s", forge_hf_folder(&m, &how)),
                                lks_test_text("--gelu=%s", gelu), NULL};
    lks_test_generated_tokens(data);
    const char *out = train(figure, data, 1, more);
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    check_steps(name, figure, metrics, steps_of(figure));
    check_evals(name, figure, metrics, steps_of(figure));
    check_final(name, figure, out, &m);
    forge_close(&m);
}

TEST(test_tuning)
{
    check_tuning("generated/nanogpt_tuned.json", "exact");
}

/* The same with both tables and the first block frozen: half of the tensors. */
TEST(test_tuning_frozen)
{
    check_tuning("generated/nanogpt_tuned_frozen.json", "exact");
}

/* nn.GELU(approximate='tanh') in the script's model: by the config's gelu_new. */
TEST(test_tuning_tanh)
{
    check_tuning("generated/nanogpt_tanh.json", "auto");
}

static const char *generated_tokens(void)
{
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    return dir;
}

TEST(test_plain)
{
    check_run("generated/nanogpt.json", generated_tokens(), 1);
}

TEST(test_bias_accumulation)
{
    check_run("generated/nanogpt_bias_accum.json", generated_tokens(), 1);
}

TEST(test_odd_widths)
{
    check_run("generated/nanogpt_odd.json", generated_tokens(), 1);
}

/* The figure's first `few` iterations; LKS_TEST_FULL=yes runs all of them. */
static void check_beginning(const char *name, const char *data_dir, int ranks, int few)
{
    if (getenv("LKS_TEST_FULL") != NULL) {
        check_run(name, data_dir, ranks);
        return;
    }
    const char *const more[] = {lks_test_text("--max_iters=%d", few - 1), NULL};
    const json_t *figure = lks_test_figure(name);
    const char *metrics = lks_test_text("%s/metrics.jsonl", train(figure, data_dir, ranks, more));
    check_steps(name, figure, metrics, (size_t)few);
    check_evals(name, figure, metrics, (size_t)few);
}

/* The script's two processes are two virtual ranks here, on two ranks; one rank has the same bytes
 * (laws_ranks). nanogpt.json is a run of this shape to its end. */
TEST(test_ddp)
{
    check_beginning("generated/nanogpt_ddp2.json", generated_tokens(), 2, 6);
}

/* With dropout, on two virtual ranks of three micro-steps: the masks come from a Philox in NumPy,
 * used in the script's model. */
TEST(test_dropout)
{
    const char *dir = generated_tokens();
    check_run("generated/nanogpt_dropout.json", dir, 1);
    check_run("generated/nanogpt_dropout.json", dir, 2);
}

/* The script's own resume with another batch: the run has the first settings up to the checkpoint,
 * and goes on with the second ones. */
TEST(test_change)
{
    const char *name = "generated/nanogpt_change.json", *data = generated_tokens(), *key;
    const json_t *figure = lks_test_figure(name);
    const json_t *then = lks_test_member(figure, "config.change.then"), *value;
    const int at = (int)lks_test_number(figure, "config.change.at");
    const char *const first[] = {lks_test_text("--max_iters=%d", at), NULL};
    const char *out = train(figure, data, 1, first), *argv[MAX_ARGS];
    int n = 0;
    argv[n++] = "lockstep";
    argv[n++] = "train";
    argv[n++] = "--init_from=resume";
    argv[n++] = lks_test_text("--out_dir=%s/ckpt-%08d", out, at);
    argv[n++] = argument(lks_test_member(figure, "config"), "max_iters");
    json_object_foreach((json_t *)then, key, value)
    {
        argv[n++] = argument(then, key);
    }
    argv[n] = NULL;
    assert_exits(0, lks_test_run(argv, NULL, 240));
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    check_steps(name, figure, metrics, steps_of(figure));
    check_evals(name, figure, metrics, steps_of(figure));
    check_final(name, figure, out, NULL);
}

/* Half of the tensors have requires_grad=False; 20 steps. */
TEST(test_frozen)
{
    const char *dir = generated_tokens();
    check_run("generated/nanogpt_frozen.json", dir, 1);
    check_run("generated/nanogpt_frozen.json", dir, 2);
}

/* The losses of a run with a learning rate of zero, so that all have the same weights:
 * `accumulation` micro-batches in each of `iterations` steps. */
static const json_t *losses_at_rest(const char *dir, int accumulation, int iterations)
{
    const char *out = lks_test_folder();
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", dir), "--vocab_size=65",
                lks_test_text("--out_dir=%s", out), "--sampler=nanogpt", "--virtual_ranks=1",
                lks_test_text("--gradient_accumulation_steps=%d", accumulation),
                lks_test_text("--max_iters=%d", iterations - 1), "--n_layer=1", "--n_head=2",
                "--n_embd=16", "--block_size=24", "--batch_size=2", "--decay_lr=false",
                "--learning_rate=0", "--eval_interval=1000", "--eval_iters=1");
    return lks_test_record(out, "train");
}

/* The loss of a step is its micro-batches' mean in double, to the last of the nine printed digits.
 * Forty steps of one micro-batch print the values to compare with, which are exact for a float. */
TEST(test_mean_of_losses)
{
    enum { N = 40 };
    const char *dir = generated_tokens();
    const json_t *single = losses_at_rest(dir, 1, N), *together = losses_at_rest(dir, N, 1);
    assert_int_equal(json_array_size(single), N);
    assert_int_equal(json_array_size(together), 1);
    double sum = 0.0;
    for (size_t i = 0; i < N; i++)
        sum += lks_test_number(json_array_get(single, i), "loss");
    char want[32], got[32];
    snprintf(want, sizeof want, "%.9g", sum / N);
    snprintf(got, sizeof got, "%.9g", lks_test_number(together, "0.loss"));
    assert_string_equal(got, want);
}

/* Realistic shapes. */
TEST(test_width_384)
{
    check_run("generated/nanogpt_wide.json", generated_tokens(), 1);
}

TEST(test_vocabulary_of_gpt2)
{
    const char *dir = lks_test_folder();
    lks_test_generated_vocabulary(dir, 50304);
    check_run("generated/nanogpt_vocab.json", dir, 1);
}

/* Figures that nanogpt_figure.py has recorded, at the paths in LKS_TEST_NANOGPT_FIGURES: on one
 * rank, and on as many as the script had processes. */
static void test_given(void **state)
{
    const char *given[PARITY_MOST_GIVEN + 1];
    parity_given_figures("LKS_TEST_NANOGPT_FIGURES", given);
    for (const char **path = given; *path != NULL; path++) {
        const json_t *config = lks_test_member(lks_test_figure(*path), "config");
        const json_t *processes = json_object_get(config, "world_size");
        const char *dir = lks_test_folder();
        lks_test_generated_vocabulary(dir, (uint32_t)lks_test_number(config, "vocab_size"));
        check_run(*path, dir, 1);
        if (processes != NULL && json_integer_value(processes) > 1)
            check_run(*path, dir, (int)json_integer_value(processes));
    }
}

/* `lockstep prep char` on tinyshakespeare, as in nanoGPT's prepare.py. */
static const char *shakespeare(void)
{
    const char *text = lks_test_shared("data/tinyshakespeare/input.txt");
    const char *dir = lks_test_folder();
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", text),
                lks_test_text("--out=%s", dir));
    return dir;
}

/* nanogpt.json is a run of this shape to its end. */
TEST(test_shakespeare)
{
    check_beginning("nanogpt_char.json", shakespeare(), 1, 41);
}

TEST(test_shakespeare_ddp)
{
    check_beginning("nanogpt_char_ddp2.json", shakespeare(), 2, 11);
}

int main(int argc, char **argv)
{
    if (getenv("LKS_TEST_NANOGPT_FIGURES") != NULL)
        lks_test_add((struct CMUnitTest)cmocka_unit_test(test_given), __LINE__);
    lks_test_choose(argc, argv, "test_shakespeare*");
    return lks_test_run_all(NULL, parity_print_worst);
}
