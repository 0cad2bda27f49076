/* sample and eval with given weights, and runs that take their tokenizer from them. */
#include "forge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A vocabulary of 256 bytes and " the", as tokenizer.json: 257 tokens. */
static void write_vocabulary(const char *folder)
{
    char *text = malloc(1 << 16);
    size_t o = 0;
    int next = 256;
    assert_non_null(text);
    o += (size_t)sprintf(text, "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, "
                               "\"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                               "\"add_prefix_space\": false, \"trim_offsets\": true, "
                               "\"use_regex\": true}, \"decoder\": {\"type\": \"ByteLevel\", "
                               "\"add_prefix_space\": true, \"trim_offsets\": true, "
                               "\"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int b = 0; b < 256; b++) { /* GPT-2's spelling of bytes */
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        o += (size_t)sprintf(text + o, "%s\"\\u%04x\": %d", b == 0 ? "" : ", ", itself ? b : next++,
                             b);
    }
    sprintf(text + o, ", \"th\": 256}, \"merges\": [\"t h\"]}}");
    lks_test_write(lks_test_text("%s/tokenizer.json", folder), text, strlen(text));
    free(text);
}

/* A model over those tokens, in Hugging Face's form with its vocabulary. */
static const char *model_with_vocabulary(bool vocabulary)
{
    const lks__model_config config = {
        .n_layer = 2, .n_head = 2, .n_embd = 16, .block_size = 12, .vocab_size = 257, .bias = true};
    forge_model m = forge_open_as(&config);
    const forge_hf how = {0};
    const char *folder = forge_hf_folder(&m, &how);
    forge_close(&m);
    if (vocabulary)
        write_vocabulary(folder);
    return folder;
}

static const char *data_of(uint32_t vocabulary)
{
    const char *data = lks_test_folder();
    lks_test_generated_vocabulary(data, vocabulary);
    return data;
}

static const char *from(const char *source)
{
    return lks_test_text("--init_from=%s", source);
}

static lks_test_result sample(const char *init, const char *more)
{
    return lks_test_tool("sample", init, "--start=the cat", "--num_samples=1", "--top_k=1",
                         "--max_new_tokens=8", more);
}

TEST(test_sample)
{
    const char *with = model_with_vocabulary(true), *without = model_with_vocabulary(false);
    lks_test_result r = assert_exits(0, sample(from(with), "--seed=1"));
    assert_contains(r.out, "the cat");
    assert_contains(r.err, "Hugging Face's");
    /* the same vocabulary from elsewhere, and the tanh form by name: the same text */
    const char *tokenizer = lks_test_text("--tokenizer=%s", with);
    assert_string_equal(sample(from(without), tokenizer).out, r.out);
    assert_string_equal(sample(from(with), "--gelu=tanh").out, r.out);
    assert_exits(1, sample(from(without), "--seed=1"), "give the vocabulary as --tokenizer=DIR");
    /* a vocabulary that is larger than the model's */
    forge_model m = forge_open(true);
    const forge_hf how = {0};
    r = sample(from(forge_hf_folder(&m, &how)), tokenizer);
    forge_close(&m);
    assert_exits(2, r, "has 257 tokens, but the model only 65");
    assert_exits(2, sample(from(with), "--n_head=4"),
                 "n_head=4 was given, but the model has n_head=2");
}

TEST(test_eval)
{
    const char *model = model_with_vocabulary(false), *data = data_of(257);
    const char *dataset = lks_test_text("--dataset=%s", data);
    lks_test_result r =
        assert_exits(0, lks_test_tool("eval", from(model), dataset, "--batch_size=4"));
    assert_contains(r.out, "val loss ", " windows of 12 tokens");
    lks_test_result two =
        lks_test_tool("eval", from(model), dataset, "--batch_size=4", "--nproc_per_node=2");
    assert_string_equal(two.out, r.out);
    r = assert_exits(0,
                     lks_test_tool("eval", from(model), dataset, "--batch_size=4", "--gelu=exact"));
    assert_string_not_equal(two.out, r.out);
    /* weights of a file that lies elsewhere on another host would be noticed: replica.c */
    assert_exits(1, lks_test_tool("eval", from(lks_test_folder()), dataset),
                 "is no folder with weights");
}

static lks_test_result train(const char *data, const char *out, const char *init, const char *more)
{
    return lks_test_tool("train", lks_test_text("--dataset=%s", data),
                         lks_test_text("--out_dir=%s", out), init, "--max_iters=2",
                         "--gradient_accumulation_steps=2", "--batch_size=2", "--eval_interval=2",
                         "--eval_iters=1", "--log_interval=0", more);
}

/* Data without meta.json: the run takes the weights' tokenizer, keeps it, and so does a resume, and
 * a run that begins with this one's weights. */
TEST(test_tokenizer)
{
    const char *data = data_of(257), *out = lks_test_folder(), *next = lks_test_folder();
    assert_exits(0, train(data, out, from(model_with_vocabulary(true)), "--seed=1"));
    const char *dir = lks_test_text("--out_dir=%s", out);
    const char *const sampled[] = {"lockstep",        "sample",    dir, "--start=the cat",
                                   "--num_samples=1", "--top_k=1", NULL};
    lks_test_result r = assert_exits(0, lks_test_run(sampled, NULL, 60));
    assert_contains(r.out, "the cat");
    const char *first = lks_test_read(lks_test_text("%s/latest/state.json", out), NULL);
    assert_contains(first, "\"kind\": \"gpt2\"");
    assert_exits(0, train(data, out, "--init_from=resume", "--max_iters=4"));
    assert_contains(lks_test_read(lks_test_text("%s/ckpt-00000005/state.json", out), NULL),
                    "\"kind\": \"gpt2\"");
    assert_exits(0, train(data, next, from(out), "--seed=2"));
    assert_same_file(lks_test_text("%s/tokenizer.json", out),
                     lks_test_text("%s/tokenizer.json", next));
    /* never into the folder that the weights are in */
    assert_exits(2, train(data, next, from(next), "--seed=2"),
                 "init_from and out_dir are the same folder");
    assert_exits(2, train(data, next, from(lks_test_text("%s/latest", next)), "--seed=2"),
                 "the same folder");
}

/* A model with more tokens than its data's meta.json has, also after a resume. */
TEST(test_larger_vocabulary)
{
    const char *data = data_of(200), *out = lks_test_folder();
    const char *meta = "{\"kind\":\"ids\",\"vocab_size\":200}";
    lks_test_write(lks_test_text("%s/meta.json", data), meta, strlen(meta));
    assert_exits(0, train(data, out, from(model_with_vocabulary(true)), "--seed=1"));
    assert_exits(0, train(data, out, "--init_from=resume", "--max_iters=4"));
    const char *text = lks_test_read(lks_test_text("%s/latest/state.json", out), NULL);
    assert_contains(text, "\"vocab_size\": 257", "\"vocab_size\": 200");
}

/* Weights without a vocabulary, and the characters of a data folder. */
TEST(test_characters)
{
    const char *without = model_with_vocabulary(false), *folder = lks_test_folder();
    const char *tokenizer = lks_test_text("--tokenizer=%s", folder);
    const char *few = "{\"kind\": \"char\", \"vocab_size\": 6, \"chars\": \" aceht\"}";
    lks_test_write(lks_test_text("%s/meta.json", folder), few, strlen(few));
    lks_test_result r = assert_exits(0, sample(from(without), tokenizer));
    assert_contains(r.out, "the cat");
    char many[128], text[256];
    for (int i = 0; i < 70; i++)
        many[i] = (char)('0' + i);
    many[70] = '\0';
    memmove(many + ('\\' - '0'), many + ('\\' - '0') + 1, 70 - (size_t)('\\' - '0'));
    sprintf(text, "{\"kind\": \"char\", \"vocab_size\": 69, \"chars\": \"%s\"}", many);
    lks_test_write(lks_test_text("%s/meta.json", folder), text, strlen(text));
    forge_model m = forge_open(true);
    const forge_hf how = {0};
    r = sample(from(forge_hf_folder(&m, &how)), tokenizer);
    forge_close(&m);
    assert_exits(2, r, "has 69 characters, but the model only 65 tokens");
}

/* Two settings that name different weights: neither is left out in silence. */
TEST(test_one_source)
{
    const char *model = model_with_vocabulary(true);
    const char *const others[] = {"--out_dir=out", "--which=3"};
    for (size_t i = 0; i < 2; i++)
        assert_exits(2, sample(from(model), others[i]), "leave one of them out");
    assert_exits(2, lks_test_tool("eval", from(model), "--artifact=a.ptz"),
                 "--artifact were given");
}

/* Data of other characters: the ids fit, and mean other text. */
TEST(test_other_characters)
{
    const char *folder[2], *out = lks_test_folder();
    for (int i = 0; i < 2; i++) {
        const char *text = lks_test_text("%s/text", lks_test_folder());
        FILE *f = fopen(text, "w");
        assert_non_null(f);
        for (int j = 0; j < 4000; j++)
            fputc((i == 0 ? "abcd" : "abce")[j * 5 / 3 % 4], f);
        fclose(f);
        folder[i] = lks_test_folder();
        assert_int_equal(lks_test_tool("prep", "char", lks_test_text("--input=%s", text),
                                       lks_test_text("--out=%s", folder[i]))
                             .exit_code,
                         0);
    }
    assert_int_equal(
        train(folder[0], out, from(model_with_vocabulary(false)), "--seed=1").exit_code, 0);
    assert_exits(0, lks_test_tool("eval", from(out), lks_test_text("--dataset=%s", folder[0]),
                                  "--batch_size=4"));
    assert_exits(2,
                 lks_test_tool("eval", from(out), lks_test_text("--dataset=%s", folder[1]),
                               "--batch_size=4"),
                 "the same ids stand for other text");
    const char *tuned = lks_test_folder();
    assert_int_equal(train(folder[0], tuned, from(out), "--seed=1").exit_code, 0);
    assert_exits(2, train(folder[1], tuned, from(out), "--seed=1"),
                 "the same ids stand for other text");
}

/* A recipe's init_from is train's: eval of a run doesn't look at it. */
TEST(test_recipe)
{
    const char *data = data_of(257), *out = lks_test_folder();
    assert_int_equal(train(data, out, from(model_with_vocabulary(true)), "--seed=1").exit_code, 0);
    const char *recipe = lks_test_text("%s/tune.conf", lks_test_folder());
    lks_test_write(recipe, "init_from = /none/such\n", 23);
    lks_test_result r =
        assert_exits(0, lks_test_tool("eval", recipe, lks_test_text("--out_dir=%s", out),
                                      lks_test_text("--dataset=%s", data), "--batch_size=4"));
    assert_contains(r.out, "ckpt-00000003");
}
