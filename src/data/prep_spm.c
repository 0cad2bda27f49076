#include <dirent.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/jsontext.h"
#include "base/sys.h"
#include "data/docs.h"
#include "data/meta.h"
#include "data/prep.h"
#include "data/shards.h"
#include "data/spm.h"
#include "data/staged.h"

enum {
    MAX_VOCAB = 1 << 16, /* ids are uint16 in the shards */
    MAX_MODEL_BYTES = 64 << 20,
    HEADER_BYTES = 1024,
    SHARD_MAGIC = 20240520,
    SHARD_VERSION = 1,
};

/* The trainer holds all of its text in memory, and more than this doesn't improve a vocabulary. */
static const uint64_t TRAINER_BYTES = UINT64_C(256) << 20;

struct prep {
    const lks__prep_spm_options *o;
    lks__docs *docs;
    uint64_t n_docs, n_val_docs;
    char *model; /* the bytes of SentencePiece's file */
    size_t model_bytes;
    lks__spm *spm;
    lks__staged staged;
    uint8_t *shard;       /* the shard being filled, header first; grows up to shard_tokens */
    uint64_t n, room;     /* tokens in the shard, and its capacity */
    const char *split;    /* "val", then "train" */
    int n_shards;         /* shards of that split written so far */
    uint64_t n_tokens[2]; /* train, val */
};

/* ---- how many documents ------------------------------------------------------------------ */

static lks_status count_docs(struct prep *p)
{
    const char *text;
    size_t bytes;
    for (;;) {
        LKS__TRY(lks__docs_next(p->docs, &text, &bytes));
        if (!text)
            break;
        p->n_docs++;
    }
    const char *name = lks__docs_name(p->docs);
    if (p->n_docs == 0)
        return lks__fail(LKS_ERR_FORMAT, "%s is empty: it has no text to make tokens of", name);
    if (p->n_docs == 1)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is one document, but both training and validation take at least one: "
                         "divide documents by blank lines, or give JSON lines (a name that ends in "
                         ".jsonl)",
                         name);
    p->n_val_docs = (uint64_t)((double)p->n_docs * p->o->val_fraction);
    if (p->n_val_docs == 0)
        p->n_val_docs = 1;
    if (p->n_val_docs >= p->n_docs)
        p->n_val_docs = p->n_docs - 1;
    return LKS_OK;
}

/* ---- the model --------------------------------------------------------------------------- */

struct sentences {
    struct prep *p;
    uint64_t doc, bytes;
    char *text; /* the sentence returned last */
    lks_status st;
    char why[512]; /* the error of st; the trainer then gets no sentences and reports a misleading
                      one */
};

static int no_sentence(struct sentences *s)
{
    if (s->st != LKS_OK)
        snprintf(s->why, sizeof s->why, "%s", lks_last_error());
    return 0;
}

/* Give the trainer a document as the exporter does: NUL as a space, no white space around it, no
 * empty ones. */
static int next_sentence(void *ctx, const char **text_p, size_t *bytes_p)
{
    struct sentences *s = ctx;
    const char *text;
    size_t n;
    while (s->bytes < TRAINER_BYTES) {
        s->st = lks__docs_next(s->p->docs, &text, &n);
        if (s->st != LKS_OK || !text)
            return no_sentence(s);
        if (s->doc++ < s->p->n_val_docs)
            continue;
        char *copy = realloc(s->text, n + 1);
        if (!copy) {
            s->st = lks__fail(LKS_ERR_NOMEM, "no memory for a document of %zu bytes", n);
            return no_sentence(s);
        }
        s->text = copy;
        for (size_t i = 0; i < n; i++)
            copy[i] = text[i] == '\0' ? ' ' : text[i];
        while (n > 0 && strchr(" \t\n\v\f\r", copy[n - 1]))
            n--;
        copy[n] = '\0';
        size_t skip = strspn(copy, " \t\n\v\f\r");
        if (skip == n)
            continue;
        s->bytes += n - skip;
        *text_p = copy + skip;
        *bytes_p = n - skip;
        return 1;
    }
    return 0;
}

static lks_status train_model(struct prep *p)
{
    struct sentences s = {.p = p, .st = LKS_OK};
    lks__docs_rewind(p->docs);
    if (p->o->training)
        p->o->training(true);
    lks_status st = lks__spm_train(p->o->vocab_size, next_sentence, &s, &p->model, &p->model_bytes);
    if (p->o->training)
        p->o->training(false);
    free(s.text);
    if (s.st != LKS_OK)
        return lks__fail(s.st, "%s", s.why);
    return st == LKS_OK ? st : lks__fail_in(st, "%s", lks__docs_name(p->docs));
}

static lks_status get_model(struct prep *p)
{
    char where[256];
    const char *path = p->o->tokenizer;
    if (path && *path) {
        LKS__TRY(lks__spm_available()); /* check this first: another input can't mend it */
        LKS__TRY(lks__sys_read_file(path, MAX_MODEL_BYTES, &p->model, &p->model_bytes));
    } else {
        path = "the model that was trained";
        LKS__TRY(train_model(p));
    }
    lks__escape(where, sizeof where, path, strlen(path));
    LKS__TRY(lks__spm_open_bytes(p->model, p->model_bytes, where, &p->spm));
    uint32_t size = lks__spm_size(p->spm);
    if (p->o->tokenizer && *p->o->tokenizer && p->o->vocab_size != 0 && p->o->vocab_size != size)
        return lks__fail(LKS_ERR_CONFIG,
                         "vocab_size = %" PRIu32 ", but %s has %" PRIu32
                         " tokens: leave --vocab_size out",
                         p->o->vocab_size, where, size);
    if (size > MAX_VOCAB)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has %" PRIu32
                         " tokens; the ids in token shards are uint16: %d are the "
                         "most",
                         where, size, MAX_VOCAB);
    if (lks__spm_bos(p->spm) < 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has no token for the beginning of a document (BOS), which divides "
                         "documents in token shards",
                         where);
    return LKS_OK;
}

/* ---- shards ------------------------------------------------------------------------------ */

static void put_u32(uint8_t *out, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(x >> (8 * i));
}

static lks_status write_shard(struct prep *p)
{
    char name[64];
    if (p->n == 0)
        return LKS_OK;
    memset(p->shard, 0, HEADER_BYTES);
    put_u32(p->shard, SHARD_MAGIC);
    put_u32(p->shard + 4, SHARD_VERSION);
    put_u32(p->shard + 8, (uint32_t)p->n);
    snprintf(name, sizeof name, "fineweb_%s_%06d.bin", p->split, p->n_shards++);
    LKS__TRY(lks__staged_add(&p->staged, name, p->shard, HEADER_BYTES + 2 * (size_t)p->n));
    p->n = 0;
    return LKS_OK;
}

static lks_status put_token(struct prep *p, int32_t id)
{
    if (p->n == p->room) {
        uint64_t room = p->room ? 2 * p->room : 1 << 16;
        if (room > p->o->shard_tokens)
            room = p->o->shard_tokens;
        uint8_t *grown = realloc(p->shard, HEADER_BYTES + 2 * (size_t)room);
        if (!grown)
            return lks__fail(LKS_ERR_NOMEM, "no memory for a shard of %" PRIu64 " tokens", room);
        p->shard = grown;
        p->room = room;
    }
    uint8_t *out = p->shard + HEADER_BYTES + 2 * p->n++;
    out[0] = (uint8_t)id;
    out[1] = (uint8_t)((uint32_t)id >> 8);
    return p->n == p->o->shard_tokens ? write_shard(p) : LKS_OK;
}

static lks_status put_doc(struct prep *p, const char *text, size_t bytes, uint64_t *n_tokens_p)
{
    int32_t *ids;
    size_t n;
    lks_status st = put_token(p, lks__spm_bos(p->spm));
    if (st == LKS_OK)
        st = lks__spm_encode(p->spm, text, bytes, &ids, &n);
    if (st != LKS_OK)
        return st;
    for (size_t i = 0; i < n && st == LKS_OK; i++)
        st = put_token(p, ids[i]);
    free(ids);
    *n_tokens_p += 1 + n;
    return st;
}

static lks_status write_docs(struct prep *p)
{
    const char *text;
    size_t bytes;
    uint64_t doc = 0;
    lks__docs_rewind(p->docs);
    p->split = "val";
    for (;; doc++) {
        LKS__TRY(lks__docs_next(p->docs, &text, &bytes));
        if (doc == p->n_val_docs) {
            LKS__TRY(write_shard(p));
            p->split = "train";
            p->n_shards = 0;
        }
        if (!text || doc == p->n_docs)
            break;
        LKS__TRY(put_doc(p, text, bytes, &p->n_tokens[doc < p->n_val_docs]));
    }
    if (text || doc != p->n_docs)
        return lks__fail(LKS_ERR_IO, "%s changed while it was read", lks__docs_name(p->docs));
    return write_shard(p);
}

static lks_status write_rest(struct prep *p)
{
    const lks__meta meta = {.vocab_size = lks__spm_size(p->spm),
                            .is_sentencepiece = true,
                            .model_hash = lks__spm_hash(p->spm)};
    json_t *json = lks__meta_to_json(&meta);
    char *text = json ? lks__json_dump(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text)
        return lks__fail(LKS_ERR_NOMEM, "no memory for meta.json");
    lks_status st = lks__staged_add(&p->staged, LKS__META_MODEL, p->model, p->model_bytes);
    if (st == LKS_OK)
        st = lks__staged_add(&p->staged, "meta.json", text, strlen(text));
    free(text);
    return st;
}

/* If an earlier preparation had more shards, the extra ones would be read together with these. */
static lks_status remove_others(struct prep *p)
{
    lks_status st = LKS_OK;
    DIR *dir = opendir(p->o->out_dir);
    if (!dir)
        return lks__sys_fail("cannot list", p->o->out_dir);
    for (struct dirent *e; st == LKS_OK && (e = readdir(dir));) {
        char *path;
        if ((fnmatch(LKS__SHARDS_TRAIN, e->d_name, FNM_PERIOD) != 0 &&
             fnmatch(LKS__SHARDS_VAL, e->d_name, FNM_PERIOD) != 0) ||
            lks__staged_has(&p->staged, e->d_name))
            continue;
        if (asprintf(&path, "%s/%s", p->o->out_dir, e->d_name) < 0) {
            st = lks__fail(LKS_ERR_NOMEM, "no memory to remove an old shard");
            break;
        }
        if (lks__sys_unlink(path) < 0)
            st = lks__sys_fail("cannot remove the shard of an earlier preparation", path);
        free(path);
    }
    closedir(dir);
    return st;
}

/* ---- all of it --------------------------------------------------------------------------- */

static lks_status check(const lks__prep_spm_options *o)
{
    if (!(o->val_fraction > 0 && o->val_fraction < 1))
        return lks__fail(LKS_ERR_CONFIG, "val_fraction is %g; it must lie between 0 and 1",
                         o->val_fraction);
    bool trains = !o->tokenizer || !*o->tokenizer;
    if (trains && (o->vocab_size < 1 || o->vocab_size > MAX_VOCAB))
        return lks__fail(LKS_ERR_CONFIG,
                         "vocab_size is %" PRIu32 "; 1 to %d are possible: the ids in token shards "
                         "are uint16",
                         o->vocab_size, MAX_VOCAB);
    if (o->shard_tokens < 1 || o->shard_tokens > INT32_MAX)
        return lks__fail(LKS_ERR_CONFIG, "a shard of %" PRIu64 " tokens; 1 to %d are possible",
                         o->shard_tokens, INT32_MAX);
    return LKS_OK;
}

lks_status lks__prep_sentencepiece(const lks__prep_spm_options *o, lks__prep_result *result)
{
    struct prep p = {.o = o, .staged = {.dir = o->out_dir}};
    lks_status st;
    if ((st = check(o)) == LKS_OK && (st = lks__spm_available()) == LKS_OK &&
        (st = lks__docs_open(o->input, o->field, &p.docs)) == LKS_OK &&
        (st = count_docs(&p)) == LKS_OK && (st = get_model(&p)) == LKS_OK &&
        (st = lks__sys_make_dirs(o->out_dir)) == LKS_OK && (st = write_docs(&p)) == LKS_OK &&
        (st = write_rest(&p)) == LKS_OK && (st = lks__staged_commit(&p.staged)) == LKS_OK &&
        (st = remove_others(&p)) == LKS_OK)
        *result = (lks__prep_result){lks__spm_size(p.spm), p.n_tokens[0], p.n_tokens[1]};
    lks__staged_close(&p.staged);
    lks__spm_close(p.spm);
    lks__docs_close(p.docs);
    free(p.model);
    free(p.shard);
    return st;
}
