/* sample and eval with GPT-2's tokens, from the arguments to the text: special tokens in prompts, a
 * vocabulary that is padded, characters that are cut into tokens, bits per byte. */
#include "../weights/forge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text/utf8.h"
#include "data/text/bpe/bpe.h"
#include "weights/use/text.h"
#include "weights/weights.h"

enum { IDS = 640, PADDED = 704, WIDTH = 32 };

static const char *vocabulary; /* a folder with tokenizer.json, of IDS tokens */

static int write_vocabulary(void **state)
{
    char *text = json_dumps(json_object_get(lks_test_figure("bpe_small.json"), "tokenizer"), 0);
    vocabulary = lks_test_folder();
    lks_test_write_text(lks_test_text("%s/tokenizer.json", vocabulary), text);
    free(text);
    return 0;
}

static forge_model model_of(int vocab_size)
{
    const lks__model_config config = {.n_layer = 2,
                                      .n_head = 2,
                                      .n_embd = WIDTH,
                                      .block_size = 64,
                                      .vocab_size = vocab_size,
                                      .bias = true};
    return forge_open_as(&config);
}

static const char *saved(forge_model *m)
{
    const forge_hf how = {0};
    const char *folder = forge_hf_folder(m, &how);
    forge_close(m);
    return folder;
}

/* What is written for a prompt, the likeliest token each time. */
static const char *written(const char *model, const char *prompt, const char *more)
{
    return lks_test_do("lockstep", "sample", lks_test_text("--init_from=%s", model),
                       lks_test_text("--tokenizer=%s", vocabulary),
                       lks_test_text("--start=%s", prompt), "--num_samples=1",
                       "--max_new_tokens=24", "--top_k=1", more)
        .out;
}

TEST(test_special)
{
    static const char spelling[] = "<|endoftext|>";
    forge_model m = model_of(IDS);
    const char *model = saved(&m);
    const char *ordinary = written(model, spelling, "--special=false");
    const char *special = written(model, spelling, "--special");
    assert_memory_equal(ordinary, spelling, sizeof spelling - 1);
    assert_memory_equal(special, spelling, sizeof spelling - 1);
    assert_string_not_equal(special, ordinary);
    assert_string_equal(written(model, spelling, NULL), special); /* as in nanoGPT */
    assert_string_equal(written(model, "no other", "--special"), written(model, "no other", NULL));
    /* the lines of a conversation, too: the answers are other ones */
    const char *lines = lks_test_text("%s/lines", lks_test_folder());
    lks_test_write_text(lines, spelling);
    const char *answers[2];
    for (int i = 0; i < 2; i++) {
        const char *command =
            lks_test_text("'%s' sample --init_from=%s --tokenizer=%s --interactive --top_k=1 "
                          "--max_new_tokens=24 --special=%s <%s",
                          LKS_TEST_TOOL, model, vocabulary, i == 0 ? "false" : "true", lines);
        answers[i] = assert_exits(0, lks_test_shell(command)).out;
    }
    assert_string_not_equal(answers[0], answers[1]);
    /* characters have no special tokens */
    const char *data = lks_test_folder();
    const char *meta = "{\"kind\": \"char\", \"vocab_size\": 2, \"chars\": \"ab\"}";
    lks_test_write_text(lks_test_text("%s/meta.json", data), meta);
    assert_exits(2,
                 lks_test_tool("sample", lks_test_text("--init_from=%s", model),
                               lks_test_text("--tokenizer=%s", data), "--start=a", "--special"),
                 "--special is only for GPT-2's tokens");
}

/* As 50,304 over 50,257. Ids beyond the tokenizer's would be the likeliest ones: the text is that
 * of the model without them. */
TEST(test_padded)
{
    forge_model m = model_of(PADDED), small = model_of(IDS);
    for (size_t i = 0; i < small.table.n_tensors; i++) {
        const lks__table_tensor *t = &small.table.tensors[i];
        const lks__table_tensor *from = lks__table_find(&m.table, t->name);
        memcpy(small.params + t->offset, m.params + from->offset, t->count * sizeof(float));
    }
    float *rows = m.params + lks__table_find(&m.table, "transformer.wte.weight")->offset;
    for (size_t i = IDS * WIDTH; i < PADDED * WIDTH; i++)
        rows[i] *= 4.0f;
    const char *padded = saved(&m), *without = saved(&small);
    assert_string_equal(written(padded, "the ", NULL), written(without, "the ", NULL));
    const char *data = lks_test_folder(), *text = lks_test_text("%s/text", data);
    const char *words = "";
    for (int i = 0; i < 100; i++)
        words = lks_test_text("%sword %d, ", words, i);
    lks_test_write_text(text, words);
    lks_test_do("lockstep", "prep", "gpt2", lks_test_text("--input=%s", text), "--val_fraction=0.3",
                lks_test_text("--out=%s", data), lks_test_text("--tokenizer=%s", vocabulary));
    lks_test_do("lockstep", "eval", lks_test_text("--init_from=%s", padded),
                lks_test_text("--dataset=%s", data));
    /* a run on these tokens with a larger vocabulary, as nanoGPT's 50,304 */
    const char *out = lks_test_text("--out_dir=%s", lks_test_folder());
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", data), out,
                lks_test_text("--init_from=%s", without), lks_test_text("--vocab_size=%d", PADDED),
                "--max_iters=2", "--gradient_accumulation_steps=1", "--batch_size=2",
                "--eval_iters=1");
    assert_contains(lks_test_do("lockstep", "eval", out, lks_test_text("--dataset=%s", data)).out,
                    "val loss ");
    lks_test_do("lockstep", "sample", out, "--start=word", "--num_samples=1", "--max_new_tokens=8");
    /* Another vocabulary in its place, without the last merge, isn't taken for the run's own. */
    const char *own = lks_test_text("%s/tokenizer.json", out + strlen("--out_dir="));
    json_t *other = json_loads(lks_test_read(own, NULL), 0, NULL);
    json_t *merges = json_object_get(json_object_get(other, "model"), "merges");
    assert_int_equal(json_array_remove(merges, json_array_size(merges) - 1), 0);
    char *changed = json_dumps(other, 0);
    lks_test_write_text(own, changed);
    free(changed);
    json_decref(other);
    assert_contains(lks_test_tool("sample", out, "--start=word").err,
                    "is not the checkpoint's own");
    const char *to = lks_test_folder();
    assert_contains(
        lks_test_do("lockstep", "export", "--format=hf", out, lks_test_text("--out=%s", to)).err,
        "is not the vocabulary that it was trained with");
    assert_false(lks_test_exists(lks_test_text("%s/tokenizer.json", to)));
}

static bool is_utf8(const char *text)
{
    size_t bytes = strlen(text);
    uint32_t cp;
    for (size_t i = 0, n; i < bytes; i += n) {
        n = lks__utf8_decode(text + i, bytes - i, &cp);
        if (n == 0)
            return false;
    }
    return true;
}

/* A character of four bytes, for which the vocabulary has no token: what the run has learned comes
 * out whole. Any bytes that a model draws are UTF-8 in the end. */
TEST(test_cut_characters)
{
    static const char smile[] = "\xf0\x9f\x99\x82";
    const char *folder = lks_test_folder(), *input = lks_test_text("%s/text", folder);
    const char *text = "", *data = lks_test_text("--dataset=%s/data", folder);
    const char *out = lks_test_text("--out_dir=%s/out", folder);
    for (int i = 0; i < 300; i++)
        text = lks_test_text("%sa%s", text, smile);
    lks_test_write_text(input, text);
    lks_test_do("lockstep", "prep", "gpt2", lks_test_text("--input=%s", input),
                "--val_fraction=0.1", lks_test_text("--out=%s/data", folder),
                lks_test_text("--tokenizer=%s", vocabulary));
    lks_test_do("lockstep", "train", data, out, "--n_layer=2", "--n_head=2", "--n_embd=32",
                "--block_size=16", "--batch_size=4", "--gradient_accumulation_steps=1",
                "--max_iters=120", "--learning_rate=0.01", "--warmup_iters=10", "--eval_interval=0",
                "--threads=1");
    const char *learned = lks_test_do("lockstep", "sample", out, "--start=a", "--num_samples=1",
                                      "--max_new_tokens=40", "--top_k=1")
                              .out;
    assert_true(is_utf8(learned));
    assert_contains(learned, lks_test_text("a%sa%sa%sa%s", smile, smile, smile, smile));
    forge_model m = model_of(IDS);
    const char *init = lks_test_text("--init_from=%s", saved(&m));
    const char *tokenizer = lks_test_text("--tokenizer=%s", vocabulary);
    for (int seed = 1; seed <= 3; seed++) {
        const char *any =
            lks_test_do("lockstep", "sample", init, tokenizer, "--start=a", "--num_samples=2",
                        "--max_new_tokens=50", "--temperature=5", lks_test_text("--seed=%d", seed))
                .out;
        assert_true(is_utf8(any));
        assert_contains(any, "\xef\xbf\xbd");
    }
}

/* A vocabulary that lies beside weights is theirs unless it has more tokens than they do. */
TEST(test_beside)
{
    size_t bytes;
    const char *text = lks_test_read(lks_test_text("%s/tokenizer.json", vocabulary), &bytes);
    for (int fits = 0; fits < 2; fits++) {
        forge_model m = model_of(fits ? IDS : IDS - 1);
        const char *model = saved(&m);
        lks__weights *w;
        lks__meta meta;
        lks_test_write(lks_test_text("%s/tokenizer.json", model), text, bytes);
        assert_ok(lks__weights_open(model, NULL, &w));
        assert_ok(lks__weights_meta(w, &meta));
        assert_int_equal(meta.is_bpe, fits);
        assert_int_equal(meta.vocab_size, fits ? IDS : IDS - 1);
        lks__meta_free(&meta);
        lks__weights_close(w);
    }
    /* one that lockstep can't read is like none */
    static const char foreign[] = "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}";
    forge_model m = model_of(IDS);
    const char *model = saved(&m), *init = lks_test_text("--init_from=%s", model);
    const char *ids = lks_test_text("%s/ids.bin", model);
    lks_test_write_text(lks_test_text("%s/tokenizer.json", model), foreign);
    lks_test_write(ids, (const uint16_t[40]){0}, 80);
    lks__weights *w;
    lks__meta meta;
    assert_ok(lks__weights_open(model, NULL, &w));
    assert_ok(lks__weights_meta(w, &meta));
    assert_true(!meta.is_bpe && meta.chars == NULL && meta.vocab_size == IDS);
    lks__weights_close(w);
    lks_test_do("lockstep", "eval", init, lks_test_text("--dataset=%s", ids), "--block_size=8");
}

static lks_status append(void *ctx, const char *text, size_t bytes)
{
    strncat(ctx, text, bytes);
    return LKS_OK;
}

/* An id that a padded vocabulary has and its tokenizer hasn't is shown as no character. */
TEST(test_no_token)
{
    lks__replica *r = calloc(1, sizeof *r);
    lks__text t;
    char got[8] = "";
    assert_non_null(r);
    r->meta.vocab_size = PADDED;
    assert_ok(lks__text_open(vocabulary, r, &t));
    lks__utf8_stream out = {.put = append, .ctx = got};
    assert_ok(lks__text_add(&t, IDS, &out));
    assert_ok(lks__utf8_stream_end(&out));
    assert_string_equal(got, "\xef\xbf\xbd");
    lks__text_close(&t);
    free(r);
}

/* Data of tokens only: the vocabulary is that of the weights, also in a resumed run. A copied
 * checkpoint folder has none. */
TEST(test_moved)
{
    const char *folder = lks_test_folder(), *input = lks_test_text("%s/text", folder);
    const char *data = lks_test_text("--dataset=%s/data", folder), *text = "";
    const char *out = lks_test_text("%s/out", folder), *copy = lks_test_text("%s/copy", folder);
    for (int i = 0; i < 100; i++)
        text = lks_test_text("%sword %d, ", text, i);
    lks_test_write_text(input, text);
    lks_test_do("lockstep", "prep", "gpt2", lks_test_text("--input=%s", input),
                "--val_fraction=0.3", lks_test_text("--out=%s/data", folder),
                lks_test_text("--tokenizer=%s", vocabulary));
    assert_int_equal(unlink(lks_test_text("%s/data/meta.json", folder)), 0);
    assert_int_equal(unlink(lks_test_text("%s/data/tokenizer.json", folder)), 0);
    forge_model m = model_of(IDS);
    const char *model = saved(&m);
    assert_int_equal(symlink(lks_test_text("%s/tokenizer.json", vocabulary),
                             lks_test_text("%s/tokenizer.json", model)),
                     0);
#define TRAIN(from, to, ...)                                                                       \
    lks_test_tool("train", data, lks_test_text("--init_from=%s", from),                            \
                  lks_test_text("--out_dir=%s", to), "--gradient_accumulation_steps=1",            \
                  "--batch_size=2", "--eval_iters=1", __VA_ARGS__)
    assert_exits(0, TRAIN(model, out, "--max_iters=1", "--sample_tokens=8"));
    assert_exits(0, TRAIN("resume", out, "--max_iters=2", "--sample_tokens=8"));
    lks_test_do("cp", "-RL", lks_test_text("%s/latest", out), copy);
    lks_test_result r =
        assert_exits(0, TRAIN(copy, lks_test_text("%s/out2", folder), "--max_iters=1", NULL));
    assert_contains(r.err, "the vocabulary was not found, so ");
    assert_exits(2, lks_test_tool("sample", lks_test_text("--init_from=%s", copy), "--start=word"),
                 "without their vocabulary: give it as --tokenizer_path=DIR");
}

/* As nanoGPT's prepare.py leaves them: ids of GPT-2, and nothing that says so. */
TEST(test_assumed)
{
    static const char *const names[] = {"train.bin", "val.bin"};
    const char *folder = lks_test_folder(), *out = lks_test_text("--out_dir=%s/out", folder);
    const char *hf = lks_test_text("%s/hf", folder);
    const char *here = lks_test_text("cd '%s' && exec '%s' sample '%s' --num_samples=1 "
                                     "--max_new_tokens=4",
                                     folder, lks_test_program(), out);
    const char *const sample[] = {"sh", "-c", here, NULL};
    uint16_t ids[200];
    for (size_t i = 0; i < 200; i++)
        ids[i] = (uint16_t)(i * 7 % IDS);
    for (size_t i = 0; i < 2; i++)
        lks_test_write(lks_test_text("%s/%s", folder, names[i]), ids, sizeof ids);
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", folder), out, "--n_layer=1",
                "--n_head=1", "--n_embd=4", "--block_size=8", "--batch_size=1",
                "--gradient_accumulation_steps=1", "--max_iters=1", "--eval_interval=0");
    setenv("LOCKSTEP_HOME", folder, 1);
    assert_exits(1, lks_test_run(sample, NULL, 60),
                 "lockstep sample: the model comes without a tokenizer. If its 50304 "
                 "tokens are GPT-2's, `lockstep fetch gpt2-vocab` downloads");
    assert_exits(2, lks_test_tool("sample", out, "--tokenizer=gpt2"),
                 "not on this machine: `lockstep fetch gpt2-vocab`");
    assert_int_equal(mkdir(lks_test_text("%s/data", folder), 0755), 0);
    assert_int_equal(symlink(vocabulary, lks_test_text("%s/data/gpt2-vocab", folder)), 0);
    assert_contains(assert_exits(0, lks_test_run(sample, NULL, 60)).err,
                    "its 50304 tokens are read as GPT-2's, with the vocabulary in data/gpt2-vocab");
    assert_int_equal(symlink(vocabulary, lks_test_text("%s/gpt2", folder)), 0);
    assert_contains(assert_exits(0, lks_test_run(sample, NULL, 60)).err,
                    lks_test_text("the vocabulary in %s/gpt2\n", folder));
    assert_null(strstr(lks_test_do("lockstep", "sample", out, "--tokenizer=gpt2", "--num_samples=1",
                                   "--max_new_tokens=4")
                           .err,
                       "read as"));
    lks_test_result r =
        lks_test_do("lockstep", "export", "--format=hf", out, lks_test_text("--out=%s", hf));
    assert_contains(r.err, "its 50304 tokens are taken for GPT-2's, with the vocabulary in ");
    assert_true(lks_test_exists(lks_test_text("%s/tokenizer.json", hf)));
    r = lks_test_do("lockstep", "export", "--format=gguf", out,
                    lks_test_text("--out=%s/f", folder));
    assert_contains(r.err, "tokens are taken for GPT-2's");
    r = lks_test_do("lockstep", "export", "--format=safetensors", out,
                    lks_test_text("--out=%s/file", folder));
    assert_null(strstr(r.err, "tokenizer"));
    lks_test_write_text(lks_test_text("%s/text", folder), "one two three four");
    lks_test_do("lockstep", "prep", "gpt2", lks_test_text("--input=%s/text", folder),
                lks_test_text("--out=%s/tokens", folder), "--tokenizer=gpt2");
    unsetenv("LOCKSTEP_HOME");
}

static double number_before(const char *line, const char *words)
{
    const char *at = lks_test_find(line, words);
    while (at[-1] != ' ')
        at--;
    return strtod(at, NULL);
}

/* All targets count once: all of the text but its first token. */
TEST(test_bits_per_byte)
{
    const char *folder = lks_test_folder(), *input = lks_test_text("%s/text", folder);
    const char *text = "";
    for (int i = 0; i < 200; i++)
        text = lks_test_text("%sthe \xc3\xa9t\xc3\xa9 of %d\n", text, 1900 + i);
    lks_test_write_text(input, text);
    lks_test_do("lockstep", "prep", "gpt2", lks_test_text("--input=%s", input), "--val_fraction=0",
                lks_test_text("--out=%s/data", folder),
                lks_test_text("--tokenizer=%s", vocabulary));
    size_t bytes, first, n;
    const char *ids = lks_test_read(lks_test_text("%s/data/train.bin", folder), &bytes);
    uint16_t id;
    memcpy(&id, ids, sizeof id);
    n = bytes / sizeof id;
    lks__bpe *bpe;
    assert_ok(lks__bpe_open(vocabulary, &bpe));
    assert_non_null(lks__bpe_bytes(bpe, id, &first));
    lks__bpe_close(bpe);
    forge_model m = model_of(IDS);
    const char *model = saved(&m);
    assert_int_equal(symlink(lks_test_text("%s/tokenizer.json", vocabulary),
                             lks_test_text("%s/tokenizer.json", model)),
                     0);
    const char *line =
        lks_test_do("lockstep", "eval", lks_test_text("--init_from=%s", model),
                    lks_test_text("--dataset=%s/data", folder), "--split=train", "--stride=64")
            .out;
    const char *loss = lks_test_find(line, "train loss ");
    const double want =
        strtod(loss + 11, NULL) / log(2.0) * (double)(n - 1) / (double)(strlen(text) - first);
    assert_near(number_before(line, " bits per byte"), want, 1e-5);
}

int main(void)
{
    return lks_test_run_all(write_vocabulary, NULL);
}
