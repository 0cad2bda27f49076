/* Any optimizer with any family: the same bytes for any number of ranks and after a resume, moments
 * under the names of the optimizer, and combinations that are refused. */
#include "laws.h"

#include <string.h>

#include "files/safetensors/safetensors.h"
#include "model/optim/optimizer.h"
#include "settings/family.h"
#include "settings/settings.h"

/* The families, and their scripts' optimizers, which other laws are about. */
static const char *const families[2] = {"gpt2", "golf"}, *const own[2] = {"adamw", "muon"};

/* `out`: NULL for a new folder. */
static const char *run(bool golf, const lks__optimizer *optimizer, const char *out,
                       const char *more, const char *and_more)
{
    const char *rule = lks_test_text("--optimizer=%s", optimizer->name);
    return law_family_run(golf, out, rule, more, and_more);
}

/* The checkpoint in `out` has the states of a tensor, under the optimizer's names. */
static void assert_has(const char *out, bool golf, const lks__optimizer *optimizer,
                       const char *tensor, lks__param_kind kind)
{
    lks__st_file *file;
    assert_ok(lks__st_open(lks_test_text("%s/%s/optimizer.safetensors", out, law_family_last(golf)),
                           &file));
    for (int i = 0; i < LKS__OPTIM_STATES && optimizer->state[kind][i] != NULL; i++)
        assert_non_null(
            lks__st_find(file, lks_test_text("%s%s", tensor, optimizer->state[kind][i])));
    lks__st_close(file);
}

static void check_pair(bool golf, const lks__optimizer *optimizer)
{
    const char *whole = run(golf, optimizer, NULL, "--threads=2", NULL);
    assert_has(whole, golf, optimizer,
               golf ? "blocks.0.attn.c_q.weight" : "transformer.h.0.attn.c_attn.weight",
               LKS__PARAM_MATRIX);
    assert_has(whole, golf, optimizer, golf ? "blocks.0.attn_scale" : "transformer.ln_f.weight",
               LKS__PARAM_SCALAR);
    law_assert_same(run(golf, optimizer, NULL, "--nproc_per_node=2", "--threads=1"), whole);
    if (!lks_test_on_device()) /* it has no replicas */
        law_assert_same(run(golf, optimizer, NULL, "--nproc_per_node=4", "--replicas=private"),
                        whole);
    const char *out = run(golf, optimizer, NULL, golf ? "--iterations=3" : "--max_iters=6", NULL);
    run(golf, optimizer, out, "--init_from=resume", "--nproc_per_node=4");
    law_assert_same_checkpoint(out, whole, law_family_last(golf));
}

TEST(test_pairs)
{
    for (int golf = 0; golf < 2; golf++)
        for (int i = 0; lks__optimizers[i] != NULL; i++)
            if (strcmp(lks__optimizers[i]->name, own[golf]) != 0)
                check_pair(golf, lks__optimizers[i]);
}

/* No two optimizers come to the same parameters. */
TEST(test_differ)
{
    const char *hash[8];
    for (int i = 0; lks__optimizers[i] != NULL; i++) {
        assert_true(i < 8);
        const char *out = run(false, lks__optimizers[i], NULL, "--max_iters=1", NULL);
        const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", out), NULL);
        hash[i] = lks_test_find(text, "\"params_hash\":");
        for (int j = 0; j < i; j++)
            assert_true(strncmp(hash[i], hash[j], 32) != 0);
    }
}

TEST(test_refused)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add_all(&args, "--optimizer=muon", "--zero=1");
    assert_exits(2, lks_test_run(args.argv, NULL, 60), "optimizer=muon updates whole matrices");

    out = law_output("random", "--max_iters=1");
    args = law_family(false, out);
    law_add_all(&args, "--init_from=resume", "--optimizer=sgd");
    assert_exits(2, lks_test_run(args.argv, NULL, 60), "optimizer=sgd was given, but the run in ");
}

/* A checkpoint of 0.1.0 doesn't name its optimizer: it is that of the family's script. */
TEST(test_old_settings)
{
    for (int i = 0; i < 2; i++) {
        lks__settings s, old;
        lks__settings_defaults(&s);
        assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "family", families[i], LKS__FROM_ARG, ""));
        assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "optimizer", "sgd", LKS__FROM_ARG, ""));
        json_t *json = lks__settings_to_json(&s);
        assert_int_equal(json_object_del(json, "optimizer"), 0);
        assert_ok(lks__settings_from_json(json, "", &old));
        json_decref(json);
        lks__choose_optimizer(&old);
        assert_string_equal(lks__optimizer_of(&old)->name, own[i]);
    }
}
