#include "data/text/sentencepiece/spm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/system/module.h"
#include "base/system/sys.h"
#include "data/text/meta.h"
#include "data/text/sentencepiece/spm_check.h"

enum {
    MAX_MODEL_BYTES = 64 << 20, /* models of 256,000 pieces need 4 MB */
    MAX_TEXT_BYTES = 1 << 30,   /* SentencePiece counts in int */
    WHY_BYTES = 512,
};

struct lks__spm {
    const lks__spm_module *module;
    void *sp;
    uint32_t size;
    uint64_t hash;
};

/* ---- the module -------------------------------------------------------------------------- */

static lks_status module_open(const lks__spm_module **module_p)
{
    static lks__module spm = {
        .file = LKS__SPM_MODULE_FILE,
        .version = LKS__SPM_MODULE_VERSION,
        .package = "libsentencepiece-dev",
        .failure = "cannot use SentencePiece",
        .mutex = PTHREAD_MUTEX_INITIALIZER,
    };
    *module_p = lks__module_get(&spm);
    return *module_p != NULL ? LKS_OK : LKS_ERR_SUPPORT;
}

lks_status lks__spm_available(void)
{
    const lks__spm_module *module;
    return module_open(&module);
}

static lks_status no_memory(void)
{
    return lks__no_memory("for SentencePiece");
}

/* ---- models ------------------------------------------------------------------------------ */

lks_status lks__spm_open_bytes(const char *model, size_t bytes, const char *where, lks__spm **spm_p)
{
    const lks__spm_module *module;
    char why[WHY_BYTES], *plain;
    size_t plain_bytes;
    LKS__TRY(module_open(&module));
    LKS__TRY(lks__spm_check(model, bytes, where, &plain, &plain_bytes));
    lks__spm *spm = calloc(1, sizeof *spm);
    if (!spm) {
        free(plain);
        return lks__no_memory("to open %s", where);
    }
    spm->module = module;
    spm->hash = XXH3_64bits(model, bytes);
    spm->sp = plain ? module->open(plain, plain_bytes, why, sizeof why)
                    : module->open(model, bytes, why, sizeof why);
    free(plain);
    if (!spm->sp) {
        free(spm);
        if (why[0] == '\0')
            return no_memory();
        return lks__fail(LKS_ERR_FORMAT, "%s is not a SentencePiece model, or it is damaged: %s",
                         where, lks__shown(why, WHY_BYTES));
    }
    int size = module->size(spm->sp);
    if (size < 1) {
        lks__spm_close(spm);
        return lks__fail(LKS_ERR_FORMAT, "%s has no pieces", where);
    }
    spm->size = (uint32_t)size;
    *spm_p = spm;
    return LKS_OK;
}

lks_status lks__spm_read(const char *path, char **model_p, size_t *bytes_p)
{
    char *file = NULL;
    if (lks__sys_is_folder(path) && asprintf(&file, "%s/" LKS__META_MODEL, path) < 0)
        return no_memory();
    const lks_status st =
        lks__sys_read_file(file != NULL ? file : path, MAX_MODEL_BYTES, model_p, bytes_p);
    free(file);
    return st;
}

lks_status lks__spm_open(const char *path, lks__spm **spm_p)
{
    char *model;
    size_t bytes;
    const lks__spm_module *module;
    LKS__TRY(module_open(
        &module)); /* before the file is read: a missing module is the error to report */
    LKS__TRY(lks__spm_read(path, &model, &bytes));
    const char *where = lks__shown(path, 256);
    lks_status st = lks__spm_open_bytes(model, bytes, where, spm_p);
    free(model);
    return st;
}

void lks__spm_close(lks__spm *spm)
{
    if (!spm)
        return;
    spm->module->close(spm->sp);
    free(spm);
}

uint64_t lks__spm_hash(const lks__spm *spm)
{
    return spm->hash;
}

uint32_t lks__spm_size(const lks__spm *spm)
{
    return spm->size;
}

int32_t lks__spm_bos(const lks__spm *spm)
{
    int id = spm->module->bos(spm->sp);
    return id >= 0 && (uint32_t)id < spm->size ? id : -1;
}

const char *lks__spm_piece(const lks__spm *spm, uint32_t id, size_t *bytes_p)
{
    return spm->module->piece(spm->sp, (int)id, bytes_p);
}

unsigned lks__spm_kind(const lks__spm *spm, uint32_t id)
{
    return spm->module->kind(spm->sp, (int)id);
}

lks_status lks__spm_encode(const lks__spm *spm, const char *text, size_t bytes, int32_t **ids_p,
                           size_t *n_p)
{
    char why[WHY_BYTES];
    int32_t *ids;
    size_t n;
    if (bytes > MAX_TEXT_BYTES)
        return lks__fail(LKS_ERR_ARG, "a text of %zu bytes is too long; %d are the most", bytes,
                         MAX_TEXT_BYTES);
    if (spm->module->encode(spm->sp, text, bytes, &ids, &n, why, sizeof why) != 0)
        return why[0] == '\0'
                   ? no_memory()
                   : lks__fail(LKS_ERR_FORMAT, "SentencePiece can't encode a text of %zu bytes: %s",
                               bytes, lks__shown(why, WHY_BYTES));
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= spm->size) {
            int32_t id = ids[i];
            free(ids);
            return lks__fail(LKS_ERR_FORMAT,
                             "the SentencePiece model gives token id %d, beyond its own vocabulary "
                             "of %u: it is damaged",
                             id, spm->size);
        }
    *ids_p = ids;
    *n_p = n;
    return LKS_OK;
}

/* SentencePiece suggests a smaller character_coverage, which is fixed here, as in the exporter. In
 * its message "… vs N" is the smallest vocabulary: bytes, special tokens, and most of the
 * characters. */
static lks_status cannot_train(uint32_t vocab_size, const char *why)
{
    const char *too_small = strstr(why, "required_chars");
    const char *least = too_small != NULL ? strstr(too_small, " vs ") : NULL;
    const unsigned long n = least != NULL ? strtoul(least + 4, NULL, 10) : 0;
    if (n > vocab_size)
        return lks__fail(
            LKS_ERR_CONFIG,
            "a vocabulary of %u tokens is too small for this text: its characters, the "
            "256 bytes and 4 special tokens take %lu; give --vocab_size=%lu or more",
            vocab_size, n, n);
    return lks__fail(LKS_ERR_FORMAT,
                     "SentencePiece can't train a vocabulary of %u tokens on this text: %s",
                     vocab_size, lks__shown(why, WHY_BYTES));
}

lks_status lks__spm_train(uint32_t vocab_size, lks__spm_next *next, void *ctx, char **model_p,
                          size_t *bytes_p)
{
    const lks__spm_module *module;
    char why[WHY_BYTES], size[16], longest[16];
    LKS__TRY(module_open(&module));
    snprintf(size, sizeof size, "%u", vocab_size);
    snprintf(longest, sizeof longest, "%d", MAX_TEXT_BYTES);
    /* clang-format off */
    const char *const options[] = {
        "model_type", "bpe", /* as in the exporter */
        "vocab_size", size,
        "character_coverage", "0.999",
        "byte_fallback", "true",
        "split_digits", "true",
        "normalization_rule_name", "nmt_nfkc",
        "add_dummy_prefix", "false",
        "pad_id", "0",
        "bos_id", "1",
        "eos_id", "2",
        "unk_id", "3",
        "hard_vocab_limit", "false",
        "max_sentence_length", longest, /* by default it drops sentences of over 4,192 bytes */
        "minloglevel", "1", /* print only warnings */
        NULL,
    };
    /* clang-format on */
    if (module->train(options, next, ctx, model_p, bytes_p, why, sizeof why) != 0)
        return why[0] == '\0' ? no_memory() : cannot_train(vocab_size, why);
    return LKS_OK;
}
