/* `lockstep diff` executes the first step that differs: planted differences are named by virtual
 * rank, module or tensor, and element, and false records by their claim. */
#include "laws.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "poison.h"

static void expect(const char *a, const char *b, const char *more, const char *const texts[])
{
    const lks_test_result r = assert_exits(3, lks_test_tool("diff", a, b, more));
    for (int i = 0; texts[i] != NULL; i++)
        assert_contains(r.out, texts[i]);
}
#define EXPECT(a, b, ...) expect((a), (b), NULL, (const char *const[]){__VA_ARGS__, NULL})
#define EXPECT_WITH(more, a, b, ...)                                                               \
    expect((a), (b), (more), (const char *const[]){__VA_ARGS__, NULL})

/* Run a family from scratch with one more setting, or NULL. */
static const char *trained(bool golf, const char *more)
{
    return law_family_run(golf, NULL, more);
}

static void resume(bool golf, const char *out, const char *more)
{
    law_family_run(golf, out, "--init_from=resume", more);
}

static const char *reference(bool golf)
{
    static const char *out[2];
    if (out[golf] == NULL)
        out[golf] = trained(golf, NULL);
    return out[golf];
}

static const char *metrics(const char *out)
{
    return lks_test_text("%s/metrics.jsonl", out);
}

/* A run that stopped early, after 7 steps, or 3 of golf's. */
static const char *stopped(bool golf)
{
    return trained(golf, golf ? "--iterations=3" : "--max_iters=6");
}

TEST(test_seed)
{
    EXPECT(reference(false), trained(false, "--seed=7"),
           "execution         step 0 again: A from the seed, B from the seed; 1 and 1 steps\n"
           "place             step 0, before the step: weights of transformer.wte.weight; all 2 ",
           "                  element 0 (index [0,0]): ",
           "cause             seed 1337 | 7\n"
           "remedy            this command trains B again, as the same run as A:\n"
           "                  lockstep train ",
           " --seed=1337 ");
    const char *other = trained(true, "--seed=7");
    EXPECT(other, reference(true), "weights of tok_emb.weight; all 5 ", " --seed=7 ");
    law_assert_remedy(other, reference(true), lks_test_text("%s-equal", reference(true)), other);
}

TEST(test_shapes)
{
    EXPECT(reference(false), trained(false, "--n_embd=48"),
           "place             step 0, before the step: moments of transformer.wte.weight.exp_avg\n"
           "                  type and shape F32 [65, 24] | F32 [65, 48]\n");
}

/* A rate that the record has, and settings that first act on weights without a figure. */
TEST(test_resumed)
{
    const char *rate = stopped(false), *decay = stopped(false), *golf = stopped(true);
    resume(false, rate, "--learning_rate=5e-4");
    EXPECT(reference(false), rate,
           "execution         step 7 again: A from checkpoint 6, B from checkpoint 7; 2 and 1 ",
           "place             step 7, update: learning rate; all ", "                  value 0.00",
           "remedy            this command continues B from checkpoint 7 as the same run as A, ",
           lks_test_text("/ckpt-00000007 --learning_rate=0.001 --max_iters=%d\n", LAW_LAST_ITER));
    resume(false, decay, "--weight_decay=0.3");
    EXPECT(decay, reference(false),
           "The steps before checkpoint 8 are equal; its weights aren't:\n",
           "execution         step 7 again: ",
           "place             step 7, update: updated weights of transformer.wte.weight; all ",
           "                  element 0 (index [0,0]): ",
           "remedy            this command continues A from checkpoint 7 ");
    resume(true, golf, "--scalar_lr=0.02");
    EXPECT(reference(true), golf,
           "execution         step 4 again: ", "execution         step 3 again: ",
           "place             step 3, update: updated weights of skip_weights; all ",
           "                  element ");
    law_assert_remedy(reference(false), rate, rate, reference(false));
    law_assert_remedy(decay, reference(false), decay, reference(false));
    law_assert_remedy(reference(true), golf, golf, reference(true));
}

/* The command begins with the run's config files, and names all that they don't say. */
TEST(test_config)
{
    const char *conf = lks_test_text("%s/my.conf", lks_test_folder());
    static const char text[] = "n_layer = 3\nseed = 5\n";
    lks_test_write_text(conf, text);
    const char *other = trained(false, conf);
    EXPECT(reference(false), other, lks_test_text("lockstep train %s ", conf), " --seed=1337 ");
    law_assert_remedy(reference(false), other, lks_test_text("%s-equal", other), reference(false));
    remove(conf);
    law_assert_remedy(reference(false), other, lks_test_text("%s-equal", other), reference(false));
}

/* The command leaves out a setting that its optimizer doesn't use, which would be refused. */
TEST(test_unused)
{
    const char *conf = lks_test_text("%s/my.conf", lks_test_folder());
    static const char text[] = "beta2 = 0.9\n";
    lks_test_write_text(conf, text);
    const char *sgd = trained(false, "--optimizer=sgd"), *other = trained(false, conf);
    law_assert_remedy(sgd, other, lks_test_text("%s-equal", other), sgd);
}

/* Muon's momentum, which the weights follow, and weights in bfloat16 next to frozen ones. */
TEST(test_updates)
{
    const char *golf = stopped(true), *frozen[2];
    resume(true, golf, "--muon_momentum=0.5");
    EXPECT(
        reference(true), golf,
        "place             step 3, update: updated moments of blocks.0.attn.c_q.weight.momentum; ",
        "cause             muon_momentum ");
    for (int i = 0; i < 2; i++) {
        frozen[i] = lks_test_folder();
        law_args args = law_family(false, frozen[i]);
        law_add_line(&args, "--dtype=bfloat16 --freeze=wte|ln_ --weight_decay=0.%d", 1 + i);
        law_run(&args);
    }
    EXPECT(frozen[0], frozen[1],
           "place             step 0, update: updated weights of transformer.wpe.weight; all ",
           "cause             weight_decay 0.1 | 0.2\n");
    /* Moments that only A has are not compared with the next result, B's weights. */
    EXPECT(reference(false), trained(false, "--freeze=wpe"),
           "moments of transformer.wpe.weight.exp_avg | before the step: weights of "
           "transformer.wpe.weight; all 3 results before it are equal\n"
           "cause             freeze ");
}

TEST(test_dropout)
{
    const char *other = trained(false, "--dropout=0.25");
    EXPECT(reference(false), other,
           "place             step 0, virtual rank 0, micro-batch 0, forward: output of "
           "transformer.",
           "                  element ", " of its ", " elements differ\n");
    /* This program finds the difference, so another version isn't its cause. */
    char *text = (char *)lks_test_text("%s", lks_test_read(metrics(other), NULL));
    strstr(text, "\"version\":\"")[11] ^= 1;
    lks_test_write_text(metrics(other), text);
    EXPECT(reference(false), other, "can change bits   version ",
           "cause             dropout 0.1 | 0.25\n");
    const lks_test_result r = lks_test_tool("diff", reference(false), other, "--json");
    const json_t *report = lks_test_json(r.out);
    assert_int_equal(lks_test_number(report, "execution.leaf"), 0);
    assert_int_equal(lks_test_number(report, "execution.place.b.micro_batch"), 0);
    assert_true(lks_test_number(report, "execution.place.different_elements") > 0);
    assert_contains(r.err, "execution         step 0 again: ");
}

static void change_weight(const char *name, float *x, size_t n, size_t width)
{
    if (strstr(name, ".1.mlp.") != NULL && strstr(name, "proj.weight") != NULL)
        x[77] += 0.25f;
}

/* A weight of the checkpoint from which the run continued, with all hashes computed again. */
TEST(test_checkpoint)
{
    for (int golf = 0; golf < 2; golf++) {
        const char *other = stopped(golf);
        poison_alter(other, POISON_MODEL, change_weight);
        resume(golf, other, "--threads=1");
        EXPECT(reference(golf), other,
               lks_test_text("execution         step %d again: ", golf ? 2 : 6),
               "place             all ", " results of the step are equal\n",
               lks_test_text("cause             B's record doesn't follow from its settings: "
                             "checkpoint %d: ",
                             golf ? 3 : 7),
               "proj.weight, element 77 is ",
               lks_test_text("`lockstep audit %s --step=%d` repeats this\n", other, golf ? 2 : 6));
    }
}

/* The hash of a gradient in the record. */
TEST(test_false_record)
{
    const char *out = trained(false, NULL);
    const char *file = lks_test_text("%s/leaves.bin", out);
    size_t bytes;
    uint64_t *words = (uint64_t *)lks_test_read(file, &bytes);
    words[4 + 5 * (1 + LAW_V) + 1 + 3] ^= 1;
    lks_test_write(file, words, bytes);
    EXPECT(out, reference(false),
           "cause             A's record doesn't follow from its settings: step 5: the gradient of "
           "virtual rank 3 of 8 has the hash ");
    /* A figure that no run writes, so no claim is refuted. */
    const char *text = (const char *)lks_test_read(metrics(reference(false)), NULL);
    const char *more = trained(false, NULL), *at = strstr(text, "\"loss\":");
    text = lks_test_text("%.*s\"x\":1,%s", (int)(at - text), text, at);
    lks_test_write_text(metrics(more), text);
    EXPECT(more, reference(false), "place             all ",
           "cause             A's or B's record doesn't follow from its run\n");
}

TEST(test_not_executed)
{
    const char *other = stopped(false);
    resume(false, other, "--learning_rate=5e-4");
    const lks_test_result r =
        assert_exits(3, lks_test_tool("diff", reference(false), other, "--execute=0"));
    assert_null(strstr(r.out, "execut"));
    lks_test_do("rm", "-r", lks_test_text("%s/ckpt-00000007", other));
    EXPECT_WITH("--execute=1", reference(false), other,
                "execution         step 7 isn't executed again: that needs 2 steps of A and 2 of "
                "B: `--execute=2` allows them\n",
                "cause             learning_rate", "this command trains B again");
    char *text = (char *)lks_test_text("%s", lks_test_read(metrics(other), NULL));
    for (char *at = text; (at = strstr(at, "\"fingerprint\":\"")) != NULL; at += 15)
        at[15] = at[15] == '7' ? '3' : '7';
    lks_test_write_text(metrics(other), text);
    EXPECT(
        reference(false), other,
        "steps\n                  not possible here: B: step 6 was made with kernels of ",
        lks_test_text("next              `lockstep audit %s --step=7 --trail=FILE` on that run's ",
                      reference(false)));
}
