/* Settings from the command line: defaults, values, ranges, names. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/nearest.h"
#include "settings/settings.h"
#include "settings/settings_table.h"

/* Parse arguments for `command` into fresh defaults. */
static lks_status parse(unsigned command, int n, char *const argv[], lks__settings *s)
{
    lks__args args;
    lks__settings_defaults(s);
    return lks__settings_parse(s, command, n, argv, 0, &args);
}

static lks_status parse_one(unsigned command, const char *arg, lks__settings *s)
{
    return parse(command, 1, (char *const[]){(char *)arg}, s);
}

static lks_status parse_train(const char *arg)
{
    lks__settings s;
    return parse_one(LKS__CMD_TRAIN, arg, &s);
}

/* A preset outside its own range would be a setting that nobody could give. Empty texts stand for
 * "not given", and a word such as auto for 0. */
TEST(test_presets_are_in_range)
{
    lks__settings s, t;
    lks__settings_defaults(&s);
    t = s;
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        const lks__setting *d = &lks__setting_table[i];
        char text[LKS__SETTING_STR];
        lks__settings_text(&s, i, text);
        if (!*text)
            continue;
        if (d->zero != NULL)
            snprintf(text, sizeof text, "%s",
                     lks__setting_preset_text(d, (char[LKS__NUMBER_TEXT]){0}));
        lks_status st = LKS_ERR_CONFIG;
        for (unsigned command = 1; st != LKS_OK && command <= LKS__CMD_AUDIT; command *= 2)
            st = lks__settings_set(&t, command, lks__setting_name(i), text, LKS__FROM_ARG, "x");
        assert_ok(st);
        assert_int_equal(t.from[i], LKS__FROM_ARG);
    }
    assert_int_equal(lks__settings_diff(&s, &t, ~0u, ~0u, NULL), 0);
}

TEST(test_values)
{
    lks__settings s;
    lks__args args;
    char *const argv[] = {"--n_layer=4",
                          "--batch-size=7",
                          "--learning-rate=1.5e-3",
                          "--bias",
                          "--decay_lr=False",
                          "--dataset=a=b",
                          "--eval_only=true",
                          "--dropout=.25",
                          "--seed=9223372036854775807",
                          "--batch_size=0008",
                          "--min_lr=-0",
                          "--always_save_checkpoint=0",
                          "--max_iters=1_500_000"};
    lks__settings_defaults(&s);
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, 13, argv, 0, &args));
    assert_int_equal(s.max_iters, 1500000);
    assert_int_equal(s.n_layer, 4);
    assert_int_equal(s.batch_size, 8); /* of equals the later */
    assert_true(s.learning_rate == 1.5e-3);
    assert_true(s.bias && s.eval_only);
    assert_false(s.decay_lr);
    assert_false(s.always_save_checkpoint);
    assert_string_equal(s.dataset, "a=b");
    assert_true(s.dropout == 0.25);
    assert_true(s.seed == INT64_MAX);
    assert_int_equal(s.from[LKS__SETTING_n_layer], LKS__FROM_ARG);
    assert_int_equal(s.from[LKS__SETTING_n_head], LKS__FROM_DEFAULT);
    assert_int_equal(args.n_notes, 0);
    assert_false(args.help);
}

/* A value may be the next word. */
TEST(test_values_behind)
{
    lks__settings s;
    lks__args args;
    char *const argv[] = {
        "--n_layer", "4",         "--bias",      "--eval_only",   "false", "--decay-lr",
        "0",         "--start",   "-1 day",      "--temperature", "0.5",   "--wandb_run",
        "x",         "--compile", "--drop_last", "--num_heads",   "3"};
    lks__settings_defaults(&s);
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN | LKS__CMD_SAMPLE, 17, argv, 0, &args));
    assert_int_equal(s.n_layer, 4);
    assert_true(s.bias && s.drop_last);
    assert_false(s.eval_only || s.decay_lr);
    assert_string_equal(s.start, "-1 day");
    assert_true(s.temperature == 0.5);
    assert_int_equal(s.n_head, 3);
    assert_int_equal(args.n_notes, 2);

    /* A recipe is no value of a name without a meaning here. */
    const char *recipe = lks_test_text("%s/a.conf", lks_test_folder());
    lks_test_write(recipe, "n_layer = 5\n", 12);
    char *const foreign[] = {"--compile", (char *)recipe};
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, 2, foreign, 0, &args));
    assert_int_equal(s.n_layer, 4); /* the command line's, which wins */
    assert_ok(parse(LKS__CMD_TRAIN, 2, foreign, &s));
    assert_int_equal(s.n_layer, 5);

    char *const words[][3] = {{"--bias", "step"}, {"--n_layer", "--bias"}, {"--n_layer", "four"}};
    assert_ok(lks__settings_parse(&s, LKS__CMD_BENCH, 2, words[0], 1, &args));
    assert_string_equal(args.positional[0], "step");
    assert_fails(LKS_ERR_CONFIG, lks__settings_parse(&s, LKS__CMD_TRAIN, 2, words[1], 0, &args),
                 "write --n_layer=VALUE");
    assert_fails(LKS_ERR_CONFIG, lks__settings_parse(&s, LKS__CMD_TRAIN, 2, words[2], 0, &args),
                 "not \"four\"");
}

TEST(test_ranges)
{
    static const struct {
        const char *arg, *range;
    } bad[] = {
        {"--n_layer=0", "a whole number from 1 to 1024"},
        {"--n_layer=1025", "from 1 to 1024"},
        {"--n_layer=-1", "from 1"},
        {"--n_layer=", "a whole number"},
        {"--n_layer=4.0", "a whole number"},
        {"--n_layer=1e1", "a whole number"},
        {"--n_layer= 4", "a whole number"},
        {"--n_layer=4 ", "a whole number"},
        {"--n_layer=+4", "a whole number"},
        {"--n_layer=0x4", "a whole number"},
        {"--n_layer=2*2", "a whole number"},
        {"--n_layer=_4", "a whole number"},
        {"--n_layer=4_", "a whole number"},
        {"--n_layer=1__0", "a whole number"},
        {"--n_layer=four", "not \"four\""},
        {"--seed=9223372036854775808", "at least 0"},
        {"--seed=99999999999999999999999", "at least 0"},
        {"--seed=-1", "at least 0"},
        {"--batch_size=-1", "from 1 to 65,536"},
        {"--dropout=1", "of at least 0 and below 1"},
        {"--dropout=-0.1", "of at least 0 and below 1"},
        {"--dropout=nan", "a number"},
        {"--dropout=-nan", "a number"},
        {"--dropout=inf", "a number"},
        {"--learning_rate=1e999", "a number"},
        {"--learning_rate=0x1p-3", "a number"},
        {"--learning_rate=1e-3x", "a number"},
        {"--learning_rate= 1", "a number"},
        {"--learning_rate=", "a number"},
        {"--learning_rate=-", "a number"},
        {"--learning_rate=1,5", "a number"},
        {"--beta2=1", "below 1"},
        {"--learning_rate=-1", "of at least 0 and at most 1,000,000, not"},
        {"--grad_clip=-1", "at most 1e30, or off, not"},
        {"--max_iters=-1", "from 0 to 4,294,967,294, not"},
        {"--keep=1000001", "from 0 to 1,000,000, or all, not"},
        {"--timeout=0", "over 0"},
        {"--bias=yes", "true or false"},
        {"--bias=", "true or false"},
        {"--bias=2", "true or false"},
        {"--sampler=Random", "random, nanogpt, epoch or stream"},
        {"--device=gpu", "auto, cuda, cuda:N or cpu in this build, not \"gpu\""},
        {"--device=cuda:", "cuda:N or cpu in this build, not \"cuda:\""},
        {"--device=cuda:-1", "cuda:N or cpu in this build, not \"cuda:-1\""},
        {"--device=cuda:1x", "cuda:N or cpu in this build, not \"cuda:1x\""},
        {"--dtype=float16", "auto, float32 or bfloat16 in this build"},
        {"--backend=nccl", "in this build"},
        {"--out_dir=", "text of 1 to 1023 bytes"},
        {"--n_layer=\x1b[31m", "\\x1b[31m"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(LKS_ERR_CONFIG, parse_train(bad[i].arg), bad[i].range);
    lks__settings s;
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_SAMPLE, "--temperature=-0.1", &s),
                 "at least 0");
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_SAMPLE, "--top_p=0", &s), "over 0");
    assert_ok(parse_one(LKS__CMD_SAMPLE, "--top_k=None", &s)); /* nanoGPT's word for no limit */
    assert_int_equal(s.top_k, 0);
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_SAMPLE, "--num_samples=None", &s), "None");
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_PREP, "--val_fraction=1", &s), "below 1");
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_PREP, "--val_fraction=-0.1", &s), "at least 0");
    assert_null(strchr(lks_last_error(), '\x1b'));
}

TEST(test_long_text)
{
    char arg[LKS__SETTING_STR + 32] = "--out_dir=";
    size_t n = strlen(arg);
    lks__settings s;
    memset(arg + n, 'x', LKS__SETTING_STR - 1);
    assert_ok(parse_one(LKS__CMD_TRAIN, arg, &s));
    assert_int_equal(strlen(s.out_dir), LKS__SETTING_STR - 1);
    memset(arg + n, 'x', LKS__SETTING_STR);
    assert_fails(LKS_ERR_CONFIG, parse_train(arg), "out_dir must be text of 1 to 1023 bytes, not");
    memcpy(arg, "--start=xx", n);
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_SAMPLE, arg, &s), "bytes, or FILE:PATH, not");
}

TEST(test_names)
{
    char name[300] = "--";
    memset(name + 2, 'n', 250);
    assert_fails(LKS_ERR_CONFIG, parse_train("--n_layr=3"),
                 "--n_layr=3: ", "did you mean n_layer?");
    assert_fails(LKS_ERR_CONFIG, parse_train("--learnign-rate=1"), "did you mean learning_rate?");
    assert_fails(LKS_ERR_CONFIG, parse_train("--quux=3"), "\"quux\"", "lockstep train --help");
    assert_fails(LKS_ERR_CONFIG, parse_train("--top_k=3"), "of `lockstep sample`, not of");
    assert_fails(LKS_ERR_CONFIG, parse_train("--n_layer"), "write --n_layer=VALUE");
    assert_fails(LKS_ERR_CONFIG, parse_train("-n_layer=3"), "--key=value");
    assert_fails(LKS_ERR_CONFIG, parse_train("--=3"), "--key=value");
    assert_fails(LKS_ERR_CONFIG, parse_train("--"), "--key=value");
    assert_fails(LKS_ERR_CONFIG, parse_train("-"), "prep char --input=-");
    assert_fails(LKS_ERR_CONFIG, parse_train("--input=-"), "of `lockstep prep`, not of");
    assert_fails(LKS_ERR_CONFIG, parse_train("--input=~/a.txt"), "isn't replaced here");
    assert_fails(LKS_ERR_CONFIG, parse_train("word"), "\"word\" is neither a setting");
    assert_fails(LKS_ERR_CONFIG, parse_train(""), "\"\" is neither a setting");
    assert_fails(LKS_ERR_CONFIG, parse_train(".conf"), "\".conf\" is neither a setting");
    assert_fails(LKS_ERR_CONFIG, parse_train(name), "250 bytes");
    assert_fails(LKS_ERR_CONFIG, parse_train("--\xff\x01=3"), "\\xff\\x01");
    lks__settings s;
    setenv("HOME", "/h", 1);
    assert_fails(LKS_ERR_CONFIG, parse_train("--out_dir=~/my"),
                 "--out_dir=~/my: ~ isn't replaced here: write /h/my");
    assert_ok(parse_train("--out_dir=./~/my"));
    assert_ok(parse_one(LKS__CMD_SAMPLE, "--start=~/my", &s));
}

/* --ranks is another name of nproc_per_node; the command line wins over files by either. */
TEST(test_ranks)
{
    static char *const same[] = {"--ranks=3", "--nproc_per_node=3", "--ranks=3"},
                       *const later[] = {"--ranks=3", "--ranks=4"},
                       *const differ[] = {"--ranks=3", "--nproc_per_node=4"},
                       *const other[] = {"--nproc-per-node=4", "--ranks", "3"};
    lks__settings s;
    for (unsigned command = 1; command <= LKS__CMD_AUDIT; command *= 2)
        if (command & (LKS__CMD_TRAIN | LKS__CMD_EVAL | LKS__CMD_BENCH)) {
            assert_ok(parse_one(command, "--ranks=3", &s));
            assert_int_equal(s.nproc_per_node, 3);
        }
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_SAMPLE, "--ranks=3", &s),
                 "nproc_per_node is a setting of `lockstep train`, not of `lockstep sample`");
    assert_fails(LKS_ERR_CONFIG, parse_train("--ranks=0"),
                 "--ranks=0: nproc_per_node must be a whole number from 1 to 1024, not \"0\"");
    assert_ok(parse(LKS__CMD_TRAIN, 3, same, &s));
    assert_int_equal(s.nproc_per_node, 3);
    assert_ok(parse(LKS__CMD_TRAIN, 2, later, &s));
    assert_int_equal(s.nproc_per_node, 4);
    assert_fails(
        LKS_ERR_CONFIG, parse(LKS__CMD_TRAIN, 2, differ, &s),
        "--nproc_per_node=4: ranks is another name of nproc_per_node, and has the value 3");
    assert_fails(LKS_ERR_CONFIG, parse(LKS__CMD_TRAIN, 3, other, &s),
                 "--ranks: nproc_per_node is another name of ranks, and has the value 4");

    char *recipe = (char *)lks_test_text("%s/a.conf", lks_test_folder());
    lks_test_write(recipe, "nproc_per_node = 2\n", 19);
    char *const file[] = {recipe, "--ranks=4"};
    assert_ok(parse(LKS__CMD_TRAIN, 2, file, &s));
    assert_int_equal(s.nproc_per_node, 4);
}

static const struct {
    unsigned command;
    const char *word, *meant;
} synonyms[] = {
    {LKS__CMD_TRAIN, "lr", "learning_rate"},
    {LKS__CMD_TRAIN, "epochs", "max_iters, which counts steps"},
    {LKS__CMD_TRAIN, "steps", "max_iters"},
    {LKS__CMD_BENCH, "steps", "iters"},
    {LKS__CMD_TRAIN, "max_steps", "max_iters"},
    {LKS__CMD_TRAIN, "batch", "batch_size"},
    {LKS__CMD_TRAIN, "data", "dataset"},
    {LKS__CMD_PREP, "data", "input"},
    {LKS__CMD_TRAIN, "gpus", "nproc_per_node, with --device=cuda"},
    {LKS__CMD_TRAIN, "context", "block_size"},
    {LKS__CMD_TRAIN, "model", "family, or for its first weights init_from"},
    {LKS__CMD_SAMPLE, "model", "out_dir, the folder of a run"},
    {LKS__CMD_EVAL, "model", "out_dir, the folder of a run"},
    {LKS__CMD_EXPORT, "model", "out_dir, the folder of a run"},
    {LKS__CMD_TRAIN, "workers", "nproc_per_node"},
    {LKS__CMD_TRAIN, "save_interval", "checkpoint_interval"},
    {LKS__CMD_TRAIN, "save_every", "checkpoint_interval"},
    {LKS__CMD_TRAIN, "save_steps", "checkpoint_interval"},
    {LKS__CMD_TRAIN, "lr_scheduler", "decay_lr"},
    {LKS__CMD_SAMPLE, "prompt", "start"},
    {LKS__CMD_DOCTOR, "connect", "serve there, and `lockstep doctor HOST:PORT` here"},
    {LKS__CMD_TRAIN, "resume", "init_from=resume"},
    {LKS__CMD_TRAIN, "layers", "n_layer"},
    {LKS__CMD_TRAIN, "heads", "n_head"},
    {LKS__CMD_TRAIN, "output_dir", "out_dir"},
    {LKS__CMD_PREP, "reuse-sp-model", "tokenizer=MODEL"},
    {LKS__CMD_PREP, "chunk-tokens", "shards"},
};

/* Words of other programs for our settings, on the command line and in files. */
TEST(test_synonyms)
{
    lks__settings s;
    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++) {
        const char *word = synonyms[i].word,
                   *says = lks_test_text("there is no setting \"%s\"; did you mean %s?", word,
                                         synonyms[i].meant);
        assert_fails(LKS_ERR_CONFIG,
                     parse_one(synonyms[i].command, lks_test_text("--%s", word), &s), says);
        for (int python = 0; python < 2; python++) {
            const char *name = python ? "a.py" : "a.conf",
                       *text = lks_test_text("seed = 3\n%s = 1\n", word);
            char *path = (char *)lks_test_text("%s/%s", lks_test_folder(), name);
            lks_test_write_text(path, text);
            assert_fails(LKS_ERR_CONFIG, parse(synonyms[i].command, 1, &path, &s),
                         lks_test_text("%s:2: %s", name, says));
        }
    }
    /* Case and dashes don't matter; a word for another command's setting names that command. */
    assert_fails(LKS_ERR_CONFIG, parse_train("--LR=1"), "did you mean learning_rate?");
    assert_fails(LKS_ERR_CONFIG, parse_train("--output-dir=x"), "did you mean out_dir?");
    assert_fails(LKS_ERR_CONFIG, parse_train("--prompt=x"),
                 "did you mean start of `lockstep sample`?");
}

/* The same for values; and values that are misspelled. */
TEST(test_values_of_others)
{
    static const struct {
        const char *key, *value, *meant;
    } rows[] = {
        {"device", "gpu", "cuda"},       {"optimizer", "adam", "adamw"},
        {"dtype", "bf16", "bfloat16"},   {"dtype", "fp32", "float32"},
        {"optimizer", "admaw", "adamw"}, {"sampler", "Random", "random"},
        {"family", "nanogpt", "gpt2"},   {"on_nan", "rolback", "rollback"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *says =
            lks_test_text("not \"%s\"; did you mean %s?", rows[i].value, rows[i].meant);
        const char *text = lks_test_text("%s = '%s'\n", rows[i].key, rows[i].value);
        assert_fails(LKS_ERR_CONFIG,
                     parse_train(lks_test_text("--%s=%s", rows[i].key, rows[i].value)), says);
        for (int python = 0; python < 2; python++) {
            lks__settings s;
            lks__args args;
            char *path =
                (char *)lks_test_text("%s/a.%s", lks_test_folder(), python ? "py" : "conf");
            lks_test_write_text(path, text);
            lks__settings_defaults(&s);
            lks_status st = lks__settings_parse(&s, LKS__CMD_TRAIN, 1, &path, 0, &args);
            /* nanoGPT's scripts name the machine that they are for: that is noted only */
            if (python && (strcmp(rows[i].key, "device") == 0 || strcmp(rows[i].key, "dtype") == 0))
                assert_int_equal(args.n_notes, 1);
            else
                assert_fails(LKS_ERR_CONFIG, st, says);
        }
    }
    assert_fails(LKS_ERR_CONFIG, parse_train("--backend=nccl"),
                 "did you mean auto, with --device=cuda --exchange=nccl for NCCL?");
    assert_fails(LKS_ERR_CONFIG, parse_train("--max_iters=1e3"), "not \"1e3\"; did you mean 1000?");
    assert_fails(LKS_ERR_CONFIG, parse_train("--max_iters=1.000"), "4,294,967,294, not \"1.000\"");
    assert_null(strstr(lks_last_error(), "did you mean"));
    static const char *const other[] = {"--max_iters=1e30", "--max_iters=1.5", "--max_iters=nan",
                                        "--optimizer=quux"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        assert_fails(LKS_ERR_CONFIG, parse_train(other[i]), "not \"");
        assert_null(strstr(lks_last_error(), "did you mean"));
    }
}

TEST(test_nothing_is_half_set)
{
    lks__settings s, d;
    lks__settings_defaults(&d);
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_TRAIN, "--n_layer=0", &s), "n_layer");
    assert_memory_equal(&s, &d, sizeof s);
}

TEST(test_words_notes_help)
{
    lks__settings s;
    lks__args args;
    char *const bench[] = {"step", "--compile=False", "--wandb_log=True", "--wandb-x"};
    lks__settings_defaults(&s);
    assert_ok(lks__settings_parse(&s, LKS__CMD_BENCH, 4, bench, 1, &args));
    assert_int_equal(args.n_positional, 1);
    assert_string_equal(args.positional[0], "step");
    assert_int_equal(args.n_notes, 3);
    assert_string_equal(args.notes[0], "command line: compile");

    char *const help[] = {"--nonsense", "-h"};
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, 2, help, 0, &args));
    assert_true(args.help);
    assert_null(args.help_group);
    char *const golf[] = {"--help=golf"}, *const other[] = {"--help=quux"};
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, 1, golf, 0, &args));
    assert_string_equal(args.help_group, "golf");
    assert_fails(LKS_ERR_CONFIG, lks__settings_parse(&s, LKS__CMD_TRAIN, 1, other, 0, &args),
                 "--help=quux", "groups are all, files, model,");
    assert_fails(LKS_ERR_CONFIG, lks__settings_parse(&s, LKS__CMD_PLOT, 1, golf, 0, &args),
                 "--help=golf", "groups are all, files, logging");

    /* More notes than there is room for are counted. */
    char *many[LKS__ARGS_NOTES + 5];
    for (int i = 0; i < LKS__ARGS_NOTES + 5; i++)
        many[i] = "--compile=True";
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, LKS__ARGS_NOTES + 5, many, 0, &args));
    assert_int_equal(args.n_notes, LKS__ARGS_NOTES + 5);
    assert_string_equal(args.notes[LKS__ARGS_NOTES - 1], "command line: compile");
}

static char *help_of(unsigned command, const char *group)
{
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    lks__settings_help(f, command, group);
    fclose(f);
    return text;
}

TEST(test_help_lists_every_setting)
{
    size_t bytes;
    char *text = help_of(LKS__CMD_TRAIN, "all");
    assert_contains(text, "--n_layer=12 ", "--learning_rate=0.0006", "--decay_lr=true",
                    "--min_lr=6e-5 ", "--adam_eps=1e-8 ");
    assert_null(strstr(text, "e+"));
    assert_contains(text, "data/NAME is");
    assert_null(strstr(text, "--temperature"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        assert_true(strlen(line) <= 80);
        const size_t blanks = strspn(line, " "); /* a group, a setting, or what goes on below it */
        assert_true(blanks == 0 || blanks == 2 || blanks == 30);
    }
    free(text);

    text = help_of(~0u, "all");
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        assert_contains(text, lks_test_text("  --%s=", lks__setting_name(i)));
    assert_contains(text, "  --start=(line feed) ");
    free(text);

    FILE *f = open_memstream(&text, &bytes);
    lks__setting_help(f, LKS__SETTING_dataset);
    fclose(f);
    assert_memory_equal(text, "dataset, a setting of `lockstep ", 32);
    assert_contains(text, "`, `lockstep ");
    assert_null(strstr(text, "` `"));
    assert_contains(text, "\n\n  --dataset=openwebtext ");
    free(text);
}

TEST(test_words_for_zero)
{
    lks__settings s;
    lks__settings_defaults(&s);
    assert_ok(parse_one(LKS__CMD_TRAIN, "--keep=all", &s));
    assert_int_equal(s.keep, 0);
    assert_ok(parse_one(LKS__CMD_TRAIN, "--grad_clip=off", &s));
    assert_true(s.grad_clip == 0.0);
    assert_fails(LKS_ERR_CONFIG, parse_one(LKS__CMD_TRAIN, "--keep=off", &s), "keep", ", or all");
    assert_ok(parse_one(LKS__CMD_SAMPLE, "--which=best", &s));
    assert_string_equal(s.checkpoint, "best");
    assert_ok(parse_one(LKS__CMD_SAMPLE, "--checkpoint=7", &s));
    assert_string_equal(s.checkpoint, "7");
}

TEST(test_help_levels)
{
    static const struct {
        unsigned command;
        const char *group, *has;
    } rows[] = {
        {LKS__CMD_TRAIN, NULL, "  --n_head=12                 attention heads per layer\n"},
        {LKS__CMD_TRAIN, NULL, "  --help=golf "},
        {LKS__CMD_TRAIN, NULL, "  --dataset=openwebtext "},
        {LKS__CMD_EVAL, NULL, "  --dataset=... "},
        {LKS__CMD_TRAIN | LKS__CMD_PLAN, NULL, "  --nnodes=1 "},
        {LKS__CMD_SAMPLE, NULL, "  --top_k=200 "},
        {LKS__CMD_PREP, NULL, "  --out=...                   folder for the token files\n"},
        {LKS__CMD_BENCH, NULL, "  --block_size=1024           context length in tokens\n"},
        {LKS__CMD_TRAIN, "cluster", "\nRanks and machine\n  --nproc_per_node=1 "},
        {LKS__CMD_TRAIN, "gpu", "\nDevice and precision\n  --device=auto "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = help_of(rows[i].command, rows[i].group);
        assert_contains(text, rows[i].has);
        assert_true(rows[i].group == NULL || strncmp(text, rows[i].has, strlen(rows[i].has)) == 0);
        free(text);
    }
    char *text = help_of(LKS__CMD_TRAIN, NULL);
    assert_null(strstr(text, "--help=sampling"));
    assert_null(strstr(text, "--max_restarts"));
    free(text);
    text = help_of(LKS__CMD_TRAIN, "cluster");
    assert_null(strstr(text, "whole number"));
    assert_null(strstr(text, "--device"));
    free(text);
}

TEST(test_memory)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"7", 7},
                {"512M", 512ull << 20},
                {"1.5GB", 1500000000},
                {"2KB", 2000},
                {"3K", 3072},
                {"3KiB", 3072},
                {"1MB", 1000000},
                {"1MiB", 1 << 20},
                {"4G", 4ull << 30},
                {"1GiB", 1 << 30},
                {"1T", 1ull << 40},
                {"2TB", 2000000000000},
                {"1TiB", 1ull << 40}};
    lks__settings s;
    uint64_t bytes;
    lks__settings_defaults(&s);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(s.memory, sizeof s.memory, "%s", rows[i].text);
        assert_ok(lks__settings_memory(&s, &bytes));
        assert_true(bytes == rows[i].bytes);
    }
    snprintf(s.memory, sizeof s.memory, "1gb");
    assert_fails(LKS_ERR_CONFIG, lks__settings_memory(&s, &bytes), "not \"1gb\"");
}

TEST(test_nearest)
{
    const char *const names[] = {"train", "sample", NULL, "eval", "info", "learning_rate"};
    assert_string_equal(lks__nearest("trian", names, 6), "train");
    assert_string_equal(lks__nearest("Train", names, 6), "train");
    assert_string_equal(lks__nearest("smple", names, 6), "sample");
    assert_string_equal(lks__nearest("learningrate", names, 6), "learning_rate");
    assert_string_equal(lks__nearest("learning-rate", names, 6), "learning_rate");
    assert_null(lks__nearest("xyz", names, 6));
    assert_null(lks__nearest("", names, 6));
    char longest[5000];
    memset(longest, 't', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(lks__nearest(longest, names, 6));
}

/* --code adds up; other texts are replaced. */
TEST(test_list)
{
    lks__settings s;
    lks__settings_defaults(&s);
    assert_ok(lks__settings_set(&s, LKS__CMD_EXPORT, "code", "a.py", LKS__FROM_FILE, "a.conf:1"));
    assert_ok(lks__settings_set(&s, LKS__CMD_EXPORT, "code", "b.py", LKS__FROM_ARG, "--code"));
    assert_ok(lks__settings_set(&s, LKS__CMD_EXPORT, "code", "c.py", LKS__FROM_ARG, "--code"));
    assert_string_equal(s.code, "b.py\nc.py");
    assert_fails(LKS_ERR_CONFIG, /* what starts commands is typed */
                 lks__settings_set(&s, LKS__CMD_TRAIN, "exec_on", "end:true", LKS__FROM_ENV, "X"),
                 "only accepted on the command line");
    char *longest = lks_test_malloc(LKS__SETTING_STR);
    memset(longest, 'x', LKS__SETTING_STR - 1);
    longest[LKS__SETTING_STR - 1] = '\0';
    assert_fails(LKS_ERR_CONFIG,
                 lks__settings_set(&s, LKS__CMD_EXPORT, "code", longest, LKS__FROM_ARG, "--code"),
                 "all code together");
    /* With "b.py", "c.py" and two line feeds it is one byte too long, or just fits. */
    longest[LKS__SETTING_STR - 10] = '\0';
    assert_fails(LKS_ERR_CONFIG,
                 lks__settings_set(&s, LKS__CMD_EXPORT, "code", longest, LKS__FROM_ARG, "--code"),
                 "all code together");
    longest[LKS__SETTING_STR - 11] = '\0';
    assert_ok(lks__settings_set(&s, LKS__CMD_EXPORT, "code", longest, LKS__FROM_ARG, "--code"));
    assert_int_equal(strlen(s.code), LKS__SETTING_STR - 1);
    free(longest);
}

/* What `s` is in a file, with `value` in the place of one setting. */
static lks_status read_back(const lks__settings *s, const lks__setting *d, json_t *value,
                            lks__settings *back)
{
    json_t *json = lks__settings_to_json(s);
    assert_int_equal(json_object_set_new(json, d->name, value), 0);
    lks_status st = lks__settings_from_json(json, "file", back);
    json_decref(json);
    return st;
}

/* Files keep the word itself; no other text is accepted. */
static void check_choice_in_files(const lks__settings *s, const lks__setting *d, const char *range)
{
    lks__settings back;
    json_t *json = lks__settings_to_json(s);
    json_t *word = json_object_get(json, d->name);
    json_t *const wrong[] = {json_string("neither"), json_integer(0), json_null(),
                             json_stringn(json_string_value(word), json_string_length(word) + 1)};
    assert_string_equal(json_string_value(word), d->word((int)lks__setting_load(s, d).i));
    assert_ok(read_back(s, d, json_incref(word), &back));
    assert_int_equal(lks__setting_load(&back, d).i, lks__setting_load(s, d).i);
    json_decref(json);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_fails(LKS_ERR_FORMAT, read_back(s, d, wrong[i], &back), range);
}

/* Every word of every choice is accepted and printed as that word; nothing else is accepted. */
TEST(test_choices)
{
    int n_choices = 0;
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        const lks__setting *d = &lks__setting_table[i];
        const unsigned command = d->commands & -d->commands; /* any command that has it */
        lks__settings s;
        char text[LKS__SETTING_STR], range[LKS__SETTING_RANGE];
        if (d->type != LKS__SETTING_IS_CHOICE)
            continue;
        n_choices++;
        lks__settings_defaults(&s);
        if (d->flags & LKS__SETTING_GOLF) /* others' files don't have it */
            assert_ok(
                lks__settings_set(&s, LKS__CMD_TRAIN, "family", "golf", LKS__FROM_ARG, "here"));
        lks__setting_describe(d, range);
        for (int w = 0; d->word(w) != NULL; w++) {
            assert_ok(lks__settings_set(&s, command, d->name, d->word(w), LKS__FROM_ARG, "here"));
            assert_int_equal(lks__setting_load(&s, d).i, w);
            assert_string_equal(lks__setting_word(&s, i), d->word(w));
            assert_string_equal(lks__settings_text(&s, i, text), d->word(w));
            assert_non_null(strstr(range, d->word(w)));
            if (d->commands & LKS__CMD_TRAIN && d->flags & LKS__SETTING_CONFIG)
                check_choice_in_files(&s, d, range);
        }
        assert_fails(LKS_ERR_CONFIG,
                     lks__settings_set(&s, command, d->name, "neither", LKS__FROM_ARG, "here"),
                     range);
        assert_fails(LKS_ERR_CONFIG,
                     lks__settings_set(&s, command, d->name, "", LKS__FROM_ARG, "here"), range);
    }
    assert_true(n_choices >= 9);
    /* Nor does a text end early. */
    lks__settings s, back;
    lks__settings_defaults(&s);
    const lks__setting *d = &lks__setting_table[LKS__SETTING_freeze];
    assert_fails(LKS_ERR_FORMAT, read_back(&s, d, json_stringn("wte\0h", 5), &back), "freeze");
    assert_ok(read_back(&s, d, json_string("wte"), &back));
}
