/* weights/values.c - the values of weights: read into an arena, and hashed. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/math.h"
#include "weights/forms/form.h"

enum {
    PIECE = 1 << 18, /* floats of a tensor that can't be read in place */
    /* A digest reads about this many pieces, each of this many floats, spread evenly; all if there
     * are fewer. */
    SAMPLES = 4096,
    SAMPLE = 1024,
};

static uint64_t count_of(const lks__weights_tensor *t)
{
    return t->shape[0] * (t->n_dims == 2 ? t->shape[1] : 1);
}

lks_status lks__weights_digest(lks__weights *w, uint64_t *digest_p)
{
    float sample[SAMPLE];
    uint64_t total = 0;
    if (w->params_hash[0] != '\0') {
        *digest_p = strtoull(w->params_hash, NULL, 16);
        return LKS_OK;
    }
    for (size_t i = 0; i < w->n_tensors; i++)
        total += count_of(&w->tensors[i]);
    const uint64_t step = total / SAMPLES > SAMPLE ? total / SAMPLES : SAMPLE;
    *digest_p = total;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const lks__weights_tensor *t = &w->tensors[i];
        const uint64_t count = count_of(t);
        for (uint64_t at = 0; at < count; at += step) {
            const size_t n = count - at < SAMPLE ? (size_t)(count - at) : SAMPLE;
            LKS__TRY(w->form->read(w, t, at, n, sample));
            *digest_p = XXH3_64bits_withSeed(sample, n * sizeof *sample, *digest_p);
        }
    }
    return LKS_OK;
}

static lks_status check_finite(const lks__weights *w, const lks__weights_tensor *t, const float *x,
                               uint64_t first, size_t n)
{
    char name[120];
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return lks__fail(LKS_ERR_NAN,
                             "%s: tensor %s has %s at index %" PRIu64
                             ": such weights can't be trained or used",
                             w->shown, lks__weights_own_name(t, name),
                             isnan(x[i]) ? "NaN" : "infinity", first + i);
    return LKS_OK;
}

/* Transpose rows of the file's [in, out] to columns of x [out, in]. */
static lks_status read_transposed(lks__weights *w, const lks__weights_tensor *t, float *x)
{
    const size_t out = t->shape[0], in = t->shape[1];
    const size_t most = out == 0 || out > PIECE ? 1 : PIECE / out;
    float *rows = malloc((most * out + 1) * sizeof *rows);
    LKS__MEMORY(rows, "for a part of a tensor of %s", w->shown);
    lks_status st = LKS_OK;
    for (size_t i = 0, n; i < in && st == LKS_OK; i += n) {
        n = in - i < most ? in - i : most;
        st = w->form->read(w, t, (uint64_t)i * out, n * out, rows);
        LKS__THEN(st, check_finite(w, t, rows, (uint64_t)i * out, n * out));
        for (size_t o = 0; o < out && st == LKS_OK; o++)
            for (size_t r = 0; r < n; r++)
                x[o * in + i + r] = rows[r * out + o];
    }
    free(rows);
    return st;
}

/* Check that the second copy of a tied tensor has the values of x. */
static lks_status compare_tied(lks__weights *w, const lks__weights_tensor *t, const float *x)
{
    char name[120];
    const uint64_t count = count_of(t);
    float *piece = malloc(PIECE * sizeof *piece);
    LKS__MEMORY(piece, "for a part of a tensor of %s", w->shown);
    lks_status st = LKS_OK;
    for (uint64_t at = 0; at < count && st == LKS_OK; at += PIECE) {
        const size_t n = count - at < PIECE ? (size_t)(count - at) : PIECE;
        st = w->form->read(w, t, at, n, piece);
        if (st == LKS_OK && memcmp(piece, x + at, n * sizeof *piece) != 0)
            st = lks__fail(LKS_ERR_FORMAT,
                           "%s: tensor %s differs from %s, but lockstep's models of this family "
                           "have one matrix for both",
                           w->shown, lks__weights_own_name(t, name), t->name);
    }
    free(piece);
    return st;
}

/* The standard deviation of initial values, for added rows. */
static double deviation(const lks__model_config *config, const lks__table_tensor *t)
{
    if (t->init == LKS__INIT_EMBED)
        return config->tie_embeddings ? (double)config->tied_embed_init_std : 1.0;
    return t->init == LKS__INIT_TIED || t->init == LKS__INIT_NORMAL ? 0.02 : 0.0;
}

/* Draw elements [from, count) of a tensor: N(0, std^2) by Box and Muller, four per number of the
 * generator, keyed by tensor and element. */
static void draw(const lks__model_config *config, const lks__table_tensor *t, size_t index,
                 uint64_t seed, size_t from, float *x)
{
    const double std = deviation(config, t);
    const lks__philox_key key = lks__philox_key_of(seed);
    uint32_t word[4] = {0};
    for (size_t i = from, quad = SIZE_MAX; i < t->count; i++) {
        if (i / 4 != quad) {
            quad = i / 4;
            const uint32_t counter[4] = {(uint32_t)((uint64_t)quad >> 32), (uint32_t)index,
                                         LKS__SITE_ROWS, (uint32_t)quad};
            lks__philox4x32(key, counter, word);
        }
        const double u = ((double)word[i % 4 & 2] + 1.0) * 0x1p-32;
        const double angle = 2.0 * 3.14159265358979323846 * (double)word[i % 4 | 1] * 0x1p-32;
        const double r = sqrt(-2.0 * lks__math_log(u));
        x[i] = (float)(std * r * (i % 2 == 0 ? lks__math_cos(angle) : lks__math_sin(angle)));
    }
}

static lks_status read_tensor(lks__weights *w, const lks__weights_tensor *have,
                              const lks__table_tensor *t, float *x)
{
    if (have->transposed)
        return read_transposed(w, have, x);
    const uint64_t count = count_of(have);
    const size_t n = count < t->count ? (size_t)count : t->count;
    LKS__TRY(w->form->read(w, have, 0, n, x));
    return check_finite(w, have, x, 0, n);
}

/* Only positions and tokens may have another number of rows. */
static bool rows_may_differ(const lks__table_tensor *t, const lks__weights_tensor *have)
{
    return !have->transposed && t->n_dims == have->n_dims &&
           (t->kind == LKS__PARAM_EMBED || t->kind == LKS__PARAM_HEAD) &&
           have->shape[1] == t->shape[1];
}

lks_status lks__weights_read(lks__weights *w, const lks__model_config *config,
                             const lks__table *table, uint64_t seed, float *params)
{
    size_t at = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        const lks__weights_tensor *have = lks__weights_find(w, t->name, &at);
        float *x = params + t->offset;
        if (have == NULL)
            return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s is missing", w->shown, t->name);
        if (!rows_may_differ(t, have))
            LKS__TRY(lks__weights_check_shape(w, have, t, "the model"));
        LKS__TRY(read_tensor(w, have, t, x));
        if (t->n_dims == 2 && have->shape[0] < t->shape[0])
            draw(config, t, i, seed, (size_t)have->shape[0] * t->shape[1], x);
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const lks__weights_tensor *have = &w->tensors[i];
        if (have->tied)
            LKS__TRY(compare_tied(w, have, params + lks__table_find(table, have->name)->offset));
    }
    return LKS_OK;
}
