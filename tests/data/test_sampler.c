/* Samplers: nanoGPT's own offsets (figures), and the keyed ones. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/number/rng.h"
#include "data/read/sampler.h"
#include "lockstep/sampler.h"

static lks__batch_sampler *open_sampler(const lks__batch_sampler_config *config)
{
    lks__batch_sampler *s = NULL;
    assert_ok(lks__batch_sampler_open(config, &s));
    return s;
}

static void assert_offsets(const json_t *want, const uint64_t *got)
{
    assert_true(json_array_size(want) > 0);
    for (size_t i = 0; i < json_array_size(want); i++)
        assert_int_equal(got[i], json_integer_value(json_array_get(want, i)));
}

/* 32-bit draws of nanoGPT's model construction and initialization (`how` in the figures gives the
 * order), for tensors of 16 or more elements. */
static uint64_t nanogpt_init_draws(const json_t *config)
{
    uint64_t L = (uint64_t)lks_test_number(config, "n_layer");
    uint64_t C = (uint64_t)lks_test_number(config, "n_embd");
    uint64_t T = (uint64_t)lks_test_number(config, "block_size");
    uint64_t V = (uint64_t)lks_test_number(config, "vocab_size");
    bool bias = json_is_true(lks_test_member(config, "bias"));
    const uint64_t shapes[4][2] = {{3 * C, C}, {C, C}, {4 * C, C}, {C, 4 * C}};
    uint64_t wte = lks__mt_normal_draws(V * C), wpe = lks__mt_normal_draws(T * C);
    uint64_t n = wte + wpe + V * C /* head: uniforms */ + wte /* tied: drawn twice */ + wpe + wte;
    for (int i = 0; i < 4; i++) {
        uint64_t size = shapes[i][0] * shapes[i][1];
        n += L * (size + (bias ? shapes[i][0] : 0)); /* Linear's default uniforms */
        n += L * lks__mt_normal_draws(size);         /* apply(_init_weights) */
        if (i % 2 == 1)
            n += L * lks__mt_normal_draws(size); /* c_proj.weight once more */
    }
    return n;
}

static void check_nanogpt(const char *name, uint64_t n_train, uint64_t n_val)
{
    const json_t *f = lks_test_figure(name), *c = lks_test_member(f, "config");
    const int iters = (int)lks_test_number(c, "eval_iters");
    lks__batch_sampler_config config = {
        .kind = LKS__SAMPLER_NANOGPT,
        .seed = (uint64_t)lks_test_number(c, "seed"),
        .V = 1,
        .A = (int)lks_test_number(c, "gradient_accumulation_steps"),
        .B = (int)lks_test_number(c, "batch_size"),
        .T = (int)lks_test_number(c, "block_size"),
        .n_tokens = {n_train, n_val},
        .init_draws = nanogpt_init_draws(c),
    };
    const size_t B = (size_t)config.B;
    if (json_object_get(f, "mt19937_outputs_before_first_batch"))
        assert_int_equal(config.init_draws,
                         (uint64_t)lks_test_number(f, "mt19937_outputs_before_first_batch"));
    const json_t *ranks = lks_test_member(f, "train_offsets_first5");
    const bool ddp = json_object_get(c, "world_size") != NULL;
    if (ddp) {
        config.V = (int)lks_test_number(c, "world_size");
        config.A = (int)lks_test_number(c, "local_accumulation_steps");
    }
    lks__batch_sampler *s = open_sampler(&config);

    const uint64_t *eval = lks__batch_sampler_eval(s, 0, iters);
    assert_non_null(eval);
    if (!ddp) {
        assert_offsets(lks_test_member(f, "eval0_offsets.train"), eval);
        assert_offsets(lks_test_member(f, "eval0_offsets.val"), eval + (size_t)iters * B);
    }
    int seen = 0;
    for (uint64_t step = 0; seen < 5 * config.V; step++) {
        const uint64_t *all = lks__batch_sampler_step(s, step);
        for (int v = 0; v < config.V; v++)
            for (int a = 0; a < config.A; a++) {
                size_t i = step * (uint64_t)config.A + (uint64_t)a;
                const json_t *batches = ddp ? json_array_get(ranks, (size_t)v) : ranks;
                if (i >= json_array_size(batches))
                    continue;
                assert_offsets(json_array_get(batches, i), all + (size_t)(v * config.A + a) * B);
                seen++;
            }
    }
    lks__batch_sampler_close(s);
}

TEST(test_nanogpt)
{
    check_nanogpt("nanogpt_char.json", 1003854, 111540);
    check_nanogpt("generated/nanogpt.json", 200000, 20000);
    check_nanogpt("generated/nanogpt_bias_accum.json", 200000, 20000);
    check_nanogpt("generated/nanogpt_odd.json", 200000, 20000);
}

TEST(test_nanogpt_ddp)
{
    check_nanogpt("nanogpt_char_ddp2.json", 1003854, 111540);
    check_nanogpt("generated/nanogpt_ddp2.json", 200000, 20000);
}

/* After a step back every rank's batches come again. */
TEST(test_back)
{
    enum { V = 3, A = 2, B = 4, N = V * A * B };
    const lks__batch_sampler_config config = {.kind = LKS__SAMPLER_NANOGPT,
                                              .seed = 5,
                                              .V = V,
                                              .A = A,
                                              .B = B,
                                              .T = 8,
                                              .n_tokens = {100000, 100000}};
    lks__batch_sampler *s = open_sampler(&config);
    uint64_t first[2 * N];
    lks__batch_sampler_step(s, 0);
    lks__batch_sampler_mark(s);
    for (int step = 0; step < 2; step++)
        memcpy(first + step * N, lks__batch_sampler_step(s, (uint64_t)step + 1), N * sizeof *first);
    assert_memory_not_equal(first, first + N, N * sizeof *first);
    lks__batch_sampler_eval(s, 2, 5);
    lks__batch_sampler_back(s);
    for (int step = 0; step < 2; step++)
        assert_memory_equal(first + step * N, lks__batch_sampler_step(s, (uint64_t)step + 1),
                            N * sizeof *first);
    lks__batch_sampler_close(s);
    lks__batch_sampler_mark(NULL);
    lks__batch_sampler_back(NULL);
}

/* ---- random ------------------------------------------------------------------------------ */

static const lks__batch_sampler_config random_config = {
    .kind = LKS__SAMPLER_RANDOM,
    .seed = UINT64_C(0x123456789abcdef0),
    .V = 4,
    .A = 3,
    .B = 5,
    .T = 16,
    .n_tokens = {1000, 117},
};

/* The definition for one element: the high word of draw * range, by long multiplication. */
static uint64_t offset_of(uint64_t seed, uint32_t w0, uint32_t w1, uint32_t site, uint32_t b,
                          uint64_t range)
{
    const uint32_t counter[4] = {w0, w1, site, b / 2};
    uint32_t out[4];
    lks__philox4x32(lks__philox_key_of(seed), counter, out);
    uint64_t high = out[b % 2 ? 2 : 0], low = out[b % 2 ? 3 : 1];
    assert_true(range < UINT64_C(1) << 32);
    return (high * range + (low * range >> 32)) >> 32;
}

TEST(test_random_definition)
{
    const lks__batch_sampler_config *c = &random_config;
    lks__batch_sampler *s = open_sampler(c);
    for (uint64_t step = 0; step < 3; step++) {
        const uint64_t *got = lks__batch_sampler_step(s, step);
        for (uint32_t v = 0; v < 4; v++)
            for (uint32_t a = 0; a < 3; a++)
                for (uint32_t b = 0; b < 5; b++)
                    assert_int_equal(*got++, offset_of(c->seed, (uint32_t)step, v << 16 | a,
                                                       LKS__SITE_DATA_TRAIN, b, 1000 - 16));
    }
    const uint64_t *got = lks__batch_sampler_eval(s, 250, 7);
    for (uint32_t split = 0; split < 2; split++)
        for (uint32_t i = 0; i < 7; i++)
            for (uint32_t b = 0; b < 5; b++)
                assert_int_equal(*got++, offset_of(c->seed, 250, i, LKS__SITE_DATA_EVAL + split, b,
                                                   split == 0 ? 1000 - 16 : 117 - 16));
    lks__batch_sampler_close(s);
}

/* Only (seed, step, v, micro-step) matters: not the order of steps, not evaluations between them,
 * not the number of virtual ranks or micro-steps. */
TEST(test_random_is_keyed)
{
    lks__batch_sampler_config c = random_config, wide = random_config, other = random_config;
    uint64_t first[4 * 3 * 5];
    lks__batch_sampler *s = open_sampler(&c);
    memcpy(first, lks__batch_sampler_step(s, 7), sizeof first);
    lks__batch_sampler_eval(s, 7, 3);
    lks__batch_sampler_step(s, 8);
    assert_memory_equal(lks__batch_sampler_step(s, 7), first, sizeof first);
    assert_memory_not_equal(lks__batch_sampler_step(s, 8), first, sizeof first);
    lks__batch_sampler_close(s);

    wide.V = 8;
    wide.A = 4;
    s = open_sampler(&wide);
    const uint64_t *got = lks__batch_sampler_step(s, 7);
    for (size_t v = 0; v < 4; v++)
        assert_memory_equal(got + v * 4 * 5, first + v * 3 * 5, 3 * 5 * sizeof *got);
    lks__batch_sampler_close(s);

    other.seed ^= UINT64_C(1) << 63;
    s = open_sampler(&other);
    assert_memory_not_equal(lks__batch_sampler_step(s, 7), first, sizeof first);
    lks__batch_sampler_close(s);
}

/* All valid offsets occur, about equally often, and no others: 98,400 draws give each of 984
 * offsets 100 on average, with standard deviation 10. */
TEST(test_random_is_uniform)
{
    enum { RANGE = 984, STEPS = 1640 };
    static int count[RANGE];
    lks__batch_sampler *s = open_sampler(&random_config);
    for (uint64_t step = 0; step < STEPS; step++) {
        const uint64_t *got = lks__batch_sampler_step(s, step);
        for (int i = 0; i < 4 * 3 * 5; i++) {
            assert_true(got[i] < RANGE);
            count[got[i]]++;
        }
    }
    double chi2 = 0;
    for (int i = 0; i < RANGE; i++) {
        assert_in_range(count[i], 40, 170);
        chi2 += (count[i] - 100.0) * (count[i] - 100.0) / 100;
    }
    assert_near(chi2, RANGE - 1, 5 * 44.4); /* 983 degrees of freedom: deviation sqrt(2 * 983) */
    lks__batch_sampler_close(s);
}

/* ---- limits and state -------------------------------------------------------------------- */

TEST(test_limits)
{
    lks__batch_sampler *s = NULL;
    lks__batch_sampler_config c = random_config;
    c.n_tokens[0] = 17; /* exactly one sample */
    c.n_tokens[1] = 17;
    s = open_sampler(&c);
    for (int i = 0; i < 4 * 3 * 5; i++)
        assert_int_equal(lks__batch_sampler_step(s, 0)[i], 0);
    for (int i = 0; i < 2 * 5; i++)
        assert_int_equal(lks__batch_sampler_eval(s, 0, 1)[i], 0);
    lks__batch_sampler_close(s);
    s = NULL;

    c.n_tokens[1] = 16;
    assert_fails(LKS_ERR_CONFIG, lks__batch_sampler_open(&c, &s), "val split has 16 tokens", "= 17",
                 "block_size");
    c.kind = LKS__SAMPLER_NANOGPT;
    c.n_tokens[0] = 0;
    assert_fails(LKS_ERR_CONFIG, lks__batch_sampler_open(&c, &s), "train split has 0 tokens");
    c = random_config;
    c.V = c.B = 1;
    c.A = 65536; /* the last one's number is all ones */
    s = open_sampler(&c);
    assert_int_equal(lks__batch_sampler_step(s, 3)[65535],
                     offset_of(c.seed, 3, 65535, LKS__SITE_DATA_TRAIN, 0, 1000 - 16));
    lks__batch_sampler_close(s);
    lks__batch_sampler_close(NULL);
}

static const lks__batch_sampler_config nanogpt_config = {
    .kind = LKS__SAMPLER_NANOGPT,
    .seed = 1337,
    .V = 2,
    .A = 2,
    .B = 3,
    .T = 8,
    .n_tokens = {5000, 600},
    .init_draws = 1000,
};

enum { STATE_BYTES = 2 * (625 * 4 + 3 * 8), STEP_BYTES = 2 * 2 * 3 * 8 };

/* A sampler that loads the state continues like the first one, also in evaluations. */
TEST(test_state)
{
    lks__batch_sampler_config elsewhere = nanogpt_config;
    elsewhere.init_draws = 5;
    elsewhere.seed = 99;
    lks__batch_sampler *a = open_sampler(&nanogpt_config), *b = open_sampler(&elsewhere);
    uint8_t saved[STATE_BYTES], again[STATE_BYTES];
    assert_int_equal(lks__batch_sampler_state_bytes(a), STATE_BYTES);
    for (uint64_t step = 0; step < 300; step++) { /* over several refills of the generator */
        if (step % 50 == 0)
            lks__batch_sampler_eval(a, step, 4);
        if (step % 37 == 0) {
            lks__batch_sampler_state_save(a, saved);
            assert_ok(lks__batch_sampler_state_load(b, saved, sizeof saved));
            lks__batch_sampler_state_save(b, again);
            assert_memory_equal(saved, again, sizeof saved);
        } else if (step % 50 == 0) {
            lks__batch_sampler_eval(b, step, 4);
        }
        uint64_t want[2 * 2 * 3];
        memcpy(want, lks__batch_sampler_step(a, step), STEP_BYTES);
        assert_memory_equal(lks__batch_sampler_step(b, step), want, STEP_BYTES);
    }
    lks__batch_sampler_close(a);
    lks__batch_sampler_close(b);
}

/* The layout in checkpoints: for each virtual rank 624 words, position, batch. */
TEST(test_state_layout)
{
    lks__batch_sampler *s = open_sampler(&nanogpt_config);
    uint8_t saved[STATE_BYTES];
    lks__batch_sampler_state_save(s, saved);
    for (uint32_t v = 0; v < 2; v++) {
        lks__mt g;
        lks__mt_seed(&g, 1337 + v);
        lks__mt_skip(&g, 1000);
        uint64_t batch[3];
        for (int b = 0; b < 3; b++)
            batch[b] = lks__mt_randint(&g, 4992);
        const uint8_t *p = saved + v * (STATE_BYTES / 2);
        assert_memory_equal(p, g.state, sizeof g.state); /* tests run on little-endian machines */
        assert_memory_equal(p + 2496, &g.pos, 4);
        assert_memory_equal(p + 2500, batch, 24);
    }
    lks__batch_sampler_close(s);
}

TEST(test_hostile_state)
{
    lks__batch_sampler *s = open_sampler(&nanogpt_config), *r = open_sampler(&random_config);
    uint8_t good[STATE_BYTES], bad[STATE_BYTES], now[STATE_BYTES];
    lks__batch_sampler_state_save(s, good);
    assert_fails(LKS_ERR_FORMAT, lks__batch_sampler_state_load(s, good, STATE_BYTES - 1),
                 "5047 bytes", "5048 are expected");
    assert_fails(LKS_ERR_FORMAT, lks__batch_sampler_state_load(s, good, 0), "0 bytes");

    memcpy(bad, good, sizeof bad);
    memset(bad, 0x11, 8); /* the first rank's words differ, and must not be used */
    bad[STATE_BYTES / 2 + 2496] = 625 & 255;
    bad[STATE_BYTES / 2 + 2497] = 625 >> 8;
    assert_fails(LKS_ERR_FORMAT, lks__batch_sampler_state_load(s, bad, sizeof bad),
                 "virtual rank 1", "position 625");
    memcpy(bad, good, sizeof bad);
    memset(bad, 0x11, 8);
    memset(bad + STATE_BYTES - 8, 0, 8);
    bad[STATE_BYTES - 8] = 4992 & 255;
    bad[STATE_BYTES - 7] = 4992 >> 8;
    assert_fails(LKS_ERR_FORMAT, lks__batch_sampler_state_load(s, bad, sizeof bad),
                 "virtual rank 1", "offset 4992", "below 4992");
    lks__batch_sampler_state_save(s, now);
    assert_memory_equal(now, good, sizeof good);
    good[2496] = 624 & 255; /* the words are used up, the offset is the last one */
    good[2497] = 624 >> 8;
    good[2500] = 4991 & 255;
    good[2501] = 4991 >> 8;
    assert_ok(lks__batch_sampler_state_load(s, good, sizeof good));
    lks__batch_sampler_state_save(s, now);
    assert_memory_equal(now, good, sizeof good);

    assert_int_equal(lks__batch_sampler_state_bytes(r), 0);
    lks__batch_sampler_state_save(r, NULL);
    assert_ok(lks__batch_sampler_state_load(r, NULL, 0));
    assert_fails(LKS_ERR_FORMAT, lks__batch_sampler_state_load(r, good, sizeof good),
                 "0 are expected");
    lks__batch_sampler_close(s);
    lks__batch_sampler_close(r);
}

/* Whole passes: the indices of lockstep/sampler.h (compared with PyTorch's in tests/library),
 * windows of T, consecutive micro-batches across steps and epochs. */
TEST(test_epoch)
{
    const lks__batch_sampler_config config = {.kind = LKS__SAMPLER_EPOCH,
                                              .seed = 7,
                                              .V = 3,
                                              .A = 2,
                                              .B = 4,
                                              .T = 10,
                                              .n_tokens = {471, 100}}; /* 47 samples */
    const lks_sampler_options dealt = {.dataset_size = 47, .replicas = 3, .seed = 7};
    enum { PER_EPOCH = 4 }; /* 16 samples of a virtual rank, 4 at a time */
    lks__batch_sampler *s = open_sampler(&config);
    lks_sampler *d;
    assert_ok(lks_sampler_open(&dealt, &d));
    for (uint64_t step = 0; step < 7; step++) {
        const uint64_t *got = lks__batch_sampler_step(s, step);
        for (int v = 0; v < config.V; v++)
            for (int a = 0; a < config.A; a++) {
                uint64_t j = step * 2 + (uint64_t)a;
                lks_sampler_set_epoch(d, j / PER_EPOCH);
                for (int b = 0; b < config.B; b++)
                    assert_int_equal(*got++,
                                     10 * lks_sampler_index(d, v, j % PER_EPOCH * 4 + (uint64_t)b));
            }
    }
    const uint64_t later = lks__batch_sampler_step(s, 6)[5]; /* no state: any step at any time */
    lks__batch_sampler_step(s, 0);
    assert_int_equal(lks__batch_sampler_step(s, 6)[5], later);
    lks__batch_sampler_step(s, 0); /* also back to the first epoch */
    lks_sampler_set_epoch(d, 0);
    assert_int_equal(lks__batch_sampler_step(s, 0)[5], 10 * lks_sampler_index(d, 0, 5));
    assert_int_equal(lks__batch_sampler_state_bytes(s), 0);
    lks_sampler_close(d);
    lks__batch_sampler_close(s);

    lks__batch_sampler_config small = config;
    small.n_tokens[0] = 12 * 10; /* 11 samples: less than 3 batches of 4 */
    assert_fails(LKS_ERR_CONFIG, lks__batch_sampler_open(&small, &s),
                 "11 samples of block_size + 1 = 11 tokens", "4 for each of 3 virtual ranks");
}

/* A segment with another batch reads on: no sample of the epoch comes twice, though the samples,
 * micro-steps and virtual ranks per step change. Then whole epochs follow. */
TEST(test_epoch_segments)
{
    enum { N = 400, STEPS = 9 };
    const int shapes[][3] = {{3, 2, 4}, {4, 1, 5}, {8, 3, 1}, {1, 4, 2}, {3, 2, 4}}; /* V, A, B */
    lks__data_start from = {.step = 0};
    int seen[N + 8] = {0};
    uint64_t epoch = 0, dealt = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int V = shapes[i][0], A = shapes[i][1], B = shapes[i][2];
        const lks__batch_sampler_config config = {.kind = LKS__SAMPLER_EPOCH,
                                                  .seed = 7,
                                                  .V = V,
                                                  .A = A,
                                                  .B = B,
                                                  .T = 10,
                                                  .n_tokens = {10 * N + 1, 100},
                                                  .drop_last = true};
        lks__batch_sampler *s = open_sampler(&config);
        lks__batch_sampler_start(s, &from);
        const uint64_t end = from.step + STEPS;
        for (uint64_t step = from.step; step < end; step++) {
            const lks__data_start at = lks__batch_sampler_at(s, V, A, B, &from, step);
            const uint64_t *got = lks__batch_sampler_step(s, step);
            if (at.epoch != epoch)
                memset(seen, 0, sizeof seen);
            epoch = at.epoch;
            for (int k = 0; k < V * A * B && at.position + (uint64_t)(V * A * B) <= N; k++)
                assert_int_equal(seen[got[k] / 10]++, 0);
            dealt += (uint64_t)(V * A * B);
        }
        from = lks__batch_sampler_at(s, V, A, B, &from, end);
        assert_int_equal(from.step, end);
        lks__batch_sampler_close(s);
    }
    assert_true(dealt > 2 * N && epoch == (dealt - 1) / N); /* each passes few at its epoch's end */

    /* A position that only the segment before it had, and a batch larger than an epoch. */
    const lks__batch_sampler_config config = {.kind = LKS__SAMPLER_EPOCH,
                                              .V = 32,
                                              .A = 1,
                                              .B = 1,
                                              .T = 10,
                                              .n_tokens = {10 * 100 + 1, 100},
                                              .drop_last = true}; /* 96 of 100 samples */
    const lks__data_start behind = {.epoch = 4, .position = 99};
    lks__batch_sampler *s = open_sampler(&config);
    from = lks__batch_sampler_at(s, 32, 1, 1, &behind, 1);
    assert_true(from.epoch == 5 && from.position == 32 && from.step == 1);
    from = lks__batch_sampler_at(s, 3, 1, 40, &behind, 1);
    assert_true(from.epoch == 5 && from.position == 0);
    from = lks__batch_sampler_at(s, 2, 1, 5, &(lks__data_start){.step = 0}, 3);
    assert_true(from.epoch == 0 && from.position == 30);
    lks__batch_sampler_close(s);
}
