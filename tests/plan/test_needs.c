/* The memory of runs that need several hosts, by kind; tests/plan/memory.sh compares with a run. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "plan/bytes/advice.h"
#include "plan/bytes/needs.h"
#include "session/session.h"

static const lks__process process = {6e6, 9e6};

static lks__needs needs(int n_hosts, int local, const char *const more[])
{
    const char *argv[16] = {"--n_layer=4",    "--n_head=4",     "--n_embd=256",
                            "--bias=false",   "--batch_size=2", "--gradient_accumulation_steps=8",
                            "--block_size=64"};
    lks__settings s;
    lks__needs found;
    for (int n = 7; *more != NULL;)
        argv[n++] = *more++;
    lks_test_parse(&s, argv);
    assert_ok(lks__settings_complete(&s, n_hosts * local));
    assert_ok(lks__needs_find(&s, 65, &(lks__place){n_hosts, local}, &process, &found));
    return found;
}
#define needs_of(hosts, local, ...) needs(hosts, local, (const char *const[]){__VA_ARGS__, NULL})

/* Kinds add up to a host, whose ranks share it. */
TEST(test_adds_up)
{
    const lks__needs n = needs_of(2, 2, NULL);
    const double each = n.gradients + n.staging + n.activations + n.process;
    assert_true(n.inter_host > 0 && n.control > 0);
    assert_float_equal(n.host_bytes,
                       n.params + n.moments + 2 * each + n.libraries + n.control + n.inter_host,
                       1.0);
    assert_float_equal(n.rank_bytes * 2, n.host_bytes, 1.0);
    assert_float_equal(n.moments, 2 * n.params, 0.0); /* no tensor without AdamW's moments */
    assert_float_equal(needs_of(1, 4, NULL).inter_host, 0.0, 0.0);
    /* The other host's gradients are one node, which is in pieces if it is large. */
    const lks__needs tiny = needs_of(2, 1, "--n_layer=1", "--n_embd=16");
    assert_true(tiny.inter_host > 0 && tiny.inter_host <= tiny.params);
    /* two nodes of 12 + 4 bytes less, as each rank of the 4 adds two leaves */
    assert_int_equal(n.n_arenas, 1);
    assert_float_equal(lks__needs_per_parameter(&n),
                       (n.params * 3 + n.gradients * 2) / (double)n.n_params, 1e-9);
}

/* --zero=1 divides moments over hosts, and the first host gathers them for a checkpoint. */
TEST(test_zero)
{
    const lks__needs all = needs_of(4, 1, NULL), part = needs_of(4, 1, "--zero=1");
    const double blocks = 8 * 4096.0 * 4 * 8; /* a block of each bucket more or less, two moments */
    assert_true(part.moments > all.moments / 4 - blocks && part.moments < all.moments / 4 + blocks);
    assert_true(4 * part.moments >= all.moments); /* the host with the larger part counts */
    assert_float_equal(part.moments + part.checkpoint, all.moments, 1.0);
    assert_float_equal(all.checkpoint, 0.0, 0.0);
    assert_true(part.host_bytes < all.host_bytes);
}

/* Three ranks of eight virtual ranks: the middle one adds none of its leaves to another. */
TEST(test_uneven)
{
    const lks__needs n = needs_of(1, 3, "--allow_uneven=true");
    assert_true(n.untouched >= 0.0 && n.untouched < n.gradients * 3);
    assert_float_equal(needs_of(1, 4, NULL).untouched, 0.0, 0.0);
    /* of six ranks two have two virtual ranks that they can add */
    assert_int_equal(needs_of(1, 6, "--allow_uneven=true").stagers, 2);
    assert_int_equal(needs_of(1, 4, NULL).stagers, 4);
    /* gradients of four nodes arrive at the first host of 2, 3 and 3 virtual ranks, and of two at
     * the first of 1, 1 and 1 */
    const lks__needs even = needs_of(3, 1, "--gradient_accumulation_steps=9", "--virtual_ranks=3");
    assert_float_equal(needs_of(3, 1, "--allow_uneven=true").inter_host, 2 * even.inter_host, 1.0);
}

TEST(test_private)
{
    const lks__needs one = needs_of(1, 4, NULL), each = needs_of(1, 4, "--replicas=private");
    assert_float_equal(each.host_bytes - one.host_bytes, 3 * (one.params + one.moments), 1.0);
    assert_float_equal(lks__needs_per_parameter(&each),
                       4 * (each.params * 3 + each.gradients) / (double)each.n_params, 1e-9);
}

/* Shards in half the bytes need a copy of the bucket, too. */
TEST(test_wire)
{
    assert_true(needs_of(2, 1, "--wire=bfloat16").inter_host > needs_of(2, 1, NULL).inter_host);
}

/* What a device with its own memory has isn't counted on the host, but what it exchanges is. */
TEST(test_device)
{
    const lks__needs n = needs_of(1, 2, "--device=cuda", "--sample_tokens=4", "--exchange=staged");
    const lks__device_needs *d = &n.device;
    assert_float_equal(
        n.host_bytes,
        n.params + n.moments + 2 * (n.gradients + n.process) + n.libraries + n.control, 1.0);
    assert_float_equal(n.gradients, n.params, 0.0);      /* a rank ends with one node */
    assert_float_equal(d->gradients, 3 * n.params, 0.0); /* of four leaves, three at once */
    assert_float_equal(2 * d->moments, n.moments, 8 * 4096.0 * 4);
    assert_float_equal(d->activations, n.activations, 0.0);
    assert_float_equal(d->total,
                       d->params + d->moments + d->gradients + d->activations + d->work +
                           d->buffers + d->exchange + d->samples + d->opened,
                       1.0);
    assert_true(d->samples > 0 && n.staging == 0.0);
    const lks__needs cpu = needs_of(1, 2, "--device=cpu");
    assert_float_equal(cpu.device.total, 0.0, 0.0);
}

/* A smaller batch that fits keeps the tokens of a step. */
TEST(test_advice)
{
    const lks__place here = {1, 1};
    lks__settings s;
    lks__device device;
    lks__needs all, less;
    char text[LKS__ADVICE_TEXT];
    assert_ok(lks__session_describe("cpu", &device));
    lks_test_settings(&s, "--n_layer=4", "--n_head=4", "--n_embd=64", "--block_size=256",
                      "--batch_size=24", "--gradient_accumulation_steps=10");
    assert_ok(lks__settings_complete(&s, 1));
    assert_ok(lks__needs_on(&device, &s, 65, &here, &process, &all));
    for (double part = 0.4; part > 0.2; part -= 0.05) {
        const lks__room room = {&device, part * all.host_bytes, 0};
        lks__advice_find(&room, &s, 65, &here, &process, text);
        const char *batch = lks_test_find(text, "--batch_size=");
        int samples = 0, steps = 0;
        assert_int_equal(
            sscanf(batch, "--batch_size=%d --gradient_accumulation_steps=%d:", &samples, &steps),
            2);
        assert_true(samples < 24 && samples * steps == 24 * 10);
        lks__settings smaller = s;
        smaller.batch_size = samples;
        smaller.gradient_accumulation_steps = steps;
        assert_ok(lks__needs_on(&device, &smaller, 65, &here, &process, &less));
        assert_true(less.host_bytes < room.bytes);
    }
    const lks__room room = {&device, 0.4 * all.host_bytes, 0};
    s.gradient_accumulation_steps = 40000; /* twice as many are refused */
    lks__advice_find(&room, &s, 65, &here, &process, text);
    assert_null(strstr(text, "--batch_size="));
    /* the cost that memory.md names */
    s.recompute = LKS__recompute_rows;
    assert_ok(lks__needs_on(&device, &s, 65, &here, &process, &all));
    s.recompute = LKS__recompute_block;
    assert_ok(lks__needs_on(&device, &s, 65, &here, &process, &less));
    s.recompute = LKS__recompute_rows;
    const lks__room tight = {&device, (all.host_bytes + less.host_bytes) / 2, 0};
    lks__advice_find(&tight, &s, 65, &here, &process, text);
    const char *way = lks_test_find(text, "--recompute=block: ");
    assert_contains(way, ", the same run, about a fifth slower");
}

/* golf computes its batch from the tokens of a step, and refuses --batch_size. */
TEST(test_golf_advice)
{
    const lks__place here = {1, 1};
    lks__settings s;
    lks__device device;
    lks__needs all;
    char text[LKS__ADVICE_TEXT];
    assert_ok(lks__session_describe("cpu", &device));
    lks_test_settings(&s, "--family=golf", "--n_layer=2", "--n_embd=64", "--n_head=2",
                      "--num_kv_heads=1", "--block_size=256", "--train_batch_tokens=65536");
    assert_ok(lks__settings_complete(&s, 1));
    assert_ok(lks__needs_on(&device, &s, 65, &here, &process, &all));
    const lks__room room = {&device, 0.4 * all.host_bytes, 0};
    lks__advice_find(&room, &s, 65, &here, &process, text);
    assert_contains(text, "--gradient_accumulation_steps=");
    assert_null(strstr(text, "--batch_size="));
}

/* The run of needs() fits into `bytes` if it is divided over more hosts. */
TEST(test_more_hosts)
{
    const lks__place here = {1, 1};
    const double eight = needs_of(8, 1, "--zero=1").host_bytes;
    lks__settings s;
    lks__device device;
    char text[LKS__ADVICE_TEXT];
    assert_ok(lks__session_describe("cpu", &device));
    lks_test_settings(&s, "--n_layer=4", "--n_head=4", "--n_embd=256", "--bias=false",
                      "--batch_size=2", "--gradient_accumulation_steps=8", "--block_size=64");
    assert_ok(lks__settings_complete(&s, 1));
    /* As many as there are virtual ranks, and no fewer: 8 of 8 with their own part of the moments.
     */
    const lks__room little = {&device, 1.01 * eight, 0};
    assert_true(needs_of(4, 1, "--zero=1").host_bytes > little.bytes);
    assert_true(needs_of(8, 1, NULL).host_bytes > little.bytes);
    lks__advice_find(&little, &s, 65, &here, &process, text);
    assert_contains(text, lks_test_text("8 hosts with --zero=1: %.1f MB, on each", eight / 1e6));
}

/* A run gets the benefit of the doubt: 3 %, or 5 MB a rank if that is more. Pages of libraries
 * don't count, which the kernel gives up. */
TEST(test_doubt)
{
    static const char *const widths[] = {"--n_embd=64", "--n_embd=2048"};
    for (int i = 0; i < 2; i++) {
        const lks__place here = {1, 2};
        lks__settings s;
        lks__device device;
        lks__needs n;
        assert_ok(lks__session_describe("cpu", &device));
        lks_test_settings(&s, "--n_layer=4", "--n_head=4", widths[i], "--batch_size=1",
                          "--gradient_accumulation_steps=8");
        assert_ok(lks__settings_complete(&s, 2));
        assert_ok(lks__needs_on(&device, &s, 65, &here, &process, &n));
        const double sure = n.host_bytes - n.libraries, doubt = i == 0 ? 2 * 5e6 : 0.03 * sure;
        assert_true(i == 0 ? 0.03 * sure < doubt : 2 * 5e6 < doubt);
        const lks__room enough = {&device, sure - 0.99 * doubt, 0},
                        less = {&device, sure - 1.01 * doubt, 0};
        assert_ok(lks__advice_check(&enough, &s, 65, &here, &process));
        assert_fails(LKS_ERR_NOMEM, lks__advice_check(&less, &s, 65, &here, &process),
                     "the run takes");
    }
}
