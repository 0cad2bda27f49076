/* From ids back to text, one by one: the encoded text comes back, and invalid bytes don't get
 * through. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "data/text/sentencepiece/spm_text.h"
#include "weights/use/text.h"

struct corpus {
    int left;
};

static int next_sentence(void *ctx, const char **text_p, size_t *bytes_p)
{
    static const char *const sentences[] = {"the quick brown fox jumps over the lazy dog",
                                            "pack my box with five dozen liquor jugs",
                                            "how vexingly quick daft zebras jump"};
    struct corpus *c = ctx;
    if (c->left == 0)
        return 0;
    *text_p = sentences[--c->left % 3];
    *bytes_p = strlen(*text_p);
    return 1;
}

static const char *folder; /* of the model's file */

static lks__spm *trained(void)
{
    struct corpus corpus = {300};
    char *model;
    size_t bytes;
    lks__spm *spm;
    lks_test_need_sentencepiece();
    folder = lks_test_folder();
    assert_ok(lks__spm_train(320, next_sentence, &corpus, &model, &bytes));
    assert_ok(lks__spm_open_bytes(model, bytes, "the model", &spm));
    lks_test_write(lks_test_text("%s/sp.model", folder), model, bytes);
    free(model);
    return spm;
}

struct got {
    char text[256];
    size_t n;
};

static lks_status put(void *ctx, const char *text, size_t bytes)
{
    struct got *g = ctx;
    assert_true(g->n + bytes < sizeof g->text);
    memcpy(g->text + g->n, text, bytes);
    g->n += bytes;
    return LKS_OK;
}

static const char *text_of(const lks__spm *spm, const int32_t *ids, size_t n)
{
    struct got g = {.n = 0};
    lks__utf8_stream t = {.put = put, .ctx = &g};
    for (size_t i = 0; i < n; i++)
        assert_ok(lks__spm_text_add(spm, ids[i], &t));
    assert_ok(lks__utf8_stream_end(&t));
    return lks_test_text("%.*s", (int)g.n, g.text);
}

TEST(test_back)
{
    static const char *const texts[] = {"the fox jumps", "caf\xc3\xa9 \xe2\x82\xac 3",
                                        "\xf0\x9f\xa6\x8a quick"};
    lks__spm *spm = trained();
    for (size_t i = 0; i < 3; i++) { /* characters outside the vocabulary use byte tokens */
        int32_t *ids;
        size_t n;
        assert_ok(lks__spm_encode(spm, texts[i], strlen(texts[i]), &ids, &n));
        assert_string_equal(text_of(spm, ids, n), texts[i]);
        free(ids);
    }
    lks__spm_close(spm);
}

static int32_t byte_token(const lks__spm *spm, unsigned byte)
{
    const char *piece = lks_test_text("<0x%02X>", byte);
    for (uint32_t id = 0; id < lks__spm_size(spm); id++) {
        size_t n;
        const char *p = lks__spm_piece(spm, id, &n);
        if (n == 6 && memcmp(p, piece, 6) == 0)
            return (int32_t)id;
    }
    fail_msg("no byte token %s", piece);
    return -1;
}

TEST(test_no_text)
{
    lks__spm *spm = trained();
    const int32_t half[] = {byte_token(spm, 0xc3)};
    const int32_t cut[] = {byte_token(spm, 0xe2), byte_token(spm, 0x82), byte_token(spm, 'a')};
    const int32_t stray[] = {byte_token(spm, 0xa9), byte_token(spm, 'b')};
    const int32_t escape[] = {byte_token(spm, 0x1b), byte_token(spm, '['), byte_token(spm, '\n')};
    const int32_t controls[] = {byte_token(spm, 0x7f), byte_token(spm, 0xc2), byte_token(spm, 0x9b),
                                byte_token(spm, 0xc2), byte_token(spm, 0xa0), byte_token(spm, '~')};
    const int32_t special[] = {lks__spm_bos(spm), 3, -1, 1 << 20};
    assert_string_equal(text_of(spm, half, 1), "\xef\xbf\xbd");
    assert_string_equal(text_of(spm, cut, 3), "\xef\xbf\xbd"
                                              "a");
    assert_string_equal(text_of(spm, stray, 2), "\xef\xbf\xbd"
                                                "b");
    assert_string_equal(text_of(spm, escape, 3), "\xef\xbf\xbd[\n");
    /* a terminal obeys U+009B as it does ESC [; U+00A0 is a space */
    assert_string_equal(text_of(spm, controls, 6), "\xef\xbf\xbd\xef\xbf\xbd\xc2\xa0~");
    /* beginning of a document, unknown, and ids of no token */
    assert_string_equal(text_of(spm, special, 4), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    lks__spm_close(spm);
}

/* Prompts, with the model that a checkpoint was trained with and no other. */
TEST(test_prompts)
{
    lks__spm *spm = trained();
    const char *path = lks_test_text("%s/sp.model", folder);
    const uint64_t hash = lks__spm_hash(spm);
    const struct {
        lks__meta meta;
        const char *says; /* NULL: it fits */
    } rows[] = {
        {{.vocab_size = 320, .is_sentencepiece = true, .model_hash = hash}, NULL},
        {{.vocab_size = 320}, NULL}, /* weights that don't say */
        {{.vocab_size = 321, .is_sentencepiece = true, .model_hash = hash}, "vocabulary has 321"},
        {{.vocab_size = 320, .is_sentencepiece = true, .model_hash = hash + 1}, "its hash is"},
    };
    lks__replica *r = lks_test_calloc(1, sizeof *r);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lks__text t;
        int32_t *ids;
        size_t n;
        r->meta = rows[i].meta;
        const lks_status st = lks__text_open(path, r, &t);
        if (rows[i].says != NULL) {
            assert_fails(LKS_ERR_CONFIG, st, path, rows[i].says);
            lks__text_close(&t);
            continue;
        }
        assert_ok(st);
        assert_ok(lks__text_encode(&t, "", 0, &ids, &n)); /* as documents begin */
        assert_true(n == 1 && ids[0] == lks__spm_bos(spm));
        free(ids);
        assert_ok(lks__text_encode(&t, "the fox", 7, &ids, &n));
        assert_string_equal(text_of(spm, ids, n), "the fox");
        free(ids);
        assert_fails(LKS_ERR_FORMAT, lks__text_encode(&t, "a\xff", 2, &ids, &n),
                     "byte 0xff at offset 1");
        assert_true(lks__text_has(&t, 319) && !lks__text_has(&t, 320) && !lks__text_has(&t, -1));
        lks__text_close(&t);
    }
    free(r);
    lks__spm_close(spm);
}
