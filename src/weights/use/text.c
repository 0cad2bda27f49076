#include "weights/use/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "data/text/byte_tokens.h"
#include "data/text/sentencepiece/spm_text.h"

/* Open the vocabulary of GPT-2's tokens at `path`, or the one that the run keeps. */
static lks_status open_vocabulary(const char *path, const lks__replica *r, lks__text *t)
{
    char kept[LKS__SYS_PATH];
    uint64_t hash;
    if (path[0] == '\0' && r->vocabulary[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG, "the weights come without their vocabulary: give it as "
                                         "--tokenizer_path=DIR");
    snprintf(kept, sizeof kept, "%s/" LKS__BPE_FILE, r->vocabulary);
    if (path[0] == '\0')
        path = kept;
    LKS__TRY(lks__bpe_open(path, &t->bpe));
    LKS__TRY(lks__bpe_hash(t->bpe, &hash));
    if (hash == r->meta.model_hash)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the vocabulary %s is not the checkpoint's own: its "
                     "hash is %016" PRIx64 ", not %016" PRIx64
                     "; give the checkpoint's vocabulary as --tokenizer_path=DIR",
                     lks__shown(path, 256), hash, r->meta.model_hash);
}

/* Open the SentencePiece model at `path`, which must be the one that the checkpoint was trained
 * with. */
static lks_status open_pieces(const char *path, lks__text *t)
{
    LKS__TRY(lks__spm_open(path, &t->spm));
    const char *shown = lks__shown(path, 256);
    if (lks__spm_size(t->spm) != t->meta->vocab_size)
        return lks__fail(LKS_ERR_CONFIG,
                         "the SentencePiece model %s has %u tokens, but the checkpoint's "
                         "vocabulary has %u: give the model that it was trained with",
                         shown, lks__spm_size(t->spm), t->meta->vocab_size);
    if (t->meta->is_sentencepiece && lks__spm_hash(t->spm) != t->meta->model_hash)
        return lks__fail(
            LKS_ERR_CONFIG,
            "the SentencePiece model %s is not the checkpoint's own: its hash is %016" PRIx64
            ", not %016" PRIx64,
            shown, lks__spm_hash(t->spm), t->meta->model_hash);
    return LKS_OK;
}

/* Open a vocabulary for weights that don't say which one they were trained with. */
static lks_status open_any(const char *path, lks__text *t)
{
    LKS__TRY(lks__bpe_open(path, &t->bpe));
    if (lks__bpe_size(t->bpe) <= t->meta->vocab_size)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the vocabulary %s has %u tokens, but the model only %u: give the vocabulary "
                     "that it was trained with as --tokenizer=DIR",
                     lks__shown(path, 256), lks__bpe_size(t->bpe), t->meta->vocab_size);
}

/* Open a folder of data, or the data script's description of single bytes, for weights that don't
 * describe their tokens. *found_p: true for characters or bytes. */
static lks_status open_own(const char *path, lks__text *t, bool *found_p)
{
    const uint32_t have = t->meta->vocab_size;
    lks__meta *own = calloc(1, sizeof *own);
    LKS__MEMORY(own, "for a vocabulary");
    t->own = own;
    LKS__TRY(lks__byte_tokens_at(path, found_p));
    if (*found_p)
        *own = (lks__meta){.vocab_size = LKS__BYTE_TOKENS, .is_bytes = true};
    else
        LKS__TRY(lks__meta_load_any(path, found_p, own));
    *found_p = *found_p && (own->chars != NULL || own->is_bytes);
    if (!*found_p)
        return LKS_OK;
    if (own->vocab_size > have)
        return lks__fail(LKS_ERR_CONFIG,
                         "the vocabulary in %s has %u %s, but the model only %u tokens: give the "
                         "vocabulary that it was trained with as --tokenizer=DIR",
                         lks__shown(path, 256), own->vocab_size,
                         own->is_bytes ? "tokens" : "characters", have);
    t->meta = own;
    return LKS_OK;
}

/* Single bytes and a checkpoint's characters need no file; if one is given, it must describe the
 * same ones. */
static lks_status open_described(const char *path, const lks__replica *r, lks__text *t)
{
    bool found = path[0] == '\0';
    if (!found)
        LKS__TRY(open_own(path, t, &found));
    if (found && t->meta->vocab_size == r->meta.vocab_size && !lks__meta_differ(t->meta, &r->meta))
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the model's tokens are %s, which need no tokenizer, and %s isn't a "
                     "description of them: leave the tokenizer out",
                     r->meta.is_bytes ? "single bytes" : "its own characters",
                     lks__shown(path, 256));
}

lks_status lks__text_open(const char *path, const lks__replica *r, lks__text *t)
{
    *t = (lks__text){.meta = &r->meta};
    if (r->meta.is_bpe)
        return open_vocabulary(path, r, t);
    if (r->meta.is_bytes || r->meta.chars != NULL)
        return open_described(path, r, t);
    if (!r->meta.is_sentencepiece) {
        const char *vocabulary = path[0] != '\0' ? path : r->vocabulary;
        bool found = false;
        const lks_status st = open_own(vocabulary, t, &found);
        if (st == LKS_OK && found)
            return LKS_OK;
        if (lks__bpe_is_at(vocabulary)) /* a meta.json that says nothing may be next to it */
            return open_any(vocabulary, t);
        LKS__TRY(st);
    }
    return path[0] != '\0' ? open_pieces(path, t) : LKS_OK;
}

bool lks__text_known(const lks__text *t)
{
    return t->bpe != NULL || t->spm != NULL || t->meta->chars != NULL || t->meta->is_bytes;
}

void lks__text_close(lks__text *t)
{
    lks__spm_close(t->spm);
    lks__bpe_close(t->bpe);
    if (t->own != NULL)
        lks__meta_free(t->own);
    free(t->own);
    *t = (lks__text){0};
}

/* If normalization leaves nothing, begin as documents do, with BOS. */
static lks_status encode_pieces(const lks__spm *spm, const char *text, size_t bytes,
                                int32_t **ids_p, size_t *n_p)
{
    uint32_t cp;
    for (size_t i = 0, n; i < bytes; i += n) {
        n = lks__utf8_decode(text + i, bytes - i, &cp);
        if (n == 0)
            return lks__fail(LKS_ERR_FORMAT, "byte 0x%02x at offset %zu is not valid UTF-8",
                             (unsigned char)text[i], i);
    }
    LKS__TRY(lks__spm_encode(spm, text, bytes, ids_p, n_p));
    if (*n_p == 0 && lks__spm_bos(spm) >= 0) /* there is room for one */
        (*ids_p)[(*n_p)++] = lks__spm_bos(spm);
    return LKS_OK;
}

static lks_status encode_bpe(const lks__text *t, const char *text, size_t bytes, int32_t **ids_p,
                             size_t *n_p)
{
    lks__bpe_work *work = lks__bpe_work_open();
    lks_status st = LKS_OK;
    *ids_p = malloc((bytes + 1) * sizeof **ids_p);
    if (work == NULL || *ids_p == NULL)
        st = lks__no_memory("for the prompt's tokens");
    else if (t->special)
        st = lks__bpe_encode_special(t->bpe, work, text, bytes, *ids_p, n_p);
    else
        st = lks__bpe_encode(t->bpe, work, text, bytes, *ids_p, n_p);
    lks__bpe_work_close(work);
    return st;
}

lks_status lks__text_encode(const lks__text *t, const char *text, size_t bytes, int32_t **ids_p,
                            size_t *n_p)
{
    if (t->bpe != NULL)
        return encode_bpe(t, text, bytes, ids_p, n_p);
    if (t->special)
        return lks__fail(
            LKS_ERR_CONFIG,
            "--special is only for GPT-2's tokens, which this model doesn't use: leave it out");
    if (t->spm != NULL)
        return encode_pieces(t->spm, text, bytes, ids_p, n_p);
    LKS__TRY(lks__meta_encode(t->meta, text, bytes, ids_p, n_p));
    if (t->meta->is_bytes && *n_p == 0) /* documents begin this way; there is room for one */
        (*ids_p)[(*n_p)++] = LKS__BYTE_BOS;
    return LKS_OK;
}

lks_status lks__text_add(const lks__text *t, int32_t id, lks__utf8_stream *out)
{
    char text[16];
    size_t n;
    if (t->spm != NULL)
        return lks__spm_text_add(t->spm, id, out);
    if (t->bpe == NULL) {
        n = lks__meta_decode(t->meta, id, text);
        return lks__utf8_stream_add(out, text, n);
    }
    const char *bytes = lks__bpe_bytes(t->bpe, id, &n);
    return lks__utf8_stream_add(out, bytes == NULL ? "\xef\xbf\xbd" : bytes, bytes == NULL ? 3 : n);
}

bool lks__text_has(const lks__text *t, int32_t id)
{
    size_t n;
    if (t->bpe != NULL)
        return lks__bpe_bytes(t->bpe, id, &n) != NULL;
    return (uint32_t)id < t->meta->vocab_size;
}

lks_status lks__text_ids(const lks__text *t, size_t V, bool **has_p)
{
    bool *has = malloc(V * sizeof *has);
    LKS__MEMORY(has, "for %zu ids", V);
    for (size_t i = 0; i < V; i++)
        has[i] = lks__text_has(t, (int32_t)i);
    *has_p = has;
    return LKS_OK;
}
