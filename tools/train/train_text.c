/* lockstep train TEXT: prepares a text, chooses a recipe for it, and trains. */
#include "train_text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../longer.h"
#include "../tool.h"
#include "base/place.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/shell.h"
#include "data/read/sampler.h"
#include "data/read/shards.h"
#include "data/text/bpe/bpe.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"
#include "plan/choose.h"
#include "report/record/files.h"
#include "report/record/outdir.h"
#include "session/signals.h"
#include "settings/config/recipe.h"
#include "settings/family.h"
#include "train/setup/dryrun.h"
#include "weights/choice/given.h"
#include "weights/choice/known.h"
#include "weights/weights.h"

enum { PATH_BYTES = LKS__SETTING_STR };

struct text {
    const lks__settings *given; /* of the command line and its config files */
    const char *path;
    char shown[512];
    char out[PATH_BYTES], data[PATH_BYTES + 8], temp[PATH_BYTES + 16];
    bool has_config;    /* a config file or recipe was given: choose only the number of ranks */
    const char *recipe; /* its name, for messages */
    const char *kind;
    char not_utf8[1024];            /* why the tokens are bytes; or "" */
    lks__weights *weights;          /* of --init_from; or NULL */
    char tokenizer[LKS__CKPT_PATH]; /* their vocabulary; "": the text's characters, or bytes */
    lks__prep_result tokens;
    lks__choice choice;
    longer train;
    char moved[LKS__SYS_PATH]; /* the folder to which an earlier run was moved; or "" */
};

/* --- checks ----------------------------------------------------------------------------------- */

/* The arguments of `lockstep prep`. */
static const char *prep_words(const struct text *t, char out[4 * PATH_BYTES])
{
    const bool has = t->tokenizer[0] != '\0';
    snprintf(out, 4 * PATH_BYTES, "%s --input=%s --out=%s%s%s%s", t->kind,
             lks__quoted(t->path, PATH_BYTES), lks__quoted(t->data, PATH_BYTES + 8),
             has ? " --tokenizer=" : "", has ? lks__quoted(t->tokenizer, PATH_BYTES) : "",
             has ? " --val_fraction=0.1" : "");
    return out;
}

/* Print the longer commands for a message. */
static const char *longer_commands(const struct text *t, char out[8 * PATH_BYTES])
{
    char prep[4 * PATH_BYTES];
    const bool tunes = t->weights != NULL;
    snprintf(out, 8 * PATH_BYTES,
             "`lockstep prep %s`, then `lockstep train %s --dataset=%s --out_dir=%s%s%s`",
             prep_words(t, prep), lks__quoted(t->recipe, PATH_BYTES),
             lks__quoted(t->data, PATH_BYTES + 8), lks__quoted(t->out, PATH_BYTES),
             tunes ? " --init_from=" : "",
             tunes ? lks__quoted(t->given->init_from, PATH_BYTES) : "");
    return out;
}

static lks_status check_path(const struct text *t)
{
    char share[PATH_MAX], run[PATH_BYTES];
    struct stat info;
    const bool exists = stat(t->path, &info) == 0;
    if (!exists && errno != ENOENT && errno != ENOTDIR)
        return lks__sys_fail("cannot read", t->path);
    if (!exists)
        return lks__fail(LKS_ERR_CONFIG,
                         "\"%s\" is neither a text (there is no such file or folder) nor a setting "
                         "(--key=value) nor a config file (a name ending in .conf or .py) nor a "
                         "recipe in config or in %s",
                         t->shown, lks__share_path("config", share));
    if (strlen(t->path) >= PATH_BYTES - 64 || strchr(t->path, '\n') != NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: rename the text: its path is too long, or has a line "
                         "feed in it",
                         t->shown);
    if (!S_ISDIR(info.st_mode))
        return LKS_OK;
    if (access(t->path, X_OK) != 0)
        return lks__sys_fail("cannot read", t->path);
    const char *word = lks__quoted(t->path, PATH_BYTES);
    if (lks__outdir_has_run(t->path))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is the folder of a run: `lockstep resume %s` continues the run",
                         t->shown, word);
    if (lks__split_exists(t->path, LKS__SPLIT_TRAIN))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is a folder of tokens, and not of texts: `lockstep train quickstart "
                         "--dataset=%s --out_dir=%s` trains on tokens",
                         t->shown, word, lks__shell_word(run, sizeof run, t->out));
    return LKS_OK;
}

/* They may be a name with spaces. */
static lks_status too_many_words(const lks__args *args)
{
    char name[PATH_BYTES] = "";
    const char *second = args->positional[1];
    bool whole = true;
    for (int i = 0; i < args->n_positional; i++)
        whole &= lks__append(name, sizeof name, "", "%s%s", i > 0 ? " " : "", args->positional[i]);
    if (whole && access(name, F_OK) == 0)
        return lks__fail(LKS_ERR_CONFIG, "a name with spaces needs quotes: %s",
                         lks__quoted(name, PATH_BYTES));
    return lks__fail(LKS_ERR_CONFIG,
                     "give one text, or one folder of texts, and not also \"%s\"; settings are "
                     "written --key=value",
                     lks__shown(second, 512));
}

/* Open the weights of --init_from, and find their kind of tokens: characters, bytes, or those of
 * GPT-2's vocabulary. */
static lks_status open_weights(struct text *t)
{
    const lks__settings *s = t->given;
    lks__meta meta;
    LKS__TRY(lks__weights_open_init(s, &t->weights));
    const lks__weights *w = t->weights;
    LKS__TRY(lks__given_elsewhere(w, t->out));
    t->kind = "gpt2";
    snprintf(t->tokenizer, sizeof t->tokenizer, "%s", w->vocabulary);
    if (w->model.family == 0 && w->vocabulary[0] != '\0' && lks__bpe_is_at(w->vocabulary))
        return LKS_OK;
    LKS__TRY(lks__weights_meta(w, &meta));
    const bool known = w->model.family == 0 && lks__known_ids(&meta);
    const bool is_char = w->model.family == 0 && meta.chars != NULL;
    const bool is_bytes = w->model.family == 0 && meta.is_bytes;
    lks__meta_free(&meta);
    if (is_char || is_bytes) {
        t->kind = is_char ? "char" : "raw";
        snprintf(t->tokenizer, sizeof t->tokenizer, "%s", is_char ? s->init_from : "");
        return LKS_OK;
    }
    if (known && lks__known_vocabulary(t->tokenizer))
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the weights in %s come without GPT-2's vocabulary: %sprepare %s with the "
                     "tokens that they were trained on (`lockstep prep`), and give --dataset",
                     w->shown, known ? "`lockstep fetch gpt2-vocab` downloads it. Or " : "",
                     t->shown);
}

/* Without weights the text decides: characters, or bytes if it isn't UTF-8. */
static lks_status guess_kind(struct text *t)
{
    if (t->weights != NULL)
        return LKS_OK;
    LKS__TRY(lks__prep_guess(t->path, &t->kind));
    if (strcmp(t->kind, "raw") == 0)
        snprintf(t->not_utf8, sizeof t->not_utf8, "%s", lks_last_error());
    return LKS_OK;
}

static lks_status check_settings(struct text *t)
{
    const lks__settings *s = t->given;
    char hand[8 * PATH_BYTES], out[PATH_BYTES];
    t->kind = "char";
    if (lks__settings_init(s) == LKS__INIT_WEIGHTS)
        LKS__TRY(open_weights(t));
    if (tool_is_rank() || s->dry_run)
        LKS__TRY(guess_kind(t));
    if (tool_is_rank())
        return lks__fail(LKS_ERR_CONFIG,
                         "a launcher has started this process as one of several ranks, which can't "
                         "all prepare %s: prepare it first, and let the launcher start `train` "
                         "without it: %s",
                         t->shown, longer_commands(t, hand));
    if (s->from[LKS__SETTING_dataset] == LKS__FROM_ARG)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s and --dataset both name the data: leave one of them out", t->shown);
    if (lks__settings_init(s) == LKS__INIT_RESUME)
        return lks__fail(LKS_ERR_CONFIG,
                         "a resumed run has its data: `lockstep resume %s` continues it",
                         lks__shell_word(out, sizeof out, t->out));
    if (s->family != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "--family=%s needs its own tokens: prepare %s first with `lockstep prep "
                         "%s`, and give --dataset",
                         lks__setting_word(s, LKS__SETTING_family), t->shown,
                         lks__family_of(s)->prep);
    if (s->dry_run)
        return lks__fail(LKS_ERR_CONFIG, "--dry_run needs prepared data: %s, with --dry_run",
                         longer_commands(t, hand));
    return LKS_OK;
}

/* Check that no run uses OUT, and that OUT/data was made by this command or doesn't exist. */
static lks_status check_out(const struct text *t)
{
    LKS__TRY(lks__outdir_free(t->out, t->given->lock == LKS__lock_on));
    if (t->given->eval_only && lks__sys_has(t->out, "metrics.jsonl"))
        return lks__fail(LKS_ERR_CONFIG,
                         "--eval_only would evaluate new weights in place of the run in %s: "
                         "`lockstep eval %s` evaluates that run",
                         lks__shown(t->out, 512), lks__quoted(t->out, PATH_BYTES));
    if (!lks__sys_has(t->out, LKS__DATA_FOLDER) || lks__run_has_data(t->out))
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "%s exists, and `lockstep train TEXT` has not made it: move it away, or give "
                     "another --out_dir",
                     lks__shown(t->data, 512));
}

/* --- the text --------------------------------------------------------------------------------- */

/* Set OUT to out/NAME, without the file name's suffix: out/my for my.txt. */
static void name_out(struct text *t)
{
    char real[PATH_MAX];
    const bool is_folder = lks__sys_is_folder(t->path); /* perhaps "." */
    const char *path = is_folder && realpath(t->path, real) != NULL ? real : t->path;
    const char *name = lks__sys_name(path), *dot = strrchr(name, '.');
    const bool keeps = dot == NULL || strspn(name, ".") > (size_t)(dot - name) || is_folder;
    const size_t n = keeps ? strlen(name) : (size_t)(dot - name);
    snprintf(t->out, sizeof t->out, "out/%.*s", (int)n, n > 0 ? name : "text");
}

static lks_status write_mark(const struct text *t)
{
    char real[PATH_MAX], path[PATH_BYTES + 64];
    json_t *json = json_pack("{s:s?, s:s}", "text", realpath(t->path, real), "kind", t->kind);
    if (json == NULL) /* the path isn't UTF-8 */
        json = json_pack("{s:n, s:s}", "text", "kind", t->kind);
    char *text = json != NULL ? lks__json_dump(json, JSON_COMPACT) : NULL;
    json_decref(json);
    LKS__MEMORY(text, "for " LKS__DATA_MARK);
    snprintf(path, sizeof path, "%s/" LKS__DATA_MARK, t->temp);
    lks_status st = lks__sys_write_file(path, text, strlen(text));
    free(text);
    return st;
}

/* Make OUT and lock it, so that another `train TEXT` can't prepare its text there at the same time.
 * *fd_p is -1 with --lock=off. */
static lks_status lock_out(const struct text *t, int *fd_p)
{
    const lks_status st = lks__sys_make_dirs(t->out);
    *fd_p = -1;
    if (st == LKS_OK)
        return lks__outdir_lock(t->out, t->given->lock == LKS__lock_on, fd_p);
    return lks__fail(st, "%s; --out_dir=FOLDER trains in another folder", lks_last_error());
}

static lks_status prepare(struct text *t)
{
    lks__outdir_discard(t->temp); /* left by a preparation that was killed */
    LKS__TRY(lks__sys_make_own_dir(t->temp));
    lks_status st = prep_text("train", t->kind, t->path, t->tokenizer, t->temp, &t->tokens);
    if (st == LKS_ERR_FORMAT && strcmp(t->kind, "raw") == 0)
        lks__fail_in(st,
                     "%s isn't UTF-8. If it is Latin-1, `iconv -f latin1 -t utf8 %s > utf8.txt` "
                     "makes UTF-8 of it, then `lockstep train utf8.txt`. Its bytes can't be the "
                     "tokens",
                     t->shown,
                     lks__sys_is_folder(t->path) ? "FILE" : lks__quoted(t->path, PATH_BYTES));
    return st == LKS_OK ? write_mark(t) : st;
}

/* Cut the last name off. Returns false if the path has only one. */
static bool to_parent(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return false;
    *slash = '\0';
    return true;
}

/* Length of the shortest prefix of the path that doesn't exist; 0 if the whole path exists. */
static size_t find_missing(const char *out)
{
    char path[PATH_BYTES];
    size_t missing = 0;
    snprintf(path, sizeof path, "%s", out);
    do {
        if (access(path, F_OK) == 0)
            break;
        missing = strlen(path);
    } while (to_parent(path));
    return missing;
}

/* Remove the files of a failed preparation, and its empty folders whose paths have at least
 * `missing` characters. */
static void remove_traces(const struct text *t, size_t missing)
{
    char path[PATH_BYTES + 64];
    lks__outdir_discard(t->temp);
    if (missing == 0)
        return;
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, t->out);
    unlink(path);
    snprintf(path, sizeof path, "%s", t->out);
    do
        rmdir(path);
    while (to_parent(path) && strlen(path) >= missing);
}

/* --- the run ---------------------------------------------------------------------------------- */

static lks_status read_longer(struct text *t, lks__settings *s)
{
    lks__args args;
    LKS__TRY(longer_check(&t->train));
    lks__settings_defaults(s);
    LKS__TRY(lks__settings_parse(s, LKS__CMD_TRAIN, t->train.n - 1, t->train.words + 1, 0, &args));
    if (t->weights != NULL)
        LKS__TRY(lks__settings_begin(s, &t->weights->model, t->weights->shown));
    return lks__settings_complete(s, 1);
}

static lks_status check_length(const struct text *t, const lks__settings *s)
{
    const lks__prep_result *n = &t->tokens;
    const uint64_t least = n->n_val < n->n_train ? n->n_val : n->n_train;
    if (least > (uint64_t)s->block_size)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "%s is too short for block_size=%" PRId64 ": it has %" PRIu64
                     " tokens for training and %" PRIu64
                     " for validation, and both need more than that; give a text of about %" PRId64
                     " characters or more, or a smaller --block_size",
                     t->shown, s->block_size, n->n_train, n->n_val,
                     (t->weights != NULL ? 40 : 10) * (s->block_size + 1));
}

/* Check the longer command before an earlier run is moved aside for it. */
static lks_status check_fit(const struct text *t, const lks__settings *s)
{
    static lks__settings checked;
    checked = *s;
    if (strlen(t->temp) < sizeof checked.dataset)
        memcpy(checked.dataset, t->temp, strlen(t->temp) + 1);
    LKS__TRY(lks__settings_complete(&checked, (int)s->nproc_per_node));
    return lks__plan_fits(&checked, (int)s->nproc_per_node);
}

/* Collect the words of the longer command. `s` gets their settings. */
static lks_status choose(struct text *t, int argc, char **argv, lks__settings *s)
{
    static char train[] = "train";
    longer *l = &t->train;
    longer_begin(l, train);
    if (!t->has_config) {
        const lks__choose_text size = {t->tokens.n_train, t->tokens.n_val};
        if (t->weights != NULL)
            lks__choose_tuning(&size, t->weights->model.block_size,
                               strcmp(t->kind, "gpt2") == 0 ? t->weights->model.n_embd : 0,
                               t->given, &t->choice);
        else
            LKS__TRY(lks__choose(&size, lks__choose_cores(), t->given, &t->choice));
        longer_add_text(l, "%s", t->choice.recipe);
    }
    longer_add_text(l, "--dataset=%s", t->data);
    if (t->given->from[LKS__SETTING_out_dir] != LKS__FROM_ARG)
        longer_add_text(l, "--out_dir=%s", t->out);
    for (int i = 0; !t->has_config && i < t->choice.n; i++)
        longer_add_text(l, "--%s=%s", lks__setting_name(t->choice.setting[i]), t->choice.value[i]);
    for (int i = 1; i < argc; i++)
        if (argv[i] != t->path)
            longer_add(l, argv[i]);
    LKS__TRY(read_longer(t, s));
    longer_add_ranks(l, t->given, s->virtual_ranks);
    LKS__TRY(check_length(t, s));
    return check_fit(t, s);
}

/* Move an earlier run aside, and rename the tokens' folder to OUT/data. */
static lks_status move_into_place(struct text *t)
{
    LKS__TRY(lks__outdir_start(t->out, NULL, t->moved));
    if (lks__sys_rename(t->temp, t->data) != 0)
        return lks__sys_fail("can't rename", t->temp);
    return lks__sys_sync_dir(t->out);
}

static void explain(const struct text *t, const lks__settings *s)
{
    char words[4 * PATH_BYTES], program[PATH_BYTES];
    const uint64_t n = t->tokens.n_train + t->tokens.n_val;
    const int64_t tokens = s->gradient_accumulation_steps * s->batch_size * s->block_size;
    const int64_t steps = s->max_iters + 1; /* as in nanoGPT */
    const int cores = lks__choose_cores();
    const bool is_char = strcmp(t->kind, "char") == 0, is_gpt2 = strcmp(t->kind, "gpt2") == 0;
    if (t->moved[0] != '\0') {
        const bool saved = lks__sys_has(t->moved, LKS__NAME_LATEST);
        fprintf(stderr, "lockstep train: an earlier run was moved to %s%s%s\n",
                lks__shown(t->moved, LKS__SYS_PATH),
                saved ? "; to continue it: lockstep resume " : "",
                saved ? lks__quoted(t->moved, LKS__SYS_PATH) : "");
    }
    if (t->not_utf8[0] != '\0')
        fprintf(stderr, "lockstep train: note: the tokens are bytes: %s\n", t->not_utf8);
    fprintf(stderr, "lockstep train: %s has %" PRIu64 " %s", t->shown, n,
            is_char   ? "characters"
            : is_gpt2 ? "of GPT-2's tokens"
                      : "bytes");
    if (is_char && t->weights == NULL)
        fprintf(stderr, ", %" PRIu32 " different", t->tokens.vocab_size);
    fputs(". ", stderr);
    if (!t->has_config && t->weights == NULL)
        fprintf(stderr, "For this text and %d core%s: ", cores, cores == 1 ? "" : "s");
    fprintf(stderr,
            "%" PRId64 " layer%s of width %" PRId64 ", %" PRId64 " step%s of %" PRId64
            " tokens (%.3g times the text).\n"
            "lockstep train: the same as\n"
            "  %s prep %s\n  ",
            s->n_layer, s->n_layer == 1 ? "" : "s", s->n_embd, steps, steps == 1 ? "" : "s", tokens,
            (double)steps * (double)tokens / (double)t->tokens.n_train,
            lks__shell_program(program, sizeof program), prep_words(t, words));
    longer_print(stderr, &t->train);
}

/* Replace this process by the longer command. Signals that arrived earlier have been noticed; from
 * here on a signal ends the process, unless it is a container's first one. */
static int exec_longer(struct text *t)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    char *words[LONGER_WORDS + 2] = {program_invocation_name};
    memcpy(words + 1, t->train.words, (size_t)(t->train.n + 1) * sizeof *words);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction now;
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            signal(signals[i], SIG_DFL);
    }
    fflush(NULL);
    setenv(TRAIN_TEXT_MOVED, t->moved, 1);
    if (lks__stop_requested == 0)
        execv(lks__program_file(), words);
    const int code = lks__stop_requested != 0
                         ? tool_stopped("train", lks__stop_requested, "nothing was trained")
                         : tool_fail("train", lks__fail(LKS_ERR_IO, "can't start lockstep: %s",
                                                        strerror(errno)));
    train_text_undo(t->out, t->given->lock == LKS__lock_on, t->moved);
    return code;
}

void train_text_undo(const char *out, bool lock, const char *moved)
{
    static const char *const begun[] = {"metrics.jsonl", "train.log", "latest"};
    int fd;
    for (size_t i = 0; i < sizeof begun / sizeof begun[0]; i++)
        if (lks__sys_has(out, begun[i]))
            return;
    if (!lks__run_has_data(out) || lks__outdir_lock(out, lock, &fd) != LKS_OK)
        return; /* the folder was moved, or is in use */
    const lks_status st = lks__outdir_undo(out, moved);
    lks__sys_close(fd);
    if (st != LKS_OK)
        tool_fail("train", st);
    else if (moved[0] != '\0')
        fprintf(stderr, "lockstep train: nothing was trained, and the earlier run is back in %s\n",
                lks__shown(out, 512));
}

static lks_status check(struct text *t, const lks__args *args)
{
    if (args->n_positional > 1)
        return too_many_words(args);
    LKS__TRY(check_path(t));
    LKS__TRY(check_settings(t));
    return check_out(t);
}

/* Prepare the text and the longer command in OUT, which is locked meanwhile. Remove all traces
 * after an error. */
static lks_status make(struct text *t, int argc, char **argv, lks__settings *s)
{
    const size_t missing = find_missing(t->out);
    int lock;
    LKS__TRY(guess_kind(t));
    lks_status st = lock_out(t, &lock);
    const bool is_ours = st != LKS_ERR_CONFIG; /* ERR_CONFIG: another process has locked it */
    LKS__THEN(st, prepare(t));
    LKS__THEN(st, choose(t, argc, argv, s));
    LKS__THEN(st, move_into_place(t));
    if (st != LKS_OK && is_ours)
        remove_traces(t, missing);
    lks__sys_close(lock);
    return st;
}

int train_text(int argc, char **argv, const lks__settings *given, const lks__args *args)
{
    static struct text t;
    static lks__settings s;
    char found[PATH_MAX];
    t.given = given;
    t.path = args->positional[0];
    lks__escape(t.shown, sizeof t.shown, t.path, strlen(t.path));
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        t.has_config |= given->from[i] == LKS__FROM_FILE;
    t.recipe =
        lks__settings_init(given) == LKS__INIT_WEIGHTS ? "finetune_shakespeare" : "quickstart";
    for (int i = 1; i < argc && t.has_config; i++)
        if (argv[i][0] != '-' && lks__recipe_find(argv[i], found) != LKS__RECIPE_NONE)
            t.recipe = argv[i];
    if (given->from[LKS__SETTING_out_dir] == LKS__FROM_ARG)
        snprintf(t.out, sizeof t.out, "%s", given->out_dir);
    else
        name_out(&t);
    snprintf(t.data, sizeof t.data, "%s/" LKS__DATA_FOLDER, t.out);
    snprintf(t.temp, sizeof t.temp, "%s/" LKS__DATA_TEMP, t.out);
    lks_status st = check(&t, args);
    if (st != LKS_OK)
        return tool_fail("train", st);
    tool_stoppable();
    st = make(&t, argc, argv, &s);
    if (st != LKS_OK && lks__stop_requested != 0)
        return tool_stopped("train", lks__stop_requested,
                            "the text was not prepared, and nothing was changed");
    if (st != LKS_OK)
        return tool_fail("train", st);
    explain(&t, &s);
    lks__weights_close(t.weights);
    return exec_longer(&t);
}
