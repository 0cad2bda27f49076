/* Settings from recipes and from nanoGPT's config files. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "settings/config/config_file.h"

static lks__settings s;
static lks__args args;

static lks_status read_bytes(const char *name, const void *data, size_t bytes)
{
    const char *path = lks_test_text("%s/%s", lks_test_folder(), name);
    char *const argv[] = {(char *)path};
    lks_test_write(path, data, bytes);
    lks__settings_defaults(&s);
    return lks__settings_parse(&s, LKS__CMD_TRAIN, 1, argv, 0, &args);
}

static lks_status read_as(const char *name, const char *text)
{
    return read_bytes(name, text, strlen(text));
}

TEST(test_recipe)
{
    assert_ok(read_as("a.conf", "\xef\xbb\xbf# a recipe\r\n"
                                "\n"
                                "  n-layer=4   # blocks\r\n"
                                "learning_rate = 1e-3\n"
                                "gradient_accumulation_steps = 5 * 8\n"
                                "bias = true\n"
                                "decay_lr = False\n"
                                "dataset = data/some#1's   # a bare word\n"
                                "out_dir = \"a \\\"b\\\" # c\"\n"
                                "weight_decay = 0.5*0.5\n"
                                "compile = False\n"
                                "n_layer = 5\n"
                                "init_from='re #1'")); /* no line feed at the end */
    assert_int_equal(s.n_layer, 5);
    assert_true(s.learning_rate == 1e-3 && s.weight_decay == 0.25);
    assert_int_equal(s.gradient_accumulation_steps, 40);
    assert_true(s.bias && !s.decay_lr);
    assert_string_equal(s.dataset, "data/some#1's");
    assert_string_equal(s.out_dir, "a \"b\" # c");
    assert_string_equal(s.init_from, "re #1");
    assert_int_equal(s.from[LKS__SETTING_n_layer], LKS__FROM_FILE);
    assert_int_equal(args.n_notes, 1);
    assert_contains(args.notes[0], "a.conf:11: compile = False");
    assert_ok(read_as("b.conf", "compile = \"no\"\n"));
    assert_contains(args.notes[0], "b.conf:1: compile = \"no\"");
}

/* Settings on the command line win over files, in any order. */
TEST(test_command_line_wins)
{
    const char *dir = lks_test_folder();
    char *a = (char *)lks_test_text("%s/a.conf", dir), *b = (char *)lks_test_text("%s/b.py", dir);
    lks_test_write(a, "n_layer=2\nn_head=2\nn_embd=2\n", 27);
    lks_test_write_text(b, "n_head=3\nn_layer=3\nbatch_size=4\n");
    char *const argv[] = {"--n_layer=7", "--batch_size=auto", a, b, "--n_embd=8", "--n_embd=9"};
    lks__settings_defaults(&s);
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, 6, argv, 0, &args));
    assert_int_equal(s.n_layer, 7);
    assert_int_equal(s.auto_batch, LKS__FROM_ARG);
    assert_int_equal(s.n_head, 3);
    assert_int_equal(s.n_embd, 9);
}

/* A command that takes words takes config files, too: they are none of its words. */
TEST(test_among_words)
{
    char *a = (char *)lks_test_text("%s/a.conf", lks_test_folder());
    lks_test_write(a, "n_layer=2\n", 10);
    char *const argv[] = {"step", a, "more"};
    lks__settings_defaults(&s);
    assert_ok(lks__settings_parse(&s, LKS__CMD_BENCH, 3, argv, 5, &args));
    assert_int_equal(args.n_positional, 2);
    assert_string_equal(args.positional[0], "step");
    assert_string_equal(args.positional[1], "more");
    assert_int_equal(s.n_layer, 2);
}

TEST(test_docstring)
{
    assert_ok(
        read_as("a.py", "# mine\n\"\"\"A run,\nn_layer = 9 \'\'\'\n\"\"\" # here\nn_layer = 3\n"));
    assert_int_equal(s.n_layer, 3);
    assert_ok(read_as("a.py", "\'\'\'short\'\'\'\nn_layer = 4"));
    assert_int_equal(s.n_layer, 4);
    assert_fails(LKS_ERR_CONFIG, read_as("a.py", "\"\"\"one\ntwo\"\"\"\nn_layr = 3\n"), "a.py:3: ");
    assert_fails(LKS_ERR_CONFIG, read_as("a.py", "\"\"\"no end\n"), "a.py:1: expected KEY = VALUE");
    assert_fails(LKS_ERR_CONFIG, read_as("a.conf", "\"\"\"a\"\"\"\n"), "expected KEY = VALUE");
}

TEST(test_nanogpt)
{
    assert_ok(read_as("finetune.py", "import time\n"
                                     "from math import pi # why not\n"
                                     "\n"
                                     "out_dir = 'out-shakespeare'\n"
                                     "wandb_log = False # later\n"
                                     "wandb_run_name = 'ft-' + str(time.time())\n"
                                     "dataset = 'shake' + str(time.time())\n"
                                     "always_save_checkpoint = False\n"
                                     "gradient_accumulation_steps = 5 * 8\n"
                                     "learning_rate = 3e-5\n"
                                     "decay_lr = False\n"
                                     "device = 'cuda'\n"
                                     "dtype = 'float16'\n"
                                     "backend='nccl'\n"
                                     "compile = False # not here\n"
                                     "init_from = 'a' if pi else 'b'\n"));
    assert_string_equal(s.out_dir, "out-shakespeare");
    assert_string_equal(s.dataset, "openwebtext");
    assert_int_equal(s.gradient_accumulation_steps, 40);
    assert_true(s.learning_rate == 3e-5);
    assert_false(s.decay_lr);
    assert_false(s.always_save_checkpoint);
    assert_string_equal(s.device, "auto");
    assert_int_equal(s.dtype, LKS__dtype_auto);
    static const char *const notes[] = {"finetune.py:1: import time",
                                        "finetune.py:2: from math import pi",
                                        "finetune.py:5: wandb_log",
                                        "finetune.py:6: wandb_run_name = 'ft-' + str(time",
                                        "finetune.py:7: dataset = 'shake' + str(",
                                        "finetune.py:12: device = 'cuda'",
                                        "finetune.py:13: dtype",
                                        "finetune.py:14: backend",
                                        "finetune.py:15: compile = False",
                                        "finetune.py:16: init_from = 'a' if pi"};
    assert_int_equal(args.n_notes, 10);
    for (int i = 0; i < 10; i++)
        assert_contains(args.notes[i], notes[i]);
}

/* Arithmetic is Python's. Names are those that the file has assigned, or settings. */
TEST(test_arithmetic)
{
    static const struct {
        const char *text;
        double value;
    } rows[] = {
        {"1e-3 / 2", 5e-4},
        {"5 * 8 / 80", 0.5},
        {"2 + 3 * 4 - 1", 13.0},
        {"(2 + 3) * 4", 20.0},
        {"-2 ** 2 + 5", 1.0},
        {"2 ** -1", 0.5},
        {"2 ** 3 ** 2", 512.0},
        {"(-1) ** 9223372036854775807 + 2", 1.0},
        {"(-1) ** 4", 1.0},
        {"(-9223372036854775807 - 1) % -1", 0.0},
        {"7 // 2", 3.0},
        {"-7 // 2 + 5", 1.0},
        {"-7 % 3", 2.0},
        {"7 % -3 + 4", 2.0},
        {"7.5 // 2", 3.0},
        {"-7.5 % 2", 0.5},
        {"1.0 // 0.1", 9.0}, /* 0.1 is a little more than a tenth */
        {"1.0 % 0.1", 0.09999999999999995},
        {"1 // -0.1 + 20", 10.0},
        {"-1.0 % 0.1", 5.551115123125783e-17},
        {"10 - 2 - 3", 5.0},
        {"+3 - -2", 5.0},
        {".5e1", 5.0},
        {"first / 10", 0.3},
        {"learning_rate", 6e-4}, /* the default */
        {"batch_size * first", 15.0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ok(read_as("a.py", lks_test_text("first = 3\nsecond = first + 2\n"
                                                "batch_size = second\nlearning_rate = %s # x\n"
                                                "seed = first\n",
                                                rows[i].text)));
        if (s.learning_rate != rows[i].value)
            fail_msg("%s gives %.17g", rows[i].text, s.learning_rate);
    }
    assert_ok(read_as("a.py", "name = 'out'\nout_dir = name + '-' + \"x\"\nn_layer = 2 ** 3\n"
                              "batch_size = None\ndataset = None\n"
                              "min_lr = learning_rate / 10\n"));
    assert_string_equal(s.out_dir, "out-x");
    assert_int_equal(s.n_layer, 8);
    assert_int_equal(s.batch_size, 12);
    assert_true(s.min_lr == 6e-4 / 10);
    assert_int_equal(args.n_notes, 2);
    assert_ok(read_as("a.conf", "keep = all\ngrad_clip = off # x\n"));
    assert_int_equal(s.keep, 0);
    assert_ok(read_as("a.conf", "keep = 'all'\ngrad_clip = \"off\" # x\n"));
    assert_int_equal(s.keep, 0);
    assert_true(s.grad_clip == 0.0);
    for (int quoted = 0; quoted < 2; quoted++) {
        assert_ok(read_as("a.conf", quoted ? "batch_size = 'auto'\n" : "batch_size = auto # x\n"));
        assert_int_equal(s.auto_batch, LKS__FROM_FILE);
    }
}

/* Several statements in a line of Python; a text may contain what separates them. */
TEST(test_statements)
{
    assert_ok(read_as(
        "a.py",
        "import json, seed; from dataset import pi;n_layer: int=2 ;n_head = 1 # ; n_embd = 5\n"
        "compile = False; max_iters = 600_000; out_dir = 'a;b';;\n"));
    assert_int_equal(s.n_layer, 2);
    assert_int_equal(s.n_head, 1);
    assert_int_equal(s.n_embd, 768);
    assert_int_equal(s.max_iters, 600000);
    assert_string_equal(s.out_dir, "a;b");
    assert_int_equal(args.n_notes, 3);
    assert_contains(args.notes[1], "a.py:1: from dataset import pi");
}

/* What has no meaning here is listed once; its value may still be used. */
TEST(test_listed_once)
{
    assert_ok(read_as("a.py", "wandb_project = 'owt'\nwandb_log = True\nwandb_log = False\n"
                              "compile = False\ncompile = True\nout_dir = 'out-' + wandb_project\n"
                              "import time\nstamp = str(time.time())\ndataset = 'x' + stamp\n"));
    assert_string_equal(s.out_dir, "out-owt");
    assert_string_equal(s.dataset, "openwebtext");
    assert_int_equal(args.n_notes, 5);
    assert_contains(args.notes[1], "a.py:2: wandb_log = True");
    assert_contains(args.notes[2], "a.py:4: compile = False");
    assert_contains(args.notes[4], "a.py:9: dataset");
}

static void read_recipe(const char *name)
{
    char *const argv[] = {(char *)lks_test_text("%s/config/%s.conf", LKS_TEST_SOURCE_DIR, name)};
    lks__settings_defaults(&s);
    assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, 1, argv, 0, &args));
    assert_int_equal(args.n_notes, 0);
}

/* nanoGPT's recipes that begin from GPT-2, by the values of its files, and ours of the same
 * names. */
TEST(test_beginnings)
{
    static const char *const rows[][2] = {{"gpt2", "eval_gpt2"},
                                          {"gpt2-medium", "eval_gpt2_medium"},
                                          {"gpt2-large", "eval_gpt2_large"},
                                          {"gpt2-xl", "eval_gpt2_xl"},
                                          {"gpt2-xl", "finetune_shakespeare"}};
    for (int i = 0; i < 5; i++) {
        const char *evaluation = "batch_size = 8\neval_iters = 500 # more\neval_only = True\n"
                                 "wandb_log = False\n";
        const char *tuning =
            "import time\n\nout_dir = 'out-shakespeare'\neval_interval = 5\neval_iters = 40\n"
            "wandb_log = False # on\nwandb_project = 'shakespeare'\n"
            "wandb_run_name = 'ft-' + str(time.time())\n\ndataset = 'shakespeare'\n"
            "always_save_checkpoint = False\nbatch_size = 1\ngradient_accumulation_steps = 32\n"
            "max_iters = 20\nlearning_rate = 3e-5\ndecay_lr = False\n";
        assert_ok(read_as("a.py", lks_test_text("%sinit_from = '%s' # large\n",
                                                i < 4 ? evaluation : tuning, rows[i][0])));
        const lks__settings theirs = s;
        assert_string_equal(theirs.init_from, rows[i][0]);
        read_recipe(rows[i][1]);
        assert_int_equal(lks__settings_diff(&s, &theirs, LKS__CMD_TRAIN, ~0u, NULL), 0);
    }
}

/* Expressions as deep as a line is long. */
TEST(test_deep)
{
    static const char signs[] = "(-+";
    char text[4000], names[200 * 16], *at = names;
    for (int i = 0; i < 3; i++) {
        memset(text, signs[i], sizeof text);
        memcpy(text, "n_layer = ", 10);
        assert_fails(LKS_ERR_CONFIG, read_bytes("a.py", text, sizeof text),
                     "this is nested too deeply");
    }
    memcpy(text, "n_layer = 1", 11); /* long, and not deep */
    for (size_t i = 11; i + 2 <= 11 + 2 * 99; i += 2)
        memcpy(text + i, "+1", 2);
    assert_ok(read_bytes("a.py", text, 11 + 2 * 99));
    assert_int_equal(s.n_layer, 100);
    for (size_t i = 11; i + 3 <= sizeof text; i += 3)
        memcpy(text + i, "**1", 3);
    assert_fails(LKS_ERR_CONFIG, read_bytes("a.py", text, 11 + 3 * 1000), "nested too deeply");
    for (int i = 0; i < 200; i++)
        at += sprintf(at, "x%d = 1\n", i);
    assert_fails(LKS_ERR_CONFIG, read_as("a.py", names), "a file may give values to 128 names");
}

TEST(test_mistakes)
{
    static const struct {
        const char *name, *text, *message;
    } bad[] = {
        {"a.conf", "\n\nn_layr = 3\n", "a.conf:3: there is no setting \"n_layr\"; did you mean"},
        {"a.py", "n_layr = 3\n", "a.py:1: there is no setting"},
        {"a.conf", "keep = off\n", "a.conf:1:8: off has no value"},
        {"a.conf", "top_k = 3\n", "a.conf:1: top_k is a setting of `lockstep sample`"},
        {"a.conf", "n_layer = 0\n", "a.conf:1: n_layer must be a whole number from 1 to 1024"},
        {"a.conf", "n_layer = 5 * 0\n", "not \"0\""},
        {"a.conf", "n_layer = 5 *\n", "a.conf:1:14: a number or a name is missing"},
        {"a.conf", "n_layer = * 5\n", "a.conf:1:11: a number or a name is missing"},
        {"a.conf", "n_layer = 2 * x\n", "a.conf:1:15: x has no value at this point"},
        {"a.conf", "n_layer = 2 * 1.5\n", "must be a whole number"}, /* 3, but not an integer */
        {"a.conf", "n_layer = 9999999999 * 9999999999\n", "a.conf:1:22: this integer doesn't fit"},
        {"a.conf", "n_layer = 4611686018427387905 * 4\n",
         "doesn't fit into 64 bits"}, /* 2^64 + 4 */
        {"a.conf", "n_layer = 4# x\n",
         "a.conf:1:12: this follows the end of an expression"}, /* no white space */
        {"a.conf", "n_layer = 4; n_head = 2\n",
         "a.conf:1:12: `;` isn't read: give each setting its own line"},
        {"a.py", "x = 1; n_layer = 4 * y\n", "a.py:1:22: y has no value at this point"},
        {"a.py", "from config.base import *\n", "a.py:1: lockstep can't import settings"},
        {"a.py", "import os; from base import (pi, n_layer as n)\n", "can't import settings"},
        {"a.py", "n_layer = 1_2_\n", "this is not a number"},
        {"a.py", "n_layer = 1__2\n", "this is not a number"},
        {"a.conf", "n_layer =\n", "not \"\""},
        {"a.conf", "n_layer = '12'\n", "without quotes"},
        {"a.py", "bias = 'True'\n", "without quotes"},
        {"a.py", "n_layer = (12.0)\n", "must be a whole number"},
        {"a.py", "n_layer = 24 / 2\n", "must be a whole number"}, /* 12.0 */
        {"a.py", "n_layer = int(12)\n", "a.py:1: the value of n_layer is not arithmetic"},
        {"a.py", "n_layer = [12]\n", "is not arithmetic"},
        {"a.py", "n_layer = n_head[0]\n", "is not arithmetic"},
        {"a.py", "n_layer = (-9223372036854775807 - 1) // -1\n", "doesn't fit into 64 bits"},
        {"a.py", "n_layer = 12, 13\n", "is not arithmetic"},
        {"a.py", "n_layer = True + 1\n", "a.py:1:16: this needs two numbers"},
        {"a.py", "n_layer = 'a' * 2\n", "a.py:1:15: this needs two numbers"},
        {"a.py", "x = 0\n  n_layer = 12 / x\n", "a.py:2:16: this divides by zero"},
        {"a.py", "n_layer = 12 // 0\n", "a.py:1:14: this divides by zero"},
        {"a.py", "n_layer = 12 % 0.0\n", "this divides by zero"},
        {"a.py", "n_layer = 0 ** -1\n", "a.py:1:13: this divides by zero"},
        {"a.py", "n_layer = 9 ** 9 ** 9\n", "a.py:1:13: this integer doesn't fit into 64 bits"},
        {"a.py", "n_layer = 2 ** 9223372036854775807\n", "doesn't fit into 64 bits"},
        {"a.py", "n_layer = 2 ** 64\n", "doesn't fit into 64 bits"},
        {"a.py", "learning_rate = 1e308 * 10\n", "a.py:1:23: this is not a finite number"},
        {"a.py", "learning_rate = (-8) ** 0.5\n", "this is not a finite number"},
        {"a.py", "learning_rate = 1e999 * 2\n", "not a number, or it is too large"},
        {"a.py", "n_layer = (1 + 2\n", "a.py:1:17: a closing parenthesis is missing"},
        {"a.py", "n_layer = 1 2\n", "a.py:1:13: this follows the end of an expression"},
        {"a.py", "n_layer = 12 if bias else 6\n",
         "a.py:1: the value of n_layer is not arithmetic (if ... else), and lockstep runs no other "
         "code: write the value itself, n_layer = VALUE"},
        {"a.py", "n_layer = 2 * (3 if bias else 6)\n", "not arithmetic (if ... else)"},
        {"a.py", "learning_rate = 1e-3 if True else 1\n", "not arithmetic (if ... else)"},
        {"a.py", "bias = not decay_lr\n", "not arithmetic (not)"},
        {"a.py", "bias = n_layer == 12\n", "not arithmetic (==)"},
        {"a.py", "n_layer = 1 iff\n", "a.py:1:13: this follows the end of an expression"},
        {"a.py", "n_layer = 0x10\n", "this is not a number"},
        {"a.py", "tokens = 12 * 1024\n", "a.py:1: there is no setting \"tokens\""}, /* unused */
        {"a.py", "out_dir = 5\n", "one string in quotes"},
        {"a.py", "out_dir = other\n", "a.py:1:11: other has no value at this point"},
        {"a.py", "out_dir = 'a\n", "this string has no end"},
        {"a.conf", "out_dir = a b\n", "one string in quotes"},
        {"a.conf", "out_dir = 'a\n", "one string in quotes"},
        {"a.conf", "out_dir = 'a' + 'b'\n", "one string in quotes"},
        {"a.conf", "out_dir = 'a\\q'\n", "one string in quotes"},
        {"a.conf", "out_dir = 'a\\\n", "one string in quotes"},
        {"a.conf", "out_dir = ''\n", "text of 1 to"},
        {"a.conf", "device = gpu\n", "in this build"},
        {"a.conf", "n_layer\n", "a.conf:1: expected KEY = VALUE"},
        {"a.conf", "= 3\n", "expected KEY = VALUE"},
        {"a.conf", "[section]\n", "expected KEY = VALUE"},
        {"a.py", "if n_layer == 3:\n", "expected KEY = VALUE"},
        {"a.py", "n_layer == 3\n", "expected KEY = VALUE"},
        {"a.py", "print('x')\n", "not \"print('x')\"; to train on this file's text, give"},
        {"a.conf", "import os\n", "expected KEY = VALUE"},
        {"a.conf", "n_layer: 3\n", "expected KEY = VALUE"},
        {"a.conf", "n_layer: int = 3\n", "expected KEY = VALUE"},
        {"a.py", "n_layer: int\n", "expected KEY = VALUE"},
        {"a.py", "else: n_layer = 3\n", "there is no setting \"else\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(LKS_ERR_CONFIG, read_as(bad[i].name, bad[i].text), bad[i].message);
}

TEST(test_hostile)
{
    assert_fails(LKS_ERR_FORMAT, read_bytes("a.conf", "n_layer = 3\nn_head\0 = 2\n", 24),
                 "a.conf:2: byte 0x00 at column 7");
    assert_fails(LKS_ERR_FORMAT, read_as("a.conf", "# \xc3\xa9\n# \xff\n"),
                 "a.conf:2: byte 0xff at column 3");
    assert_fails(LKS_ERR_FORMAT, read_as("a.conf", "# \xe2\x82"), "byte 0xe2");
    assert_fails(LKS_ERR_CONFIG, read_as("a.conf", "n\x1b[2J = 2\n"), "\\x1b[2J");
    assert_null(strchr(lks_last_error(), '\x1b'));
    assert_ok(read_as("a.py", "import \x1b[2J\n"));
    assert_null(strchr(args.notes[0], '\x1b'));

    size_t big = (1 << 20) + 1;
    char *data = lks_test_malloc(big);
    memset(data, '#', big);
    assert_fails(LKS_ERR_FORMAT, read_bytes("big.conf", data, big), "big.conf");
    assert_fails(LKS_ERR_FORMAT, read_bytes("a.conf", data, 4097), "4097 bytes", "4096");
    assert_ok(read_bytes("a.conf", data, 4096));
    memset(data, '\n', big);
    assert_ok(read_bytes("a.conf", data, big - 1));
    /* A key, a value, a product as long as a line can be. */
    memset(data, 'k', 4096);
    assert_fails(LKS_ERR_CONFIG, read_bytes("a.conf", data, 4096), "expected KEY");
    data[4000] = '=';
    assert_fails(LKS_ERR_CONFIG, read_bytes("a.conf", data, 4096), "4000 bytes");
    memcpy(data, "out_dir = ", 10);
    data[4000] = 'k';
    assert_fails(LKS_ERR_CONFIG, read_bytes("a.conf", data, 4096), "text of 1 to 1023 bytes");
    data[10] = '"';
    data[4095] = '"';
    assert_fails(LKS_ERR_CONFIG, read_bytes("a.conf", data, 4096), "text of 1 to 1023 bytes");
    memset(data, '*', 4096);
    memcpy(data, "n_layer = ", 10);
    assert_fails(LKS_ERR_CONFIG, read_bytes("a.conf", data, 4096), "a number or a name is missing");
    memset(data + 10, '1', 4086);
    assert_fails(LKS_ERR_CONFIG, read_bytes("a.conf", data, 4096), "this is not a number");
    free(data);

    assert_ok(read_as("a.conf", ""));
    char *const missing[] = {(char *)lks_test_text("%s/none.conf", lks_test_folder())};
    assert_fails(LKS_ERR_CONFIG, lks__settings_parse(&s, LKS__CMD_TRAIN, 1, missing, 0, &args),
                 "there is no config file", "none.conf");
    const char *folder = lks_test_text("%s/dir.conf", lks_test_folder());
    lks_test_command("mkdir", folder);
    char *const dir[] = {(char *)folder};
    assert_fails(LKS_ERR_IO, lks__settings_parse(&s, LKS__CMD_TRAIN, 1, dir, 0, &args), "dir.conf");
}

/* The end of a long path names the file, so that messages don't cut it. */
TEST(test_long_path)
{
    char name[201] = {0};
    memset(name, 'a', sizeof name - 1);
    const char *folder = lks_test_text("%s/%s", lks_test_folder(), name);
    char *const file[] = {(char *)lks_test_text("%s/long.conf", folder)};
    assert_fails(LKS_ERR_CONFIG, lks__settings_parse(&s, LKS__CMD_TRAIN, 1, file, 0, &args),
                 "/long.conf");
    assert_int_equal(mkdir(folder, 0777), 0);
    lks_test_write(file[0], "compile = True\nn_layr = 1\n", 26);
    assert_fails(LKS_ERR_CONFIG, lks__settings_parse(&s, LKS__CMD_TRAIN, 1, file, 0, &args),
                 "/long.conf:2: there is no setting");
    assert_contains(args.notes[0], "/long.conf:1: compile = True");
}

/* The recipes of this repository are read by train and, for the settings that they share, by the
 * others. */
TEST(test_our_recipes)
{
    static const char *const names[] = {"train_shakespeare_char", "train_shakespeare_char_cpu",
                                        "train_gpt2"};
    static const unsigned commands[] = {LKS__CMD_TRAIN, LKS__CMD_SAMPLE, LKS__CMD_EVAL,
                                        LKS__CMD_BENCH};
    for (size_t n = 0; n < 3; n++) {
        char *const argv[] = {
            (char *)lks_test_text("%s/config/%s.conf", LKS_TEST_SOURCE_DIR, names[n])};
        for (size_t c = 0; c < 4; c++) {
            lks__settings_defaults(&s);
            assert_ok(lks__settings_parse(&s, commands[c], 1, argv, 0, &args));
            assert_int_equal(args.n_notes, 0);
            assert_int_equal(s.from[LKS__SETTING_max_iters],
                             commands[c] == LKS__CMD_TRAIN ? LKS__FROM_FILE : LKS__FROM_DEFAULT);
        }
        assert_int_equal(s.n_layer, n == 0 ? 6 : n == 1 ? 4 : 12); /* that of the benchmark */
        lks__settings_defaults(&s);
        assert_ok(lks__settings_parse(&s, LKS__CMD_TRAIN, 1, argv, 0, &args));
        assert_int_equal(s.gradient_accumulation_steps, n == 2 ? 40 : 1);
        assert_int_equal(s.max_iters, n == 0 ? 5000 : n == 1 ? 2000 : 600000);
    }
}
