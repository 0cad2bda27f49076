#include "settings/settings.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/shell.h"
#include "model/optim/optimizer.h"
#include "settings/family.h"
#include "settings/settings_table.h"
#include "settings/synonyms.h"

/* --- values from text ------------------------------------------------------------------------- */

static bool parse_value(const lks__setting *d, const char *text, lks__setting_value *v)
{
    switch (d->type) {
    case LKS__SETTING_IS_INT:
        return lks__parse_int(text, &v->i) && lks__setting_in_range(d, *v);
    case LKS__SETTING_IS_FLOAT:
        return lks__parse_float(text, &v->f) && lks__setting_in_range(d, *v);
    case LKS__SETTING_IS_BOOL:
        return lks__parse_bool(text, &v->b);
    case LKS__SETTING_IS_STR:
        v->s = text;
        return lks__setting_in_range(d, *v);
    case LKS__SETTING_IS_CHOICE:
        v->i = lks__setting_choice(d, text);
        return lks__setting_in_range(d, *v);
    }
    return false;
}

static lks_status fail_value(const lks__setting *d, const char *text, const char *where,
                             lks__setting_from from)
{
    char range[LKS__SETTING_RANGE], suggestion[LKS__SUGGESTION];
    const char *near = lks__suggest_value(d, text, suggestion);
    const bool env = from == LKS__FROM_ENV; /* `where` is the variable */
    int64_t number;
    const bool large =
        *text != '\0' && text[strspn(text, "0123456789")] == '\0' && !lks__parse_int(text, &number);
    return lks__fail(
        LKS_ERR_CONFIG, "%s%s%s must be %s%s, not \"%s\"%s%s%s", where,
        env ? " in the environment" : ": ", env ? "" : d->name, lks__setting_describe(d, range),
        d->type == LKS__SETTING_IS_INT && d->high_i == INT64_MAX && large ? " and below 2^63" : "",
        lks__shown(text, 120), near == NULL ? "" : "; did you mean ", near == NULL ? "" : near,
        near == NULL ? "" : "?");
}

static lks_status fail_unknown(const char *key, unsigned command, const char *where)
{
    char suggestion[LKS__SUGGESTION];
    const char *near = lks__suggest_setting(key, command, suggestion);
    const char *shown = lks__shown(key, 120);
    if (near)
        return lks__fail(LKS_ERR_CONFIG, "%s: there is no setting \"%s\"; did you mean %s?", where,
                         shown, near);
    return lks__fail(LKS_ERR_CONFIG,
                     "%s: there is no setting \"%s\"; `lockstep %s --help=all` lists all", where,
                     shown, lks__command_name(command));
}

/* Set nproc_per_node by one of its names. Two different values by both names in one source are an
 * error. */
static lks_status take_ranks(lks__settings *s, const char *key, lks__setting_value v,
                             lks__setting_from from, const char *where)
{
    const int i = LKS__SETTING_nproc_per_node;
    const char *ranks = lks__setting_table[i].alias;
    const bool as_ranks = strcmp(key, ranks) == 0;
    if (s->from[i] == (unsigned char)from && s->as_ranks != as_ranks && s->nproc_per_node != v.i)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: %s is another name of %s, and has the value %" PRId64
                         ": give one of them",
                         where, s->as_ranks ? ranks : lks__setting_name(i),
                         as_ranks ? ranks : lks__setting_name(i), s->nproc_per_node);
    s->as_ranks = as_ranks;
    return LKS_OK;
}

lks_status lks__settings_set(lks__settings *s, unsigned command, const char *key, const char *text,
                             lks__setting_from from, const char *where)
{
    int i = lks__setting_find_for(command, key);
    if (i < 0)
        return fail_unknown(key, command, where);
    const lks__setting *d = &lks__setting_table[i];
    bool taken = d->commands & command;
    if (d->flags & LKS__SETTING_TYPED && from != LKS__FROM_ARG)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: %s is only accepted on the command line, because it starts commands",
                         where, d->name);
    /* Shells replace only a word's first ~. Of a new ~, `rm -r ~` would remove another folder. */
    const char *home = getenv("HOME");
    if (d->names != LKS__NAMES_NOTHING && from != LKS__FROM_ENV && strncmp(text, "~/", 2) == 0 &&
        access(text, F_OK) != 0)
        return lks__fail(LKS_ERR_CONFIG, "%s: ~ isn't replaced here: write %s%s", where,
                         home != NULL ? home : "/home/NAME", lks__shown(text + 1, 512));
    const bool takes_text = command & LKS__CMD_TRAIN && text[0] != '\0' && strcmp(text, "-") != 0;
    if (i == LKS__SETTING_input && takes_text)
        return lks__fail(LKS_ERR_CONFIG, "%s: `lockstep train %s` trains on this text", where,
                         lks__quoted(text, 600));
    if (!taken && !(from == LKS__FROM_FILE && d->commands & LKS__CMD_TRAIN))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: %s is a setting of `lockstep %s`, not of `lockstep %s`", where,
                         d->name, lks__command_name(d->commands), lks__command_name(command));
    lks__setting_value v;
    if (i == LKS__SETTING_batch_size && strcmp(text, "auto") == 0 &&
        (command & LKS__CMD_TRAIN || from == LKS__FROM_FILE)) {
        if (s->from[i] <= (unsigned char)from && command & LKS__CMD_TRAIN)
            s->auto_batch = (unsigned char)from;
        return LKS_OK;
    }
    if (lks__setting_means_zero(d, text))
        memset(&v, 0, sizeof v); /* also where the range begins at 1 */
    else if (!parse_value(d, text, &v))
        return fail_value(d, text, where, from);
    if (!taken || s->from[i] > (unsigned char)from)
        return LKS_OK;
    if (i == LKS__SETTING_batch_size && s->auto_batch <= (unsigned char)from)
        s->auto_batch = 0; /* the later one wins */
    if (i == LKS__SETTING_nproc_per_node)
        LKS__TRY(take_ranks(s, key, v, from, where));
    char list[2 * LKS__SETTING_STR];
    if (d->flags & LKS__SETTING_LIST && s->from[i] == (unsigned char)from) {
        snprintf(list, sizeof list, "%s\n%s", lks__setting_load(s, d).s, text);
        if (strlen(list) >= LKS__SETTING_STR)
            return lks__fail(LKS_ERR_CONFIG, "%s: all %s together have over %d bytes", where,
                             d->name, LKS__SETTING_STR - 1);
        v.s = list;
    }
    lks__setting_store(s, d, v, from);
    return LKS_OK;
}

const char *lks__settings_text(const lks__settings *s, int i, char out[LKS__SETTING_STR])
{
    lks__setting_value v = lks__setting_load(s, &lks__setting_table[i]);
    switch (lks__setting_table[i].type) {
    case LKS__SETTING_IS_INT:
        snprintf(out, LKS__SETTING_STR, "%" PRId64, v.i);
        break;
    case LKS__SETTING_IS_FLOAT:
        snprintf(out, LKS__SETTING_STR, "%.17g", v.f);
        break;
    case LKS__SETTING_IS_BOOL:
        snprintf(out, LKS__SETTING_STR, "%s", v.b ? "true" : "false");
        break;
    case LKS__SETTING_IS_STR:
        snprintf(out, LKS__SETTING_STR, "%s", v.s);
        break;
    case LKS__SETTING_IS_CHOICE:
        snprintf(out, LKS__SETTING_STR, "%s", lks__setting_word(s, i));
        break;
    }
    return out;
}

lks__init_kind lks__settings_init(const lks__settings *s)
{
    return strcmp(s->init_from, "scratch") == 0  ? LKS__INIT_SCRATCH
           : strcmp(s->init_from, "resume") == 0 ? LKS__INIT_RESUME
                                                 : LKS__INIT_WEIGHTS;
}

bool lks__settings_uses_weights(const lks__settings *s)
{
    return s->from[LKS__SETTING_init_from] == LKS__FROM_ARG &&
           lks__settings_init(s) == LKS__INIT_WEIGHTS;
}

bool lks__settings_given_for(const lks__settings *s, int setting, const char *family)
{
    bool reads = s->from[setting] != LKS__FROM_ENV;
    for (int f = 0; !reads && family != NULL && lks__families[f] != NULL; f++)
        reads = strcmp(lks__families[f]->name, family) == 0 && lks__families[f]->files != NULL;
    return reads && s->from[setting] != LKS__FROM_DEFAULT;
}

/* --- families --------------------------------------------------------------------------------- */

const char *lks__family_name_of(const lks__settings *s, int setting, char out[LKS__SETTING_KEY])
{
    const bool env = s->from[setting] == LKS__FROM_ENV;
    const lks__family *ours = lks__family_of(s);
    const char *name = lks__setting_name(setting);
    for (int f = 0; lks__families[f] != NULL; f++)
        for (const lks__setting_alias *a = lks__families[f]->names; a && a->theirs; a++)
            if (strcmp(a->ours, lks__setting_name(setting)) == 0 &&
                (env || (lks__families[f] == ours &&
                         lks__setting_table[setting].flags & LKS__SETTING_SHAPE)))
                name = a->theirs;
    snprintf(out, LKS__SETTING_KEY, "%s", name);
    for (char *c = out; env && *c != '\0'; c++)
        *c = (char)toupper((unsigned char)*c);
    return out;
}

lks_status lks__family_presets(lks__settings *s, unsigned command)
{
    for (const lks__setting_preset *p = lks__family_of(s)->presets; p && p->name; p++) {
        const int setting = lks__setting_find(p->name);
        if (setting >= 0 && lks__setting_table[setting].commands & command)
            LKS__TRY(lks__settings_set(s, command, p->name, p->value, LKS__FROM_DEFAULT, p->name));
    }
    return LKS_OK;
}

static lks_status no_effect(const lks__settings *s, const char *name, const char *use)
{
    return lks__fail(LKS_ERR_CONFIG, "--%s has no effect in a run with family=%s: %s%s", name,
                     lks__family_of(s)->name, use[0] == '\0' ? "leave it out" : "use --", use);
}

static lks_status no_effect_with(int setting, const char *other, const char *value, const char *use)
{
    return lks__fail(LKS_ERR_CONFIG,
                     "--%s has no effect with%s %s%s%s: leave it out, or give --%s=%s",
                     lks__setting_name(setting), value[0] == '\0' ? "out" : "", other,
                     value[0] == '\0' ? "" : "=", value, other, use);
}

/* The setting of another family with the same effect as `name`, or "". */
static const char *counterpart(const char *name)
{
    for (int f = 0; lks__families[f] != NULL; f++)
        for (const lks__setting_alias *a = lks__families[f]->unused; a && a->theirs; a++)
            if (strcmp(a->ours, name) == 0)
                return a->theirs;
    return "";
}

struct unused {
    int setting, other;  /* `other` has a value that leaves `setting` without effect ... */
    bool here;           /* ... in these settings; */
    const char *instead; /* with this value it has one */
};

static bool is_unused(const lks__settings *s, int setting, struct unused *found)
{
    const bool adam = lks__optimizer_of(s)->adam;
    const struct unused rows[] = {
        {LKS__SETTING_drop_last, LKS__SETTING_sampler,
         s->drop_last && s->sampler != LKS__sampler_epoch, "epoch"},
        {LKS__SETTING_beta2, LKS__SETTING_optimizer, !adam, "adamw"},
        {LKS__SETTING_adam_eps, LKS__SETTING_optimizer, !adam, "adamw"},
        {LKS__SETTING_on_nan_limit, LKS__SETTING_on_nan, s->on_nan == LKS__on_nan_stop, "skip"},
        {LKS__SETTING_keep_every, LKS__SETTING_keep, s->keep == 0, "N"},
        {LKS__SETTING_exec_timeout, LKS__SETTING_exec_on, s->exec_on[0] == '\0', "EVENT:COMMAND"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *found = rows[i];
        if (rows[i].setting == setting && rows[i].here)
            return true;
    }
    return false;
}

bool lks__settings_unused(const lks__settings *s, const char *name)
{
    struct unused found;
    return is_unused(s, lks__setting_find(name), &found);
}

static lks_status refuse_unused(const lks__settings *s, const struct unused *u)
{
    char value[LKS__SETTING_STR];
    const lks__setting *d = &lks__setting_table[u->other];
    return no_effect_with(u->setting, d->name,
                          u->other == LKS__SETTING_optimizer ? lks__optimizer_of(s)->name
                          : d->zero != NULL                  ? d->zero
                                            : lks__settings_text(s, u->other, value),
                          u->instead);
}

/* Check that the command line contains no setting without effect. */
static lks_status check_given(const lks__settings *s)
{
    const char *optimizer = lks__optimizer_of(s)->name;
    const bool muon = strcmp(optimizer, "muon") == 0;
    for (const lks__setting_alias *a = lks__family_of(s)->unused; a && a->theirs; a++) {
        const int setting = lks__setting_find(a->theirs);
        const bool fits = setting == LKS__SETTING_batch_size && s->auto_batch != 0;
        if (setting >= 0 && s->from[setting] == LKS__FROM_ARG && !fits)
            return no_effect(s, a->theirs, a->ours);
    }
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        struct unused unused;
        const lks__setting *d = &lks__setting_table[i];
        const bool used = lks__setting_is_used(s, d);
        const bool of_muon = d->flags & LKS__SETTING_MUON;
        const bool own =
            d->flags & LKS__SETTING_CONFIG || i == LKS__SETTING_run_id || i == LKS__SETTING_code;
        if (s->from[i] != LKS__FROM_ARG)
            continue;
        if (of_muon && !muon && (!used || i != LKS__SETTING_matrix_lr))
            return no_effect_with(i, "optimizer", optimizer, "muon");
        if (own && !used)
            return no_effect(s, d->name, counterpart(d->name));
        if (is_unused(s, i, &unused))
            return refuse_unused(s, &unused);
    }
    return LKS_OK;
}

lks_status lks__family_check_heads(const lks__settings *s)
{
    char width[LKS__SETTING_KEY], heads[LKS__SETTING_KEY];
    if (s->n_embd % s->n_head == 0)
        return LKS_OK;
    lks__family_name_of(s, LKS__SETTING_n_embd, width);
    lks__family_name_of(s, LKS__SETTING_n_head, heads);
    return lks__fail(LKS_ERR_CONFIG,
                     "%s=%" PRId64 " is not a multiple of %s=%" PRId64
                     ": every head gets %s / %s columns",
                     width, s->n_embd, heads, s->n_head, width, heads);
}

/* --- relations -------------------------------------------------------------------------------- */

/* Report that W ranks can't share the run's virtual ranks, with suggestions. */
static lks_status fail_ranks(const lks__settings *s, int64_t W)
{
    const int64_t N = s->gradient_accumulation_steps, V = s->virtual_ranks;
    const int64_t more = (N + W - 1) / W * W; /* a multiple of the ranks */
    char other[400] = "", uneven[200] = "";
    int64_t fewer = W < V ? W : V;
    while (V % fewer)
        fewer--;
    if (W < V)
        snprintf(uneven, sizeof uneven,
                 "; or --allow_uneven (the same run: some ranks do the work of %" PRId64
                 " virtual ranks, some of %" PRId64 ")",
                 (V + W - 1) / W, V / W);
    if (N % W == 0)
        snprintf(other, sizeof other,
                 "; or --virtual_ranks=%" PRId64 " (a different run, split into %" PRId64
                 " virtual ranks: each does %" PRId64 " of the %" PRId64
                 " micro-batches of a step)",
                 W, W, N / W, N);
    else
        snprintf(other, sizeof other,
                 "; or --gradient_accumulation_steps=%" PRId64 " --virtual_ranks=%" PRId64
                 " (a different run, with %" PRId64 " micro-batches per step instead of %" PRId64
                 ")",
                 more, W, more, N);
    return lks__fail(LKS_ERR_CONFIG,
                     "%" PRId64 " ranks can't share the run's %" PRId64
                     " virtual rank%s %s: start %" PRId64 " rank%s%s%s",
                     W, V, V == 1 ? "" : "s", W > V ? "(a rank has at least one)" : "evenly", fewer,
                     fewer == 1 ? "" : "s", other, uneven);
}

const char *lks__settings_not_nccl(const lks__settings *s)
{
    if (s->share_gpu)
        return "share_gpu=true: NCCL needs a GPU for each rank";
    if (s->zero != 0)
        return "zero=1: each GPU has only the state that its rank updates anyway, so leave --zero "
               "out";
    if (s->wire != LKS__wire_float32)
        return "wire=bfloat16: gradients go from GPU to GPU in float32";
    return NULL;
}

lks_status lks__settings_complete(lks__settings *s, int world_size)
{
    LKS__TRY(check_given(s));
    int64_t N = s->gradient_accumulation_steps, W = world_size;
    if (s->virtual_ranks == 0)
        for (s->virtual_ranks = 8; N % s->virtual_ranks; s->virtual_ranks /= 2)
            ;
    if (lks__family_of(s)->complete != NULL)
        LKS__TRY(lks__family_of(s)->complete(s));
    const char *other = lks__settings_not_nccl(s);
    if (s->exchange == LKS__exchange_nccl && other != NULL)
        return lks__fail(LKS_ERR_CONFIG, "exchange=nccl doesn't go together with %s", other);
    int64_t V = s->virtual_ranks;
    if (N % V)
        return lks__fail(LKS_ERR_CONFIG,
                         "virtual_ranks=%" PRId64
                         " does not divide gradient_accumulation_steps=%" PRId64
                         ": every virtual rank does an equal share; make "
                         "gradient_accumulation_steps a multiple of virtual_ranks, or give another "
                         "--virtual_ranks",
                         V, N);
    if (W > V || (V % W && !s->allow_uneven))
        return fail_ranks(s, W);
    return LKS_OK;
}

lks_status lks__settings_memory(const lks__settings *s, uint64_t *bytes_p)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},         {"K", 0x1p10},   {"M", 0x1p20},  {"G", 0x1p30}, {"T", 0x1p40},
                 {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12},  {"KiB", 0x1p10},
                 {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char number[32];
    const size_t digits = strspn(s->memory, "0123456789.");
    double value = 0.0;
    *bytes_p = 0;
    if (s->memory[0] == '\0')
        return LKS_OK;
    snprintf(number, sizeof number, "%.*s", (int)(digits < sizeof number ? digits : 0), s->memory);
    for (size_t i = 0; lks__parse_float(number, &value) && i < sizeof units / sizeof units[0]; i++)
        if (strcmp(s->memory + digits, units[i].name) == 0 && value * units[i].bytes >= 1.0 &&
            value * units[i].bytes < 0x1p62)
            *bytes_p = (uint64_t)(value * units[i].bytes);
    if (*bytes_p > 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "memory must be a number of bytes, or one with K, M, G, T, KB, MB, GB or TB "
                     "(512M, 1.5GB), not \"%s\"",
                     lks__shown(s->memory, 120));
}

/* True if the folder contains training tokens, in either form. */
static bool has_tokens(const char *folder)
{
    bool has = false;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir != NULL && !has && (e = readdir(dir)) != NULL;)
        has = strcmp(e->d_name, "train.bin") == 0 ||
              fnmatch("*_train*.bin", e->d_name, FNM_PERIOD) == 0;
    if (dir != NULL)
        closedir(dir);
    return has;
}

/* The words after `lockstep prep` that create the dataset: nanoGPT's own datasets, and those for
 * GPT-2's weights, use GPT-2's tokens. */
static const char *prep_of(const lks__settings *s)
{
    const char *prep = lks__family_of(s)->prep, *name = lks__sys_name(s->dataset);
    return strcmp(prep, "char") != 0               ? prep
           : strcmp(name, "openwebtext") == 0      ? "openwebtext --tokenizer=DIR"
           : strcmp(name, "shakespeare") == 0      ? "shakespeare --tokenizer=DIR"
           : strncmp(s->init_from, "gpt2", 4) == 0 ? "gpt2 --tokenizer=DIR"
                                                   : prep;
}

/* The command that downloads a known dataset, or its text; "" for others. */
static const char *fetch_of(const lks__settings *s)
{
    const char *name = lks__sys_name(s->dataset);
    return strcmp(name, "fineweb10B_sp1024") == 0
               ? "; `lockstep fetch fineweb-sp1024` downloads parameter-golf's"
           : strncmp(name, "shakespeare", 11) == 0
               ? "; `lockstep fetch shakespeare` downloads the text"
           : strcmp(name, "openwebtext") == 0
               ? "; `lockstep fetch openwebtext` says how to get the text"
               : "";
}

lks_status lks__settings_data_dir(const lks__settings *s, char out[LKS__SETTING_STR + 8])
{
    char in_data[LKS__SETTING_STR + 8];
    struct stat st;
    snprintf(out, LKS__SETTING_STR + 8, "%s", s->dataset);
    snprintf(in_data, sizeof in_data, "data/%s", s->dataset);
    const bool there = lks__sys_is_folder(out),
               also = s->dataset[0] != '/' && lks__sys_is_folder(in_data);
    /* A folder of this name may contain something else, such as the texts. */
    if (also && (!there || (!has_tokens(out) && has_tokens(in_data)))) {
        strcpy(out, in_data);
        return LKS_OK;
    }
    if (there)
        return LKS_OK;
    char name[LKS__SETTING_KEY];
    const char *shown = lks__shown(s->dataset, 512);
    lks__family_name_of(s, LKS__SETTING_dataset, name);
    if (stat(s->dataset, &st) == 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s \"%s\" is a file, but a folder of tokens is expected: `lockstep "
                         "prep %s --input=FILE --out=DIR` makes one from a text",
                         name, shown, prep_of(s));
    if (errno != ENOENT && errno != ENOTDIR) /* a folder on the way may not be entered */
        return lks__sys_fail("can't read the data in", s->dataset);
    return lks__fail(LKS_ERR_CONFIG,
                     "%s \"%s\"%s: there is no such folder, nor data/ with that name in it; "
                     "`lockstep prep %s --input=TEXT --out=%s%s` makes one%s",
                     name, shown,
                     s->from[LKS__SETTING_dataset] == LKS__FROM_DEFAULT
                         ? " (as no --dataset=DIR was given)"
                         : "",
                     prep_of(s), strchr(shown, '/') == NULL ? "data/" : "",
                     lks__quoted(s->dataset, 600), fetch_of(s));
}
