/* What `lockstep train TEXT` and `lockstep resume` choose. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "base/number/cpu.h"
#include "plan/choose.h"

TEST(test_ranks)
{
    static const struct {
        int cores, virtual_ranks, ranks;
    } cases[] = {
        {1, 8, 1}, {2, 8, 2},  {3, 8, 1},  {4, 8, 4},    {5, 8, 4},  {6, 8, 2},    {7, 8, 2},
        {8, 8, 8}, {10, 8, 8}, {12, 8, 4}, {16, 8, 8},   {64, 8, 8}, {2, 1, 1},    {8, 1, 1},
        {6, 6, 6}, {4, 6, 3},  {9, 12, 4}, {64, 40, 20}, {1, 40, 1}, {2, 1024, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (lks__choose_ranks(cases[i].cores, cases[i].virtual_ranks) != cases[i].ranks)
            fail_msg("%d cores, %d virtual ranks: %d ranks, not %d", cases[i].cores,
                     cases[i].virtual_ranks,
                     lks__choose_ranks(cases[i].cores, cases[i].virtual_ranks), cases[i].ranks);
}

static double quota;
double __wrap_lks__cgroup_cores(const char *folder);
double __wrap_lks__cgroup_cores(const char *folder)
{
    return quota;
}

/* A part of a core counts as one, so that there is a rule for this machine. */
TEST(test_cores)
{
    quota = (double)INFINITY;
    assert_int_equal(lks__choose_cores(), lks__cpu_count());
    for (quota = 0.5; quota < 1.5; quota += 0.5)
        assert_int_equal(lks__choose_cores(), 1);
}

/* "n_layer=6 …" */
static const char *words_of(const lks__choice *c)
{
    const char *text = "";
    for (int i = 0; i < c->n; i++)
        text = lks_test_text("%s%s%s=%s", text, i > 0 ? " " : "", lks__setting_name(c->setting[i]),
                             c->value[i]);
    return text;
}

static const char *chosen(uint64_t n_train, uint64_t n_val, int cores, const lks__settings *given)
{
    lks__choice c;
    const lks__choose_text size = {n_train, n_val};
    assert_ok(lks__choose(&size, cores, given, &c));
    assert_string_equal(c.recipe, "quickstart");
    return words_of(&c);
}

static const char *tuned(uint64_t n_train, uint64_t n_val, int64_t block, int64_t gpt2_width,
                         const lks__settings *given)
{
    lks__choice c;
    const lks__choose_text size = {n_train, n_val};
    lks__choose_tuning(&size, block, gpt2_width, given, &c);
    assert_string_equal(c.recipe, "finetune_shakespeare");
    return words_of(&c);
}

TEST(test_text)
{
    lks__settings given;
    lks__choice c;
    lks__settings_defaults(&given);
    /* the recipe's model, on any small machine, however long the text is */
    static const char usual[] =
        "max_iters=1999 lr_decay_iters=1999 warmup_iters=100 eval_interval=399";
    assert_string_equal(chosen(900000, 100000, 2, &given), usual);
    assert_string_equal(chosen(900000, 100000, 7, &given), usual);
    assert_string_equal(chosen(UINT64_MAX / 2, 1000000, 1, &given), usual);
    assert_string_equal(chosen(400000, 40000, 64, &given), usual);
    /* a larger one for many cores and a longer text */
    assert_string_equal(chosen(500000, 50000, 8, &given),
                        "n_layer=6 n_head=6 n_embd=192 block_size=128 max_iters=1999 "
                        "lr_decay_iters=1999 warmup_iters=100 eval_interval=399");
    /* fewer steps for a shorter text; max_iters=N trains N + 1 steps, so their number is round */
    assert_string_equal(chosen(90000, 10000, 2, &given),
                        "max_iters=1699 lr_decay_iters=1699 warmup_iters=85 eval_interval=339");
    assert_string_equal(chosen(900, 100, 2, &given),
                        "max_iters=299 lr_decay_iters=299 warmup_iters=20 eval_interval=59");
    /* a shorter context for the shortest */
    assert_string_equal(chosen(576, 64, 8, &given),
                        "block_size=32 max_iters=299 lr_decay_iters=299 warmup_iters=20 "
                        "eval_interval=59");
    assert_string_equal(chosen(64, 576, 8, &given), chosen(576, 64, 8, &given));
    assert_string_equal(chosen(81, 9, 2, &given),
                        "block_size=8 max_iters=299 lr_decay_iters=299 warmup_iters=20 "
                        "eval_interval=59");
    const lks__choose_text least = {80, 8};
    assert_fails(LKS_ERR_CONFIG, lks__choose(&least, 2, &given, &c), "too short",
                 "80 tokens for training and 8 for validation",
                 "more than 8; give a text of about 90 characters or more");
    /* what the command line has stays out, and the schedule follows it */
    /* a longer context on the command line reads the text in fewer steps */
    lks__settings longer = given;
    longer.block_size = 128;
    longer.from[LKS__SETTING_block_size] = (unsigned char)LKS__FROM_ARG;
    assert_string_equal(chosen(90000, 10000, 2, &longer),
                        "max_iters=799 lr_decay_iters=799 warmup_iters=40 eval_interval=159");
    longer.batch_size = INT64_MAX;
    longer.from[LKS__SETTING_batch_size] = (unsigned char)LKS__FROM_ARG;
    assert_string_equal(chosen(90000, 10000, 2, &longer),
                        "max_iters=299 lr_decay_iters=299 warmup_iters=20 eval_interval=59");
    longer.batch_size = 0; /* auto */
    assert_string_equal(chosen(90000, 10000, 2, &longer),
                        "max_iters=799 lr_decay_iters=799 warmup_iters=40 eval_interval=159");
    const lks__setting_from file = LKS__FROM_FILE, arg = LKS__FROM_ARG;
    given.max_iters = 200;
    given.from[LKS__SETTING_max_iters] = (unsigned char)arg;
    given.from[LKS__SETTING_n_embd] = (unsigned char)arg;
    given.from[LKS__SETTING_n_head] = (unsigned char)file;
    assert_string_equal(chosen(500000, 50000, 8, &given),
                        "n_layer=6 n_head=6 block_size=128 lr_decay_iters=200 warmup_iters=20 "
                        "eval_interval=40");
    given.max_iters = 4;
    assert_string_equal(chosen(900000, 100000, 2, &given),
                        "lr_decay_iters=4 warmup_iters=2 eval_interval=1");
    given.max_iters = 0;
    assert_string_equal(chosen(900000, 100000, 2, &given),
                        "lr_decay_iters=0 warmup_iters=0 eval_interval=1");
}

/* nanoGPT's recipe for GPT-2; more steps at a higher rate for characters, bytes and small models.
 */
TEST(test_tuning)
{
    lks__settings given;
    lks__settings_defaults(&given);
    assert_string_equal(tuned(90000, 10000, 1024, 768, &given), "");
    assert_string_equal(tuned(9000, 1000, 1024, 768, &given), "block_size=512");
    assert_string_equal(tuned(90000, 10000, 64, 0, &given),
                        "batch_size=4 gradient_accumulation_steps=8 max_iters=1699 "
                        "learning_rate=1e-3 eval_interval=339 log_interval=10");
    assert_string_equal(tuned(90000, 10000, 64, 767, &given), tuned(90000, 10000, 64, 0, &given));
    assert_string_equal(tuned(450, 50, 64, 0, &given),
                        "block_size=32 batch_size=4 gradient_accumulation_steps=8 max_iters=299 "
                        "learning_rate=1e-3 eval_interval=59 log_interval=10");
    assert_string_equal(tuned(80, 0, 64, 768, &given), "block_size=8"); /* refused later */
    given.max_iters = 4;
    given.from[LKS__SETTING_max_iters] = (unsigned char)LKS__FROM_ARG;
    given.from[LKS__SETTING_learning_rate] = (unsigned char)LKS__FROM_ARG;
    assert_string_equal(
        tuned(90000, 10000, 64, 0, &given),
        "batch_size=4 gradient_accumulation_steps=8 eval_interval=1 log_interval=10");
}
