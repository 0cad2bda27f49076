#include "plan/choose.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/number/cpu.h"
#include "base/system/cgroup.h"

/* The rules (docs/guides/runs.md has the same): the first row that fits the machine and the text
 * applies. The last row uses the recipe's model. */
static const struct rule {
    int cores;                                   /* minimum for the machine */
    uint64_t tokens;                             /* minimum for the text */
    int64_t n_layer, n_head, n_embd, block_size; /* n_layer 0: the recipe's */
} rules[] = {
    {8, 500000, 6, 6, 192, 128}, /* 2.7M parameters */
    {1, 0, 0, 0, 0, 64},         /* 0.8M */
};

enum {
    LEAST_BLOCK = 8,
    MICRO_BATCHES = 8, /* the recipe's: samples of a step are MICRO_BATCHES * BATCH */
    BATCH = 4,
    LEAST_STEPS = 300,
    MOST_STEPS = 2000,
    PASSES = 40,      /* limit of reads of a small text, if that is more than LEAST_STEPS */
    WARMUP = 20,      /* the least number of steps */
    GPT2_WIDTH = 768, /* of the smallest GPT-2 */
};

/* Tokens per step: more are refused later, and must not overflow here. */
static const double MOST_TOKENS = 1e12;

int lks__choose_cores(void)
{
    const int cores = lks__cpu_count();
    const double quota = lks__cgroup_cores("");
    if (quota >= cores)
        return cores;
    return quota < 1.0 ? 1 : (int)quota;
}

int lks__choose_ranks(int cores, int64_t virtual_ranks)
{
    for (int64_t ranks = virtual_ranks < cores ? virtual_ranks : cores; ranks > 1; ranks--)
        if (virtual_ranks % ranks == 0 && 4 * ranks * (cores / ranks) >= 3 * cores)
            return (int)ranks;
    return 1;
}

static bool is_given(const lks__settings *s, int setting)
{
    return s->from[setting] == LKS__FROM_ARG;
}

static void add_text(lks__choice *c, const lks__settings *given, int setting, const char *value)
{
    if (is_given(given, setting))
        return;
    c->setting[c->n] = setting;
    snprintf(c->value[c->n++], LKS__CHOOSE_VALUE, "%s", value);
}

static void add(lks__choice *c, const lks__settings *given, int setting, int64_t value)
{
    char text[LKS__CHOOSE_VALUE];
    snprintf(text, sizeof text, "%" PRId64, value);
    add_text(c, given, setting, text);
}

/* The value on the command line, or the rule's. */
static double given_or(const lks__settings *given, int setting, int64_t value, int64_t chosen)
{
    return is_given(given, setting) && value > 0 ? (double)value : (double)chosen;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Steps for a text, in hundreds. */
static int64_t steps_for(const lks__choose_text *text, int64_t tokens)
{
    const uint64_t enough = (uint64_t)(MOST_STEPS * tokens) / PASSES;
    if (text->n_train >= enough)
        return MOST_STEPS;
    return clamp(PASSES * (int64_t)text->n_train / tokens / 100 * 100, LEAST_STEPS, MOST_STEPS);
}

/* The run's last iteration, counted from 0: max_iters=N trains N + 1 steps, as in nanoGPT. */
static int64_t last_iteration(const lks__choose_text *text, int64_t block,
                              const lks__settings *given)
{
    const double tokens = given_or(given, LKS__SETTING_gradient_accumulation_steps,
                                   given->gradient_accumulation_steps, MICRO_BATCHES) *
                          given_or(given, LKS__SETTING_batch_size, given->batch_size, BATCH) *
                          given_or(given, LKS__SETTING_block_size, given->block_size, block);
    if (is_given(given, LKS__SETTING_max_iters))
        return given->max_iters;
    return steps_for(text, (int64_t)(tokens < MOST_TOKENS ? tokens : MOST_TOKENS)) - 1;
}

lks_status lks__choose(const lks__choose_text *text, int cores, const lks__settings *given,
                       lks__choice *c)
{
    const struct rule *rule = rules;
    const uint64_t least = text->n_val < text->n_train ? text->n_val : text->n_train;
    while (rule->tokens > text->n_train || rule->cores > cores)
        rule++;
    *c = (lks__choice){.recipe = "quickstart"};
    if (least <= LEAST_BLOCK)
        return lks__fail(LKS_ERR_CONFIG,
                         "the text is too short: it has %" PRIu64
                         " tokens for training and %" PRIu64
                         " for validation, and both need more than %d; give a text of about %d "
                         "characters or more",
                         text->n_train, text->n_val, LEAST_BLOCK, 10 * (LEAST_BLOCK + 1));
    int64_t block = rule->block_size;
    while ((uint64_t)block >= least)
        block /= 2;
    if (rule->n_layer > 0) {
        add(c, given, LKS__SETTING_n_layer, rule->n_layer);
        add(c, given, LKS__SETTING_n_head, rule->n_head);
        add(c, given, LKS__SETTING_n_embd, rule->n_embd);
    }
    if (rule->n_layer > 0 || block != rule->block_size)
        add(c, given, LKS__SETTING_block_size, block);
    const int64_t last = last_iteration(text, block, given);
    const int64_t warmup = (last + 1) / 20 > WARMUP ? (last + 1) / 20 : WARMUP;
    add(c, given, LKS__SETTING_max_iters, last);
    add(c, given, LKS__SETTING_lr_decay_iters, last);
    add(c, given, LKS__SETTING_warmup_iters, clamp(warmup, 0, last / 2));
    add(c, given, LKS__SETTING_eval_interval, last > 5 ? last / 5 : 1);
    return LKS_OK;
}

void lks__choose_tuning(const lks__choose_text *text, int64_t block_size, int64_t gpt2_width,
                        const lks__settings *given, lks__choice *c)
{
    const uint64_t least = text->n_val < text->n_train ? text->n_val : text->n_train;
    int64_t block = block_size;
    *c = (lks__choice){.recipe = "finetune_shakespeare"};
    while ((uint64_t)block >= least && block > LEAST_BLOCK)
        block /= 2;
    if (block != block_size)
        add(c, given, LKS__SETTING_block_size, block);
    if (gpt2_width >= GPT2_WIDTH)
        return;
    const int64_t last = last_iteration(text, block, given);
    add(c, given, LKS__SETTING_batch_size, BATCH);
    add(c, given, LKS__SETTING_gradient_accumulation_steps, MICRO_BATCHES);
    add(c, given, LKS__SETTING_max_iters, last);
    add_text(c, given, LKS__SETTING_learning_rate, "1e-3");
    add(c, given, LKS__SETTING_eval_interval, last > 5 ? last / 5 : 1);
    add(c, given, LKS__SETTING_log_interval, 10);
}
