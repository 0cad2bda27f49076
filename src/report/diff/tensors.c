#include "report/diff/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "base/text/jsontext.h"
#include "files/safetensors/dtype.h"

enum { PIECE = 1 << 20 }; /* a multiple of every element's size */

static const char *hash_of(const lks__st_file *f, const char *name)
{
    char key[600];
    const int n = snprintf(key, sizeof key, LKS__ST_HASH_KEY "%s", name);
    return n < (int)sizeof key ? lks__st_metadata(f, key) : NULL;
}

static bool same_form(const lks__st_tensor *a, const lks__st_tensor *b)
{
    return lks__st_has_form(a, b->dtype, b->n_dims, b->shape);
}

static bool same_hash(const lks__st_file *a, const lks__st_file *b, const char *name)
{
    const char *x = hash_of(a, name), *y = hash_of(b, name);
    return x != NULL && y != NULL && strcmp(x, y) == 0;
}

bool lks__tensors_same_hashes(const lks__st_file *a, const lks__st_file *b, const char *but)
{
    bool same = lks__st_count(a) == lks__st_count(b);
    for (size_t i = 0; same && i < lks__st_count(a); i++) {
        const lks__st_tensor *t = lks__st_get(a, i), *u = lks__st_find(b, t->name);
        const bool may_differ = but != NULL && strcmp(t->name, but) == 0;
        same = u != NULL && same_form(t, u) && (may_differ || same_hash(a, b, t->name));
    }
    return same;
}

/* --- one tensor ------------------------------------------------------------------------------- */

static json_t *form_of(const lks__st_tensor *t)
{
    char shape[24 * LKS__ST_MAX_DIMS] = "";
    for (int d = 0; d < t->n_dims; d++)
        lks__append(shape, sizeof shape, ", ", "%" PRIu64, t->shape[d]);
    return json_sprintf("%s [%s]", t->dtype, shape);
}

/* The element's number, for the types of weights, moments and tokens; null for others. */
static json_t *value_of(const char *dtype, const unsigned char *at)
{
    float f;
    double d;
    uint16_t h;
    int32_t i;
    if (strcmp(dtype, "F32") == 0)
        return lks__json_float(*(const float *)memcpy(&f, at, sizeof f));
    if (strcmp(dtype, "F64") == 0)
        return lks__json_real(*(const double *)memcpy(&d, at, sizeof d));
    if (strcmp(dtype, "BF16") == 0)
        return lks__json_float(lks__bf16_to_float(*(uint16_t *)memcpy(&h, at, sizeof h)));
    if (strcmp(dtype, "I32") == 0)
        return json_integer(*(const int32_t *)memcpy(&i, at, sizeof i));
    if (strcmp(dtype, "U8") == 0)
        return json_integer(*at);
    return json_null();
}

static json_t *bits_of(size_t size, const unsigned char *at)
{
    char text[17] = "";
    for (size_t i = 0; i < size; i++)
        snprintf(text + 2 * i, 3, "%02x", at[size - 1 - i]);
    return json_string(text);
}

static json_t *index_of(const lks__st_tensor *t, uint64_t element)
{
    json_t *index = json_array();
    for (int d = t->n_dims - 1; d >= 0; d--) {
        json_array_insert_new(index, 0, json_integer((json_int_t)(element % t->shape[d])));
        element /= t->shape[d];
    }
    return index;
}

/* The elements of one tensor in both files. */
struct elements {
    uint64_t different, first;
    unsigned char values[2][8]; /* of the first that differs */
};

static void compare_piece(struct elements *e, uint64_t from, size_t size, size_t bytes,
                          const unsigned char *a, const unsigned char *b)
{
    for (size_t i = 0; i < bytes; i += size) {
        if (memcmp(a + i, b + i, size) == 0)
            continue;
        if (e->different++ > 0)
            continue;
        e->first = from + i / size;
        memcpy(e->values[0], a + i, size);
        memcpy(e->values[1], b + i, size);
    }
}

static lks_status compare_elements(lks__st_file *a, lks__st_file *b, const lks__st_tensor *t,
                                   const lks__st_tensor *u, unsigned char *buffer,
                                   struct elements *e)
{
    const size_t size = (size_t)lks__st_dtype_find(t->dtype)->bytes;
    *e = (struct elements){.different = 0};
    for (uint64_t at = 0; at < t->bytes; at += PIECE) {
        const size_t n = t->bytes - at < PIECE ? (size_t)(t->bytes - at) : PIECE;
        LKS__TRY(lks__st_read_part(a, t, at, buffer, n));
        LKS__TRY(lks__st_read_part(b, u, at, buffer + PIECE, n));
        if (memcmp(buffer, buffer + PIECE, n) != 0)
            compare_piece(e, at / size, size, n, buffer, buffer + PIECE);
    }
    return LKS_OK;
}

/* Add the first element that differs, and their number. */
static void add_elements(json_t *o, const lks__st_tensor *t, const struct elements *e)
{
    const size_t size = (size_t)lks__st_dtype_find(t->dtype)->bytes;
    json_object_set_new(o, "element", json_integer((json_int_t)e->first));
    json_object_set_new(o, "index", index_of(t, e->first));
    json_object_set_new(
        o, "values",
        json_pack("[o, o]", value_of(t->dtype, e->values[0]), value_of(t->dtype, e->values[1])));
    json_object_set_new(
        o, "bits", json_pack("[o, o]", bits_of(size, e->values[0]), bits_of(size, e->values[1])));
    json_object_set_new(o, "different_elements", json_integer((json_int_t)e->different));
    json_object_set_new(o, "elements", json_integer((json_int_t)(t->bytes / size)));
}

json_t *lks__tensor_values(const lks__st_tensor *t, uint64_t n)
{
    const size_t size = (size_t)lks__st_dtype_find(t->dtype)->bytes;
    json_t *values = json_array();
    for (uint64_t i = 0; i < n && (i + 1) * size <= t->bytes; i++)
        json_array_append_new(values,
                              value_of(t->dtype, (const unsigned char *)t->data + i * size));
    return values;
}

void lks__tensor_diff(const lks__st_tensor *a, const lks__st_tensor *b, json_t *o)
{
    const size_t size = (size_t)lks__st_dtype_find(a->dtype)->bytes;
    struct elements e = {.different = 0};
    if (!same_form(a, b)) {
        json_object_set_new(o, "forms", json_pack("[o, o]", form_of(a), form_of(b)));
        return;
    }
    compare_piece(&e, 0, size, a->bytes, a->data, b->data);
    if (e.different > 0)
        add_elements(o, a, &e);
}

/* --- all tensors ------------------------------------------------------------------------------ */

struct comparison {
    lks__st_file *a, *b;
    bool verified;
    unsigned char *buffer;
    json_t *first; /* NULL: no difference so far */
    uint64_t different;
};

static json_t *first_of(struct comparison *c, const char *name)
{
    if (c->different++ > 0)
        return NULL;
    c->first = json_pack("{s:s}", "tensor", name);
    return c->first;
}

static lks_status compare_tensor(struct comparison *c, const lks__st_tensor *t)
{
    const lks__st_tensor *u = lks__st_find(c->b, t->name);
    struct elements e;
    if (u == NULL || !same_form(t, u)) {
        json_t *first = first_of(c, t->name);
        if (u == NULL)
            json_object_set_new(first, "only_in", json_string("a"));
        else
            json_object_set_new(first, "forms", json_pack("[o, o]", form_of(t), form_of(u)));
        return LKS_OK;
    }
    if (c->verified && same_hash(c->a, c->b, t->name))
        return LKS_OK;
    LKS__TRY(compare_elements(c->a, c->b, t, u, c->buffer, &e));
    json_t *first = e.different > 0 ? first_of(c, t->name) : NULL;
    if (first != NULL)
        add_elements(first, t, &e);
    return LKS_OK;
}

static lks_status compare(struct comparison *c)
{
    for (size_t i = 0; i < lks__st_count(c->a); i++)
        LKS__TRY(compare_tensor(c, lks__st_get(c->a, i)));
    for (size_t i = 0; i < lks__st_count(c->b); i++) {
        const char *name = lks__st_get(c->b, i)->name;
        if (lks__st_find(c->a, name) == NULL)
            json_object_set_new(first_of(c, name), "only_in", json_string("b"));
    }
    return LKS_OK;
}

lks_status lks__tensors_diff(const char *part, lks__st_file *a, lks__st_file *b, bool verified,
                             json_t **diff_p)
{
    struct comparison c = {
        .a = a, .b = b, .verified = verified, .buffer = malloc(2 * (size_t)PIECE)};
    *diff_p = NULL;
    LKS__MEMORY(c.buffer, "to compare tensors");
    const lks_status st = compare(&c);
    free(c.buffer);
    if (st != LKS_OK || c.different == 0) {
        json_decref(c.first);
        return st;
    }
    json_object_set_new(c.first, "part", json_string(part));
    json_object_set_new(c.first, "tensors", json_integer((json_int_t)lks__st_count(a)));
    json_object_set_new(c.first, "different", json_integer((json_int_t)c.different));
    *diff_p = c.first;
    return c.first != NULL ? LKS_OK : lks__no_memory("to compare tensors");
}
