/* Pickles, with storages for tensors and without. */
#include "files/pickle/pickle.h"

#include <stdio.h>

#include "fuzz.h"

const char *const fuzz_words[] = {
    "\x80\x02",
    "\x80\x04\x95",
    "ccollections\nOrderedDict\n",
    "ctorch._utils\n_rebuild_tensor_v2\n",
    "ctorch._utils\n_rebuild_parameter\n",
    "ctorch\nFloatStorage\n",
    "ctorch\nBoolStorage\n",
    "c_codecs\nencode\n",
    "X\x06",
    "latin1",
    "storage",
    "\x8c\x01",
    "\x8d",
    "\x8a\x08",
    "\x8b",
    "\x85",
    "\x86",
    "\x87",
    "\x93",
    "\x94",
    "(",
    ")",
    "]",
    "}",
    "tQ",
    ")R",
    "tR",
    "u",
    "e",
    "K\xff",
    "J\xff\xff\xff\xff",
    "q\x01h\x01",
    NULL,
};

static void seed(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/figures/pickle/%s", LKS_TEST_SOURCE_DIR, name);
    fuzz_seed_file(path);
}

void fuzz_seeds(void)
{
    seed("meta.pkl");
    seed("plain2.pkl");
    seed("plain4.pkl");
    fuzz_seed_text("\x80\x02}(X\x01");
    static const char tensor[] =
        "\x80\2}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n(("
        "X\7\0\0\0storagectorch\nHalfStorage\n"
        "X\1\0\0\0000X\3\0\0\0cpuK\6tQK\0K\2K\3\x86K\3K\1\x86\x89"
        "ccollections\nOrderedDict\n)RtRq\5sX\1\0\0\0bctorch._utils\n_rebuild_parameter\nh\5\x88"
        "ccollections\nOrderedDict\n)R\x87Rs.";
    fuzz_seed(tensor, sizeof tensor - 1);
    static const char bytes[] =
        "\x80\2]q\0c_codecs\nencode\nX\3\0\0\0\xc3\xbf!X\6\0\0\0latin1\x86Ra"
        "K\1a(M\1\2J\1\2\3\4G\1\2\3\4\5\6\7\x08NK\2\x85t\x90.";
    fuzz_seed(bytes, sizeof bytes - 1);
}

static void use(const lks__pickle_value *v);

static void use_tensor(const lks__pickle_tensor *t)
{
    uint64_t last = t->first;
    FUZZ_HOLDS(t->n_dims >= 0 && t->n_dims <= LKS__PICKLE_MAX_DIMS);
    FUZZ_HOLDS(t->count <= t->storage->count);
    for (int d = 0; d < t->n_dims && t->count > 0; d++)
        last += (t->shape[d] - 1) * t->stride[d];
    FUZZ_HOLDS(t->count == 0 || last < t->storage->count);
}

static void use_dict(const lks__pickle_value *v)
{
    for (size_t i = 0; i < lks__pickle_count(v); i++) {
        const lks__pickle_value *key = lks__pickle_key(v, i), *item = lks__pickle_item(v, i);
        size_t bytes;
        if (lks__pickle_kind_of(key) == LKS__PICKLE_INT) {
            FUZZ_HOLDS(lks__pickle_find_int(v, lks__pickle_int(key)) == item);
        } else {
            const char *text = lks__pickle_text(key, &bytes);
            FUZZ_HOLDS(lks__pickle_find_text(v, text, bytes) == item);
        }
    }
}

/* Everything that a caller could look at, to the first 10,000 values. */
static int left;

static void use(const lks__pickle_value *v)
{
    if (left-- <= 0)
        return;
    switch (lks__pickle_kind_of(v)) {
    case LKS__PICKLE_DICT:
        use_dict(v);
        __attribute__((fallthrough));
    case LKS__PICKLE_TUPLE:
    case LKS__PICKLE_LIST:
        for (size_t i = 0; i < lks__pickle_count(v); i++)
            use(lks__pickle_item(v, i));
        break;
    case LKS__PICKLE_TENSOR:
        use_tensor(lks__pickle_tensor_of(v));
        break;
    default:
        break;
    }
}

static lks_status has_any(void *ctx, const lks__pickle_storage *s, uint64_t bytes)
{
    FUZZ_HOLDS(bytes == s->count * s->item_bytes);
    return s->count < 1000 ? LKS_OK : LKS_ERR_FORMAT;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    for (int with = 0; with < 2; with++) {
        lks__pickle *p = NULL;
        if (lks__pickle_parse("x", data, bytes, with ? has_any : NULL, NULL, &p) == LKS_OK) {
            left = 10000;
            use(lks__pickle_root(p));
            lks__pickle_close(p);
        }
    }
    return 0;
}
