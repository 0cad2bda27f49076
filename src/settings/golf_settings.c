/* settings/golf_settings.c - parameter-golf's names of settings, its environment variables, its
 * batch. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "settings/settings.h"

/* Names of the script that differ here, and names of settings that every family has. All other golf
 * settings have the script's names in the settings table. */
static const struct {
    const char *golf, *name;
} names[] = {
    {"data_path", "dataset"},
    {"num_layers", "n_layer"},
    {"num_heads", "n_head"},
    {"model_dim", "n_embd"},
    {"train_seq_len", "block_size"},
    {"val_loss_every", "eval_interval"},
    {"train_log_every", "log_interval"},
    {"grad_clip_norm", "grad_clip"},
    {"vocab_size", "vocab_size"},
    {"seed", "seed"},
    {"beta1", "beta1"},
    {"beta2", "beta2"},
};

enum { N_NAMES = sizeof names / sizeof names[0] };

const char *lks__golf_setting(const char *name)
{
    for (int i = 0; i < N_NAMES; i++)
        if (strcmp(names[i].golf, name) == 0)
            return names[i].name;
    return NULL;
}

static lks_status take(lks__settings *s, unsigned command, const char *name)
{
    char variable[64];
    size_t n = strlen(name);
    if (n >= sizeof variable)
        return LKS_OK;
    for (size_t i = 0; i <= n; i++)
        variable[i] = (char)toupper((unsigned char)name[i]);
    const char *value = getenv(variable);
    return value == NULL ? LKS_OK
                         : lks__settings_set(s, command, name, value, LKS__FROM_ENV, variable);
}

/* The script has patterns for which tensors Adam updates and which stay fp32 in the artifact; only
 * their defaults are supported. */
static lks_status refuse_patterns(void)
{
    static const char preset[] =
        "attn_scale,attn_scales,mlp_scale,mlp_scales,resid_mix,resid_mixes,"
        "q_gain,skip_weight,skip_weights";
    static const char *const variables[] = {"CONTROL_TENSOR_NAME_PATTERNS",
                                            "INT8_KEEP_FLOAT_FP32_NAME_PATTERNS"};
    for (int i = 0; i < 2; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && strcmp(value, preset) != 0)
            return lks__fail(
                LKS_ERR_CONFIG,
                "%s is set, but lockstep has only the script's default for it: unset it",
                variables[i]);
    }
    return LKS_OK;
}

lks_status lks__golf_environment(lks__settings *s, unsigned command)
{
    LKS__TRY(refuse_patterns());
    for (int i = 0; i < N_NAMES; i++)
        LKS__TRY(take(s, command, names[i].golf));
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        if (lks__setting_is_golf(i))
            LKS__TRY(take(s, command, lks__setting_name(i)));
    return LKS_OK;
}

lks_status lks__golf_check(lks__settings *s)
{
    int64_t N = s->gradient_accumulation_steps, T = s->block_size;
    int64_t local = s->train_batch_tokens / N; /* rounded down, as in the script */
    if (local < T || local % T != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "train_batch_tokens=%" PRId64 " over %" PRId64 " micro-batches is %" PRId64
                         " tokens each, no multiple of train_seq_len=%" PRId64
                         ": make it a multiple of %" PRId64,
                         s->train_batch_tokens, N, local, T, N * T);
    if (local / T > 65536)
        return lks__fail(LKS_ERR_CONFIG,
                         "train_batch_tokens=%" PRId64 " makes micro-batches of %" PRId64
                         " sequences; 65536 are the most",
                         s->train_batch_tokens, local / T);
    s->batch_size = local / T;
    if (s->virtual_ranks != 0 && s->val_batch_size / s->virtual_ranks < T)
        return lks__fail(LKS_ERR_CONFIG,
                         "val_batch_size=%" PRId64 " over %" PRId64
                         " virtual ranks is less than one sequence of train_seq_len=%" PRId64,
                         s->val_batch_size, s->virtual_ranks, T);
    if (s->sampler != LKS__sampler_stream)
        return lks__fail(LKS_ERR_CONFIG, "the golf family reads its shards with sampler=stream");
    return LKS_OK;
}
