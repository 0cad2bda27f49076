/* The same start: initial weights and the first batches equal those of nanoGPT's script. */
#include "parity.h"

static const char *const figures[] = {
    "generated/nanogpt.json",     "generated/nanogpt_bias_accum.json",
    "generated/nanogpt_odd.json", "generated/nanogpt_ddp2.json",
    "nanogpt_char.json",          "nanogpt_char_ddp2.json",
};
enum { N_FIGURES = sizeof figures / sizeof figures[0] };

TEST(test_tensors)
{
    for (int f = 0; f < N_FIGURES; f++)
        parity_hold_init(figures[f]);
}

TEST(test_tolerances)
{
    parity_check_table();
}

TEST(test_padding_is_zero)
{
    parity_model m = parity_open("generated/nanogpt_odd.json");
    size_t padding = 0;
    for (size_t i = 0; i < m.table.n_tensors; i++) {
        const lks__table_tensor *t = &m.table.tensors[i];
        for (size_t at = t->offset + t->count; at % 16 != 0; at++, padding++)
            assert_true(m.params[at] == 0.0f);
    }
    assert_true(padding > 0);
    parity_close(&m);
}

TEST(test_draws)
{
    parity_model m = parity_open("nanogpt_char.json");
    assert_int_equal(m.init_draws, lks_test_number(m.figure, "mt19937_outputs_before_first_batch"));
    parity_close(&m);
}

static void check_offsets(const uint64_t *got, const json_t *want, int B, const char *what)
{
    assert_int_equal(json_array_size(want), B);
    for (int b = 0; b < B; b++)
        if (got[b] != (uint64_t)json_integer_value(json_array_get(want, (size_t)b)))
            fail_msg("%s: offset %d is %llu, not %lld", what, b, (unsigned long long)got[b],
                     (long long)json_integer_value(json_array_get(want, (size_t)b)));
}

/* The first five micro-batches of each virtual rank, and the evaluation between the drawing of the
 * first one and its use. */
TEST(test_offsets)
{
    for (int f = 0; f < N_FIGURES; f++) {
        parity_model m = parity_open(figures[f]);
        bool text = f >= 4; /* tinyshakespeare: 1,115,394 characters */
        lks__batch_sampler *s =
            text ? parity_sampler(&m, 1003854, 111540) : parity_sampler(&m, 200000, 20000);
        int n = (int)lks_test_number(m.figure, "config.eval_iters");
        const uint64_t *eval = lks__batch_sampler_eval(s, 0, n);
        assert_non_null(eval);
        const json_t *eval0 = json_object_get(m.figure, "eval0_offsets");
        if (eval0 != NULL) {
            check_offsets(eval, lks_test_member(eval0, "train"), m.B, "evaluation 0, train");
            check_offsets(eval + (size_t)n * (size_t)m.B, lks_test_member(eval0, "val"), m.B,
                          "evaluation 0, val");
        }
        const json_t *first5 = lks_test_member(m.figure, "train_offsets_first5");
        for (int i = 0; i * m.A < 5; i++) {
            const uint64_t *step = lks__batch_sampler_step(s, (uint64_t)i);
            for (int v = 0; v < m.V; v++)
                for (int a = 0; a < m.A && i * m.A + a < 5; a++) {
                    const json_t *mine = m.V == 1 ? first5 : json_array_get(first5, (size_t)v);
                    check_offsets(step + (v * m.A + a) * m.B,
                                  json_array_get(mine, (size_t)(i * m.A + a)), m.B,
                                  lks_test_text("%s, step %d, virtual rank %d, micro-step %d",
                                                m.name, i, v, a));
                }
        }
        lks__batch_sampler_close(s);
        parity_close(&m);
    }
}

int main(void)
{
    return lks_test_run_all(NULL, parity_print_worst);
}
