/* The same run on several hosts, over each engine: the bytes of one rank alone. */
#include "../weights/forge.h"
#include "laws.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"
#include "comm/hosts.h"

static const char *engine; /* "mpi", "gloo" */
static const char *alone;

static int train_alone(void **state)
{
    alone = law_output("random", LAW_REFERENCE);
    return 0;
}

/* The run, or the rest of it, on `hosts`, in folder `out`. */
static const char *trained_in(const char *out, const char *hosts, const char *first,
                              const char *const more[])
{
    const char *fresh;
    law_args args = law_train("random", &fresh);
    law_add(&args, "--out_dir=%s", out != NULL ? out : fresh);
    law_add(&args, "%s", first);
    law_add(&args, "--backend=%s", engine);
    law_add_words(&args, more);
    args.argv[0] = lks_test_program();
    int code = hosts_run(engine, hosts, args.argv);
    if (code != 0)
        fail_msg("%s over %s: exit code %d", hosts, engine, code);
    return out != NULL ? out : fresh;
}

static const char *trained(const char *hosts, const char *const more[])
{
    return trained_in(NULL, hosts, "--threads=1", more);
}

static void check(const char *hosts, const char *const more[])
{
    const char *out = trained(hosts, more);
    law_assert_same(out, alone);
    const json_t *line = json_array_get(lks_test_record(out, "host"), 0);
    assert_string_equal(lks_test_string(line, "backend"), engine);
    assert_int_equal(lks_test_number(line, "world_size"), hosts_world(hosts));
    /* One machine plays all hosts, so they have one name. */
    const json_t *names = lks_test_member(line, "hosts"), *row = json_array_get(names, 0);
    assert_int_equal(json_array_size(names), 1);
    assert_string_equal(lks_test_string(row, "host"), lks_test_string(line, "host"));
    assert_int_equal(lks_test_number(row, "ranks"), hosts_world(hosts));
}
#define check_hosts(hosts, ...) check((hosts), (const char *const[]){__VA_ARGS__, NULL})

TEST(test_hosts)
{
    check_hosts("22", NULL);
    check_hosts("31", NULL);
}

TEST(test_uneven)
{
    check_hosts("21", "--allow_uneven");
}

TEST(test_private_replicas)
{
    check_hosts("22", "--replicas=private");
}

/* The optimizer's state divided over hosts: the same run; state that can't be divided is an
 * error. */
TEST(test_zero)
{
    check_hosts("22", "--zero=1");
    check_hosts("111", "--zero=1", "--allow_uneven");
    const char *out = trained("11", (const char *const[]){"--zero=1", "--max_iters=6", NULL});
    law_resume("random", out, "--threads=1"); /* from such a checkpoint … */
    law_assert_same_checkpoint(out, alone, "ckpt-00000014");
    out = law_output("random", "--threads=1", "--max_iters=6");
    const char *const resume[] = {"--zero=1", "--init_from=resume", NULL};
    law_assert_same_checkpoint(trained_in(out, "21", "--allow_uneven", resume), alone,
                               "ckpt-00000014"); /* … and the other direction */
    out = lks_test_folder();
    assert_exits(2,
                 lks_test_tool("train", lks_test_text("--dataset=%s", law_data()),
                               lks_test_text("--out_dir=%s", out), "--zero=1"),
                 "zero=1 divides the state over hosts, but all ranks are on one");
}

/* Frozen tensors, with moments that are divided over hosts or not. */
TEST(test_freeze)
{
    static const char freeze[] = "--freeze=w[tp]e|h\\.0\\.|ln_2";
    const char *want = law_output("random", LAW_REFERENCE, freeze);
    law_assert_same(trained("22", (const char *const[]){freeze, NULL}), want);
    law_assert_same(
        trained("21", (const char *const[]){freeze, "--zero=1", "--allow_uneven", NULL}), want);
}

/* Activations that are computed again change nothing of what hosts exchange. */
TEST(test_recompute)
{
    check_hosts("11", "--recompute=rows");
    check_hosts("21", "--recompute=block", "--zero=1", "--allow_uneven");
}

/* A run that begins with given weights, and its rest on other hosts. */
TEST(test_weights)
{
    const lks__model_config config = law_config();
    forge_model m = forge_open_as(&config);
    const forge_hf how = {0};
    const char *init = lks_test_text("--init_from=%s", forge_hf_folder(&m, &how));
    forge_close(&m);
    const char *want = law_output("random", LAW_REFERENCE, init);
    law_assert_same(trained("22", (const char *const[]){init, NULL}), want);
    law_assert_same(trained("21", (const char *const[]){init, "--zero=1", "--allow_uneven", NULL}),
                    want);
    const char *out = trained("11", (const char *const[]){init, "--max_iters=6", NULL});
    const char *const resume[] = {"--init_from=resume", NULL};
    law_assert_same_checkpoint(trained_in(out, "22", "--threads=1", resume), want, "ckpt-00000014");
}

/* Not covered by the promise: other bits than on one host, but the same on all ranks, and
 * recorded. */
TEST(test_wire)
{
    const char *const more[] = {"--wire=bfloat16", NULL};
    const char *out = trained("22", more), *again = trained("22", more);
    law_assert_same(again, out);
    const json_t *a = lks_test_record(out, "train");
    const json_t *b = lks_test_record(alone, "train");
    double loss = lks_test_number(json_array_get(a, LAW_LAST_ITER), "loss");
    double want = lks_test_number(json_array_get(b, LAW_LAST_ITER), "loss");
    assert_true(loss != want);
    lks_test_near(loss, want, 0.01 * want, "loss", __FILE__, __LINE__);
    assert_string_equal(lks_test_string(lks_test_record(out, "config"), "0.wire"), "bfloat16");
}

/* Hosts, and ranks of a host, with processors of different kernel levels: each uses its own. */
TEST(test_levels)
{
    static const char *const wide[] = {"--n_layer=1",   "--n_head=6",     "--n_embd=288",
                                       "--max_iters=0", "--batch_size=1", NULL};
    lks__cpu_level best;
    assert_ok(lks__cpu_level_get(&best));
    const lks__cpu_level high = best < LKS__CPU_AVX512 ? best : LKS__CPU_AVX512;
    const lks__cpu_level middle = best < LKS__CPU_AVX2 ? best : LKS__CPU_AVX2;
    const char *out;
    const law_args run = law_train("random", &out);
    law_args args = {.n = 0};
    law_add_shell(
        &args, &run,
        "case $RANK in 0) L=%s;; 1) L=plain;; *) L=%s;; esac; LOCKSTEP_CPU=$L exec \"$0\" \"$@\"",
        lks__cpu_level_name(high), lks__cpu_level_name(middle));
    law_add_words(&args, wide);
    law_add(&args, "--allow_uneven");
    law_add(&args, "--backend=%s", engine);
    assert_int_equal(hosts_run(engine, "21", args.argv), 0);
    law_assert_same(out, law_trained("random", wide));
}

/* A checkpoint of two hosts is resumed on one. */
TEST(test_resume)
{
    const char *out = trained("22", (const char *const[]){"--max_iters=6", NULL});
    law_resume("random", out, "--threads=1");
    law_assert_same_checkpoint(out, alone, "ckpt-00000014");
}

/* Continued on two hosts with another batch: the same segment as on one. */
TEST(test_segment)
{
    const char *const batch[] = {"--batch_size=3", "--gradient_accumulation_steps=24", NULL};
    const char *one = law_output("random", LAW_REFERENCE, "--max_iters=6");
    const char *two = trained("22", (const char *const[]){"--max_iters=6", NULL});
    law_resume("random", one, "--threads=1", batch[0], batch[1]);
    trained_in(two, "22", "--init_from=resume", batch);
    law_assert_same(two, one);
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    engine = argc == 2 ? argv[1] : "";
    hosts_need(engine);
    const char *gloo = lks_test_text("%s/lockstep_gloo.so", getenv("LOCKSTEP_MODULES"));
    /* What of a device reaches other hosts: sums, divided state, checkpoints. */
    if (lks_test_on_device())
        lks_test_only("test_hosts", "test_uneven", "test_zero", "test_resume");
    /* What depends on the engine: sums, divided state, the wire, checkpoints. Gloo runs the others.
     */
    else if (strcmp(engine, "gloo") != 0 && lks_test_exists(gloo))
        lks_test_only("test_hosts", "test_uneven", "test_private_replicas", "test_zero",
                      "test_wire", "test_resume");
    return lks_test_run_all(train_alone, NULL);
}
