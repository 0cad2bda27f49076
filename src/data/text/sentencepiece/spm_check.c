/* A model is a message of Protocol Buffers: fields, each a tag (number and kind) and a value. If a
 * field is repeated, every occurrence is checked, because any of them might be the one that
 * SentencePiece uses. */
#include "data/text/sentencepiece/spm_check.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"

enum {
    /* Pieces and other repeated fields: each needs memory, even if it is short. Known models have
     * up to 262,144. */
    MAX_ENTRIES = 1 << 20,
    /* SentencePiece's recursion goes one level deeper per byte. Its own pieces have up to 512
     * characters. */
    MAX_PIECE_BYTES = 4096,
    /* User-defined pieces, each a prefix of the next: SentencePiece has room for this many. */
    MAX_ALIKE = 64,
};

/* The kinds of values. */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* SentencePiece's numbers of fields and of piece kinds. */
enum {
    MODEL_PIECE = 1,
    MODEL_TRAINER = 2,
    MODEL_NORMALIZER = 3,
    MODEL_SAMPLES = 4,
    MODEL_DENORMALIZER = 5
};
enum { PIECE_TEXT = 1, PIECE_KIND = 3 };
enum { NORMALIZER_MAP = 2 };
enum { USER_DEFINED = 4 };

struct check {
    const unsigned char *model;
    const char *where;
    size_t n_entries;
    struct user_piece {
        const char *text; /* ends at a 0 byte if there is one, as in SentencePiece */
        size_t bytes, at;
    } * user;
    size_t n_user, max_user;
};

/* A range of the model's bytes: the rest of a message, or a value. */
struct range {
    size_t at, end;
};

struct field {
    uint32_t number, kind;
    uint64_t x;         /* value of a VARINT */
    struct range value; /* value of the other kinds */
    size_t at;          /* offset of the field */
};

__attribute__((format(printf, 3, 4))) static lks_status damaged(const struct check *c, size_t at,
                                                                const char *fmt, ...)
{
    char what[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return lks__fail(LKS_ERR_FORMAT,
                     "%s is not a SentencePiece model, or it is damaged: at byte %zu, %s", c->where,
                     at, what);
}

/* ---- fields ------------------------------------------------------------------------------ */

/* Read a number: seven bits per byte, the lowest first. */
static lks_status get_varint(const struct check *c, struct range *r, uint64_t *x_p)
{
    const size_t at = r->at;
    uint64_t x = 0;
    for (unsigned shift = 0; shift < 64 && r->at < r->end; shift += 7) {
        unsigned char byte = c->model[r->at++];
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *x_p = x;
            return LKS_OK;
        }
    }
    return damaged(c, at, "a number that doesn't end");
}

static lks_status get_value(const struct check *c, struct range *r, struct field *f)
{
    uint64_t bytes = f->kind == FIXED64 ? 8 : 4;
    switch (f->kind) {
    case VARINT:
        return get_varint(c, r, &f->x);
    case BYTES:
        LKS__TRY(get_varint(c, r, &bytes));
        break;
    case FIXED32:
    case FIXED64:
        break;
    default: /* groups, which SentencePiece doesn't use */
        return damaged(c, f->at, "a field of kind %u", f->kind);
    }
    if (bytes > r->end - r->at)
        return damaged(c, f->at, "a field of %llu bytes, but %zu are left",
                       (unsigned long long)bytes, r->end - r->at);
    f->value = (struct range){r->at, r->at + (size_t)bytes};
    r->at = f->value.end;
    return LKS_OK;
}

/* Read the next field of a message that has more. */
static lks_status get_field(const struct check *c, struct range *r, struct field *f)
{
    uint64_t tag = 0;
    *f = (struct field){.at = r->at};
    LKS__TRY(get_varint(c, r, &tag));
    if (tag > UINT32_MAX || tag >> 3 == 0)
        return damaged(c, f->at, "no field begins");
    f->number = (uint32_t)tag >> 3;
    f->kind = (uint32_t)tag & 7;
    return get_value(c, r, f);
}

static lks_status count(struct check *c, size_t at)
{
    if (++c->n_entries > MAX_ENTRIES)
        return damaged(c, at, "more than %d pieces or settings", MAX_ENTRIES);
    return LKS_OK;
}

/* ---- pieces ------------------------------------------------------------------------------ */

static lks_status keep_user_piece(struct check *c, const struct range *text)
{
    if (!lks__list_grow(&c->user, c->n_user, &c->max_user, sizeof *c->user))
        return lks__no_memory("to open %s", c->where);
    const char *s = (const char *)c->model + text->at;
    c->user[c->n_user++] = (struct user_piece){s, strnlen(s, text->end - text->at), text->at};
    return LKS_OK;
}

static lks_status check_piece(struct check *c, size_t at, struct range r)
{
    struct range text = {at, at};
    int32_t kind = 0;
    while (r.at < r.end) {
        struct field f;
        LKS__TRY(get_field(c, &r, &f));
        if (f.number == PIECE_TEXT && f.kind == BYTES)
            text = f.value;
        if (f.number == PIECE_KIND && f.kind == VARINT)
            kind = (int32_t)(uint32_t)f.x;
    }
    if (text.at == text.end)
        return damaged(c, at, "a piece without text");
    if (text.end - text.at > MAX_PIECE_BYTES)
        return damaged(c, at, "a piece of %zu bytes; %d are the most", text.end - text.at,
                       MAX_PIECE_BYTES);
    return kind == USER_DEFINED ? keep_user_piece(c, &text) : LKS_OK;
}

static bool begins_with(const struct user_piece *p, const struct user_piece *start)
{
    return p->bytes >= start->bytes && memcmp(p->text, start->text, start->bytes) == 0;
}

static int in_order(const void *a, const void *b)
{
    const struct user_piece *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static lks_status check_user_pieces(struct check *c)
{
    const struct user_piece *alike[MAX_ALIKE]; /* each begins with the previous one */
    size_t n = 0;
    if (c->n_user <= MAX_ALIKE)
        return LKS_OK;
    qsort(c->user, c->n_user, sizeof *c->user, in_order);
    for (const struct user_piece *p = c->user; p < c->user + c->n_user; p++) {
        while (n > 0 && !begins_with(p, alike[n - 1]))
            n--;
        if (n == MAX_ALIKE)
            return damaged(c, p->at,
                           "the last of more than %d user-defined pieces of which each begins "
                           "with the one before",
                           MAX_ALIKE);
        alike[n++] = p;
    }
    return LKS_OK;
}

/* ---- settings ---------------------------------------------------------------------------- */

static lks_status check_trainer(struct check *c, struct range r)
{
    while (r.at < r.end) {
        struct field f;
        LKS__TRY(get_field(c, &r, &f));
        LKS__TRY(count(c, f.at));
    }
    return LKS_OK;
}

static lks_status check_map(const struct check *c, const struct range *map)
{
    size_t at;
    const char *why;
    lks_status st = LKS_OK;
    if (map->at < map->end) /* an empty table leaves texts unchanged */
        st = lks__spm_map_check(c->model + map->at, map->end - map->at, &at, &why);
    if (st == LKS_ERR_FORMAT)
        return damaged(c, map->at + at, "%s", why);
    return st == LKS_OK ? st : lks__fail(st, "no memory to open %s", c->where);
}

static lks_status check_normalizer(const struct check *c, struct range r)
{
    while (r.at < r.end) {
        struct field f;
        LKS__TRY(get_field(c, &r, &f));
        if (f.number == NORMALIZER_MAP && f.kind == BYTES)
            LKS__TRY(check_map(c, &f.value));
    }
    return LKS_OK;
}

/* ---- models ------------------------------------------------------------------------------ */

static lks_status check_model(struct check *c, struct range r, bool *samples_p)
{
    *samples_p = false;
    while (r.at < r.end) {
        struct field f;
        LKS__TRY(get_field(c, &r, &f));
        if (f.kind != BYTES)
            continue; /* kinds that SentencePiece ignores */
        switch (f.number) {
        case MODEL_PIECE:
            LKS__TRY(count(c, f.at));
            LKS__TRY(check_piece(c, f.at, f.value));
            break;
        case MODEL_TRAINER:
            LKS__TRY(check_trainer(c, f.value));
            break;
        case MODEL_NORMALIZER:
        case MODEL_DENORMALIZER:
            LKS__TRY(check_normalizer(c, f.value));
            break;
        case MODEL_SAMPLES:
            *samples_p = true;
            break;
        default:
            break;
        }
    }
    return check_user_pieces(c);
}

/* Copy all fields of a valid model except the samples. */
static lks_status without_samples(const struct check *c, struct range r, char **plain_p,
                                  size_t *bytes_p)
{
    size_t bytes = 0;
    char *plain = malloc(r.end);
    LKS__MEMORY(plain, "to open %s", c->where);
    while (r.at < r.end) {
        struct field f;
        lks_status st = get_field(c, &r, &f);
        if (st != LKS_OK) {
            free(plain);
            return st;
        }
        if (f.number == MODEL_SAMPLES)
            continue;
        memcpy(plain + bytes, c->model + f.at, r.at - f.at);
        bytes += r.at - f.at;
    }
    *plain_p = plain;
    *bytes_p = bytes;
    return LKS_OK;
}

lks_status lks__spm_check(const char *model, size_t bytes, const char *where, char **plain_p,
                          size_t *plain_bytes_p)
{
    struct check c = {.model = (const unsigned char *)model, .where = where};
    const struct range all = {0, bytes};
    bool samples;
    char *plain = NULL;
    size_t plain_bytes = 0;
    lks_status st = check_model(&c, all, &samples);
    if (st == LKS_OK && samples)
        st = without_samples(&c, all, &plain, &plain_bytes);
    free(c.user);
    if (st != LKS_OK)
        return st;
    *plain_p = plain;
    *plain_bytes_p = plain_bytes;
    return LKS_OK;
}
