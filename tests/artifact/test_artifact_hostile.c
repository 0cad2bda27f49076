/* Artifacts that are cut, altered, or contradict themselves are each refused in one sentence, and
 * no memory is allocated from their numbers alone. */
#include "forge.h"
#include "old.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/system/sys.h"

static const char *path; /* the file under test */
static forge_model model;
static float *arena;

static int set_up(void **state)
{
    path = lks_test_text("%s/m.lks", lks_test_folder());
    model = forge_open(77);
    arena = calloc(model.table.count, sizeof *arena);
    return arena == NULL;
}

static int tear_down(void **state)
{
    free(arena);
    forge_close(&model);
    return 0;
}

/* Check that it is refused as ERR_FORMAT, naming the file. */
static void refused(const char *why)
{
    assert_fails(LKS_ERR_FORMAT, forge_load(path, &model.table, arena), path, why);
}

TEST(test_good)
{
    forge_entries list;
    json_t *meta = forge_metadata(&model);
    forge_list(&model, &list);
    uint16_t scales[1100];
    for (int i = 0; i < 1100; i++)
        scales[i] = 0x3c00;
    for (size_t i = 0; i < list.n; i++)
        if (strcmp(list.tensors[i].name, "tok_emb.weight.scale") == 0)
            list.tensors[i].data = scales;
    /* The file that the other tests alter is valid. */
    forge_write(path, list.tensors, list.n, meta, 0);
    assert_ok(forge_load(path, &model.table, arena));
    json_decref(meta);
}

static bool stop_asked(void)
{
    return true;
}

TEST(test_stopped)
{
    assert_ok(old_artifact_write(path, &model.table, model.params, &model.about));
    lks__sys_stop_when(stop_asked);
    const lks_status st = forge_load(path, &model.table, arena);
    lks__sys_stop_when(NULL);
    assert_int_equal(st, LKS_ERR_STOPPED);
}

TEST(test_truncated)
{
    size_t bytes;
    assert_ok(old_artifact_write(path, &model.table, model.params, &model.about));
    const char *whole = lks_test_read(path, &bytes);
    assert_true(bytes > 100000);
    for (size_t n = 0; n < bytes; n += n < 200 || n > bytes - 20 ? 1 : 1009) {
        if (n > 200 && n < bytes - 20 && n + 1009 > bytes - 20)
            n = bytes - 21;
        lks_test_write(path, whole, n);
        refused("truncated");
    }
    char *longer = lks_test_malloc(bytes + 1);
    memcpy(longer, whole, bytes);
    longer[bytes] = 0;
    lks_test_write(path, longer, bytes + 1);
    refused("bytes follow");
    free(longer);
}

/* A bit that isn't used (after the last block, before the checksum) changes nothing. */
TEST(test_altered)
{
    enum { TRIES = 300 };
    size_t bytes, passed = 0, tried = 0;
    float *want = lks_test_calloc(model.table.count, sizeof *want);
    assert_ok(old_artifact_write(path, &model.table, model.params, &model.about));
    assert_ok(forge_load(path, &model.table, want));
    const char *whole = lks_test_read(path, &bytes);
    char *copy = lks_test_malloc(bytes);
    uint32_t x = 4711;
    for (size_t i = 0; i < TRIES; i++, tried++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        size_t bit = i < 128 ? i : i < 192 ? 8 * bytes - 1 - (i - 128) : (size_t)(x % (8 * bytes));
        memcpy(copy, whole, bytes);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        lks_test_write(path, copy, bytes);
        memset(arena, 0, model.table.count * sizeof *arena);
        lks_status st = forge_load(path, &model.table, arena);
        if (st == LKS_OK) {
            passed++;
            assert_memory_equal(arena, want, model.table.count * sizeof *want);
        } else if (st != LKS_ERR_FORMAT) {
            fail_msg("bit %zu: %s", bit, lks_last_error());
        }
    }
    assert_true(tried == TRIES && passed < 8);
    lks_test_free(copy, want);
}

TEST(test_not_an_artifact)
{
    const char *folder = lks_test_folder();
    lks__artifact a;
    lks_test_write(path, "", 0);
    refused("truncated");
    lks_test_write(path, "hello, this is text", 19);
    refused("not compressed by zlib");
    forge_compress(path, "hello, this is text", 19);
    refused("header's length");
    /* the beginnings of gzip and of raw deflate are refused */
    lks_test_write(path, "\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0", 20);
    refused("not compressed by zlib");
    /* A preset dictionary, which artifacts never have. */
    lks_test_write(path, "\x78\xf9\x08\x1f\x03\x2d\x4b\x04\x72\x04\0", 11);
    refused("not compressed by zlib");
    assert_fails(LKS_ERR_IO, lks__artifact_open(folder, &a), folder, "not a regular file");
    assert_fails(LKS_ERR_IO, lks__artifact_open(lks_test_text("%s/none", folder), &a), "none");
    const char *fifo = lks_test_text("%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_fails(LKS_ERR_IO, lks__artifact_open(fifo, &a), "not a regular file");
    const char *evil = lks_test_text("%s/\x1b[31m", folder);
    lks_test_write(evil, "x", 1);
    assert_fails(LKS_ERR_FORMAT, lks__artifact_open(evil, &a), "\\x1b[31m");
}

static long peak_mb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
}

TEST(test_bombs)
{
    const size_t big = 64 << 20;
    char *zeros = lks_test_calloc(1, big);
    /* Headers that are too long, or only zeros or spaces. */
    static const uint64_t lengths[] = {0, 1, 64 << 20, (4 << 20) + 1, UINT64_MAX, INT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(zeros, &lengths[i], 8);
        forge_compress(path, zeros, i < 3 ? big : 1000);
        long before = peak_mb();
        refused(lengths[i] <= 1 ? "start with '{'" : "over the limit");
        assert_true(peak_mb() - before < 32);
    }
    free(zeros);

    /* A valid header, with more after its tensors than it describes. */
    forge_entries list;
    json_t *meta = forge_metadata(&model);
    uint16_t scales[1100];
    for (int i = 0; i < 1100; i++)
        scales[i] = 0x3c00;
    forge_list(&model, &list);
    for (size_t i = 0; i < list.n; i++)
        if (strcmp(list.tensors[i].name, "tok_emb.weight.scale") == 0)
            list.tensors[i].data = scales;
    forge_write(path, list.tensors, list.n, meta, big);
    long before = peak_mb();
    refused("data follow its last tensor");
    assert_true(peak_mb() - before < 32);
    forge_write(path, list.tensors, list.n, meta, 1);
    refused("data follow its last tensor");
    json_decref(meta);
}

/* Settings and header agree on terabytes that the file doesn't contain: this must be found before
 * the arena is allocated. */
TEST(test_empty_giant)
{
    forge_model giant = forge_shape(65536, 1 << 24);
    forge_entries list;
    json_t *meta = forge_metadata(&giant);
    lks__artifact a;
    char *head;
    size_t bytes;
    forge_list(&giant, &list);
    assert_ok(lks__st_head(path, list.tensors, list.n, meta, false, &head, &bytes));
    forge_compress(path, head, bytes);
    free(head);
    json_decref(meta);
    assert_ok(lks__artifact_open(path, &a));
    assert_fails(LKS_ERR_FORMAT, lks__artifact_check(&a, &giant.table), path, "too short");
    assert_fails(LKS_ERR_FORMAT, lks__artifact_read(&a, &giant.table, NULL), "too short");
    lks__artifact_close(&a);
    forge_close(&giant);
}

enum { NO_MATRIX, RENAMED, MISSING, MORE, SWAPPED, TURNED, FLATTENED, WIDER, NARROWER, N_LIES };

/* In each case one entry is wrong in one way. */
TEST(test_wrong_tensors)
{
    json_t *meta = forge_metadata(&model);
    forge_entries list;
    forge_list(&model, &list);
    const size_t n = list.n;
    for (size_t i = 0; i < n; i++) {
        for (int lie = RENAMED; lie < N_LIES; lie++) {
            forge_list(&model, &list);
            lks__st_tensor *t = &list.tensors[i], keep = *t;
            bool f32 = strcmp(t->dtype, "F32") == 0;
            switch (lie) {
            case RENAMED:
                t->name = "other";
                break;
            case MISSING:
                memmove(t, t + 1, (--list.n - i) * sizeof *t);
                break;
            case MORE:
                list.tensors[list.n] = keep;
                list.tensors[list.n++].name = "more";
                break;
            case SWAPPED:
                *t = list.tensors[(i + 1) % n];
                list.tensors[(i + 1) % n] = keep;
                break;
            case TURNED:
                if (t->n_dims != 2 || t->shape[0] == t->shape[1])
                    continue;
                t->shape[0] = keep.shape[1];
                t->shape[1] = keep.shape[0];
                break;
            case FLATTENED:
                if (t->n_dims == 2)
                    t->shape[0] *= t->shape[1];
                else
                    t->shape[1] = 1;
                t->n_dims = 3 - t->n_dims;
                break;
            case WIDER: /* the same shape, but with other dimensions */
                t->dtype = f32 ? "F64" : "F32";
                t->bytes = t->bytes * (f32 || keep.dtype[0] == 'F' ? 2 : 4);
                break;
            case NARROWER:
                t->dtype = f32 ? "I32" : keep.dtype[0] == 'I' ? "U8" : "BF16";
                break;
            }
            forge_write(path, list.tensors, list.n, meta, 0);
            refused(lie == MORE ? "more tensors than" : lie >= TURNED ? "shape" : "missing");
        }
    }
    json_decref(meta);
}

TEST(test_wrong_metadata)
{
    static const struct {
        const char *key, *value; /* NULL: key left out */
        const char *why;
    } cases[] = {
        {"quant_format", NULL, "quant_format is not"},
        {"quant_format", "int8_clean_per_row_v2", "quant_format is not"},
        {"dtype", NULL, "dtype is not F32"},
        {"dtype", "BF16", "dtype is not F32"},
        {"iter", NULL, "iter is not a count"},
        {"iter", "", "iter is not a count"},
        {"iter", "-1", "iter is not a count"},
        {"iter", " 7", "iter is not a count"},
        {"iter", "7x", "iter is not a count"},
        {"iter", "18446744073709551616", "iter is not a count"},
        {"settings", NULL, "settings are not a JSON object"},
        {"settings", "", "settings are not a JSON object"},
        {"settings", "[1]", "settings are not a JSON object"},
        {"settings", "{\"n_layer\":", "settings are not a JSON object"},
        {"settings", "{\"n_layer\":2,\"n_layer\":3}", "settings are not a JSON object"},
        {"tokenizer", "7", "tokenizer are not a JSON object"},
    };
    forge_entries list;
    forge_list(&model, &list);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *meta = forge_metadata(&model);
        if (cases[i].value)
            json_object_set_new(meta, cases[i].key, json_string(cases[i].value));
        else
            json_object_del(meta, cases[i].key);
        forge_write(path, list.tensors, list.n, meta, 0);
        refused(cases[i].why);
        json_decref(meta);
    }
}

/* Values that the quantizer never writes. */
TEST(test_wrong_values)
{
    static const struct {
        const char *tensor;
        size_t at;
        const char *data;
        size_t bytes;
        const char *why;
    } cases[] = {
        {"tok_emb.weight", 70399, "\x80", 1, "int8"},
        {"tok_emb.weight.scale", 2 * 1099, "\0\0", 2, "scale"},
        {"tok_emb.weight.scale", 2 * 3, "\0\xbc", 2, "scale"},
        {"tok_emb.weight.scale", 0, "\0\x7c", 2, "scale"},
        {"blocks.0.mlp.fc.weight", 2 * 11, "\0\x7c", 2, "not finite"},
        {"blocks.1.attn.q_gain", 4, "\0\0\xc0\x7f", 4, "not finite"},
        {"skip_weights", 0, "\0\0\x80\xff", 4, "not finite"},
    };
    size_t bytes;
    assert_ok(old_artifact_write(path, &model.table, model.params, &model.about));
    char *whole = forge_decompress(path, &bytes);
    const char *inner = lks_test_text("%s/inner", lks_test_folder());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        forge_entries list;
        uint64_t head, at;
        memcpy(&head, whole, 8);
        at = 8 + head + cases[i].at;
        forge_list(&model, &list);
        for (size_t t = 0; strcmp(list.tensors[t].name, cases[i].tensor) != 0; t++)
            at += list.tensors[t].bytes;
        char keep[4];
        memcpy(keep, whole + at, cases[i].bytes);
        memcpy(whole + at, cases[i].data, cases[i].bytes);
        forge_compress(path, whole, bytes);
        refused(cases[i].why);
        assert_contains(lks_last_error(), lks_test_text("tensor %.*s", 14, cases[i].tensor));
        memcpy(whole + at, keep, cases[i].bytes);
    }
    forge_compress(inner, whole, bytes);
    assert_ok(forge_load(inner, &model.table, arena));
    free(whole);
}

int main(void)
{
    return lks_test_run_all(set_up, tear_down);
}
