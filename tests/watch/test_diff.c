/* `lockstep diff`: runs made here, and records and checkpoints with planted differences. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/checkpoint/ckpt.h"
#include "laws.h"
#include "poison.h"
#include "report/diff/diff.h"
#include "scratch.h"

static lks_test_result diff(const char *a, const char *b)
{
    return lks_test_tool("diff", a, b);
}

/* Compare, expecting an exit code and text. */
static void expect(const char *a, const char *b, int code, const char *const texts[])
{
    const lks_test_result r = assert_exits(code, diff(a, b));
    for (int i = 0; texts[i] != NULL; i++)
        assert_contains(code == 0 || code == 3 ? r.out : r.err, texts[i]);
}
#define EXPECT(a, b, code, ...) expect((a), (b), (code), (const char *const[]){__VA_ARGS__, NULL})

/* Until the next call. */
static const json_t *report(const char *a, const char *b)
{
    static json_t *r;
    lks__history both[2];
    json_decref(r);
    r = NULL;
    assert_ok(lks__diff(a, b, both, &r));
    lks__history_close(&both[0]);
    lks__history_close(&both[1]);
    return r;
}

/* --- runs ------------------------------------------------------------------------------------- */

static const char *reference(void)
{
    static const char *out;
    if (out == NULL)
        out = law_output("random", LAW_REFERENCE);
    return out;
}

/* Other ranks and threads are named, and change nothing. */
TEST(test_same_run)
{
    const char *other = law_output("random", "--nproc_per_node=4", "--threads=2", "--device=cpu");
    EXPECT(reference(), other, 0, "changes no bit    ranks 1 | 4\n", "threads 1 | 2\n",
           lks_test_text("The same run: %d steps, 7 checkpoints, weights ", LAW_STEPS));
    EXPECT(reference(), reference(), 0, "The same run: ");
}

TEST(test_seed)
{
    const char *other = law_output("random", LAW_REFERENCE, "--seed=7");
    EXPECT(reference(), other, 3, "can change bits   seed 1337 | 7\n",
           "The records differ first at step 0:\n", "  loss  ",
           "gradients         step 0: 8 of 8 virtual ranks differ, first 0: ",
           "cause             seed 1337 | 7\n");
    const json_t *r = report(reference(), other);
    assert_int_equal(lks_test_number(r, "first.iter"), 0);
    assert_int_equal(lks_test_number(r, "steps"), 0);
    assert_false(lks__diff_same(r));
}

/* A rate that changes at a resume changes that step's update, and its line in the record. */
TEST(test_changed_at_resume)
{
    const char *other = law_output("random", LAW_REFERENCE, "--max_iters=6");
    law_resume("random", other, LAW_REFERENCE, "--learning_rate=5e-4");
    EXPECT(reference(), other, 3, "The records differ first at step 7:\n", "  lr            0.00",
           "  loss          4.", "  equal in all digits\n",
           "gradients         equal in step 7 for all 8 virtual ranks\n",
           "learning_rate 0.001 | 0.0005, changed where B was resumed (iteration 7)\n");
    const json_t *r = report(other, reference());
    assert_int_equal(lks_test_number(r, "steps"), 7);
    assert_int_equal(lks_test_number(r, "can_change_bits.0.since_a"), 7);
}

/* A gradient differs although no figure shows it. */
TEST(test_gradient)
{
    const char *out = lks_test_text("%s/run", lks_test_folder());
    const char *file = lks_test_text("%s/leaves.bin", out);
    enum { HEAD = 4, RECORD = 1 + 8, STEP = 5, LEAF = 3 };
    size_t bytes;
    lks_test_do("cp", "-a", reference(), out);
    uint64_t *words = (uint64_t *)lks_test_read(file, &bytes);
    assert_int_equal(bytes, (HEAD + LAW_STEPS * RECORD) * sizeof *words);
    words[HEAD + STEP * RECORD + 1 + LEAF] ^= 1;
    words[HEAD + STEP * RECORD + 1 + LEAF + 2] ^= 1;
    lks_test_write(file, words, bytes);
    EXPECT(reference(), out, 3, "gradients         step 5: 2 of 8 virtual ranks differ, first 3: ",
           "cause             B's record doesn't follow from its settings: step 5: the gradient of "
           "virtual rank 3 of 8 has the hash ",
           lks_test_text("`lockstep audit %s --step=5` repeats this\n", out));
    const json_t *r = report(reference(), out);
    assert_int_equal(lks_test_number(r, "gradients.steps"), STEP);
    assert_int_equal(lks_test_number(r, "gradients.first.virtual_rank"), LEAF);
    words[HEAD + STEP * RECORD] = 0; /* an iteration again */
    lks_test_write(file, words, bytes);
    EXPECT(reference(), out, 1,
           lks_test_text("leaves.bin: no run has written the record at "
                         "offset %d, so the file is damaged",
                         (HEAD + STEP * RECORD) * 8));
}

/* --- records ---------------------------------------------------------------------------------- */

static const char *fake(int steps, double last)
{
    return fake_run(lks_test_text("run-%d-%g", steps, last), 1, steps, last, "\"n_layer\":2");
}

TEST(test_lengths)
{
    const char *a = fake(20, 1.5), *b = fake(20, 1.5);
    fake_append(b, "{'kind':'host','world_size':3,'changed':{},'resumed_iter':20}\n"
                   "{'kind':'train','iter':20,'loss':1}\n{'kind':'train','iter':2");
    EXPECT(a, b, 0, "The same run so far: 20 steps, 1 checkpoint, weights 0011223344556601.\n",
           "B has 1 more step.\n", "ranks 2 | 3\n");
    EXPECT(b, a, 0, "A has 1 more step.\n");
    fake_append(a, "{'kind':'train','iter':20,'loss':2}\n");
    EXPECT(a, b, 3, "The records differ first at step 20:\n  loss          2 | 1\n",
           "cause             no setting");
}

/* One record begins later, because the run was continued in another folder. */
TEST(test_later_start)
{
    const char *a = fake(20, 1.5), *b = lks_test_folder(), *none = lks_test_folder();
    fake_append(b, "{'kind':'config','seed':1}\n{'kind':'train','iter':19,'loss':1.5,'lr':0.001,"
                   "'grad_norm':1,'tokens':20000,'ms':5}\n");
    fake_append(none, "{'kind':'config','seed':1}\n{'kind':'train','iter':20,'loss':1.5}\n");
    EXPECT(a, b, 0, "The same run so far: 1 step.\n", "A has 19 more steps.\n");
    EXPECT(none, a, 2, "their records have no step in common");
}

/* A skipped step and a rollback are steps of a run; numbers that aren't finite are null. */
TEST(test_not_finite)
{
    static const char *const lines[] = {
        "{'kind':'train','iter':20,'loss':null}\n",
        "{'kind':'skip','iter':20,'virtual_rank':3,'micro_batch':0,'what':'loss','place':'h.0'}\n",
        "{'kind':'rollback','iter':20,'to':10,'data_shift':11}\n",
    };
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            const char *a = fake(20, 1.5), *b = fake(20, 1.5);
            fake_append(a, lines[i]);
            fake_append(b, lines[k]);
            expect(a, b, i == k ? 0 : 3,
                   (const char *const[]){i == k ? "The same run: 21 steps" : "  kind  ", NULL});
        }
}

/* Evaluations that differ don't hide that the steps are equal, or where they differ. */
TEST(test_evaluations)
{
    const char *a = fake(20, 1.5), *b = fake(20, 1.5), *c = fake(20, 1.5);
    fake_append(a, "{'kind':'eval','iter':20,'val_loss':3,'sample':'x'}\n");
    fake_append(b, "{'kind':'eval','iter':20,'val_loss':4,'train_loss':1}\n"
                   "{'kind':'train','iter':20,'loss':1}\n");
    fake_append(c, "{'kind':'eval','iter':20,'val_loss':3,'sample':'y'}\n");
    EXPECT(a, b, 3, "Only evaluations differ, first at iteration 20:\n  val_loss      3 | 4\n",
           lks_test_text("`lockstep audit %s`, and the same for %s, evaluate again\n", a, b));
    EXPECT(a, c, 0, "The same run: 20 steps");
    assert_int_equal(lks_test_number(report(a, b), "steps"), 20);
}

/* A line that is repeated isn't a difference, before or after the true line. */
TEST(test_repeated)
{
    static const char *const lines[][2] = {
        {"{'kind':'train','iter':20,'loss':1}\n", "{'kind':'train','iter':20,'loss':2}\n"},
        {"{'kind':'train','iter':20,'loss':2}\n", "{'kind':'train','iter':20,'loss':1}\n"},
        {"{'kind':'train','iter':20,'loss':1}\n", "{'kind':'train','iter':19,'loss':1}\n"}};
    for (int i = 0; i < 3; i++) {
        const char *a = fake(20, 1.5), *b = fake(20, 1.5);
        fake_append(a, lks_test_text("%s{'kind':'train','iter':21,'loss':1}\n", lines[0][0]));
        fake_append(b, lines[i][0]);
        fake_append(b, lines[i][1]);
        for (int k = 0; k < 2; k++)
            EXPECT(k == 0 ? a : b, k == 0 ? b : a, 1,
                   lks_test_text("%s/metrics.jsonl: the line", b),
                   i < 2 ? " repeats step 20, so lockstep hasn't written it"
                         : " is of step 19 after step 20, so ");
    }
}

/* Rounded sums depend on the hosts' virtual ranks. */
TEST(test_rounded)
{
    const char *a = fake_run("a", 1, 2, 1.5, "'wire':'bfloat16'");
    const char *b = fake_run("b", 1, 2, 1.5, "'wire':'bfloat16'");
    fake_append(a, "{'kind':'host','world_size':2}\n{'kind':'train','iter':2,'loss':1}\n");
    fake_append(b, "{'kind':'host','world_size':4}\n{'kind':'train','iter':2,'loss':2}\n");
    EXPECT(a, b, 3, "can change bits   ranks 2 | 4\n", "cause             ranks 2 | 4\n");
    const char *c = fake_run("c", 1, 2, 1.5, "'wire':'bfloat16'");
    fake_append(c, "{'kind':'host','world_size':2,'hosts':[{'host':'a','ranks':2}]}\n"
                   "{'kind':'train','iter':2,'loss':3}\n");
    EXPECT(a, c, 3, "cause             ranks by host [] | [2]\n");
}

/* The remedy reads the records after the first difference, too. */
TEST(test_damaged_rest)
{
    const char *a = fake(20, 1.5), *b = fake(20, 1.5);
    fake_append(a, "{'kind':'train','iter':20,'loss':1}\n");
    fake_append(b, "{'kind':'train','iter':20,'loss':2}\nnonsense\n");
    assert_exits(1, lks_test_tool("diff", "--execute=0", a, b),
                 "metrics.jsonl: the line at offset ");
}

/* The weights of a checkpoint differ although every figure before it is equal. */
TEST(test_checkpoint_line)
{
    const char *a = fake(20, 1.5), *b = fake_run("other", 2, 20, 1.5, "\"n_layer\":2");
    EXPECT(a, b, 3, "The steps before checkpoint 20 are equal; its weights aren't:\n",
           "  params_hash   0011223344556601 | 0011223344556602\n");
}

/* The level is among the facts that change no bit while the fingerprints are equal. */
TEST(test_fingerprint)
{
    const char *a = fake(2, 1.5), *b = fake(2, 1.5), *c = fake(2, 1.5);
    fake_append(a, "{'kind':'host','fingerprint':'11','kernels':'avx2'}\n");
    fake_append(b, "{'kind':'host','fingerprint':'11','kernels':'avx512'}\n");
    fake_append(c, "{'kind':'host','fingerprint':'22','kernels':'amx','commit':'abc'}\n");
    EXPECT(a, b, 0, "changes no bit    kernels avx2 | avx512\n");
    EXPECT(a, c, 0, "no effect so far  commit - | abc\n                  kernels avx2 | amx\nThe");
    fake_append(b, "{'kind':'host','fingerprint':'22','kernels':'avx2'}\n");
    EXPECT(a, b, 0, "no effect so far  results of the kernels, fingerprint 11 | 22\nThe ");
}

/* Compare two runs with these settings, whose evaluations may differ. */
static void expect_settings(const char *a, const char *b, bool evaluated, const char *line)
{
    const char *both[2] = {fake_run("a", 1, 20, 1.5, a), fake_run("b", 1, 20, 1.5, b)};
    for (int i = 0; i < 2 && evaluated; i++)
        fake_append(both[i], lks_test_text("{'kind':'eval','iter':20,'val_loss':%d}\n", 3 + i));
    if (evaluated)
        EXPECT(both[0], both[1], 3, line, "The same steps: 20 steps, 1 checkpoint, weights 0011",
               "Only evaluations differ, first at iteration 20:\n  val_loss      3 | 4\ncause   ");
    else
        EXPECT(both[0], both[1], 0, line, "The same run: 20 steps");
}

/* Settings that change no step, only evaluations, or steps that the runs haven't made yet. */
TEST(test_effects)
{
    static const struct {
        const char *a, *b, *line;
        bool evaluated;
    } cases[] = {
        {"'max_iters':1,'parameters':2", "'max_iters':3,'parameters':4",
         "changes no bit    max_iters 1 | 3\nThe ", false},
        {"'eval_iters':1", "'eval_iters':3", "evaluations only  eval_iters 1 | 3\n", false},
        {"'eval_iters':1,'min_lr':0", "'eval_iters':3,'min_lr':1", "cause             eval_iters ",
         true},
        {"'min_lr':0", "'min_lr':1", "cause             min_lr 0 | 1\n", true},
        {"'sampler':'nanogpt','eval_iters':1", "'sampler':'nanogpt','eval_iters':3",
         "no effect so far  eval_iters 1 | 3\n", false},
        {"'checkpoint_interval':1", "'checkpoint_interval':3",
         "changes no bit    checkpoint_interval 1 | 3\n", false},
        {"'on_nan':'rollback','checkpoint_interval':1",
         "'on_nan':'rollback','checkpoint_interval':3",
         "no effect so far  checkpoint_interval 1 | 3\n", false},
        {"'train_batch_tokens':8,'batch_size':1", "'train_batch_tokens':16,'batch_size':2",
         "no effect so far  train_batch_tokens 8 | 16\nThe ", false},
        {"'max_wallclock_seconds':600", "'max_wallclock_seconds':600",
         "cause             perhaps the clock: with max_wallclock_seconds, learning rates and the ",
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_settings(cases[i].a, cases[i].b, cases[i].evaluated, cases[i].line);
    const char *a = fake_run("a", 1, 2, 1.5, "'dtype':'float32'");
    const char *b = fake_run("b", 1, 2, 1.5, "'dtype':'bfloat16'");
    fake_append(a, "{'kind':'host','fingerprint':'11'}\n{'kind':'train','iter':2,'loss':1}\n");
    fake_append(b, "{'kind':'host','fingerprint':'22'}\n{'kind':'train','iter':2,'loss':2}\n");
    EXPECT(a, b, 3, "can change bits   dtype float32 | bfloat16\nThe records differ ");
}

/* --- trails ----------------------------------------------------------------------------------- */

static const char *trail(const char *head, const char *entry)
{
    const char *dir = lks_test_folder(), *file = lks_test_text("%s/metrics.jsonl", dir);
    fake_append(dir,
                lks_test_text("{'what':'trail','step':%s}}\n%s\n{'what':'end'}\n", head, entry));
    return file;
}

/* Two trails are all that a reader has: the remedy follows from the first entry that differs. */
TEST(test_trail_remedies)
{
    static const struct {
        const char *step, *settings, *host, *what, *remedy;
    } cases[] = {
        {"0", "'seed':", "'device':'cpu'", "weights",
         "train B again with A's settings: --seed=1\n"},
        {"0", "'init_hash':", "'device':'cpu'", "weights", "train both from the same initial "},
        {"3", "'data_digest':", "'device':'cpu'", "moments", "write trails of an earlier one\n"},
        {"3", "'data_digest':", "'device':'cpu'", "targets",
         "train both on the same token files\n"},
        {"3", NULL, "'fingerprint':", "output", "run the same program on both, "},
        {"3", NULL, "'device':'cpu'", "output", "write both trails again, and one on a third "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *paths[2];
        for (int k = 0; k < 2; k++) {
            const char *host = cases[i].host, *settings = cases[i].settings;
            paths[k] = trail(lks_test_text("%s,'settings':{%s%s},'host':{%s%s", cases[i].step,
                                           settings != NULL ? settings : "'seed':1",
                                           settings == NULL ? ""
                                           : k == 0         ? "1"
                                                            : "2",
                                           host,
                                           host[strlen(host) - 1] != ':' ? ""
                                           : k == 0                      ? "'11'"
                                                                         : "'22'"),
                             lks_test_text("{'what':'%s','hash':'%d'}", cases[i].what, k));
        }
        EXPECT(paths[0], paths[1], 3, "remedy            ", cases[i].remedy);
    }
}

TEST(test_refused)
{
    const char *a = fake(2, 1.5), *empty = lks_test_folder(), *bad;
    static const char *const lines[] = {"[1]\n",        "{'kind':'train'}\n",
                                        "{'iter':3}\n", "{'kind':'eval','iter':-1}\n",
                                        "nonsense\n",   "{'kind':1}\n"};
    EXPECT(a, empty, 2, "it contains no metrics.jsonl and no state.json");
    char deep[4090]; /* refuses names in it, as a folder without permission does to others than root
                      */
    memset(deep, '/', sizeof deep - 1);
    memcpy(deep, empty, strlen(empty));
    deep[sizeof deep - 1] = '\0';
    EXPECT(a, deep, 1, "can't read /", "File name too long");
    assert_int_equal(symlink("ckpt-00000001", lks_test_text("%s/latest", empty)), 0);
    EXPECT(a, empty, 2, "contains checkpoints: give one of them, such as its latest");
    EXPECT("missing", a, 1, "can't read missing");
    EXPECT(a, lks_test_text("%s/metrics.jsonl", a), 2,
           "metrics.jsonl is neither a file of weights (.safetensors) nor a trail");
    EXPECT(a, lks_test_text("%s/ckpt-00000006/model.safetensors", reference()), 2,
           "a run can't be compared with a file of weights");
    assert_exits(2, lks_test_tool("diff", a));
    assert_exits(2, lks_test_tool("diff", a, a, a));
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        bad = fake(2, 1.5);
        fake_append(bad, lines[i]);
        EXPECT(a, bad, 1, "metrics.jsonl: the line at offset ", "so lockstep hasn't written it");
    }
    bad = fake(2, 1.5);
    FILE *f = fopen(lks_test_text("%s/metrics.jsonl", bad), "a");
    assert_int_equal(ftruncate(fileno(f), 3 << 20), 0); /* zeros without a line feed */
    assert_int_equal(fclose(f), 0);
    EXPECT(a, bad, 1, "is too long");
    bad = lks_test_folder(); /* a link isn't followed */
    assert_int_equal(
        symlink(lks_test_text("%s/metrics.jsonl", a), lks_test_text("%s/metrics.jsonl", bad)), 0);
    EXPECT(a, bad, 1, "can't read");
}

TEST(test_escaped)
{
    const char *a = fake_run("a", 1, 2, 1.5, "\"freeze\":\"\\u001b[2J\"");
    const char *b = fake_run("b", 1, 2, 1.5, "\"freeze\":\"\"");
    EXPECT(a, b, 0, "freeze \\x1b[2J | \n");
}

/* --- checkpoints ------------------------------------------------------------------------------ */

/* Copy the run, and change one bit of an element of one of its checkpoints, with all hashes
 * computed again. */
static const char *forged(const char *run, uint64_t iter, bool moments, const char *tensor,
                          uint64_t element)
{
    const char *out = lks_test_text("%s/run", lks_test_folder());
    lks__ckpt c = {.iter = 0};
    lks__st_tensor tensors[2][256];
    char name[32], hash[17];
    lks_test_do("cp", "-a", run, out);
    assert_ok(lks__ckpt_open_iter(out, iter, LKS__CKPT_ALL, &c));
    for (int part = 0; part < 2; part++) {
        lks__st_file *file = part == 0 ? c.model : c.optimizer;
        assert_true(lks__st_count(file) <= 256);
        for (size_t i = 0; i < lks__st_count(file); i++) {
            tensors[part][i] = *lks__st_get(file, i);
            unsigned char *data = malloc(tensors[part][i].bytes);
            assert_ok(lks__st_read(file, lks__st_get(file, i), data));
            if (part == (moments ? 1 : 0) && strcmp(tensors[part][i].name, tensor) == 0)
                data[4 * element] ^= 1;
            tensors[part][i].data = data;
        }
    }
    const lks__ckpt_content content = {.iter = iter,
                                       .model = tensors[0],
                                       .n_model = lks__st_count(c.model),
                                       .optimizer = tensors[1],
                                       .n_optimizer = lks__st_count(c.optimizer),
                                       .state = c.state};
    assert_ok(lks__ckpt_save(out, &content, 0, name, hash));
    for (int part = 0; part < 2; part++)
        for (size_t i = 0; i < lks__st_count(part == 0 ? c.model : c.optimizer); i++)
            free((void *)tensors[part][i].data);
    lks__ckpt_close(&c);
    return out;
}

/* A run that ends at an evaluation doesn't draw its batches, unlike a longer run. Otherwise equal
 * runs have drawn the same. */
TEST(test_shorter_run)
{
    const char *a = law_output("nanogpt", "--max_iters=3", "--checkpoint_interval=4");
    const char *b = law_output("nanogpt", "--max_iters=7", "--checkpoint_interval=4");
    EXPECT(a, b, 0, "The same run so far: 4 steps, 1 checkpoint, ");
    EXPECT(b, forged(b, 4, true, "sampler.state", 0), 3, "The files of ckpt-00000004 differ:\n");
}

TEST(test_checkpoints)
{
    const char *weight = "transformer.h.1.mlp.c_proj.weight";
    const char *moment = "transformer.h.2.attn.c_attn.weight.exp_avg";
    const char *a = forged(reference(), 6, false, weight, 777),
               *b = forged(reference(), 9, true, moment, 30);
    EXPECT(reference(), a, 3, "The files of ckpt-00000006 differ:\n",
           lks_test_text("weights           first %s, element 777 (index [8,9]): ", weight),
           "1 of its 2304 elements differ; 1 of ",
           "cause             B's record doesn't follow from its settings: checkpoint 6: ");
    EXPECT(reference(), b, 3, "The files of ckpt-00000009 differ:\n",
           lks_test_text("moments           first %s, element 30 (index [1,6]): ", moment));
    EXPECT(a, b, 3, "The files of ckpt-00000006 differ:\n"); /* the first of both */
    EXPECT(lks_test_text("%s/ckpt-00000006", reference()), lks_test_text("%s/ckpt-00000006", b), 0,
           "The same tensors.\n");
    EXPECT(lks_test_text("%s/ckpt-00000006", reference()), lks_test_text("%s/ckpt-00000009", b), 3,
           "can change bits   iter 6 | 9\n", "first transformer.wte.weight, element ");
    EXPECT(lks_test_text("%s/ckpt-00000006/model.safetensors", reference()),
           lks_test_text("%s/ckpt-00000006/model.safetensors", a), 3, "element 777",
           "cause             not known, because files of weights don't tell how they were made\n");
    EXPECT(lks_test_text("%s/ckpt-00000006/model.safetensors", reference()),
           lks_test_text("%s/ckpt-00000006/optimizer.safetensors", a), 3, "which only A has\n");
    const char *one = lks_test_text("%s/ckpt-00000006/model.safetensors", reference());
    const char *two = lks_test_text("%s/ckpt-00000006/model.safetensors", b);
    EXPECT(one, two, 0, "The same tensors.\n");
    size_t bytes;
    char *text = (char *)lks_test_read(two, &bytes);
    text[bytes - 1] ^= 1; /* the file's own hashes don't tell */
    lks_test_write(two, text, bytes);
    EXPECT(one, two, 3, " elements differ; 1 of ");
    const json_t *r = report(reference(), a);
    const char *bits[2];
    for (int i = 0; i < 2; i++)
        bits[i] = lks_test_string(r, i == 0 ? "weights.0.bits.0" : "weights.0.bits.1");
    assert_int_equal(strtoul(bits[0], NULL, 16) ^ strtoul(bits[1], NULL, 16), 1);
}

TEST(test_other_forms)
{
    const char *paths[2];
    for (int i = 0; i < 2; i++) {
        const char *header = lks_test_text("{\"w\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                                           "\"data_offsets\":[0,24]}}",
                                           2 + i, 3 - i);
        const uint64_t length = (strlen(header) + 7) / 8 * 8;
        char file[256] = "";
        memcpy(file, &length, sizeof length);
        snprintf(file + sizeof length, sizeof file - sizeof length, "%-*s", (int)length, header);
        paths[i] = lks_test_text("%s/w.safetensors", lks_test_folder());
        lks_test_write(paths[i], file, sizeof length + length + 24);
    }
    EXPECT(paths[0], paths[1], 3, "first w, which is F32 [2, 3] | F32 [3, 2]\n");
}

/* The tensors are equal, but a resume reads other data. */
TEST(test_state)
{
    const char *out = lks_test_text("%s/run", lks_test_folder());
    const char *last = lks_test_text("%s/ckpt-00000014", reference());
    lks_test_do("cp", "-a", reference(), out);
    poison_state(out, "data_shift", json_integer(7));
    const char *altered = lks_test_text("%s/ckpt-00000014", out);
    EXPECT(last, altered, 3, "can change bits   data_shift 0 | 7\n",
           "The same tensors, but a resume from them can differ.\n");
    assert_non_null(lks_test_member(report(last, altered), "state.0.name"));
    /* an outcome differs, but is no cause */
    poison_state(out, "best_val_loss", json_real(1.5));
    EXPECT(last, altered, 3, "\noutcome           best_val_loss ",
           "\ncause             data_shift ");
    assert_string_equal(lks_test_string(report(last, altered), "state.1.name"), "best_val_loss");
    /* only outcomes differ, perhaps because of other evaluations */
    poison_state(out, "data_shift", json_integer(0));
    EXPECT(last, altered, 3, "\noutcome           best_val_loss ");
    json_t *old = json_load_file(lks_test_text("%s/state.json", last), 0, NULL);
    json_t *settings = json_incref(json_object_get(old, "settings"));
    json_object_set_new(settings, "eval_iters", json_integer(4));
    poison_state(out, "settings", settings);
    json_decref(old);
    EXPECT(last, altered, 3, "\nevaluations only  eval_iters ", "\ncause             eval_iters ");
}

/* A damaged checkpoint is no difference: the comparison fails. */
TEST(test_damaged)
{
    const char *a = forged(reference(), 6, false, "transformer.wte.weight", 0);
    const char *file = lks_test_text("%s/ckpt-00000006/model.safetensors", a);
    size_t bytes;
    char *text = (char *)lks_test_read(file, &bytes);
    text[bytes - 1] ^= 1;
    lks_test_write(file, text, bytes);
    EXPECT(reference(), a, 1, "is altered or damaged");
    assert_null(strstr(diff(reference(), a).err, "--out_dir"));
}
