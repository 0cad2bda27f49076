/* Settings of a run: relations between them, the config line, checkpoints, resuming. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings/settings.h"
#include "train/procedure/procedure.h"

enum { TRAIN = LKS__CMD_TRAIN, CONFIG = LKS__SETTING_CONFIG };

static void set(lks__settings *s, const char *key, const char *value)
{
    assert_ok(lks__settings_set(s, TRAIN, key, value, LKS__FROM_ARG, "test"));
}

static lks__settings checked(int64_t N, int64_t V, int W, bool uneven, lks_status *st)
{
    lks__settings s;
    lks__settings_defaults(&s);
    s.gradient_accumulation_steps = N;
    s.virtual_ranks = V;
    s.allow_uneven = uneven;
    *st = lks__settings_complete(&s, W);
    return s;
}

TEST(test_virtual_ranks)
{
    static const struct {
        int64_t N, V;
    } chosen[] = {{40, 8}, {1, 1}, {2, 2}, {3, 1}, {12, 4}, {16, 8}, {8, 8}, {65535, 1}};
    lks_status st;
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++) {
        assert_int_equal(checked(chosen[i].N, 0, 1, false, &st).virtual_ranks, chosen[i].V);
        assert_ok(st);
    }
    for (int W = 1; W <= 8; W++) {
        checked(8, 8, W, true, &st);
        assert_ok(st);
        checked(8, 8, W, false, &st);
        assert_int_equal(st, 8 % W ? LKS_ERR_CONFIG : LKS_OK);
    }
    checked(8, 8, 3, false, &st);
    assert_fails(LKS_ERR_CONFIG, st, "8 virtual ranks", "3 ranks", "--allow_uneven");
    /* Only ways out that work are named. */
    checked(40, 0, 5, false, &st);
    assert_fails(LKS_ERR_CONFIG, st, "start 4 ranks;", "--virtual_ranks=5 ",
                 "some ranks do the work of 2 virtual ranks, some of 1");
    checked(40, 5, 5, false, &st);
    assert_ok(st);
    checked(8, 0, 3, false, &st);
    assert_fails(LKS_ERR_CONFIG, st, "--gradient_accumulation_steps=9 --virtual_ranks=3 ");
    checked(8, 8, 9, true, &st);
    assert_fails(LKS_ERR_CONFIG, st, "9 ranks can't share the run's 8 virtual ranks (a rank has",
                 "start 8 ranks; or --gradient_accumulation_steps=9");
    assert_null(strstr(lks_last_error(), "allow_uneven"));
    checked(1, 0, 2, false, &st);
    assert_fails(LKS_ERR_CONFIG, st, "2 ranks can't share the run's 1 virtual rank (a rank has");
    checked(8, 3, 1, false, &st);
    assert_fails(LKS_ERR_CONFIG, st, "virtual_ranks=3", "gradient_accumulation_steps=8");
    lks__settings s;
    lks__settings_defaults(&s);
    s.n_head = 5;
    assert_fails(LKS_ERR_CONFIG, lks__settings_complete(&s, 1), "n_embd=768", "n_head=5");
}

/* golf's micro-batches and evaluation are whole sequences; its samples come from the stream. */
TEST(test_golf)
{
    static const struct {
        const char *train, *val, *sampler, *message; /* NULL: accepted */
    } rows[] = {
        {"8192", "8192", "stream", NULL},
        {"8191", "8192", "stream", "8191 over 8 micro-batches is 1023 tokens each"},
        {"12288", "8192", "stream", "12288 over 8 micro-batches is 1536 tokens each"},
        {"8199", "8192", "stream", NULL}, /* rounded down, as in the script */
        {"536870912", "8192", "stream", NULL},
        {"536879104", "8192", "stream", "65537 sequences; 65536 are the most"},
        {"8192", "8191", "stream", "val_batch_size=8191 over 8 virtual ranks"},
        {"8192", "8192", "random", "--sampler=stream"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lks__settings s;
        lks__settings_defaults(&s);
        set(&s, "family", "golf");
        set(&s, "vocab_size", "64");
        set(&s, "gradient_accumulation_steps", "8");
        set(&s, "train_batch_tokens", rows[i].train);
        set(&s, "val_batch_size", rows[i].val);
        set(&s, "sampler", rows[i].sampler);
        set(&s, "eval_stride", "1024");
        lks_status st = lks__settings_complete(&s, 1);
        if (rows[i].message == NULL)
            assert_ok(st);
        else
            assert_fails(LKS_ERR_CONFIG, st, rows[i].message);
        set(&s, "eval_stride", "1025");
        if (rows[i].message == NULL)
            assert_fails(LKS_ERR_CONFIG, lks__settings_complete(&s, 1),
                         "eval_stride=1025 is more than a window of train_seq_len=1024");
    }
}

/* What NCCL can't do is refused with it, and else takes another way. */
TEST(test_exchange)
{
    static const char *const others[][2] = {
        {"share_gpu", "true"}, {"zero", "1"}, {"wire", "bfloat16"}};
    static const char *const ways[] = {"auto", "staged", "nccl"};
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
        for (size_t i = 0; i <= sizeof others / sizeof others[0]; i++) {
            lks__settings s;
            lks__settings_defaults(&s);
            set(&s, "exchange", ways[w]);
            const bool with = i < sizeof others / sizeof others[0];
            if (with)
                set(&s, others[i][0], others[i][1]);
            lks_status st = lks__settings_complete(&s, 1);
            if (with && strcmp(ways[w], "nccl") == 0)
                assert_fails(LKS_ERR_CONFIG, st,
                             lks_test_text("exchange=nccl doesn't go together with %s=%s",
                                           others[i][0], others[i][1]));
            else
                assert_ok(st);
        }
}

/* Validation data may be missing if nothing evaluates. */
TEST(test_no_validation)
{
    const char *dir = lks_test_folder();
    lks__settings s;
    lks__shards *val;
    lks__settings_defaults(&s);
    for (int i = 0; i < 3; i++) {
        s.eval_interval = i == 0;
        s.eval_only = i == 1;
        const lks_status st = lks__procedure_open_split(&s, dir, LKS__SPLIT_VAL, 65, &val);
        assert_null(val);
        if (i == 2)
            assert_ok(st);
        else
            assert_fails(LKS_ERR_CONFIG, st, "there is no token file", "/val.bin to evaluate on");
    }
}

TEST(test_data_dir)
{
    lks__settings s;
    char out[LKS__SETTING_STR + 8];
    const char *dir = lks_test_folder();
    char *before = getcwd(NULL, 0);
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(mkdir("data", 0755) | mkdir("data/a", 0755) | mkdir("b", 0755), 0);
    lks_test_write_text("file", "x");
    lks__settings_defaults(&s);
    strcpy(s.dataset, "a");
    assert_ok(lks__settings_data_dir(&s, out));
    assert_string_equal(out, "data/a");
    strcpy(s.dataset, "b");
    assert_ok(lks__settings_data_dir(&s, out));
    assert_string_equal(out, "b");
    strcpy(s.dataset, dir);
    assert_ok(lks__settings_data_dir(&s, out));
    assert_string_equal(out, dir);
    /* A folder here without tokens, and one in data/ with them, of either form. */
    static const char *const files[] = {"data/c[1]/fineweb_train_000000.bin",
                                        "data/c[1]/tiny_shakespeare_train.bin",
                                        "data/c[1]/train.bin"};
    strcpy(s.dataset, "c[1]");
    assert_int_equal(mkdir("c[1]", 0755) | mkdir("data/c[1]", 0755), 0);
    assert_ok(lks__settings_data_dir(&s, out));
    assert_string_equal(out, "c[1]"); /* neither has any */
    for (int i = 0; i < 3; i++) {
        lks_test_write_text(files[i], "x");
        assert_ok(lks__settings_data_dir(&s, out));
        assert_string_equal(out, "data/c[1]");
        assert_int_equal(unlink(files[i]), 0);
    }
    strcpy(s.dataset, "file");
    assert_fails(LKS_ERR_CONFIG, lks__settings_data_dir(&s, out), "\"file\"", "lockstep prep");
    strcpy(s.dataset, "/a");
    assert_fails(LKS_ERR_CONFIG, lks__settings_data_dir(&s, out), "\"/a\"");
    strcpy(s.init_from, "gpt2-xl"); /* whose tokens the data need */
    assert_fails(LKS_ERR_CONFIG, lks__settings_data_dir(&s, out), "`lockstep prep gpt2 --tok", "");
    assert_int_equal(chdir(before), 0);
    free(before);
}

/* The config line of `s`, or what differs in it from `other`'s. */
static const char *config_line(const lks__settings *s, const lks__settings *other)
{
    static char line[8192];
    lks__jsonw w;
    size_t bytes;
    lks__jsonw_open(&w, line, sizeof line);
    lks__jsonw_object(&w, NULL);
    lks__settings_write(s, CONFIG, other, &w);
    lks__jsonw_end(&w);
    assert_ok(lks__jsonw_close(&w, &bytes));
    return line;
}

TEST(test_config_line)
{
    lks__settings s, t;
    lks__settings_defaults(&s);
    set(&s, "out_dir", "/secret/place");
    set(&s, "learning_rate", "0.1");
    const char *line = config_line(&s, NULL);
    assert_contains(line, "{\"family\":\"gpt2\",\"n_layer\":12,", "\"bias\":false,",
                    "\"learning_rate\":0.10000000000000001,", "\"sampler\":\"random\"");
    /* No rank count, path or time: equal runs have equal lines. */
    static const char *const absent[] = {"secret",  "dataset",   "nproc",   "threads",    "timeout",
                                         "backend", "init_from", "dry_run", "temperature"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_null(strstr(line, absent[i]));

    /* golf's own settings are no part of another family's line, and of golf's they are. */
    assert_null(strstr(line, "muon_momentum"));
    t = s;
    set(&t, "family", "golf");
    set(&t, "num_layers", "9"); /* the script's name for n_layer */
    line = config_line(&t, NULL);
    assert_contains(line, "\"muon_momentum\":0.94999999999999996,", "\"n_layer\":9,");

    /* Only what differs. */
    t = s;
    set(&t, "max_iters", "7");
    set(&t, "bias", "true");
    assert_string_equal(config_line(&t, &s), "{\"bias\":true,\"max_iters\":7}\n");
    const char *names[LKS__N_SETTINGS];
    assert_int_equal(lks__settings_diff(&s, &t, TRAIN, CONFIG, names), 2);
    assert_string_equal(names[0], "bias");
    assert_string_equal(names[1], "max_iters");
}

TEST(test_json_round_trip)
{
    lks__settings s, t;
    lks__settings_defaults(&s);
    set(&s, "learning_rate", "0.1");
    set(&s, "beta1", "0.30000000000000004");
    set(&s, "seed", "9223372036854775807");
    set(&s, "bias", "true");
    set(&s, "sampler", "nanogpt");
    json_t *json = lks__settings_to_json(&s);
    char *text = json_dumps(json, JSON_SORT_KEYS);
    json_t *back = json_loads(text, 0, NULL);
    assert_non_null(back);
    assert_null(json_object_get(json, "out_dir"));
    assert_ok(lks__settings_from_json(back, "state.json", &t));
    assert_int_equal(lks__settings_diff(&s, &t, TRAIN, ~0u, NULL), 0);
    assert_int_equal(t.from[LKS__SETTING_seed], LKS__FROM_CHECKPOINT);
    json_decref(json);
    json_decref(back);
    free(text);

    /* Text that isn't UTF-8 still makes valid JSON. */
    set(&s, "freeze", "a\xff");
    json = lks__settings_to_json(&s);
    assert_string_equal(lks_test_string(json, "freeze"), "a\\xff");
    json_decref(json);
}

/* The settings of a checkpoint with one member replaced by `value` (NULL: taken out). */
static lks_status from_altered(const char *key, const char *value, lks__settings *out)
{
    lks__settings s;
    lks__settings_defaults(&s);
    json_t *json = lks__settings_to_json(&s);
    if (value)
        json_object_set_new(json, key, json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL));
    else
        json_object_del(json, key);
    lks_status st = lks__settings_from_json(json, "state.json", out);
    json_decref(json);
    return st;
}

TEST(test_altered_json)
{
    static const struct {
        const char *key, *value, *message;
    } bad[] = {
        {"n_layer", NULL, "state.json: the setting n_layer is missing"},
        {"seed", NULL, "seed is missing"},
        {"n_layer", "0", "n_layer is not a whole number from 1 to 1024"},
        {"n_layer", "12.0", "n_layer is not"},
        {"n_layer", "\"12\"", "n_layer is not"},
        {"n_layer", "null", "n_layer is not"},
        {"n_layer", "[12]", "n_layer is not"},
        {"bias", "0", "bias is not true or false"},
        {"learning_rate", "\"1\"", "learning_rate is not a number"},
        {"learning_rate", "-1", "learning_rate is not a number"},
        {"sampler", "\"random\\u0000x\"", "sampler is not random, nanogpt, epoch or stream"},
        {"sampler", "\"other\"", "sampler is not"},
        {"sampler", "1", "sampler is not"},
        {"n_lay\x1b", "1", "no setting \"n_lay\\x1b\" in this version"},
        {"n-layer", "1", "no setting \"n-layer\""},
    };
    lks__settings out, before;
    memset(&out, 0x5a, sizeof out);
    before = out;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(LKS_ERR_FORMAT, from_altered(bad[i].key, bad[i].value, &out), bad[i].message);
    assert_memory_equal(&out, &before, sizeof out); /* outputs only on success */
    json_t *array = json_array();
    assert_fails(LKS_ERR_FORMAT, lks__settings_from_json(array, "x", &out), "not a JSON object");
    assert_fails(LKS_ERR_FORMAT, lks__settings_from_json(NULL, "x", &out), "not a JSON object");
    json_decref(array);

    assert_ok(from_altered("learning_rate", "1", &out)); /* %.17g writes 1.0 so */
    assert_true(out.learning_rate == 1.0);
    assert_ok(from_altered("keep", "\"of another kind: not looked at\"", &out));
    assert_ok(from_altered("min_lr", NULL, &out)); /* of a version without it */
    assert_true(out.min_lr == 6e-5);
}

TEST(test_resume)
{
    lks__settings run, s, before;
    lks__settings_defaults(&run);
    set(&run, "n_layer", "4");
    set(&run, "seed", "5");
    set(&run, "learning_rate", "0.25");
    set(&run, "max_iters", "100");
    set(&run, "out_dir", "elsewhere");
    run.virtual_ranks = 8;

    /* Nothing given: all of the run's, and the host's own. */
    lks__settings_defaults(&s);
    assert_ok(lks__settings_resume(&s, &run, "OUT"));
    assert_int_equal(s.n_layer, 4);
    assert_int_equal(s.seed, 5);
    assert_true(s.learning_rate == 0.25);
    assert_int_equal(s.max_iters, 100);
    assert_string_equal(s.out_dir, "out");
    assert_int_equal(lks__settings_diff(&s, &run, TRAIN, CONFIG, NULL), 0);

    /* What may change changes; equal values and "choose for me" agree; a recipe counts as given. */
    lks__settings_defaults(&s);
    set(&s, "max_iters", "200");
    set(&s, "n_layer", "4");
    set(&s, "virtual_ranks", "0");
    assert_ok(lks__settings_set(&s, TRAIN, "beta2", "0.5", LKS__FROM_FILE, "x.conf:1"));
    assert_ok(lks__settings_resume(&s, &run, "OUT"));
    assert_int_equal(s.max_iters, 200);
    assert_int_equal(s.virtual_ranks, 8);
    assert_true(s.beta2 == 0.5 && s.learning_rate == 0.25);
    assert_int_equal(lks__settings_diff(&s, &run, TRAIN, CONFIG, NULL), 2);

    /* The command line may change the batch, and a file may not. */
    lks__settings_defaults(&s);
    set(&s, "batch_size", "13");
    set(&s, "virtual_ranks", "4");
    assert_ok(lks__settings_resume(&s, &run, "OUT"));
    assert_true(s.batch_size == 13 && s.virtual_ranks == 4);
    assert_false(lks__settings_same_batch(&s, &run));
    lks__settings_defaults(&s);
    assert_ok(lks__settings_set(&s, TRAIN, "batch_size", "13", LKS__FROM_FILE, "x.conf:1"));
    assert_fails(LKS_ERR_CONFIG, lks__settings_resume(&s, &run, "OUT"),
                 "batch_size=13 was given in the config file",
                 "--batch_size=13 there to continue with another batch");

    static const char *const kept[][2] = {
        {"n_layer", "5"}, {"bias", "true"}, {"seed", "6"}, {"sampler", "nanogpt"}};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        lks__settings_defaults(&s);
        set(&s, kept[i][0], kept[i][1]);
        before = s;
        assert_fails(
            LKS_ERR_CONFIG, lks__settings_resume(&s, &run, "OUT"),
            lks_test_text("%s=%s was given, but the run in OUT has", kept[i][0], kept[i][1]));
        assert_memory_equal(&s, &before, sizeof s);
    }

    /* Texts are words for a shell, and the remedy is complete. */
    static char long_text[LKS__SETTING_STR];
    memset(long_text, 'x', sizeof long_text - 1);
    const char *const texts[][2] = {
        {"", ""}, {"wpe|wte", "'wpe|wte'"}, {"\x1b[31m", "..."}, {long_text, "..."}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        lks__settings_defaults(&s);
        lks__settings_defaults(&run);
        assert_ok(lks__settings_set(&s, TRAIN, "freeze", "h\\.0", LKS__FROM_FILE, "x.conf:1"));
        set(&run, "freeze", texts[i][0]);
        assert_fails(
            LKS_ERR_CONFIG, lks__settings_resume(&s, &run, "OUT"),
            lks_test_text("freeze='h\\.0' was given in the config file, but the run in OUT "
                          "has freeze=%s, which it keeps; give --freeze=%s on the command "
                          "line, which wins, or start a new run in another out_dir",
                          texts[i][1], texts[i][1]));
    }
}

/* The shape of a run that begins with weights is theirs; of its own it may have more tokens and a
 * shorter block. */
TEST(test_begin)
{
    static const struct {
        const char *key, *value, *refused; /* NULL: it stays */
    } rows[] = {{"vocab_size", "101", NULL},   {"vocab_size", "99", "or give a larger one"},
                {"vocab_size", "100", NULL},   {"block_size", "63", NULL},
                {"block_size", "64", NULL},    {"block_size", "65", "or give a smaller one"},
                {"n_embd", "64", "n_embd=32"}, {"n_embd", "32", NULL}};
    static const char *const shape[][2] = {
        {"n_layer", "3"}, {"n_embd", "32"}, {"vocab_size", "100"}, {"block_size", "64"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lks__settings source, s, want;
        lks__settings_defaults(&source);
        for (int k = 0; k < 4; k++)
            assert_ok(lks__settings_set(&source, TRAIN, shape[k][0], shape[k][1],
                                        LKS__FROM_CHECKPOINT, "test"));
        lks__settings_defaults(&s);
        set(&s, rows[i].key, rows[i].value);
        want = source;
        assert_ok(lks__settings_set(&want, TRAIN, rows[i].key, rows[i].value, LKS__FROM_ARG, "x"));
        if (rows[i].refused != NULL) {
            assert_fails(LKS_ERR_CONFIG, lks__settings_begin(&s, &source, "there"),
                         "the weights in there have", rows[i].refused);
            continue;
        }
        assert_ok(lks__settings_begin(&s, &source, "there"));
        assert_true(s.n_layer == 3 && s.n_embd == 32 && s.vocab_size == want.vocab_size &&
                    s.block_size == want.block_size);
    }
}

/* A run or weights of golf bring the script's defaults and variables. */
TEST(test_brings_family)
{
    for (int resumed = 0; resumed < 2; resumed++) {
        lks__settings golf, s;
        lks__settings_defaults(&golf);
        assert_ok(lks__settings_set(&golf, TRAIN, "family", "golf", LKS__FROM_CHECKPOINT, "test"));
        setenv("ITERATIONS", "77", 1);
        golf.iterations = 77;
        lks__settings_defaults(&s);
        if (resumed)
            assert_ok(lks__settings_resume(&s, &golf, "there"));
        else
            assert_ok(lks__settings_begin(&s, &golf, "there"));
        unsetenv("ITERATIONS");
        assert_int_equal(s.recompute, LKS__recompute_rows);
        assert_int_equal(s.iterations, 77);
        if (!resumed)
            assert_true(s.gradient_accumulation_steps == 8 && s.grad_clip == 0.0);
    }
}
