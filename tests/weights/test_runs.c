/* Runs that begin with given weights: the same bytes on any number of ranks and threads, also after
 * a resume; and what they refuse. */
#include "forge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/checkpoint/ckpt.h"
#include "laws.h"

/* The laws' model (tests/laws/laws.c), with made-up weights; `more` is added to the last one. */
static const char *forged_folder(float more)
{
    const lks__model_config config = law_config();
    forge_model m = forge_open_as(&config);
    const forge_hf how = {0};
    const lks__table_tensor *last = &m.table.tensors[m.table.n_tensors - 1];
    m.params[last->offset + last->count - 1] += more;
    const char *folder = forge_hf_folder(&m, &how);
    forge_close(&m);
    return folder;
}

static const char *weights_folder(void)
{
    static const char *folder;
    if (folder == NULL)
        folder = forged_folder(0);
    return folder;
}

static const char *from(const char *source)
{
    return lks_test_text("--init_from=%s", source);
}

static const json_t *config_line(const char *out)
{
    return json_array_get(lks_test_record(out, "config"), 0);
}

TEST(test_same_bytes)
{
    const char *init = from(weights_folder());
    const char *reference = law_output("random", LAW_REFERENCE, init);
    law_assert_same(law_output("random", init, "--nproc_per_node=2", "--threads=2"), reference);
    law_assert_same(law_output("random", init, "--nproc_per_node=4", "--replicas=private"),
                    reference);
    /* a run that ends half-way and goes on; the weights aren't needed any more */
    const char *out = law_output("random", init, "--max_iters=6", "--nproc_per_node=2");
    law_resume("random", out, "--nproc_per_node=3", "--allow_uneven", "--max_iters=13");
    law_assert_same_checkpoint(out, reference, "ckpt-00000014");
    /* the config line has the form of GELU, and the weights' hash instead of their path */
    const json_t *config = config_line(reference);
    assert_string_equal(lks_test_string(config, "gelu"), "tanh");
    assert_null(json_object_get(config, "init_from"));
    const char *hash = json_string_value(json_object_get(config, "init_hash"));
    assert_non_null(hash);
    assert_int_equal(strlen(hash), 16);
    const json_t *state_json = lks_test_figure(lks_test_text("%s/ckpt-00000014/state.json", out));
    assert_string_equal(lks_test_string(state_json, "init_hash"), hash);
    assert_null(json_object_get(config_line(law_output("random", "--max_iters=1")), "init_hash"));
}

/* Another run's weights: those that --init_from names, and nothing else of it. */
TEST(test_own_run)
{
    const char *first = law_output("random", "--max_iters=4");
    const char *hash = json_string_value(json_object_get(
        lks_test_figure(lks_test_text("%s/latest/state.json", first)), "params_hash"));
    const char *const sources[] = {first, lks_test_text("%s/latest", first),
                                   lks_test_text("%s/latest/model.safetensors", first)};
    const char *outs[3];
    for (int i = 0; i < 3; i++) {
        outs[i] = law_output("random", from(sources[i]), "--max_iters=5");
        assert_string_equal(lks_test_string(config_line(outs[i]), "init_hash"), hash);
        law_assert_same(outs[i], outs[0]);
    }
    /* new moments and a new schedule: not what the first run does if it goes on */
    law_resume("random", first, "--max_iters=9");
    size_t n, m;
    const char *a = lks_test_read(lks_test_text("%s/latest/model.safetensors", outs[0]), &n);
    const char *b = lks_test_read(lks_test_text("%s/latest/model.safetensors", first), &m);
    assert_true(n != m || memcmp(a, b, n) != 0);
}

TEST(test_gelu)
{
    const char *init = from(weights_folder());
    const char *tanh = law_output("random", init, "--max_iters=2");
    const char *exact = law_output("random", init, "--max_iters=2", "--gelu=exact");
    const char *a = lks_test_read(lks_test_text("%s/latest/model.safetensors", tanh), NULL);
    size_t n;
    const char *b = lks_test_read(lks_test_text("%s/latest/model.safetensors", exact), &n);
    assert_memory_not_equal(a, b, n);
    assert_string_equal(lks_test_string(config_line(exact), "gelu"), "exact");
    /* a resume keeps the run's, and refuses another one */
    law_resume("random", exact, "--max_iters=3", "--gelu=auto");
    law_resume("random", tanh, "--max_iters=3", "--gelu=tanh");
    law_args args = {.n = 0};
    law_add_all(&args, "lockstep", "train");
    law_add(&args, "--dataset=%s", law_data());
    law_add(&args, "--out_dir=%s", tanh);
    law_add_all(&args, "--init_from=resume", "--gelu=exact");
    assert_exits(2, lks_test_run(args.argv, NULL, 60), "gelu=exact was given, but the run in");
    /* from scratch, auto is exact */
    assert_string_equal(lks_test_string(config_line(law_output("random", "--max_iters=1")), "gelu"),
                        "exact");
}

/* A setting that was not typed: the message tells where it is, and what wins over it. */
TEST(test_given_by)
{
    const char *recipe = lks_test_text("%s/five.conf", lks_test_folder());
    lks_test_write(recipe, "n_layer = 5\n", 12);
    const char *const argv[] = {"lockstep",
                                "train",
                                recipe,
                                lks_test_text("--dataset=%s", law_data()),
                                lks_test_text("--out_dir=%s", lks_test_folder()),
                                from(weights_folder()),
                                NULL};
    assert_exits(2, lks_test_run(argv, NULL, 60),
                 "n_layer=5 was given in the config file, but the weights in",
                 ": give --n_layer=", " on the command line, which wins");
}

/* Settings that differ from the source's, and data with more tokens than it. */
TEST(test_refused)
{
    const struct {
        const char *setting, *says;
    } rows[] = {
        {"--n_layer=5", "n_layer=5 was given, but the weights in"},
        {"--block_size=4096", "or give a smaller one"},
        {"--vocab_size=60", "or give a larger one"},
        {"--bias=false", "bias=false was given"},
        {"--family=golf", "family=golf was given"},
        {"--gelu=relu", "auto, tanh or exact"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const argv[] = {"lockstep",
                                    "train",
                                    lks_test_text("--dataset=%s", law_data()),
                                    lks_test_text("--out_dir=%s", lks_test_folder()),
                                    from(weights_folder()),
                                    rows[i].setting,
                                    NULL};
        lks_test_result r = lks_test_run(argv, NULL, 60);
        assert_int_not_equal(r.exit_code, 0);
        assert_contains(r.err, rows[i].says);
    }
    const char *data = lks_test_folder();
    lks_test_generated_vocabulary(data, 90);
    const char *meta = "{\"kind\":\"ids\",\"vocab_size\":90}";
    lks_test_write(lks_test_text("%s/meta.json", data), meta, strlen(meta));
    const char *const argv[] = {"lockstep",
                                "train",
                                lks_test_text("--dataset=%s", data),
                                lks_test_text("--out_dir=%s", lks_test_folder()),
                                from(weights_folder()),
                                "--max_iters=1",
                                "--gradient_accumulation_steps=1",
                                "--eval_interval=0",
                                NULL,
                                NULL};
    assert_exits(2, lks_test_run(argv, NULL, 60),
                 "the weights are for 65 tokens: --vocab_size=90 adds rows");
    const char *more[sizeof argv / sizeof argv[0]];
    memcpy(more, argv, sizeof argv);
    more[8] = "--vocab_size=90";
    assert_exits(0, lks_test_run(more, NULL, 60));
}

/* Rows that the weights lack are drawn, by the run's seed. */
TEST(test_drawn_rows)
{
    const char *data = lks_test_folder(), *model = from(weights_folder()), *hashes[3];
    lks_test_generated_vocabulary(data, 90);
    const char *meta = "{\"kind\":\"ids\",\"vocab_size\":90}";
    lks_test_write(lks_test_text("%s/meta.json", data), meta, strlen(meta));
    for (int i = 0; i < 3; i++) {
        const char *out = lks_test_folder();
        assert_exits(0, lks_test_tool("train", lks_test_text("--dataset=%s", data),
                                      lks_test_text("--out_dir=%s", out), model, "--vocab_size=90",
                                      lks_test_text("--seed=%d", i == 0 ? 1 : 2), "--max_iters=0",
                                      "--learning_rate=0", "--min_lr=0",
                                      "--gradient_accumulation_steps=1", "--eval_interval=0"));
        hashes[i] = lks_test_string(config_line(out), "init_hash");
    }
    assert_string_not_equal(hashes[0], hashes[1]);
    assert_string_equal(hashes[1], hashes[2]);
}

/* A run on two ranks, of which each begins with the weights of its own folder, W/RANK. */
static lks_test_result begun_apart(const char *weights, const char **out_p)
{
    law_args run = law_train("random", out_p), args = {.n = 0};
    law_add_all(&args, "lockstep", "run", "--nproc-per-node=2");
    law_add_shell(&args, &run, "exec \"$0\" \"$@\" --init_from='%s'/$RANK", weights);
    law_add(&args, "--max_iters=2");
    return lks_test_run(args.argv, NULL, 60);
}

/* Ranks whose files hold other weights don't begin, and the weights are named. Copies are the same
 * weights. */
TEST(test_other_weights)
{
    char host[65] = "";
    const char *out, *pairs[3];
    const char *runs[] = {law_output("random", "--max_iters=1"),
                          law_output("random", "--max_iters=1", "--seed=2")};
    gethostname(host, sizeof host - 1);
    for (int i = 0; i < 3; i++) {
        pairs[i] = lks_test_folder();
        for (int rank = 0; rank < 2; rank++) {
            const char *from =
                i == 2 ? runs[rank] : forged_folder(i == 1 && rank == 1 ? 1 / 64.0F : 0);
            const char *const copy[] = {"cp", "-r", from, lks_test_text("%s/%d", pairs[i], rank),
                                        NULL};
            assert_int_equal(lks_test_run(copy, NULL, 10).exit_code, 0);
        }
    }
    for (int i = 0; i < 3; i++) {
        const lks_test_result r = assert_exits(i == 0 ? 0 : 1, begun_apart(pairs[i], &out));
        if (i == 0)
            continue;
        assert_contains(r.err,
                        lks_test_text("init_from differs between ranks: rank 0 (host %s) has %s/0",
                                      host, pairs[i]),
                        lks_test_text(", rank 1 (host %s) has %s/1", host, pairs[i]));
        assert_false(lks_test_exists(lks_test_text("%s/metrics.jsonl", out)));
    }
}

/* Open a tensor file's tensors with their bytes. */
static lks__st_tensor *tensors_of(lks__st_file *file, size_t *n_p)
{
    *n_p = lks__st_count(file);
    lks__st_tensor *list = lks_test_calloc(*n_p, sizeof *list);
    for (size_t i = 0; i < *n_p; i++) {
        list[i] = *lks__st_get(file, i);
        void *data = lks_test_malloc(list[i].bytes);
        assert_ok(lks__st_read(file, lks__st_get(file, i), data));
        list[i].data = data;
    }
    return list;
}

static void free_tensors(lks__st_tensor *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)list[i].data);
    free(list);
}

/* Text of a checkpoint that another person made, and its folder's name, can't control the terminal.
 */
TEST(test_escaped)
{
    static const char bad[] = "\x1b[31m";
    enum { DIGEST, KERNELS, TENSOR, SETTING, TOKENIZER, MISSING, GIVEN, GIVEN_ALONE, KEPT, N };
    static const char *const says[N] = {
        "(digest ",
        NULL,
        "\\x1b[31m is not of type F32",
        "\\x1b[31m/ckpt-00000002: there is no setting \"\\x1b[31m\"",
        "\\x1b[31m/ckpt-00000002/state.json: tokens of kind",
        "\\x1b[31m/ckpt-00000002: tensor transformer.ln_f.bias is missing",
        "\\x1b[31m/ckpt-00000002 has n_layer=",
        "\\x1b[31m/ckpt-00000002 has n_layer=",
        "\\x1b[31m/metrics.jsonl: the setting keep is not"};
    const char *run = law_output("random", "--max_iters=1");
    for (int what = 0; what < N; what++) {
        lks__ckpt from;
        assert_ok(lks__ckpt_open(run, LKS__CKPT_ALL, &from));
        size_t n_model, n_optimizer;
        lks__st_tensor *model = tensors_of(from.model, &n_model);
        lks__st_tensor *optimizer = tensors_of(from.optimizer, &n_optimizer);
        if (what == DIGEST)
            json_object_set_new(from.state, "data_digest", json_string(bad));
        if (what == SETTING)
            json_object_set_new(json_object_get(from.state, "settings"), bad, json_true());
        if (what == TOKENIZER)
            json_object_set_new(json_object_get(from.state, "tokenizer"), "kind", json_string(bad));
        if (what == TENSOR) {
            model[0].name = bad;
            model[0].dtype = "I32";
        }
        const lks__ckpt_content content = {.iter = from.iter,
                                           .model = model,
                                           .n_model = n_model - (what == MISSING),
                                           .optimizer = optimizer,
                                           .n_optimizer = n_optimizer,
                                           .fingerprint = what == KERNELS ? bad : NULL,
                                           .state = from.state};
        const char *out = lks_test_text("%s/%s", lks_test_folder(), bad);
        const char *data = lks_test_text("--dataset=%s", law_data());
        char name[32], hash[17];
        assert_int_equal(mkdir(out, 0777), 0);
        assert_ok(lks__ckpt_save(out, &content, 0, name, hash));
        lks__ckpt_close(&from);
        free_tensors(model, n_model);
        free_tensors(optimizer, n_optimizer);
        const char *const more[N] = {[GIVEN] = "--n_layer=7", [GIVEN_ALONE] = "--n_layer=7"};
        const char *ranks = what == GIVEN ? "--nproc_per_node=2" : "--nproc_per_node=1";
        if (what == KEPT)
            lks_test_write_text(lks_test_text("%s/metrics.jsonl", out),
                                "{\"kind\":\"host\",\"paths\":{\"dataset\":\"x\"},"
                                "\"settings\":{\"keep\":-1}}\n");
        const lks_test_result r =
            what == TENSOR || what == TOKENIZER
                ? lks_test_tool("sample", lks_test_text("--init_from=%s", out))
                : lks_test_tool("resume", out, data, "--max_iters=3", ranks, more[what]);
        assert_int_equal(r.exit_code == 0, what == KERNELS);
        if (says[what] != NULL)
            assert_contains(r.err, says[what]);
        assert_null(strchr(r.err, '\x1b'));
    }
}

/* The launcher knows the shape for --dry_run. */
TEST(test_dry_run)
{
    lks_test_result r =
        assert_exits(0, lks_test_tool("train", lks_test_text("--dataset=%s", law_data()),
                                      from(weights_folder()), "--dry_run"));
    assert_contains(r.out, "vocabulary 65");
}
