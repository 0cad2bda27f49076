/* operations.c - every layer operation as an entry of the compute queue: its arguments, and copies
 * of the structs that they point to. A new operation of LKS__LAYER_MAP doesn't compile until it has
 * a line here; a new kind of argument doesn't until KEEP handles it. */
#include "compute/cpu/layers.h"
#include "entry.h"

/* --- arguments: each is checked, and so are the fields of a struct ---------------------------- */

static void keep_number(deferred_entry *e, void *field)
{
}

static void keep_array(deferred_entry *e, void *field)
{
    deferred_entry_needs(e, *(void **)field);
}

/* Copy the struct that the field points to; NULL if there is none. */
static void *keep_struct(deferred_entry *e, void *field, size_t bytes)
{
    void **p = field;
    if (*p != NULL)
        *p = deferred_entry_copy(e, *p, bytes);
    return *p;
}

#define NEEDS(e, ...)                                                                              \
    needs((e), (const void *const[]){__VA_ARGS__},                                                 \
          sizeof((const void *[]){__VA_ARGS__}) / sizeof(void *))
static void needs(deferred_entry *e, const void *const arrays[], size_t n)
{
    for (size_t i = 0; i < n; i++)
        deferred_entry_needs(e, arrays[i]);
}

static void keep_dropout(deferred_entry *e, void *field)
{
    keep_struct(e, field, sizeof(lks__dropout));
}

static void keep_epilogue(deferred_entry *e, void *field)
{
    lks__epilogue *x = keep_struct(e, field, sizeof *x);
    if (x == NULL)
        return;
    keep_dropout(e, &x->drop);
    NEEDS(e, x->bias, x->in, x->scale, x->out);
}

static void keep_shape(deferred_entry *e, void *field)
{
    keep_struct(e, field, sizeof(lks__attention_shape));
}

static void keep_attention(deferred_entry *e, void *field)
{
    lks__attention_in *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->q, x->k, x->v);
}

static void keep_attention_cache(deferred_entry *e, void *field)
{
    lks__attention_cache *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->k, x->v);
}

static void keep_attention_grads(deferred_entry *e, void *field)
{
    lks__attention_grads *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->dq, x->dk, x->dv);
}

static void keep_golf_entry(deferred_entry *e, void *field)
{
    lks__golf_entry *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->prev, x->skip, x->x0, x->mix, x->skip_weight, x->x, x->norm, x->rms);
}

static void keep_golf_branch(deferred_entry *e, void *field)
{
    lks__golf_branch *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->dx, x->dy, x->scale, x->dnorm, x->normed, x->rms, x->add);
}

static void keep_golf_scaled(deferred_entry *e, void *field)
{
    lks__golf_scaled *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->dw, x->dscale, x->product, x->w, x->scale);
}

static void keep_golf_heads(deferred_entry *e, void *field)
{
    lks__golf_heads *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->cosine, x->sine, x->gain, x->q_raw, x->k_raw, x->q, x->k, x->q_rms, x->k_rms);
}

static void keep_xent(deferred_entry *e, void *field)
{
    keep_struct(e, field, sizeof(lks__xent));
}

static void keep_blend(deferred_entry *e, void *field)
{
    lks__blend *x = keep_struct(e, field, sizeof *x);
    for (size_t i = 0; i < x->n_pieces; i++)
        NEEDS(e, x->piece[i].y, x->piece[i].x);
}

static void keep_adamw(deferred_entry *e, void *field)
{
    lks__adamw_list *x = keep_struct(e, field, sizeof *x);
    for (size_t i = 0; i < x->n_pieces; i++)
        NEEDS(e, x->piece[i].params, x->piece[i].exp_avg, x->piece[i].exp_avg_sq,
              x->piece[i].grads);
}

static void keep_muon(deferred_entry *e, void *field)
{
    lks__muon_list *x = keep_struct(e, field, sizeof *x);
    NEEDS(e, x->work);
    for (size_t i = 0; i < x->n_pieces; i++)
        NEEDS(e, x->piece[i].params, x->piece[i].momentum, x->piece[i].grads);
}

/* No default, so that a new type doesn't compile. */
#define KEEP(e, field)                                                                             \
    _Generic((field),                                                                              \
        float: keep_number,                                                                        \
        size_t: keep_number,                                                                       \
        bool: keep_number,                                                                         \
        lks__epilogue_kind: keep_number,                                                           \
        float *: keep_array,                                                                       \
        const float *: keep_array,                                                                 \
        lks__act *: keep_array,                                                                    \
        const lks__act *: keep_array,                                                              \
        double *: keep_array,                                                                      \
        const double *: keep_array,                                                                \
        uint64_t *: keep_array,                                                                    \
        const int32_t *: keep_array,                                                               \
        const lks__dropout *: keep_dropout,                                                        \
        const lks__epilogue *: keep_epilogue,                                                      \
        const lks__attention_shape *: keep_shape,                                                  \
        const lks__attention_in *: keep_attention,                                                 \
        const lks__attention_grads *: keep_attention_grads,                                        \
        const lks__attention_cache *: keep_attention_cache,                                        \
        const lks__golf_entry *: keep_golf_entry,                                                  \
        const lks__golf_branch *: keep_golf_branch,                                                \
        const lks__golf_scaled *: keep_golf_scaled,                                                \
        const lks__golf_heads *: keep_golf_heads,                                                  \
        const lks__xent *: keep_xent,                                                              \
        const lks__blend *: keep_blend,                                                            \
        const lks__adamw_list *: keep_adamw,                                                       \
        const lks__muon_list *: keep_muon)((e), &(field))

/* --- calls: a struct for the arguments, a function that takes them, one that runs them -------- */

/* M(number, type) for up to twelve types. */
#define EACH(M, ...)                                                                               \
    NTH(__VA_ARGS__, E12, E11, E10, E9, E8, E7, E6, E5, E4, E3, E2, E1, )(M, __VA_ARGS__)
#define NTH(a, b, c, d, e, f, g, h, i, j, k, l, nth, ...) nth
#define E1(M, t)                                          M(1, t)
#define E2(M, t, ...)                                     M(2, t) E1(M, __VA_ARGS__)
#define E3(M, t, ...)                                     M(3, t) E2(M, __VA_ARGS__)
#define E4(M, t, ...)                                     M(4, t) E3(M, __VA_ARGS__)
#define E5(M, t, ...)                                     M(5, t) E4(M, __VA_ARGS__)
#define E6(M, t, ...)                                     M(6, t) E5(M, __VA_ARGS__)
#define E7(M, t, ...)                                     M(7, t) E6(M, __VA_ARGS__)
#define E8(M, t, ...)                                     M(8, t) E7(M, __VA_ARGS__)
#define E9(M, t, ...)                                     M(9, t) E8(M, __VA_ARGS__)
#define E10(M, t, ...)                                    M(10, t) E9(M, __VA_ARGS__)
#define E11(M, t, ...)                                    M(11, t) E10(M, __VA_ARGS__)
#define E12(M, t, ...)                                    M(12, t) E11(M, __VA_ARGS__)

#define FIELD(n, type)     type a##n;
#define PARAMETER(n, type) , type a##n
#define ARGUMENT(n, type)  , call->a##n
#define RECORD(n, type)                                                                            \
    call->a##n = a##n;                                                                             \
    KEEP(&call->e, call->a##n);

#define OPERATION(name, ...)                                                                       \
    struct name##_call {                                                                           \
        deferred_entry e;                                                                          \
        lks__exec ex;                                                                              \
        EACH(FIELD, __VA_ARGS__)                                                                   \
    };                                                                                             \
    static void name##_run(deferred_entry *e)                                                      \
    {                                                                                              \
        struct name##_call *call = (struct name##_call *)e;                                        \
        lks__layers_cpu.name(&call->ex EACH(ARGUMENT, __VA_ARGS__));                               \
    }                                                                                              \
    static void name##_later(const lks__exec *ex EACH(PARAMETER, __VA_ARGS__))                     \
    {                                                                                              \
        struct name##_call *call = deferred_entry_new(sizeof *call, #name, name##_run);            \
        call->ex = *ex;                                                                            \
        EACH(RECORD, __VA_ARGS__)                                                                  \
        deferred_entry_put(&call->e, LKS__QUEUE_COMPUTE);                                          \
    }

OPERATION(clear, float *, size_t)
OPERATION(accumulate, float *, const float *, size_t)
OPERATION(copy, float *, const float *, size_t)
OPERATION(first_not_finite, uint64_t *, const float *, size_t)
OPERATION(act_clear, lks__act *, size_t)
OPERATION(act_accumulate, lks__act *, const lks__act *, size_t)
OPERATION(act_copy, lks__act *, const lks__act *, size_t)
OPERATION(act_first_not_finite, uint64_t *, const lks__act *, size_t)
OPERATION(linear_fwd, lks__act *, size_t, const lks__act *, const float *, size_t, size_t, size_t,
          const lks__epilogue *)
OPERATION(linear_rows_fwd, lks__act *, size_t, const lks__act *, const float *, size_t, size_t,
          size_t, const lks__epilogue *)
OPERATION(linear_bwd_x, lks__act *, const lks__act *, size_t, const float *, size_t, size_t, size_t,
          const lks__epilogue *)
OPERATION(linear_bwd_x_add, lks__act *, const lks__act *, size_t, const float *, size_t, size_t,
          size_t)
OPERATION(linear_bwd_w, float *, float *, const lks__act *, size_t, const lks__act *, size_t,
          size_t, size_t, bool)
OPERATION(activation_fwd, lks__epilogue_kind, lks__act *, const lks__act *, size_t, size_t)
OPERATION(attention_fwd, const lks__attention_shape *, lks__act *, float *,
          const lks__attention_in *, const lks__dropout *)
OPERATION(attention_bwd, const lks__attention_shape *, const lks__attention_grads *,
          const lks__act *, const lks__attention_in *, const lks__act *, const float *,
          const lks__dropout *)
OPERATION(attention_cached_fwd, const lks__attention_shape *, lks__act *,
          const lks__attention_cache *, const lks__attention_in *)
OPERATION(embedding_fwd, lks__act *, const int32_t *, const float *, const float *, size_t, size_t,
          size_t, const lks__dropout *)
OPERATION(embedding_bwd, float *, float *, const lks__act *, const int32_t *, size_t, size_t,
          size_t)
OPERATION(layernorm_rows_fwd, lks__act *, float *, float *, const lks__act *, const float *,
          const float *, size_t, size_t)
OPERATION(layernorm_rows_bwd, lks__act *, float *, float *, const lks__act *, const lks__act *,
          const float *, const float *, const float *, size_t, size_t, float *)
OPERATION(dropout_rows, lks__act *, const lks__act *, size_t, size_t, const lks__dropout *)
OPERATION(golf_embed_fwd, lks__act *, float *, const int32_t *, const float *, size_t, size_t)
OPERATION(golf_embed_bwd, float *, lks__act *, const lks__act *, const int32_t *, const float *,
          const float *, size_t, size_t)
OPERATION(golf_norm_fwd, lks__act *, float *, const lks__act *, size_t, size_t)
OPERATION(golf_norm_bwd, lks__act *, const lks__act *, const lks__act *, const float *, size_t,
          size_t)
OPERATION(golf_entry_fwd, const lks__golf_entry *, size_t, size_t)
OPERATION(golf_entry_bwd, const lks__golf_entry *, lks__act *, lks__act *, float *, lks__act *,
          float *, const lks__act *, size_t, size_t, float *)
OPERATION(golf_branch_bwd, const lks__golf_branch *, size_t, size_t)
OPERATION(golf_scaled_bwd, const lks__golf_scaled *, size_t, size_t)
OPERATION(golf_heads_fwd, const lks__golf_heads *)
OPERATION(golf_heads_bwd, const lks__golf_heads *, lks__act *, lks__act *, float *, float *)
OPERATION(xent_rows, const lks__xent *, lks__act *, const int32_t *, double *)
OPERATION(mean_loss, float *, const double *, size_t)
OPERATION(cap_logits, float *, const lks__act *, size_t, float)
OPERATION(update_blend, const lks__blend *)
OPERATION(update_adamw, const lks__adamw_list *)
OPERATION(update_muon, const lks__muon_list *)

/* A question, which is answered at once. */
static size_t update_muon_bytes_later(const lks__exec *ex, size_t rows, size_t cols)
{
    return lks__layers_cpu.update_muon_bytes(ex, rows, cols);
}

/* More than the CPU needs: a caller must ask the table of the device that it uses. */
enum { MORE_FLOATS = 1 << 18 };

static size_t layernorm_partial_floats(size_t rows, size_t C)
{
    return lks__layernorm_partial_floats(rows, C) + MORE_FLOATS;
}

static size_t golf_partial_floats(size_t rows, size_t C, size_t n_heads)
{
    return lks__golf_partial_floats(rows, C, n_heads) + MORE_FLOATS;
}

const lks__layers deferred_layers = {
#define X(name) .name = name##_later,
    LKS__LAYER_MAP(X)
#undef X
        .act_bytes = lks__act_bytes,
    .work_bytes = lks__work_bytes,
    .head_bytes = lks__head_bytes,
    .layernorm_partial_floats = layernorm_partial_floats,
    .golf_partial_floats = golf_partial_floats,
};
