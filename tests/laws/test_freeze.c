/* A run with frozen tensors (--freeze): the same bytes for any ranks, threads and replicas, and
 * after a resume, for both families and all optimizers; frozen tensors keep their first values,
 * have no moments, and define the run. */
#include "laws.h"

#include <stdlib.h>
#include <string.h>

#include "files/safetensors/safetensors.h"
#include "settings/settings.h"

struct frozen_run {
    bool golf;
    const char *optimizer, *freeze;
    size_t n_frozen;
    const char *some[2]; /* a frozen tensor and a trained one */
};

/* gpt2 has 3 layers with biases: 40 tensors. The first run stops
 * backward inside layer 1; the second has a frozen head, which is the embedding, and weights
 * without their biases; the others leave out whole groups in the middle. */
static const struct frozen_run runs[] = {
    {false,
     "adamw",
     "w[tp]e|h\\.0\\.|h\\.1\\.(ln_1|attn)",
     20,
     {"transformer.h.1.attn.c_attn.weight", "transformer.h.1.ln_2.weight"}},
    {false,
     "muon",
     "wte|c_fc.weight|ln_f",
     0,
     {"transformer.wte.weight", "transformer.wpe.weight"}},
    {false, "sgd", "\\.h\\.1\\.", 12, {"transformer.h.1.ln_1.bias", "transformer.h.0.ln_1.bias"}},
    {true, "muon", "tok_emb|blocks\\.0|skip", 12, {"skip_weights", "blocks.1.attn.c_q.weight"}},
    {true, "adamw", "mlp|q_gain|blocks.1", 0, {"blocks.0.attn.q_gain", "tok_emb.weight"}},
};
enum { N_RUNS = sizeof runs / sizeof runs[0] };

/* A new run with up to two settings. */
static const char *train(const struct frozen_run *run, const char *more, const char *and_more)
{
    return law_family_run(run->golf, NULL, lks_test_text("--optimizer=%s", run->optimizer),
                          lks_test_text("--freeze=%s", run->freeze), more, and_more);
}

/* Does a tensor have the same bytes in two checkpoints of the run? */
static bool same_values(const char *out, const char *const checkpoints[2], const char *name)
{
    float *values[2];
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        lks__st_file *file;
        assert_ok(
            lks__st_open(lks_test_text("%s/%s/model.safetensors", out, checkpoints[i]), &file));
        const lks__st_tensor *t = lks__st_find(file, name);
        assert_non_null(t);
        bytes = t->bytes;
        values[i] = lks_test_malloc(bytes);
        assert_ok(lks__st_read(file, t, values[i]));
        lks__st_close(file);
    }
    const bool same = memcmp(values[0], values[1], bytes) == 0;
    lks_test_free(values[0], values[1]);
    return same;
}

/* The optimizer's file has trained tensors alone. */
static void check_moments(const struct frozen_run *run, const char *out)
{
    lks__st_file *file;
    bool trained = false;
    assert_ok(lks__st_open(
        lks_test_text("%s/%s/optimizer.safetensors", out, law_family_last(run->golf)), &file));
    for (size_t i = 0; i < lks__st_count(file); i++) {
        const char *name = lks__st_get(file, i)->name;
        assert_int_not_equal(strncmp(name, run->some[0], strlen(run->some[0])), 0);
        trained = trained || strncmp(name, run->some[1], strlen(run->some[1])) == 0;
    }
    assert_true(trained);
    lks__st_close(file);
}

static void check_log(const struct frozen_run *run, const char *out)
{
    const char *log = lks_test_read(lks_test_text("%s/train.log", out), NULL);
    const json_t *config = json_array_get(lks_test_record(out, "config"), 0);
    assert_contains(log, "frozen: ",
                    lks_test_text("parameters that are trained: %.0f of %.0f",
                                  lks_test_number(config, "trained_parameters"),
                                  lks_test_number(config, "parameters")));
    assert_string_equal(lks_test_string(config, "freeze"), run->freeze);
    assert_true(lks_test_number(config, "trained_parameters") <
                lks_test_number(config, "parameters"));
}

TEST(test_same_bytes)
{
    for (int i = 0; i < N_RUNS; i++) {
        const struct frozen_run *run = &runs[i];
        const char *last = law_family_last(run->golf);
        const char *const checkpoints[2] = {"ckpt-00000003", last};
        const char *alone = train(run, "--threads=1", "--device=cpu");
        check_log(run, alone);
        check_moments(run, alone);
        assert_true(same_values(alone, checkpoints, run->some[0]));
        assert_false(same_values(alone, checkpoints, run->some[1]));
        law_assert_same(train(run, "--nproc_per_node=2", "--threads=2"), alone);
        if (i == 0 || i == 3) {
            if (!lks_test_on_device()) /* it has no replicas */
                law_assert_same(train(run, "--nproc_per_node=4", "--replicas=private"), alone);
            law_assert_same(train(run, "--nproc_per_node=3", "--allow_uneven"), alone);
        }
        const char *out = train(run, run->golf ? "--iterations=3" : "--max_iters=5", NULL);
        law_family_run(run->golf, out, "--nproc_per_node=4", "--init_from=resume",
                       lks_test_text("--optimizer=%s", run->optimizer)); /* its own --freeze */
        law_assert_same_checkpoint(out, alone, last);
    }
}

/* What is frozen starts with the seed's initial values, and the first loss is that of the run
 * without --freeze; its norm is of the trained tensors alone. */
TEST(test_first_step)
{
    const char *plain = law_output("random", "--max_iters=0");
    const char *frozen = law_output("random", "--max_iters=0", "--freeze=wte|attn");
    const json_t *a = lks_test_record(plain, "train");
    const json_t *b = lks_test_record(frozen, "train");
    a = json_array_get(a, 0);
    b = json_array_get(b, 0);
    assert_true(lks_test_number(a, "loss") == lks_test_number(b, "loss"));
    assert_true(lks_test_number(b, "grad_norm") < lks_test_number(a, "grad_norm"));
}

static void assert_refused(const char *out, const char *first, const char *second, const char *says)
{
    law_args args = law_family(false, out);
    law_add(&args, "%s", first);
    if (second != NULL)
        law_add(&args, "%s", second);
    assert_exits(2, lks_test_run(args.argv, NULL, 60), says);
}

TEST(test_refused)
{
    const char *out = law_output("random", "--max_iters=1", "--freeze=wte");
    assert_refused(out, "--init_from=resume", "--freeze=wpe",
                   "freeze=wpe was given, but the run in ");
    assert_refused(out, "--init_from=resume", "--freeze=", "freeze= was given, but the run in ");
    assert_refused(lks_test_folder(), "--freeze=.", NULL, "nothing would be trained");
    assert_refused(lks_test_folder(), "--freeze=wet", "--nproc_per_node=2",
                   "the nearest names are transformer.w");
}

/* A checkpoint of an earlier version froze nothing. */
TEST(test_old_settings)
{
    lks__settings s, old;
    lks__settings_defaults(&s);
    assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "freeze", "wte", LKS__FROM_ARG, ""));
    json_t *json = lks__settings_to_json(&s);
    assert_int_equal(json_object_del(json, "freeze"), 0);
    assert_ok(lks__settings_from_json(json, "", &old));
    json_decref(json);
    assert_string_equal(old.freeze, "");
}

static double mb_of(const char *text, const char *what)
{
    const char *at = lks_test_find(text, what);
    return strtod(at + strlen(what), NULL);
}

/* Gradients and moments take less memory, and --dry_run has the same list. */
TEST(test_dry_run)
{
    double moments[2], gradients[2];
    for (int i = 0; i < 2; i++) {
        law_args args = law_family(false, lks_test_folder());
        law_add_all(&args, "--n_embd=192", "--dry_run");
        law_add(&args, "--freeze=%s", i == 0 ? "" : "c_");
        lks_test_result r = assert_exits(0, lks_test_run(args.argv, NULL, 60));
        assert_true((strstr(r.out, "attn.c_attn.weight") != NULL) == (i == 1));
        assert_true((strstr(r.out, "\ntrained:  ") != NULL) == (i == 1));
        moments[i] = mb_of(strstr(r.out, "MB, and"), "MB, and ");
        gradients[i] = mb_of(r.out, "gradients:");
    }
    assert_true(moments[1] < 0.1 * moments[0] && gradients[1] < 0.1 * gradients[0]);
    /* An evaluation has none of them, and activations as with --recompute=block. */
    law_args args = law_family(false, lks_test_folder());
    law_add_all(&args, "--eval_only", "--dry_run");
    const lks_test_result r = assert_exits(0, lks_test_run(args.argv, NULL, 60));
    assert_contains(r.out, " and 0.0 MB of moments;");
    assert_null(strstr(r.out, "\ngradients: "));
}
