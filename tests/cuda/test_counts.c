/* What operations count beside their launches is what their arrays and formulas need: each array
 * that is read or written counts once, the arrays of a row's length or less not at all. */
#include "support.h"

#include "host.h"

enum { B = 2, T = 5, ROWS = B * T, C = 8, V = 12, NH = 4, NKV = 2, HS = C / NH };

/* In floats and operations. */
#define assert_counts(floats, operations)                                                          \
    do {                                                                                           \
        const lks__device_counts got = host_counts();                                              \
        if (got.bytes != 4.0 * (floats) || got.flops != (operations))                              \
            fail_msg("%g bytes and %g operations, not %g and %g", got.bytes, got.flops,            \
                     4.0 * (floats), (double)(operations));                                        \
    } while (0)

/* Of an activation, in floats. */
static double act(void)
{
    return lks__cuda_halves(NULL) ? 0.5 : 1.0;
}

static float *floats(size_t n)
{
    return host_randoms(n, 7);
}

static lks__act *acts(size_t n)
{
    return host_acts(floats(n), n);
}

HOST_TEST(test_memory)
{
    uint64_t first;
    lks__cuda_clear(NULL, floats(100), 100);
    assert_counts(100, 0);
    lks__cuda_copy(NULL, floats(100), floats(100), 100);
    assert_counts(200, 0);
    lks__cuda_accumulate(NULL, floats(100), floats(100), 100);
    assert_counts(300, 100);
    lks__cuda_first_not_finite(NULL, &first, floats(100), 100);
    assert_counts(100, 0);
    lks__cuda_act_clear(NULL, acts(100), 100);
    assert_counts(100 * act(), 0);
    lks__cuda_act_copy(NULL, acts(100), acts(100), 100);
    assert_counts(200 * act(), 0);
    lks__cuda_act_accumulate(NULL, acts(100), acts(100), 100);
    assert_counts(300 * act(), 100);
    lks__cuda_act_first_not_finite(NULL, &first, acts(100), 100);
    assert_counts(100 * act(), 0);
    lks__cuda_cap_logits(NULL, floats(100), acts(100), 100, 0.0f);
    assert_counts(100 * act() + 100, 0);
    lks__cuda_cap_logits(NULL, floats(100), acts(100), 100, 30.0f);
    assert_counts(100 * act() + 100, 20 * 100);
}

HOST_TEST(test_rows)
{
    const double n = ROWS * C;
    int32_t *tokens = host_tokens(ROWS, V, 1);
    const lks__dropout drop = host_dropout(0.5);
    lks__cuda_layernorm_rows_fwd(NULL, acts(ROWS * C), floats(ROWS), floats(ROWS), acts(ROWS * C),
                                 floats(C), floats(C), ROWS, C);
    assert_counts(2 * n * act(), 8 * n);
    lks__cuda_layernorm_rows_bwd(NULL, acts(ROWS * C), NULL, NULL, acts(ROWS * C), acts(ROWS * C),
                                 floats(C), floats(ROWS), floats(ROWS), ROWS, C,
                                 floats(lks__cuda_layernorm_partial_floats(ROWS, C)));
    assert_counts(4 * n * act(), 18 * n);
    lks__cuda_dropout_rows(NULL, acts(ROWS * C), acts(ROWS * C), ROWS, C, &drop);
    assert_counts(2 * n * act(), n);
    lks__cuda_embedding_fwd(NULL, acts(ROWS * C), tokens, floats(V * C), floats(T * C), ROWS, T, C,
                            &drop);
    assert_counts(2 * n + n * act(), n);
    lks__cuda_embedding_bwd(NULL, NULL, floats(T * C), acts(ROWS * C), tokens, ROWS, T, C);
    assert_counts(n * act() + 2 * T * C, n);
    lks__cuda_embedding_bwd(NULL, floats(V * C), NULL, acts(ROWS * C), tokens, ROWS, T, C);
    assert_counts(n * act() + 7 * ROWS, n);
    lks__cuda_linear_rows_fwd(NULL, acts(ROWS * V), V, acts(ROWS * C), floats(V * C), ROWS, V, C,
                              NULL);
    assert_counts((n + ROWS * V) * act() + V * C, 2 * n * V);
    lks__cuda_act_sums(NULL, floats(C), acts(ROWS * C), C, ROWS, C);
    assert_counts(n * act(), n);
    lks__cuda_column_sums(NULL, floats(C), floats(ROWS * C), C, ROWS, C);
    assert_counts(n, n);
}

HOST_TEST(test_epilogues)
{
    const double n = ROWS * C;
    const lks__epilogue gelu = {.kind = LKS__EPILOGUE_GELU, .out = acts(ROWS * C)},
                        slope = {.kind = LKS__EPILOGUE_GELU_BWD, .in = acts(ROWS * C)},
                        gelu_of_bias = {.kind = LKS__EPILOGUE_GELU,
                                        .bias = floats(C),
                                        .out = acts(ROWS * C)},
                        branch = {.kind = LKS__EPILOGUE_BRANCH,
                                  .in = acts(ROWS * C),
                                  .scale = floats(C),
                                  .out = acts(ROWS * C)};
    lks__cuda_epilogue(NULL, acts(ROWS * C), C, ROWS, C, &gelu);
    assert_counts(2 * n * act(), 15 * n); /* what doesn't change isn't stored again */
    lks__cuda_epilogue(NULL, acts(ROWS * C), C, ROWS, C, &gelu_of_bias);
    assert_counts(3 * n * act(), 15 * n);
    lks__cuda_epilogue(NULL, acts(ROWS * C), C, ROWS, C, &slope);
    assert_counts(3 * n * act(), 30 * n);
    lks__cuda_epilogue(NULL, acts(ROWS * C), C, ROWS, C, &branch);
    assert_counts(3 * n * act(), 3 * n);
    lks__cuda_activation_fwd(NULL, LKS__EPILOGUE_RELU2, acts(ROWS * C), acts(ROWS * C), ROWS, C);
    assert_counts(2 * n * act(), 3 * n);
}

/* Pairs of a query with the keys up to it; forward has 2 products of them, backward 7 in two
 * launches. */
static void check_attention(double size)
{
    const lks__attention_shape shape = {B, T, NH, HS, NKV};
    const double q = ROWS * NH * HS * size, k = ROWS * NKV * HS * size;
    const double pairs = B * NH * T * (T + 1) / 2.0;
    const lks__attention_in in = {acts(ROWS * C), acts(ROWS * C), acts(ROWS * C), C, NKV * HS};
    const lks__attention_grads grads = {acts(ROWS * C), acts(ROWS * C), acts(ROWS * C), C,
                                        NKV * HS};
    lks__act *out = acts(ROWS * C);
    float *lse = floats(B * NH * T);
    lks__cuda_attention_fwd(NULL, &shape, out, lse, &in, NULL);
    assert_counts(2 * q + 2 * k, pairs * (2 * 2 * HS + 20));
    lks__cuda_attention_bwd(NULL, &shape, &grads, acts(ROWS * C), &in, out, lse, NULL);
    assert_counts(2 * q + (2 * q + 4 * k) + (3 * q + 2 * k),
                  2 * ROWS * NH * HS + pairs * (7 * 2 * HS + 20));
    const lks__attention_shape one = {B, 1, NH, HS, NKV};
    const lks__attention_cache cache = {acts(B * NKV * T * HS), acts(B * NKV * T * HS), T, T - 1};
    lks__cuda_attention_cached_fwd(NULL, &one, out, &cache, &in);
    assert_counts(size * (4 * B * NKV * HS + 2 * B * NH * HS + 2 * B * NKV * T * HS),
                  (double)B * NH * T * 4 * HS);
}

TEST_WITH(test_attention, host_begin_floats, NULL)
{
    check_attention(1);
    host_halves(true);
    check_attention(0.5);
    host_halves(false);
}

HOST_TEST(test_golf)
{
    const double n = ROWS * C, k = ROWS * NKV * HS;
    const int32_t *tokens = host_tokens(ROWS, V, 1);
    lks__act *rows[9];
    float *rms = floats(ROWS), *partial = floats(lks__cuda_golf_partial_floats(ROWS, C, NH));
    for (int i = 0; i < 9; i++)
        rows[i] = acts(ROWS * C);
    lks__cuda_golf_norm_fwd(NULL, rows[0], rms, rows[2], ROWS, C);
    assert_counts(2 * n * act(), 4 * n);
    lks__cuda_golf_norm_bwd(NULL, rows[0], rows[1], rows[2], rms, ROWS, C);
    assert_counts(3 * n * act(), 7 * n);
    lks__cuda_golf_embed_fwd(NULL, rows[0], rms, tokens, floats(V * C), ROWS, C);
    assert_counts(n + n * act(), 4 * n);
    lks__cuda_golf_embed_bwd(NULL, floats(V * C), rows[0], rows[1], tokens, floats(V * C), rms,
                             ROWS, C); /* and the sum of the rows */
    assert_counts((n + 2 * n * act()) + (n * act() + 7 * ROWS), 8 * n);
    lks__golf_entry e = {.prev = rows[0], .x0 = rows[2], .mix = floats(2 * C)};
    e.x = rows[3];
    e.norm = rows[4];
    e.rms = rms;
    lks__cuda_golf_entry_fwd(NULL, &e, ROWS, C);
    assert_counts(4 * n * act(), 7 * n);
    lks__cuda_golf_entry_bwd(NULL, &e, rows[6], rows[7], NULL, NULL, NULL, rows[8], ROWS, C,
                             partial);
    assert_counts(8 * n * act(), 18 * n);
    e.skip = rows[1];
    e.skip_weight = floats(C);
    lks__cuda_golf_entry_fwd(NULL, &e, ROWS, C);
    assert_counts(5 * n * act(), 9 * n);
    lks__golf_branch b = {.dx = rows[0], .dy = rows[1], .scale = floats(C)};
    lks__cuda_golf_branch_bwd(NULL, &b, ROWS, C);
    assert_counts(2 * n * act(), n);
    b.add = rows[2];
    lks__cuda_golf_branch_bwd(NULL, &b, ROWS, C);
    assert_counts(4 * n * act(), 2 * n);
    b.add = NULL;
    b.dnorm = rows[3];
    b.normed = rows[4];
    b.rms = rms;
    lks__cuda_golf_branch_bwd(NULL, &b, ROWS, C);
    assert_counts(5 * n * act(), 8 * n);
    lks__golf_scaled s = {floats(V * C), floats(V), floats(V * C), floats(V * C), floats(V), false};
    lks__cuda_golf_scaled_bwd(NULL, &s, V, C);
    assert_counts(4 * V * C, 4 * V * C);
    s.fresh = true;
    lks__cuda_golf_scaled_bwd(NULL, &s, V, C);
    assert_counts(3 * V * C, 4 * V * C);
    const lks__golf_heads h = {.rows = ROWS,
                               .T = T,
                               .n_head = NH,
                               .n_kv_head = NKV,
                               .hs = HS,
                               .cosine = floats(T * HS / 2),
                               .sine = floats(T * HS / 2),
                               .gain = floats(NH),
                               .q_raw = rows[0],
                               .k_raw = rows[1],
                               .q = rows[2],
                               .k = rows[3],
                               .q_rms = floats(ROWS * NH),
                               .k_rms = floats(ROWS * NKV)};
    lks__cuda_golf_heads_fwd(NULL, &h);
    assert_counts(2 * (n + k) * act(), 9 * (n + k));
    lks__cuda_golf_heads_bwd(NULL, &h, rows[4], rows[5], NULL, NULL);
    assert_counts(3 * (n + k) * act(), 20 * (n + k));
}

HOST_TEST(test_head)
{
    const double n = ROWS * V;
    double row_loss[ROWS];
    int32_t *targets = host_tokens(ROWS, V, 1);
    for (int i = 0; i < 4; i++) {
        const lks__xent x = {ROWS, V, V, 1, i & 1 ? 30.0f : 0.0f, i >= 2};
        lks__cuda_xent_rows(NULL, &x, acts(ROWS * V), targets, row_loss);
        assert_counts((x.grad ? 2 : 1) * n * act(),
                      n * (x.grad ? 30 + (i & 1) * 40 : 12 + (i & 1) * 20));
    }
}

TEST_WITH(test_updates, host_begin_floats, NULL)
{
    lks__blend blend = {.n_pieces = 2};
    lks__adamw_list adamw = {1e-3, 0.9, 0.95, 1e-8, 0.1, 2, 1, .n_pieces = 2};
    for (int i = 0; i < 2; i++) {
        blend.piece[i].y = adamw.piece[i].params = floats(20);
        blend.piece[i].x = adamw.piece[i].grads = floats(20);
        adamw.piece[i].exp_avg = floats(20);
        adamw.piece[i].exp_avg_sq = host_floats(20);
        blend.piece[i].n = adamw.piece[i].n = 10 + 10 * (size_t)i;
    }
    lks__cuda_update_blend(NULL, &blend);
    assert_counts(3 * 30, 3 * 30);
    blend.piece[1].x = NULL;
    lks__cuda_update_blend(NULL, &blend);
    assert_counts(3 * 10 + 20, 3 * 10);
    lks__cuda_update_adamw(NULL, &adamw);
    assert_counts(7 * 30, 14 * 30);
    lks__muon_list muon = {.n_pieces = 1, .ns_steps = 0};
    muon.piece[0].rows = V;
    muon.piece[0].cols = C;
    muon.piece[0].params = floats(V * C);
    muon.piece[0].momentum = floats(V * C);
    muon.piece[0].grads = floats(V * C);
    muon.work_bytes = lks__cuda_update_muon_bytes(NULL, V, C);
    muon.work = host_work(muon.work_bytes);
    lks__cuda_update_muon(NULL, &muon);
    assert_counts((5 + 2 + 3) * V * C, (7 + 1 + 3) * V * C);
}
