#include "data/prep.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/jsontext.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "data/meta.h"
#include "data/staged.h"

enum {
    N_CODE_POINTS = 0x110000,
    MAX_CHARS = 1 << 16, /* ids are uint16 */
};

struct text {
    const char *name; /* name of the file, escaped */
    const char *bytes;
    size_t n_bytes;
};

/* Every megabyte of a pass over the text, check for a request to stop. */
static lks_status check_stop(size_t i, size_t *next_p)
{
    enum { BLOCK = 1 << 20 };
    if (i < *next_p)
        return LKS_OK;
    *next_p = i + BLOCK;
    return lks__sys_stop_check();
}

/* The next code point at *i_p; CRLF and CR give LF. The text is known to be valid. */
static uint32_t next_char(const struct text *text, size_t *i_p)
{
    uint32_t cp = 0;
    *i_p += lks__utf8_decode(text->bytes + *i_p, text->n_bytes - *i_p, &cp);
    if (cp != '\r')
        return cp;
    if (*i_p < text->n_bytes && text->bytes[*i_p] == '\n')
        ++*i_p;
    return '\n';
}

static lks_status check_utf8(const struct text *text)
{
    uint32_t cp;
    size_t len, next = 0;
    for (size_t i = 0; i < text->n_bytes; i += len) {
        LKS__TRY(check_stop(i, &next));
        len = lks__utf8_decode(text->bytes + i, text->n_bytes - i, &cp);
        if (len == 0)
            return lks__fail(LKS_ERR_FORMAT,
                             "%s is not valid UTF-8: byte 0x%02x at offset %zu; convert it first, "
                             "for instance with iconv -t UTF-8",
                             text->name, (unsigned char)text->bytes[i], i);
    }
    return LKS_OK;
}

/* Collect the different characters in code-point order, and count all characters of the text. `ids`
 * maps code points to ids. */
static lks_status collect(const struct text *text, uint16_t ids[N_CODE_POINTS], lks__meta *meta,
                          uint64_t *n_p)
{
    uint64_t n = 0;
    uint32_t vocab_size = 0, last = 0;
    bool *seen = calloc(N_CODE_POINTS, sizeof *seen);
    if (!seen)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the character table");
    lks_status st = LKS_OK;
    for (size_t i = 0, next = 0; i < text->n_bytes && st == LKS_OK; n++) {
        st = check_stop(i, &next);
        uint32_t cp = next_char(text, &i);
        vocab_size += !seen[cp];
        seen[cp] = true;
        if (cp > last)
            last = cp;
    }
    if (st != LKS_OK) {
        free(seen);
        return st;
    }
    if (vocab_size > MAX_CHARS) {
        free(seen);
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has %u different characters; token files hold at most %d", text->name,
                         vocab_size, MAX_CHARS);
    }
    meta->chars = malloc((vocab_size + 1) * sizeof *meta->chars);
    if (!meta->chars) {
        free(seen);
        return lks__fail(LKS_ERR_NOMEM, "no memory for %u characters", vocab_size);
    }
    for (uint32_t cp = 0; cp <= last; cp++)
        if (seen[cp]) {
            ids[cp] = (uint16_t)meta->vocab_size;
            meta->chars[meta->vocab_size++] = cp;
        }
    free(seen);
    *n_p = n;
    return LKS_OK;
}

static lks_status encode(const struct text *text, const uint16_t *ids, uint8_t *out)
{
    for (size_t i = 0, next = 0; i < text->n_bytes;) {
        LKS__TRY(check_stop(i, &next));
        uint16_t id = ids[next_char(text, &i)];
        *out++ = (uint8_t)id;
        *out++ = (uint8_t)(id >> 8);
    }
    return LKS_OK;
}

/* Number of characters for training. In double and truncated, as int(n*0.9) in nanoGPT's
 * prepare.py; 1 - 0.1 is exactly 0.9. */
static lks_status split(const char *name, uint64_t n, double val_fraction, uint64_t *n_train_p)
{
    uint64_t n_train = (uint64_t)((double)n * (1.0 - val_fraction));
    *n_train_p = n_train;
    if (n_train > 0 && n_train < n)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT,
                     "%s has %llu character%s: with val_fraction %g that leaves the %s split empty",
                     name, (unsigned long long)n, n == 1 ? "" : "s", val_fraction,
                     n_train == 0 ? "train" : "val");
}

/* All files are complete on disk before the first gets its name. */
static lks_status write_files(const char *out_dir, const lks__meta *meta, const uint8_t *tokens,
                              uint64_t n_train, uint64_t n_val)
{
    json_t *json = lks__meta_to_json(meta);
    char *text = json ? lks__json_dump(json, JSON_COMPACT) : NULL;
    lks__staged staged = {.dir = out_dir};
    lks_status st =
        text ? lks__sys_make_dirs(out_dir) : lks__fail(LKS_ERR_NOMEM, "no memory for meta.json");
    if (st == LKS_OK)
        st = lks__staged_add(&staged, "train.bin", tokens, 2 * n_train);
    if (st == LKS_OK)
        st = lks__staged_add(&staged, "val.bin", tokens + 2 * n_train, 2 * n_val);
    if (st == LKS_OK)
        st = lks__staged_add(&staged, "meta.json", text, strlen(text));
    if (st == LKS_OK)
        st = lks__staged_commit(&staged);
    lks__staged_close(&staged);
    free(text);
    json_decref(json);
    return st;
}

/* Make token files of a text that is in memory. */
static lks_status prepare(const struct text *text, const char *out_dir, double val_fraction,
                          lks__meta *meta, lks__prep_result *result)
{
    uint64_t n = 0, n_train = 0;
    if (text->n_bytes == 0)
        return lks__fail(LKS_ERR_FORMAT, "%s is empty: it has no text to make tokens of",
                         text->name);
    LKS__TRY(check_utf8(text));
    uint16_t *ids = malloc(N_CODE_POINTS * sizeof *ids);
    if (!ids)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the character table");
    uint8_t *tokens = NULL;
    lks_status st = collect(text, ids, meta, &n);
    if (st == LKS_OK)
        st = split(text->name, n, val_fraction, &n_train);
    if (st == LKS_OK && !(tokens = malloc(2 * n)))
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %llu tokens", (unsigned long long)n);
    if (st == LKS_OK)
        st = encode(text, ids, tokens);
    if (st == LKS_OK) {
        st = write_files(out_dir, meta, tokens, n_train, n - n_train);
        *result = (lks__prep_result){meta->vocab_size, n_train, n - n_train};
    }
    free(tokens);
    free(ids);
    return st;
}

lks_status lks__prep_char(const char *input, const char *out_dir, double val_fraction,
                          lks__prep_result *result)
{
    char *data = NULL, name[256];
    lks__meta meta = {0};
    struct text text = {.name = lks__escape(name, sizeof name, input, strlen(input))};
    if (!(val_fraction > 0 && val_fraction < 1))
        return lks__fail(LKS_ERR_CONFIG, "val_fraction is %g; it must lie between 0 and 1",
                         val_fraction);
    LKS__TRY(lks__sys_read_file(input, SIZE_MAX / 8, &data, &text.n_bytes));
    text.bytes = data;
    lks_status st = prepare(&text, out_dir, val_fraction, &meta, result);
    lks__meta_free(&meta);
    free(data);
    return st;
}
