/* lockstep export: the file, its output, the limit, errors. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/number/units.h"
#include "settings/family.h"
#include "settings/settings.h"
#include "train/checkpoint.h"
#include "weights/artifact/artifact.h"

static const char *folder, *run; /* run: of a small golf model, two steps */

static const char *in_folder(const char *name)
{
    return lks_test_text("%s/%s", folder, name);
}

static void train(const char *out, const char *ranks, const char *const env[])
{
    assert_exits(0,
                 lks_test_run(
                     (const char *const[]){
                         "lockstep", "train",
                         lks_test_text("%s/config/golf_baseline.conf", LKS_TEST_SOURCE_DIR),
                         lks_test_text("--out_dir=%s", out), lks_test_text("--dataset=%s", folder),
                         "--tokenizer_path=", "--num_layers=2", "--model_dim=72", "--num_heads=2",
                         "--num_kv_heads=1", "--train_seq_len=32", "--train_batch_tokens=512",
                         "--val_batch_size=32768", "--iterations=2", "--val_loss_every=0",
                         "--threads=1", "--max_wallclock_seconds=0", ranks, NULL},
                     env, 120));
}

static int set_up(void **state)
{
    folder = lks_test_folder();
    lks_test_generated_golf(folder);
    run = in_folder("run");
    train(run, "--nproc_per_node=1", NULL);
    return 0;
}

static lks_test_result export_to(const char *out, const char *more)
{
    return lks_test_tool("export", "--format=golf", lks_test_text("--out_dir=%s", run),
                         lks_test_text("--out=%s", out), more ? more : "--format=golf");
}

static uint64_t size_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (uint64_t)info.st_size;
}

/* No warning: the checkpoint, and the file with its size. */
static void check_said(lks_test_result r, const char *out)
{
    assert_string_equal(r.err, lks_test_text("lockstep export: ckpt-00000002 (latest)\n"
                                             "lockstep export: wrote %s (%s)\n",
                                             out, lks__units_bytes((double)size_of(out))));
}

TEST(test_lines)
{
    const char *out = in_folder("m.ptz"), *a = in_folder("a.py"), *b = in_folder("b.py");
    lks_test_write(a, "print(1)\n", 9);
    lks_test_write(b, "é\n", 3); /* bytes, not characters */
    lks_test_result r =
        assert_exits(0, lks_test_tool("export", lks_test_text("--out_dir=%s", run),
                                      lks_test_text("--out=%s", out), lks_test_text("--code=%s", a),
                                      "--format=golf", lks_test_text("--code=%s", b)));
    check_said(r, out);
    uint64_t file = size_of(out),
             model = size_of(lks_test_text("%s/latest/model.safetensors", run));
    assert_contains(r.out,
                    lks_test_text("Serialized model: %lu bytes\n"
                                  "Code size: 12 bytes\n"
                                  "Total submission size: %lu bytes\n"
                                  "Serialized model int8+zlib: %lu bytes (payload:",
                                  model, model + 12, file),
                    lks_test_text("x)\nTotal submission size int8+zlib: %lu bytes\n", file + 12));
}

/* The file contains everything needed to use it. */
TEST(test_content)
{
    const char *out = in_folder("content.ptz");
    lks__artifact a;
    lks__settings s;
    lks__table table;
    lks__ckpt ckpt;
    assert_int_equal(export_to(out, NULL).exit_code, 0);
    assert_ok(lks__artifact_open(out, &a));
    assert_int_equal(a.iter, 2);
    lks__settings_defaults(&s);
    assert_ok(lks__settings_from_json(a.settings, out, &s));
    assert_string_equal(lks__family_of(&s)->name, "golf");
    assert_int_equal(s.n_embd, 72);
    assert_int_equal(s.val_batch_size, 32768);
    lks__model_config config = lks__state_model_config(&s, (uint32_t)s.vocab_size);
    assert_ok(lks__model_table(&config, &table));
    assert_ok(lks__artifact_check(&a, &table));
    float *got = lks_test_calloc(table.count, sizeof *got),
          *was = lks_test_calloc(table.count, sizeof *was);
    assert_ok(lks__artifact_read(&a, &table, got));
    assert_ok(lks__ckpt_open(run, 0, &ckpt));
    assert_true(json_equal(a.tokenizer, json_object_get(ckpt.state, "tokenizer")));
    assert_ok(lks__state_read_params(ckpt.model, run, &table, was));
    /* A value changes by at most half a step of int8 at the least scale, or by fp16's rounding. */
    size_t differ = 0;
    for (size_t i = 0; i < table.count; i++) {
        assert_near(got[i], was[i], 0.0041);
        differ += got[i] != was[i];
    }
    assert_true(differ > table.n_params / 2);
    /* What the script's CONTROL_TENSOR_NAME_PATTERNS name keeps its bits. */
    static const char *const control[] = {"attn_scale", "mlp_scale", "resid_mix", "q_gain",
                                          "skip_weights"};
    for (size_t c = 0; c < sizeof control / sizeof control[0]; c++) {
        size_t n = 0;
        for (size_t i = 0; i < table.n_tensors; i++) {
            const lks__table_tensor *t = &table.tensors[i];
            if (strstr(t->name, control[c]) == NULL)
                continue;
            assert_memory_equal(got + t->offset, was + t->offset, t->count * sizeof *got);
            n++;
        }
        assert_true(n > 0);
    }
    lks__ckpt_close(&ckpt);
    lks__artifact_close(&a);
    lks__table_free(&table);
    lks_test_free(was, got);
}

TEST(test_any_ranks)
{
    const char *one = in_folder("1.ptz"), *two = in_folder("2.ptz"), *other = in_folder("run2");
    train(other, "--nproc_per_node=2", NULL);
    assert_int_equal(export_to(one, NULL).exit_code, 0);
    const char *keep = run;
    run = other;
    assert_int_equal(export_to(two, NULL).exit_code, 0);
    run = keep;
    assert_same_file(one, two);
}

static lks_test_result evaluate(const char *from, const char *const more[], const char *const env[])
{
    const char *argv[12] = {"lockstep", "eval", from, lks_test_text("--dataset=%s", folder)};
    for (int n = 4; *more != NULL; more++)
        argv[n++] = *more;
    return lks_test_run(argv, env, 60);
}

/* The script's file shows neither the cap of the logits nor RoPE's base nor the sequence length:
 * they are given by setting or by the script's variables. A run has its own. */
TEST(test_unshown)
{
    const char *const none[] = {NULL};
    const char *const given[] = {"--block_size=32", "--logit_softcap=1.5", "--rope_base=50", NULL};
    const char *const length[] = {"--block_size=32", NULL};
    const char *const env[] = {"LOGIT_SOFTCAP=1.5", "ROPE_BASE=50", NULL};
    const char *other = in_folder("capped"), *pt = in_folder("capped.pt");
    train(other, "--nproc_per_node=1", env);
    assert_int_equal(lks_test_tool("export", "--format=golf", lks_test_text("--out_dir=%s", other),
                                   lks_test_text("--out=%s", pt))
                         .exit_code,
                     0);
    const char *of_run = lks_test_text("--out_dir=%s", other),
               *of_file = lks_test_text("--init_from=%s", pt);
    const char *loss = lks_test_find(evaluate(of_run, none, NULL).out, " loss ");
    loss = lks_test_text("%.*s", (int)strcspn(loss, "("), loss);
    assert_contains(evaluate(of_file, given, NULL).out, loss);
    assert_contains(evaluate(of_file, length, env).out, loss);
    const char *const all[] = {"LOGIT_SOFTCAP=1.5", "ROPE_BASE=50", "TRAIN_SEQ_LEN=32", NULL};
    assert_contains(evaluate(of_file, none, all).out, loss);
    const char *const ignored[] = {"LOGIT_SOFTCAP=7", "TRAIN_SEQ_LEN=5", "NUM_HEADS=7",
                                   "CODE=/none",      "VOCAB_SIZE=9",    NULL};
    assert_contains(evaluate(of_run, none, ignored).out, loss);
    assert_exits(
        0,
        lks_test_run((const char *const[]){"lockstep", "export", of_run, "--format=golf",
                                           lks_test_text("--out=%s", in_folder("env.ptz")), NULL},
                     ignored, 60));
    assert_null(strstr(evaluate(of_file, length, NULL).out, loss));
    assert_exits(2, evaluate(of_run, (const char *const[]){"--rope_base=60", NULL}, NULL),
                 "rope_base=60 was given, but the model has rope_base=50");
}

TEST(test_limit)
{
    const char *out = in_folder("big.ptz"), *code = in_folder("code.bin");
    assert_int_equal(export_to(out, NULL).exit_code, 0);
    const long room = 16000000 - (long)size_of(out);
    lks_test_write(code, "", 0);
    assert_int_equal(truncate(code, room), 0);
    lks_test_result r = assert_exits(0, export_to(out, lks_test_text("--code=%s", code)));
    check_said(r, out);
    assert_int_equal(truncate(code, room + 1), 0);
    r = export_to(out, lks_test_text("--code=%s", code));
    assert_exits(0, r, "TOO LARGE"); /* the file is there, and correct */
    assert_contains(r.err, "16000001 bytes together, 1 over the limit of 16000000");
}

TEST(test_wrong)
{
    const char *out = in_folder("wrong.ptz");
    assert_exits(2, lks_test_tool("export", lks_test_text("--out_dir=%s", run)), "--out=FILE");
    assert_exits(2, export_to(out, "--format=gguf"), "--format=gguf writes only gpt2");
    assert_exits(1, export_to(out, lks_test_text("--code=%s", in_folder("none.py"))), "none.py");
    assert_exits(1, export_to(out, lks_test_text("--code=%s", folder)), "not a regular file");
    assert_exits(2, export_to(out, lks_test_text("--out_dir=%s", in_folder("no_run"))), "no_run");
    lks_test_result r = export_to(in_folder("b.py/m.ptz"), NULL); /* b.py is a file */
    assert_exits(1, r, "b.py");
    assert_exits(
        1,
        lks_test_run((const char *const[]){"lockstep", "export", lks_test_text("--out_dir=%s", run),
                                           lks_test_text("--out=%s", out), NULL},
                     (const char *const[]){"LOCKSTEP_FAULT=write:1:short", NULL}, 60),
        "No space left");
    assert_false(lks_test_exists(out));
}

/* Without --format a name doesn't hide the artifact; --out's folder is made. */
TEST(test_name)
{
    static const struct {
        const char *name, *format;
    } rows[] = {{"m.safetensors", "--format=safetensors"},
                {"m.pt", "--format=nanogpt or --format=golf"},
                {"m.gguf", "--format=gguf"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *out = in_folder(rows[i].name);
        assert_exits(2,
                     lks_test_tool("export", lks_test_text("--out_dir=%s", run),
                                   lks_test_text("--out=%s", out)),
                     rows[i].format);
        assert_false(lks_test_exists(out));
    }
    assert_int_equal(export_to(in_folder("m.pt"), NULL).exit_code, 0);
    assert_int_equal(export_to(in_folder("new/below/m.ptz"), NULL).exit_code, 0);
    assert_true(lks_test_exists(in_folder("new/below/m.ptz")));
}

int main(void)
{
    lks_test_need_zip();
    return lks_test_run_all(set_up, NULL);
}
