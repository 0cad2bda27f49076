#include "settings/synonyms.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text/nearest.h"

/* If several rows have the same word, the first one counts whose setting the command accepts.
 * `note` follows the setting's name in the suggestion. */
static const struct {
    const char *word;
    int setting;
    const char *note;
} names[] = {
    {"lr", LKS__SETTING_learning_rate, ""},
    {"epochs", LKS__SETTING_max_iters, ", which counts steps"},
    {"epoch", LKS__SETTING_max_iters, ", which counts steps"},
    {"num_epochs", LKS__SETTING_max_iters, ", which counts steps"},
    {"steps", LKS__SETTING_max_iters, ""},
    {"steps", LKS__SETTING_iters, ""},
    {"max_steps", LKS__SETTING_max_iters, ""},
    {"batch", LKS__SETTING_batch_size, ""},
    {"data", LKS__SETTING_dataset, ""},
    {"data", LKS__SETTING_input, ""},
    {"gpus", LKS__SETTING_nproc_per_node, ", with --device=cuda"},
    {"context", LKS__SETTING_block_size, ""},
    {"model", LKS__SETTING_family, ", or for its first weights init_from"},
    {"model", LKS__SETTING_out_dir, ", the folder of a run"},
    {"workers", LKS__SETTING_nproc_per_node, ""},
    {"prompt", LKS__SETTING_start, ""},
    {"connect", LKS__SETTING_serve, " there, and `lockstep doctor HOST:PORT` here"},
    {"resume", LKS__SETTING_init_from, "=resume"},
    {"layers", LKS__SETTING_n_layer, ""},
    {"heads", LKS__SETTING_n_head, ""},
    {"output_dir", LKS__SETTING_out_dir, ""},
    {"save_interval", LKS__SETTING_checkpoint_interval, ""},
    {"save_every", LKS__SETTING_checkpoint_interval, ""},
    {"save_steps", LKS__SETTING_checkpoint_interval, ""},
    {"lr_scheduler", LKS__SETTING_decay_lr, ""},
    {"reuse_sp_model", LKS__SETTING_tokenizer, "=MODEL"}, /* of parameter-golf's data script */
    {"chunk_tokens", LKS__SETTING_shards, ""},
};

static const struct {
    int setting;
    const char *word, *ours;
} values[] = {
    {LKS__SETTING_device, "gpu", "cuda"},
    {LKS__SETTING_optimizer, "adam", "adamw"},
    {LKS__SETTING_dtype, "bf16", "bfloat16"},
    {LKS__SETTING_dtype, "fp32", "float32"},
    {LKS__SETTING_family, "nanogpt", "gpt2"},
    {LKS__SETTING_backend, "nccl", "auto, with --device=cuda --exchange=nccl for NCCL"},
};

/* True if the names are equal, apart from case and '-' for '_'. */
static bool is_same(const char *a, const char *b)
{
    for (; *a != '\0' && (*a == *b || (*a == '-' && *b == '_') || strncasecmp(a, b, 1) == 0); a++)
        b++;
    return *a == *b;
}

static const char *synonym(const char *key, unsigned command, char out[LKS__SUGGESTION])
{
    const size_t n = sizeof names / sizeof names[0];
    size_t found = n;
    for (size_t i = n; i-- > 0;) {
        const bool takes = lks__setting_table[names[i].setting].commands & command;
        if (is_same(key, names[i].word) && (takes || found == n))
            found = i;
    }
    if (found == n)
        return NULL;
    const lks__setting *d = &lks__setting_table[names[found].setting];
    if (d->commands & command)
        snprintf(out, LKS__SUGGESTION, "%s%s", d->name, names[found].note);
    else
        snprintf(out, LKS__SUGGESTION, "%s of `lockstep %s`", d->name,
                 lks__command_name(d->commands));
    return out;
}

const char *lks__suggest_setting(const char *key, unsigned command, char out[LKS__SUGGESTION])
{
    const char *list[LKS__N_SETTINGS];
    if (synonym(key, command, out) != NULL)
        return out;
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        list[i] = lks__setting_table[i].commands & command ? lks__setting_table[i].name : NULL;
    const char *near = lks__nearest(key, list, LKS__N_SETTINGS);
    if (near != NULL)
        snprintf(out, LKS__SUGGESTION, "%s", near);
    return near == NULL ? NULL : out;
}

const char *lks__suggest_value(const lks__setting *d, const char *text, char out[LKS__SUGGESTION])
{
    enum { MOST = 32 };
    const char *words[MOST], *near = NULL;
    char number[LKS__NUMBER_TEXT];
    size_t n = 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (&lks__setting_table[values[i].setting] == d && is_same(text, values[i].word))
            near = values[i].ours;
    while (d->type == LKS__SETTING_IS_CHOICE && n < MOST && d->word((int)n) != NULL) {
        words[n] = d->word((int)n);
        n++;
    }
    double x;
    if (d->type == LKS__SETTING_IS_INT && lks__parse_float(text, &x) && fabs(x) < 1e15 &&
        x == (double)(int64_t)x &&
        lks__setting_in_range(d, (lks__setting_value){.i = (int64_t)x}) &&
        strstr(text, ".000") == NULL)              /* it may stand for 1,000 */
        near = lks__number_text(x, false, number); /* 1e3 */
    if (near == NULL)
        near = lks__nearest(text, words, n);
    if (near != NULL)
        snprintf(out, LKS__SUGGESTION, "%s", near);
    return near == NULL ? NULL : out;
}
