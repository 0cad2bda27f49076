/* Sampling (use/generate.h) against exact probabilities, by goodness of fit on a hundred thousand
 * draws: temperature, top-k, prompts longer than the context, a context that slides. Seeds are
 * fixed, so a test that passes once always does. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "compute/cpu/device.h"
#include "models.h"
#include "weights/use/generate.h"
#include "weights/use/write.h"

enum { V = 13, T = 6, DRAWS = 100000, AT_ONCE = 500 };

static lks__kernels kernels;
static lks__exec ex = {.k = &kernels};
static lks__device device;

/* A model whose next token depends on every token of its context, with weights so large that
 * probabilities differ clearly. */
static struct {
    lks__model_config config;
    lks__table table;
    lks__model *model; /* uncached, for the probabilities */
    float *params;
    lks__generator *generator, *many; /* of one sample, and of AT_ONCE */
} m;

static void open_generator(size_t samples, size_t chunk, lks__device *on, lks__generator **g)
{
    const lks__generator_size size = {samples, UINT64_MAX, chunk};
    assert_ok(lks__generator_open(&m.config, &m.table, m.params, &size, on, g));
}

static int open_model(void **state)
{
    lks__mt g;
    assert_ok(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
    device = lks__device_cpu(&ex);
    m.config = (lks__model_config){
        .n_layer = 1, .n_head = 2, .n_embd = 8, .block_size = T, .vocab_size = V};
    m.config.ops = &lks__model_gpt2;
    assert_ok(lks__model_table(&m.config, &m.table));
    assert_ok(lks__model_open(&m.config, &m.table, 1, &device, &m.model));
    m.params = lks_test_calloc(m.table.count, sizeof *m.params);
    lks__mt_seed(&g, 5);
    for (size_t i = 0; i < m.table.n_tensors; i++) {
        const lks__table_tensor *t = &m.table.tensors[i];
        lks__mt_normal(&g, m.params + t->offset, t->count, t->init == LKS__INIT_ONE ? 1.0f : 0.0f,
                       0.5f);
    }
    open_generator(1, 0, &device, &m.generator);
    open_generator(AT_ONCE, 0, &device, &m.many);
    return 0;
}

static int close_model(void **state)
{
    lks__generator_close(m.generator);
    lks__generator_close(m.many);
    free(m.params);
    lks__model_close(m.model);
    lks__table_free(&m.table);
    lks__pool_close(ex.pool);
    return 0;
}

/* ---- exact probabilities ----------------------------------------------------------------- */

/* p[V] of the token after tokens[0, n): softmax(logits / temperature) over the top_k largest and
 * those equal to the last of them; only the last T tokens count. */
static void probabilities(double *p, const int32_t *tokens, size_t n, double temperature, int top_k)
{
    float logits[V];
    double sum = 0.0, max = -INFINITY;
    size_t from = n > T ? n - T : 0;
    models_logits(m.model, m.params, tokens + from, (int)(n - from), logits);
    for (int i = 0; i < V; i++) {
        int larger = 0;
        for (int j = 0; j < V; j++)
            larger += logits[j] > logits[i];
        p[i] = top_k == 0 || larger < top_k ? (double)logits[i] / temperature : -INFINITY;
        max = fmax(max, p[i]);
    }
    for (int i = 0; i < V; i++)
        sum += p[i] = exp(p[i] - max);
    for (int i = 0; i < V; i++)
        p[i] /= sum;
}

/* The logits themselves: those of all prefixes give the model's loss, which other tests compare
 * with PyTorch's. */
TEST(test_logits)
{
    const int32_t tokens[T + 1] = {3, 1, 12, 0, 7, 7, 5};
    lks__micro_batch mb = {tokens, tokens + 1, 1, T};
    double loss = 0.0, p[V];
    for (size_t n = 1; n <= T; n++) {
        probabilities(p, tokens, n, 1.0, 0);
        loss -= log(p[tokens[n]]) / T;
    }
    float got;
    lks__model_loss(m.model, m.params, &mb, &got);
    assert_near((double)got, loss, 1e-6);
}

/* ---- goodness of fit --------------------------------------------------------------------- */

/* The value that chi-square with `freedom` degrees exceeds once in a million (Wilson and
 * Hilferty). */
static double chi_square_limit(int freedom)
{
    double a = 2.0 / (9.0 * freedom), root = 1.0 - a + 4.753 * sqrt(a);
    return freedom * root * root * root;
}

static void check_fit(const char *what, const double *expected, const double *observed, int n)
{
    double chi_square = 0.0;
    int freedom = -1;
    for (int i = 0; i < n; i++) {
        if (expected[i] == 0.0 && observed[i] != 0.0)
            fail_msg("%s: %d was drawn, which can't be", what, i);
        if (expected[i] == 0.0)
            continue;
        assert_true(expected[i] >= 5.0); /* needed for chi-square's distribution */
        double off = observed[i] - expected[i];
        chi_square += off * off / expected[i];
        freedom++;
    }
    double limit = freedom > 0 ? chi_square_limit(freedom) : 0.0;
    print_message("%s: chi-square %.1f with %d degrees of freedom, at most %.1f\n", what,
                  chi_square, freedom, limit);
    if (!(chi_square <= limit))
        fail_msg("%s: chi-square is %.1f, at most %.1f", what, chi_square, limit);
}

struct drawn {
    int32_t *tokens;
    size_t n;
};

/* `ctx`: a struct drawn for each sample. */
static lks_status take(void *ctx, size_t sample, int32_t token, bool *end_p)
{
    struct drawn *d = (struct drawn *)ctx + sample;
    d->tokens[d->n++] = token;
    return LKS_OK;
}

static void generate(lks__generator *g, const lks__generate *how, size_t samples,
                     const int32_t *prompt, size_t n)
{
    lks__generator_begin(g, samples);
    lks__generator_read(g, prompt, n);
    assert_ok(lks__generator_write(g, how));
}

/* Count the first tokens of AT_ONCE samples. */
static void add_first_tokens(double *observed, lks__generate *how, const int32_t *prompt, size_t n)
{
    static int32_t tokens[AT_ONCE];
    struct drawn d[AT_ONCE];
    for (size_t s = 0; s < AT_ONCE; s++)
        d[s] = (struct drawn){&tokens[s], 0};
    how->ctx = d;
    generate(m.many, how, AT_ONCE, prompt, n);
    for (size_t s = 0; s < AT_ONCE; s++) {
        assert_int_equal(d[s].n, 1);
        assert_in_range(tokens[s], 0, V - 1);
        observed[tokens[s]]++;
    }
}

/* The first token of many samples with one prompt; test_beside shows that they are as if each was
 * alone. */
static void check_first(const char *what, const int32_t *prompt, size_t n, double temperature,
                        int top_k)
{
    double p[V], expected[V], observed[V] = {0};
    lks__generate o = {.draw = {.seed = 99, .temperature = temperature, .top_k = (uint32_t)top_k},
                       .max_new_tokens = 1,
                       .sink = take};
    o.draw.top_p = 1.0;
    probabilities(p, prompt, n, temperature, top_k);
    for (o.first = 0; o.first < DRAWS; o.first += AT_ONCE)
        add_first_tokens(observed, &o, prompt, n);
    for (int i = 0; i < V; i++)
        expected[i] = p[i] * DRAWS;
    check_fit(what, expected, observed, V);
}

static const int32_t prompt[] = {3, 1, 12, 0, 7, 7, 5, 2, 9};
enum { PROMPT = sizeof prompt / sizeof prompt[0] };

TEST(test_temperature)
{
    check_first("temperature 1", prompt, 3, 1.0, 0);
    check_first("temperature 2.5", prompt, 1, 2.5, 0);
}

TEST(test_top_k)
{
    check_first("top_k 5", prompt, 4, 1.0, 5);
    check_first("top_k 3, temperature 1.7", prompt, 2, 1.7, 3);
    check_first("top_k 1", prompt, 4, 1.0, 1);
    check_first("top_k beyond V", prompt, 4, 1.3, V + 5);
}

/* Equal logits: all that equal the k-th largest may be drawn. The table is tied, so two tokens with
 * equal rows have equal logits. */
TEST(test_top_k_ties)
{
    enum { C = 8, FIRST = 4, SECOND = 10 };
    float *wte = NULL, kept[C];
    for (size_t i = 0; i < m.table.n_tensors; i++)
        if (strcmp(m.table.tensors[i].name, "transformer.wte.weight") == 0)
            wte = m.params + m.table.tensors[i].offset;
    assert_non_null(wte);
    memcpy(kept, wte + SECOND * C, sizeof kept);
    memcpy(wte + SECOND * C, wte + FIRST * C, sizeof kept);
    float logits[V];
    int larger = 0;
    models_logits(m.model, m.params, prompt, 3, logits);
    assert_true(logits[FIRST] == logits[SECOND]);
    for (int i = 0; i < V; i++)
        larger += logits[i] > logits[FIRST];
    double p[V];
    probabilities(p, prompt, 3, 1.0, larger + 1);
    assert_true(p[FIRST] > 0.0 && p[FIRST] == p[SECOND]);
    check_first("a tie at the k-th", prompt, 3, 1.0, larger + 1);
    memcpy(wte + SECOND * C, kept, sizeof kept);
}

TEST(test_long_prompt)
{
    check_first("a prompt of one more", prompt, T + 1, 1.3, 0);
    check_first("a longer prompt", prompt, PROMPT, 1.3, 0);
}

/* One text of many tokens. Each token is one of V intervals of [0, 1), as long as its probability.
 * A random point in that interval is uniform in [0, 1), whatever the contexts were, and so are
 * pairs of two consecutive ones. */
static void check_text(const char *what, const int32_t *start, size_t n, double temperature,
                       int top_k)
{
    enum { CELLS = 32 };
    static double expected[CELLS * CELLS], observed[CELLS * CELLS], even[CELLS], alone[CELLS];
    int32_t *text = malloc((n + DRAWS) * sizeof *text);
    lks__mt g;
    assert_non_null(text);
    memcpy(text, start, n * sizeof *text);
    struct drawn d = {text, n};
    const lks__generate o = {
        .draw = {.seed = 7, .temperature = temperature, .top_k = (uint32_t)top_k, .top_p = 1.0},
        .first = 3,
        .max_new_tokens = DRAWS,
        .sink = take,
        .ctx = &d};
    generate(m.generator, &o, 1, start, n);
    assert_int_equal(d.n, n + DRAWS);
    memset(observed, 0, sizeof observed);
    memset(alone, 0, sizeof alone);
    lks__mt_seed(&g, 1);
    int last = 0;
    for (size_t i = n; i < n + DRAWS; i++) {
        double p[V], below = 0.0;
        float within;
        probabilities(p, text, i, temperature, top_k);
        for (int32_t t = 0; t < text[i]; t++)
            below += p[t];
        assert_true(p[text[i]] > 0.0);
        lks__mt_uniform(&g, &within, 1, 0.0f, 1.0f);
        int cell = (int)((below + p[text[i]] * (double)within) * CELLS);
        cell = cell < CELLS ? cell : CELLS - 1;
        alone[cell]++;
        observed[last * CELLS + cell]++;
        last = cell;
    }
    for (int i = 0; i < CELLS; i++)
        even[i] = DRAWS / (double)CELLS;
    for (int i = 0; i < CELLS * CELLS; i++)
        expected[i] = DRAWS / (double)(CELLS * CELLS);
    check_fit(what, even, alone, CELLS);
    check_fit(lks_test_text("%s, in pairs", what), expected, observed, CELLS * CELLS);
    free(text);
}

TEST(test_sliding)
{
    check_text("a text", prompt, 1, 1.0, 0);
    check_text("a text with temperature and top_k", prompt, PROMPT, 1.5, 6);
}

/* Other seeds and other sample numbers give other texts; the same give the same. */
TEST(test_keys)
{
    enum { N = 50 };
    int32_t text[4][N];
    for (int i = 0; i < 4; i++) {
        struct drawn d = {text[i], 0};
        const lks__generate o = {.draw = {.seed = i == 1 ? 2 : 1, .temperature = 2.0, .top_p = 1.0},
                                 .first = i == 2,
                                 .max_new_tokens = N,
                                 .sink = take,
                                 .ctx = &d};
        generate(m.generator, &o, 1, prompt, 2);
    }
    assert_memory_not_equal(text[0], text[1], sizeof text[0]);
    assert_memory_not_equal(text[0], text[2], sizeof text[0]);
    assert_memory_not_equal(text[1], text[2], sizeof text[0]);
    assert_memory_equal(text[0], text[3], sizeof text[0]);
}

/* Samples are the same whatever is computed beside them, in whatever chunks the prompt is read, on
 * any number of threads; before the context is full and after. */
TEST(test_beside)
{
    enum { MOST = 5, N = 40 };
    int32_t want[MOST][N], got[MOST][N];
    lks__generate o = {
        .draw = {.seed = 4, .temperature = 1.5, .top_p = 0.9}, .max_new_tokens = N, .sink = take};
    for (size_t s = 0; s < MOST; s++) {
        o.ctx = &(struct drawn){want[s], 0};
        o.first = (uint32_t)s;
        generate(m.generator, &o, 1, prompt, 3);
    }
    assert_memory_not_equal(want[0], want[1], sizeof want[0]);
    for (int threads = 1; threads <= 4; threads += threads)
        for (size_t samples = 1; samples <= MOST; samples++)
            for (size_t chunk = 1; chunk <= 4; chunk++) {
                struct drawn d[MOST];
                lks__generator *g;
                lks__exec other = ex;
                assert_ok(lks__pool_open(threads, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init,
                                         &other.pool));
                lks__device on = lks__device_cpu(&other);
                open_generator(samples, chunk, &on, &g);
                for (size_t s = 0; s < samples; s++)
                    d[s] = (struct drawn){got[s], 0};
                o.first = 0;
                o.ctx = d;
                generate(g, &o, samples, prompt, 3);
                assert_memory_equal(got, want, samples * sizeof want[0]);
                lks__generator_close(g);
                lks__pool_close(other.pool);
            }
}

/* Text that goes on: what was drawn and what is read behind it are the context of what follows. The
 * draws go on, too. */
TEST(test_going_on)
{
    enum { N = 9, BETWEEN = 2 };
    int32_t text[N + BETWEEN + N], first;
    struct drawn d = {text, 0};
    lks__generate o = {.draw = {.temperature = 0.0}, .max_new_tokens = N, .sink = take, .ctx = &d};
    for (int n = 1; n <= N; n++) { /* the context of 6 is full on the way */
        d.n = 0;
        o.max_new_tokens = (uint64_t)n;
        generate(m.generator, &o, 1, prompt, 1);
        lks__generator_read(m.generator, prompt + 5, BETWEEN);
        memcpy(text + n, prompt + 5, BETWEEN * sizeof *text);
        d.n += BETWEEN;
        o.max_new_tokens = 1;
        assert_ok(lks__generator_write(m.generator, &o));
        int32_t whole[1 + N + BETWEEN];
        whole[0] = prompt[0];
        memcpy(whole + 1, text, (size_t)(n + BETWEEN) * sizeof *text);
        struct drawn alone = {&first, 0};
        lks__generate again = o;
        again.ctx = &alone;
        generate(m.generator, &again, 1, whole, (size_t)(1 + n + BETWEEN));
        assert_int_equal(text[n + BETWEEN], first);
    }
}

/* The same of two samples that differ: each goes on from its own text. */
TEST(test_both_going_on)
{
    enum { SAMPLES = 2, N = 4, ALL = N + 2, SEEDS = 4 * V };
    int32_t text[SAMPLES][ALL], whole[ALL], first; /* with the prompt, all of T */
    int differ = 0;
    struct drawn d[SAMPLES], alone = {&first, 0};
    lks__generator *g;
    open_generator(SAMPLES, 0, &device, &g);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        lks__generate o = {.draw = {.seed = seed, .temperature = 1.5, .top_p = 1.0},
                           .max_new_tokens = N,
                           .sink = take,
                           .ctx = d};
        for (int s = 0; s < SAMPLES; s++)
            d[s] = (struct drawn){text[s], 0};
        generate(g, &o, SAMPLES, prompt, 1);
        differ += memcmp(text[0], text[1], N * sizeof **text) != 0;
        const int32_t between = (int32_t)seed % V;
        lks__generator_read(g, &between, 1);
        for (int s = 0; s < SAMPLES; s++)
            text[s][d[s].n++] = between;
        o.draw.temperature = 0.0;
        o.max_new_tokens = 1;
        assert_ok(lks__generator_write(g, &o));
        o.ctx = &alone;
        for (int s = 0; s < SAMPLES; s++) {
            whole[0] = prompt[0];
            memcpy(whole + 1, text[s], (ALL - 1) * sizeof *whole);
            alone.n = 0;
            generate(m.generator, &o, 1, whole, ALL);
            assert_int_equal(text[s][ALL - 1], first);
        }
    }
    assert_true(differ > SEEDS / 2);
    lks__generator_close(g);
}

/* The text of a stopped answer, of which `most` bytes are written before the stop. */
static struct answer {
    char text[64];
    size_t n, most;
} answer;

static lks_status put(void *ctx, const char *text, size_t bytes)
{
    memcpy(answer.text + answer.n, text, bytes);
    answer.n += bytes;
    return LKS_OK;
}

static bool asked(void)
{
    return answer.n == answer.most;
}

static lks_status draw_answer(const char *stop, size_t most)
{
    static uint32_t letters[V];
    for (uint32_t i = 0; i < V; i++)
        letters[i] = 'a' + i;
    const lks__meta meta = {.vocab_size = V, .chars = letters};
    const lks__text text = {.meta = &meta};
    const char *const stops[] = {stop, NULL};
    lks__writer w = {.generator = m.generator,
                     .text = &text,
                     .how = {.draw = {.seed = 1, .temperature = 2.0, .top_p = 1.0},
                             .max_new_tokens = sizeof answer.text},
                     .stops = stops,
                     .put = put};
    bool newline;
    answer = (struct answer){.most = most};
    lks__generator_begin(m.generator, 1);
    lks__generator_read(m.generator, prompt, 1);
    lks__sys_stop_when(asked);
    const lks_status st = lks__write_answer(&w, &newline);
    lks__sys_stop_when(NULL);
    return st;
}

/* A stop writes the text that was held back, because a stop text could have begun with it: of two
 * equal letters the first is written once the second is drawn. */
TEST(test_stopped_answer)
{
    char whole[sizeof answer.text];
    size_t at = 0;
    assert_ok(draw_answer(NULL, SIZE_MAX));
    memcpy(whole, answer.text, sizeof whole);
    while (whole[at] != whole[at + 1])
        assert_true(++at + 1 < sizeof whole);
    assert_int_equal(draw_answer(lks_test_text("%c|", whole[at]), at + 1), LKS_ERR_STOPPED);
    assert_int_equal(answer.n, at + 2);
    assert_memory_equal(answer.text, whole, at + 2);
}

int main(void)
{
    lks_test_need_level(&kernels);
    return lks_test_run_all(open_model, close_model);
}
