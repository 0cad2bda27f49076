/* Passes over new tokens (model/decode.h) beside passes over whole sequences: equal within 1e-4,
 * for every length up to a full context. And the same bits however the tokens are cut into passes,
 * whatever other sequences a pass has, on any number of threads. */
#include "models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/device.h"
#include "model/decode.h"
#include "model/frame.h"

enum { T = 37, V = SMALL_VOCAB, S = 3 };

/* The small models with a longer context: tiles of kernels and tasks are full and not. */
static small_model longer(int i)
{
    small_model m = small_models[i];
    m.config.block_size = T;
    return m;
}

/* A device with threads of its own. */
struct place {
    lks__exec ex;
    lks__device device;
};

static void open_place(struct place *p, const small_run *run, int threads, bool bf16)
{
    p->ex = *run->model->device->ex;
    p->ex.bf16 = bf16;
    assert_ok(
        lks__pool_open(threads, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &p->ex.pool));
    p->device = lks__device_cpu(&p->ex);
}

static lks__decoder *open_decoder(const small_run *run, struct place *p, size_t rows)
{
    lks__decoder *d;
    const lks__decoder_size size = {S, T, rows};
    assert_ok(lks__decoder_open(&run->config, &run->table, &size, &p->device, &d));
    assert_true(lks__decoder_keeps(d));
    return d;
}

static void read(lks__decoder *d, const small_run *run, size_t first, const int32_t *tokens,
                 size_t at, size_t n, float *logits)
{
    const lks__decoder_pass pass = {
        .first = first, .sequences = 1, .n = n, .at = at, .tokens = tokens + at, .logits = logits};
    lks__decoder_run(d, run->params, &pass);
}

static void fill(int32_t *tokens, size_t n, uint32_t seed)
{
    lks__mt g;
    lks__mt_seed(&g, seed);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)lks__mt_randint(&g, V);
}

/* logits[T][V], one token at a time. */
static void decode(lks__decoder *d, const small_run *run, size_t first, const int32_t *tokens,
                   float logits[T][V])
{
    for (size_t i = 0; i < T; i++)
        read(d, run, first, tokens, i, 1, logits[i]);
}

static void check_model(int i, bool bf16, double tolerance)
{
    small_run run;
    struct place p;
    lks__model *whole;
    int32_t tokens[T];
    float got[T][V], want[V];
    double worst = 0.0;
    const small_model m = longer(i);
    small_open(&m, &run);
    open_place(&p, &run, 2, bf16);
    fill(tokens, T, 3);
    lks__decoder *d = open_decoder(&run, &p, S);
    assert_ok(lks__model_open(&run.config, &run.table, 1, &p.device, &whole));
    decode(d, &run, 1, tokens, got);
    for (int n = 1; n <= T; n++) {
        models_logits(whole, run.params, tokens, n, want);
        for (int v = 0; v < V; v++)
            worst = fmax(worst, fabs((double)got[n - 1][v] - (double)want[v]) /
                                    fmax(1.0, fabs((double)want[v])));
    }
    print_message("%s%s: off by %.2g\n", m.name, bf16 ? " in bfloat16" : "", worst);
    assert_true(worst <= tolerance);
    lks__decoder_close(d);
    lks__model_close(whole);
    lks__pool_close(p.ex.pool);
    small_close(&run);
}

TEST(test_uncached)
{
    for (int i = 0; i < N_SMALL_MODELS; i++) {
        check_model(i, false, 1e-4);
        check_model(i, true, 0.1); /* a value may be rounded to the next one */
    }
}

/* Cuts of the sequence into passes of `chunk`, on threads of their own. */
static void check_chunks(const small_run *run, const int32_t *tokens, float want[T][V], int threads,
                         bool bf16)
{
    struct place p;
    float logits[V];
    open_place(&p, run, threads, bf16);
    lks__decoder *d = open_decoder(run, &p, T);
    for (size_t chunk = 1; chunk <= T; chunk += chunk < 6 ? 1 : 7)
        for (size_t at = 0, n; at < T; at += n) {
            n = T - at < chunk ? T - at : chunk;
            read(d, run, chunk % S, tokens, at, n, logits);
            assert_memory_equal(logits, want[at + n - 1], sizeof logits);
        }
    lks__decoder_close(d);
    lks__pool_close(p.ex.pool);
}

/* Three sequences that part after `shared` tokens, one pass for all of them. */
static void check_sequences(const small_run *run, size_t shared, bool bf16)
{
    struct place p;
    int32_t tokens[S][T], newest[S];
    float want[S][T][V], got[S][V];
    open_place(&p, run, 2, bf16);
    lks__decoder *d = open_decoder(run, &p, T);
    for (uint32_t s = 0; s < S; s++) {
        fill(tokens[s], T, s + 1);
        memcpy(tokens[s], tokens[0], shared * sizeof *newest);
        decode(d, run, 0, tokens[s], want[s]);
    }
    if (shared > 0)
        read(d, run, 0, tokens[0], 0, shared, NULL);
    lks__decoder_share(d, S, shared);
    for (size_t at = shared; at < T; at++) {
        for (int s = 0; s < S; s++)
            newest[s] = tokens[s][at];
        const lks__decoder_pass pass = {
            .sequences = S, .n = 1, .at = at, .tokens = newest, .logits = got[0]};
        lks__decoder_run(d, run->params, &pass);
        for (int s = 0; s < S; s++)
            assert_memory_equal(got[s], want[s][at], sizeof got[s]);
    }
    lks__decoder_close(d);
    lks__pool_close(p.ex.pool);
}

/* Several new tokens of each of several sequences in one pass: the logits behind the last of each.
 */
static void check_several(const small_run *run, bool bf16)
{
    enum { N = 13 }; /* more rows than a task keeps */
    struct place p;
    int32_t tokens[S][T], firsts[S][N];
    float want[T][V], got[S][V];
    open_place(&p, run, 2, bf16);
    lks__decoder *d = open_decoder(run, &p, S * N);
    for (uint32_t s = 0; s < S; s++) {
        fill(tokens[s], T, s + 20);
        memcpy(firsts[s], tokens[s], sizeof firsts[s]);
    }
    const lks__decoder_pass pass = {
        .sequences = S, .n = N, .at = 0, .tokens = firsts[0], .logits = got[0]};
    lks__decoder_run(d, run->params, &pass);
    for (int s = 0; s < S; s++) {
        decode(d, run, 0, tokens[s], want);
        assert_memory_equal(got[s], want[N - 1], sizeof got[s]);
    }
    lks__decoder_close(d);
    lks__pool_close(p.ex.pool);
}

TEST(test_bits)
{
    for (int i = 0; i < 2 * N_SMALL_MODELS; i++) {
        small_run run;
        struct place p;
        int32_t tokens[T];
        float want[T][V];
        const bool bf16 = i >= N_SMALL_MODELS;
        const small_model m = longer(i % N_SMALL_MODELS);
        small_open(&m, &run);
        open_place(&p, &run, 1, bf16);
        fill(tokens, T, 7);
        lks__decoder *d = open_decoder(&run, &p, 1);
        decode(d, &run, 0, tokens, want);
        lks__decoder_close(d);
        lks__pool_close(p.ex.pool);
        for (int threads = 1; threads <= 4; threads += threads)
            check_chunks(&run, tokens, want, threads, bf16);
        check_sequences(&run, 0, bf16);
        check_sequences(&run, 11, bf16);
        check_several(&run, bf16);
        small_close(&run);
    }
}

/* More keys and values than memory can address are refused with their size. */
TEST(test_too_large)
{
    small_run run;
    lks__decoder *d;
    small_open(&small_models[0], &run);
    const lks__decoder_size large = {(size_t)1 << 40, SMALL_T, 1};
    const lks__decoder_size huge = {SIZE_MAX / 4, SMALL_T, 1};
    lks__device *device = run.model->device;
    assert_fails(LKS_ERR_NOMEM, lks__decoder_open(&run.config, &run.table, &large, device, &d),
                 "no memory for 4433", " MB of keys and values");
    assert_fails(LKS_ERR_NOMEM, lks__decoder_open(&run.config, &run.table, &huge, device, &d),
                 "keys and values");
    small_close(&run);
}

/* What is kept: a key and a value for each layer, sequence, position and key/value head. */
TEST(test_bytes)
{
    for (int i = 0; i < N_SMALL_MODELS; i++) {
        const lks__model_config *c = &small_models[i].config;
        const size_t heads = (size_t)(c->n_kv_head > 0 ? c->n_kv_head : c->n_head);
        const size_t hs = (size_t)(c->n_embd / c->n_head);
        const lks__decoder_size size = {S, T, 4};
        size_t forward, bytes;
        assert_ok(lks__model_forward_bytes(c, size.rows, &lks__layers_cpu, &forward));
        assert_ok(lks__decoder_bytes(c, &size, &lks__layers_cpu, &bytes));
        assert_int_equal(bytes - forward,
                         2 * (size_t)c->n_layer * S * T * heads * hs * sizeof(float));
    }
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(small_open_exec, small_close_exec);
}
