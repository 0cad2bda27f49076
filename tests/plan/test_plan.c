/* Machine files, traffic and the time of a step, with figures of a machine that is easy to count
 * with; tests/plan/counters.sh compares traffic with the interfaces of real runs. */
#include "support.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/time/forecast.h"
#include "train/checkpoint.h"

/* A micro-batch takes 1 s, additions and the update nothing that counts; 1 MB/s, 0.2 s there and
 * back. */
#define TEXT(version, last)                                                                        \
    "{\"lockstep_machine\": " version ", \"cores\": 2, \"ranks\": 1, \"threads\": 1, \"layers\": " \
    "4, \"memory_bytes\": 8e9, \"micro_batch_flops\": 1e9, \"micro_batch_tokens\": 128, "          \
    "\"peak_flops\": 1e11, \"add_bandwidth\": 1e15, \"write_bandwidth\": 1e8, "                    \
    "\"forward_s\": {\"value\": 0.25, \"low\": 0.2, \"high\": 0.3}, \"head_s\": 0.25, "            \
    "\"backward_s\": 0.5, \"other_s\": 0, \"update_rate\": 1e15" last "}"
#define LINK ", \"link_bandwidth\": 1e6, \"round_trip_s\": 0.2, \"link_window\": 1e6"

static const char *written(const char *text)
{
    static int n;
    const char *path = lks_test_text("%s/machine%d.json", lks_test_folder(), n++);
    lks_test_write_text(path, text);
    return path;
}

/* --- files ------------------------------------------------------------------------------------ */

TEST(test_read)
{
    lks__machine m;
    char text[LKS__MACHINE_TEXT];
    assert_ok(lks__machine_read(written(TEXT("1", LINK)), &m));
    assert_true(m.has_link && m.cores == 2 && m.layers == 4);
    assert_float_equal(m.forward_s.high, 0.3, 0);
    assert_float_equal(m.head_s.low, 0.25, 0); /* a number alone has no spread */
    assert_ok(lks__machine_write(&m, text));
    assert_ok(lks__machine_read(written(text), &m));
    assert_float_equal(m.forward_s.low, 0.2, 0);
    assert_float_equal(m.forward_s.high, 0.3, 0);
    assert_float_equal(m.link_bandwidth.value, 1e6, 0);
    assert_float_equal(m.link_window.value, 1e6, 0);
    assert_float_equal(m.reduce_bandwidth.value, 0, 0); /* wasn't measured */
    assert_ok(lks__machine_read(written(TEXT("1", "")), &m));
    assert_false(m.has_link);
}

TEST(test_refused)
{
    static const char *const rows[][2] = {
        {TEXT("2", ""), "lockstep_machine must be 1"},
        {"{}", "lockstep_machine is missing"},
        {"[1]", ".json is not a JSON object"},
        {"{\"lockstep_machine\": 1", "line 1"},
        {"{\"lockstep_machine\": 1, \"cores\": 2}", "ranks is missing"},
        {TEXT("1", ", \"link_bandwidth\": 0, \"round_trip_s\": 0"), "link_bandwidth must be"},
        {TEXT("1", ", \"link_bandwidth\": 1e6"), "round_trip_s is missing"},
        {TEXT("1", ", \"link_bandwidth\": 1e6, \"round_trip_s\": -1"), "round_trip_s must be"},
        {TEXT("1", ", \"link_bandwidth\": \"10 Gbit\", \"round_trip_s\": 0"),
         "link_bandwidth must"},
        {TEXT("1", ", \"link_bandwith\": 1e6"), "link_bandwith is not a member"},
        {TEXT("1", ", \"cores\": 2"), "duplicate"},
        {TEXT("1", ", \"link_bandwidth\": {\"value\": 2, \"low\": 3, \"high\": 4}, "
                   "\"round_trip_s\": 0"),
         "low <= value <= high"},
        {TEXT("1", ", \"link_bandwidth\": {\"value\": 2}, \"round_trip_s\": 0"), "members value"},
        {TEXT("1", ", \"link_window\": 0"), "link_window must be"},
        {TEXT("1", ", \"memory_bandwidth\": \"much\""), "memory_bandwidth must be"},
        {TEXT("1", ", \"layer_forward_s\": 0.1"), "layer_forward_s of all layers exceeds"},
        {TEXT("1", ", \"layer_backward_s\": 0.2"), "layer_backward_s of all layers"},
        {TEXT("1", ", \"layer_flops\": 1e9"), "layer_flops of all layers"},
    };
    lks__machine m;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(lks__machine_read(written(rows[i][0]), &m), LKS_ERR_FORMAT);
        if (strstr(rows[i][1], "duplicate") == NULL)
            assert_contains(lks_last_error(), rows[i][1]);
    }
    assert_int_equal(lks__machine_read("/nowhere/machine.json", &m), LKS_ERR_IO);
}

/* --- traffic ---------------------------------------------------------------------------------- */

static void settings(lks__settings *s, int W, const char *const more[])
{
    const char *argv[16] = {"--n_layer=4",    "--n_head=4",      "--n_embd=256",
                            "--batch_size=2", "--block_size=64", "--gradient_accumulation_steps=8"};
    for (int n = 6; *more != NULL;)
        argv[n++] = *more++;
    lks_test_parse(s, argv);
    assert_ok(lks__settings_complete(s, W));
}

static lks__traffic traffic(int n_hosts, int local, const char *const more[])
{
    lks__settings s;
    lks__traffic t;
    settings(&s, n_hosts * local, more);
    assert_ok(lks__traffic_find(&s, 65, &(lks__place){n_hosts, local}, &t));
    lks__traffic_close(&t);
    return t;
}
#define traffic_of(hosts, local, ...)                                                              \
    traffic(hosts, local, (const char *const[]){__VA_ARGS__, NULL})

/* Hosts with one node each send the bytes of the best all-reduce, and little beside. */
TEST(test_even)
{
    for (int hosts = 2; hosts <= 8; hosts *= 2) {
        const lks__traffic t = traffic_of(hosts, 1, NULL);
        assert_true(t.bytes > t.ring_bytes && t.bytes < 1.02 * t.ring_bytes);
        assert_true(t.mean_bytes <= t.bytes && t.heartbeat_rate > 0);
    }
    assert_float_equal(traffic_of(1, 4, NULL).bytes, 0, 0);
    assert_float_equal(traffic_of(2, 4, NULL).bytes, traffic_of(2, 1, NULL).bytes, 1e4);
}

/* Three hosts of 2, 3 and 3 virtual ranks: nodes that no host can add alone travel, too. */
TEST(test_uneven)
{
    const lks__traffic t = traffic_of(3, 1, "--allow_uneven=true");
    assert_true(t.bytes > 1.4 * t.ring_bytes && t.bytes < 1.6 * t.ring_bytes);
    /* in half the bytes, one after the other */
    assert_true(traffic_of(3, 1, "--allow_uneven=true", "--wire=bfloat16").delays >
                traffic_of(4, 1, "--wire=bfloat16").delays);
}

/* Each side waits for the other, then for data: three exchanges of a bucket, three behind them. */
TEST(test_delays)
{
    const lks__traffic t = traffic_of(2, 1, "--bucket_mb=1000");
    assert_int_equal(t.n_buckets, 1);
    /* seven pieces, three of them ahead */
    assert_int_equal(t.delays, (1 + 3 + 1) * 2 + 3 * 2);
    assert_int_equal(traffic_of(2, 1, "--bucket_mb=1000", "--backend=mpi").delays,
                     (1 + 3 * 3 + 3) + 3 * 1);
    assert_int_equal(t.late_delays, 3 * 2);
    /* to the other host: descriptors before the bucket, the losses and the end of the update; seven
     * pieces there and back; norms; losses */
    assert_float_equal(t.messages, 3 + 2 * 7 + 1 + 1, 0);
    /* Five hosts, of which two have virtual ranks that are no node together, as [1, 3): these send
     * two nodes, and the others and the sums have one, in three pieces each. */
    assert_float_equal(traffic_of(5, 1, "--bucket_mb=1000", "--allow_uneven=true").messages,
                       4 * (3 + (2 + 1) * 3 + 1 + 1), 0);
    const lks__traffic small = traffic_of(2, 1, "--n_embd=16", "--bucket_mb=1000");
    assert_int_equal(small.delays, 12); /* as tests/plan/times.py finds with tiny */
}

TEST(test_halves)
{
    const double whole = traffic_of(2, 1, NULL).bytes;
    const double half = traffic_of(2, 1, "--wire=bfloat16").bytes;
    assert_true(half > 0.5 * whole && half < 0.51 * whole);
    /* shards of gradients, then parameters: as many bytes, more messages */
    const double zero = traffic_of(2, 1, "--zero=1").bytes;
    assert_true(zero > 0.99 * whole && zero < 1.01 * whole);
}

/* --- time ------------------------------------------------------------------------------------- */

static lks__forecast forecast(const char *link, int n_hosts, const char *const more[])
{
    lks__settings s;
    lks__traffic t;
    lks__machine m;
    lks__forecast f;
    const lks__place place = {n_hosts, 1};
    settings(&s, n_hosts, more);
    assert_ok(lks__machine_read(written(link), &m));
    assert_ok(lks__traffic_find(&s, 65, &place, &t));
    /* the measured micro-batch is this one */
    m.micro_batch_flops = 1;
    assert_ok(lks__forecast_step(&s, 65, &place, &m, &t, &f));
    m.micro_batch_flops = f.at.compute / 8 * n_hosts;
    assert_ok(lks__forecast_step(&s, 65, &place, &m, &t, &f));
    lks__traffic_close(&t);
    return f;
}
#define forecast_of(link, hosts, ...)                                                              \
    forecast(link, hosts, (const char *const[]){__VA_ARGS__, NULL})

TEST(test_alone)
{
    const lks__forecast f = forecast_of(TEXT("1", ""), 1, NULL);
    assert_float_equal(f.at.compute, 8.0, 1e-3); /* eight micro-batches */
    assert_float_equal(f.at.exposed, 0.0, 1e-6);
    assert_float_equal(f.tokens, 8 * 2 * 64, 0);
    assert_float_equal(f.low, 8 * 0.95 * 0.9, 1e-2); /* forward's spread, and the model's error */
    assert_float_equal(f.high, 8 * 1.05 * 1.1, 1e-2);
    assert_true(!f.model && !f.ranks && !f.network);
}

/* Buckets queue on a slow link: what comes after backward is the last of it. */
TEST(test_exposed)
{
    const lks__traffic t = traffic_of(2, 1, NULL);
    const lks__forecast f = forecast_of(TEXT("1", LINK), 2, NULL);
    const double link = t.bytes / 1e6 + t.delays * 0.1;
    assert_float_equal(f.at.compute, 4.0, 1e-3);
    /* The first bucket is complete after two of the six groups of parameters, each 1/6 of 0.5 s. */
    assert_float_equal(f.at.exposed, link - 0.5 * 4 / 6, 1e-3);
    const lks__forecast fast =
        forecast_of(TEXT("1", ", \"link_bandwidth\": 1e12, \"round_trip_s\": 0"), 2, NULL);
    assert_true(fast.at.exposed < 1e-3);
    assert_true(forecast_of(TEXT("1", LINK), 4, NULL).network);
}

/* Of a long way a connection fills a part at first, and twice as much after each round trip. */
TEST(test_window)
{
    const lks__traffic t = traffic_of(2, 1, "--bucket_mb=1000");
#define FAR(window)                                                                                \
    TEXT("1", ", \"link_bandwidth\": 1e9, \"round_trip_s\": 0.2, \"link_window\": " window)
    const double wide = forecast_of(FAR("1e9"), 2, "--bucket_mb=1000").at.exposed;
    assert_float_equal(wide, t.delays * 0.1 + t.bytes / 1e9 - 0.25,
                       0.26); /* backward hides a part */
    int rounds = 0;           /* of the shards; the sums come later */
    for (double window = 1e5, left = t.bytes / 2; left > window; window *= 2, rounds++)
        left -= window;
    const double narrow = forecast_of(FAR("1e5"), 2, "--bucket_mb=1000").at.exposed;
    assert_true(rounds >= 4);
    assert_float_equal(narrow - wide, rounds * 0.2, 0.21); /* the sums find it wide, or nearly so */
    /* What fits in the window doesn't wait for an answer, however slow the connection is. */
    const double burst = forecast_of(TEXT("1", ", \"link_bandwidth\": 1e5, \"round_trip_s\": 0.2, "
                                               "\"link_window\": 1e9, \"link_burst\": 1e9"),
                                     2, "--bucket_mb=1000")
                             .at.exposed;
    assert_float_equal(burst, wide, 1e-3);
    /* A pause of 4 s halves it nine times, each 0.4 s: a timeout is 0.3 s, and heartbeats come each
     * 0.2 s. Of the 6 MB of shards that leaves 12 kB, so a lower first window changes nothing. */
#define PAUSED(window)                                                                             \
    TEXT("1", ", \"link_bandwidth\": 1e9, \"round_trip_s\": 0.1, \"link_window\": " window)
    const double from_1 = forecast_of(PAUSED("1"), 2, "--bucket_mb=1000").at.exposed;
    const double from_10k = forecast_of(PAUSED("1e4"), 2, "--bucket_mb=1000").at.exposed;
    assert_float_equal(from_1, from_10k, 0.05);
#undef PAUSED
#undef FAR
}

/* Other layers take as long as the measured ones each. */
TEST(test_layers)
{
#define LAYERS ", \"layer_forward_s\": 0.0625, \"layer_backward_s\": 0.125, \"layer_flops\": 2.4e8"
    lks__settings s;
    lks__machine m;
    lks__forecast f[2];
    double flops;
    const lks__traffic none = {0};
    assert_ok(lks__machine_read(written(TEXT("1", LAYERS)), &m));
    for (int i = 0; i < 2; i++) {
        settings(&s, 1, (const char *const[]){i == 0 ? "--n_layer=4" : "--n_layer=8", NULL});
        const lks__model_config config = lks__state_model_config(&s, 65);
        assert_ok(lks__forecast_layer_flops(&config, &flops));
        if (i == 0) { /* so that this model is the measured one */
            m.layer_flops.value = flops * 2 * 64;
            m.micro_batch_flops = m.layer_flops.value * 4.2;
        }
        assert_ok(lks__forecast_step(&s, 65, &(lks__place){1, 1}, &m, &none, &f[i]));
    }
    assert_float_equal(f[1].at.compute - f[0].at.compute, 8 * 4 * (0.0625 + 0.125), 0.1);
    assert_true(f[1].model);
#undef LAYERS
}

static lks__figure exactly(double value)
{
    return (lks__figure){value, value, value};
}

/* A step whose micro-batch takes 1 s on machine `m`. */
static lks__step_time step_on(lks__machine m, int n_hosts, int local, const char *const more[])
{
    lks__settings s;
    lks__traffic t;
    lks__forecast f;
    const lks__place place = {n_hosts, local};
    const lks__figure add = m.add_bandwidth;
    settings(&s, n_hosts * local, more);
    assert_ok(lks__traffic_find(&s, 65, &place, &t));
    m.micro_batch_flops = 1;
    m.add_bandwidth = exactly(1e15);
    assert_ok(lks__forecast_step(&s, 65, &place, &m, &t, &f));
    m.micro_batch_flops = f.at.compute / 8 * (n_hosts * local);
    m.add_bandwidth = add;
    assert_ok(lks__forecast_step(&s, 65, &place, &m, &t, &f));
    lks__traffic_close(&t);
    return f.at;
}
#define step_of(m, hosts, local, ...)                                                              \
    step_on(m, hosts, local, (const char *const[]){"--bucket_mb=1000", __VA_ARGS__, NULL})

/* Four ranks of one host, with two of the eight virtual ranks each: one second for each of the
 * things that they do beside the micro-batches. */
TEST(test_ranks_of_a_host)
{
    const double gradient = traffic_of(2, 1, NULL).ring_bytes; /* of two hosts: all of it, once */
    lks__machine m;
    assert_ok(lks__machine_read(written(TEXT("1", "")), &m));
    lks__step_time t = step_of(m, 1, 4, NULL);
    assert_float_equal(t.compute, 2.0, 1e-3);
    m.add_bandwidth = exactly(gradient); /* one gradient is added to the other */
    assert_float_equal(step_of(m, 1, 4, NULL).compute, 3.0, 1e-3);
    assert_float_equal(step_of(m, 1, 1, NULL).compute, 8.0 + 7.0, 1e-2);
    m.add_bandwidth = exactly(1e15);
    m.reduce_bandwidth = exactly(gradient); /* measured with one rank: four share that memory */
    assert_float_equal(step_of(m, 1, 4, NULL).exposed, 4.0, 1e-2);
    assert_float_equal(step_of(m, 1, 1, NULL).exposed, 0.0, 1e-6);
    m.ranks = 4;
    assert_float_equal(step_of(m, 1, 4, NULL).exposed, 1.0, 1e-2);
    /* The update, a quarter of the parameters each: as measured, or limited by memory, of which a
     * parameter takes 28 bytes. */
    m.update_rate = exactly(gradient / 4 / 4);
    m.memory_bandwidth = exactly(28 * gradient / 4 / 10);
    assert_float_equal(step_of(m, 1, 4, NULL).update, 1.0, 1e-2);
    m.ranks = 1;
    assert_float_equal(step_of(m, 1, 4, NULL).update, 10.0, 1e-1);
    m.memory_bandwidth = exactly(28 * gradient); /* faster than a rank is */
    assert_float_equal(step_of(m, 1, 4, NULL).update, 1.0, 1e-2);
}

/* ZeRO-1 divides the update over hosts; a backend's own work takes time from backward, unless cores
 * are free. */
TEST(test_hosts)
{
    lks__machine m;
    assert_ok(lks__machine_read(
        written(TEXT("1", ", \"link_bandwidth\": 1e12, \"round_trip_s\": 0")), &m));
    const lks__traffic t = traffic_of(2, 1, "--bucket_mb=1");
    m.update_rate = exactly(t.ring_bytes / 4);
    assert_float_equal(step_of(m, 2, 1, NULL).update, 1.0, 1e-2);
    assert_float_equal(step_of(m, 2, 1, "--zero=1").update, 0.5, 1e-2);
    m.engine_bandwidth = exactly(t.bytes * 10); /* 0.1 s, but for the last bucket */
    const char *const free_core[] = {"--bucket_mb=1", "--threads=1", NULL};
    assert_float_equal(step_on(m, 2, 1, free_core).exposed, 0.0, 1e-3);
    const char *const no_core[] = {"--bucket_mb=1", "--threads=2", NULL};
    assert_float_equal(step_on(m, 2, 1, no_core).exposed, 0.09, 0.011);
}

/* Young (1974): every sqrt(2 x 50 s x 1 h). */
TEST(test_checkpoints)
{
    assert_float_equal(lks__forecast_checkpoint_every(50, 3600), 600, 1e-9);
}

TEST(test_needs_link)
{
    lks__settings s;
    lks__machine m;
    lks__forecast f;
    const lks__traffic none = {0};
    settings(&s, 2, (const char *const[]){NULL});
    assert_ok(lks__machine_read(written(TEXT("1", "")), &m));
    assert_int_equal(lks__forecast_step(&s, 65, &(lks__place){2, 1}, &m, &none, &f),
                     LKS_ERR_CONFIG);
    assert_contains(lks_last_error(), "link_bandwidth");
}

/* --- the command ------------------------------------------------------------------------------ */

#define PLAN                                                                                       \
    "plan", "--n_layer=2", "--n_head=2", "--n_embd=64", "--block_size=32", "--batch_size=2",       \
        "--vocab_size=65", "--threads=1"

TEST(test_command)
{
    const char *machine = lks_test_text("--machine=%s", written(TEXT("1", LINK)));
#define WIDE                                                                                       \
    PLAN, machine, "--nnodes=1024", "--gradient_accumulation_steps=1024", "--virtual_ranks=1024",  \
        "--mtbf_hours=100"
    lks_test_result r = lks_test_do("lockstep", WIDE);
    assert_contains(r.out, "\nknee: ", "; each further host adds less than half of its speed",
                    "--checkpoint_interval=");
    r = lks_test_do("lockstep", WIDE, "--json");
    const json_t *plan = lks_test_json(r.out), *points = json_object_get(plan, "points");
    assert_int_equal(json_array_size(points), 11);
    const json_t *last = json_array_get(points, 10);
    static const char *const keys[][2] = {
        {"memory", "rank_bytes"}, {"memory", "host_bytes"}, {"network", "bytes_per_step_host"},
        {"time", "step_ms"},      {"time", "low_ms"},       {"time", "high_ms"},
    };
    assert_int_equal(json_integer_value(json_object_get(last, "nodes")), 1024);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_true(
            json_number_value(json_object_get(json_object_get(last, keys[i][0]), keys[i][1])) > 0);
}

/* The figures of a plan follow from each other: 512 micro-batches of 2 x 32 tokens on 1, 2 and 4
 * hosts, whose link is slow. */
TEST(test_command_figures)
{
    const char *machine = lks_test_text("--machine=%s", written(TEXT("1", LINK)));
#define SLOW                                                                                       \
    PLAN, machine, "--nnodes=4", "--gradient_accumulation_steps=512", "--virtual_ranks=8",         \
        "--max_iters=360", "--mtbf_hours=4000"
    lks_test_result r = lks_test_do("lockstep", SLOW, "--json");
    const json_t *plan = lks_test_json(r.out);
    assert_int_equal(json_array_size(json_object_get(plan, "points")), 3);
    double steps[3], compute[3], ring[3], parameters = 0.0, weak = 0.0;
    int knee = 1;
    for (int i = 0, n = 1; i < 3; i++, n *= 2) {
        const json_t *p = json_array_get(json_object_get(plan, "points"), (size_t)i);
        steps[i] = lks_test_number(p, "time.step_ms") * 1e-3;
        compute[i] = lks_test_number(p, "time.compute_ms");
        ring[i] = lks_test_number(p, "network.ring_bytes");
        parameters = lks_test_number(p, "memory.parameters");
        const double rate = 512 * 64 / steps[i];
        assert_near(lks_test_number(p, "time.tokens_per_s"), rate, 1e-6 * rate);
        assert_near(lks_test_number(p, "time.efficiency"), steps[0] / steps[i] / n, 1e-9);
        assert_true(lks_test_number(p, "time.low_ms") < 1e3 * steps[i]);
        assert_true(lks_test_number(p, "time.high_ms") > 1e3 * steps[i]);
        assert_near(compute[i], compute[0] / n, 1e-3);
        /* with as many times the micro-batches each host computes as one alone */
        assert_near(lks_test_number(p, "weak_time.compute_ms"), compute[0], 1e-3);
        weak = lks_test_number(p, "weak_time.step_ms");
        assert_true(json_is_true(lks_test_member(p, "memory.fits")));
        if (knee == n / 2 && steps[i - 1] / steps[i] - 1 >= 0.5) /* a half more, of twice as many */
            knee = n;
    }
    assert_near(ring[2] / ring[1], (2 * 3 / 4.0) / (2 * 1 / 2.0), 1e-9);
    assert_true(steps[1] / steps[2] > 1.6 && steps[1] / steps[2] < 1.8); /* not clear at once */
    assert_int_equal(lks_test_number(plan, "knee"), knee);

    /* Four times the micro-batches and virtual ranks of the run. */
    r = lks_test_tool(PLAN, machine, "--nnodes=4", "--gradient_accumulation_steps=2048",
                      "--virtual_ranks=32", "--json");
    plan = lks_test_json(r.out);
    assert_near(lks_test_number(json_object_get(plan, "points"), "2.time.step_ms"), weak, 1e-6);

    r = lks_test_tool(SLOW);
    assert_int_equal(knee, 4); /* the last row doesn't show one */
    assert_contains(r.out, "\nno knee up to 4 hosts: ",
                    lks_test_text("361 steps on 4 hosts: %.2f hours", 361 * steps[2] / 3600));
    /* One of four hosts fails every thousand hours. With ZeRO-1 the first one gathers the moments
     * to write them: 4 + 8 bytes a parameter. */
    r = lks_test_tool(SLOW, "--zero=1");
    const double every = sqrt(2 * (3 * parameters / 1e8) * (4000 * 3600 / 4.0)) / steps[2];
    const char *interval = lks_test_find(r.out, "--checkpoint_interval=");
    assert_near(strtod(interval + 22, NULL), every, 0.1 * every);
    /* The one host that can't run ZeRO-1 is no knee. */
    assert_null(strstr(r.out, "nee: 1 host"));
    /* Nor do eight hosts, which this run can't use, hide what is known of four. */
    r = lks_test_tool(SLOW, "--nnodes=8", "--virtual_ranks=4");
    assert_contains(r.out, " impossible: ", "knee", " steps on 4 hosts: ", "\ncheckpoint: ");
    r = lks_test_tool(SLOW, "--max_iters=200000000");
    assert_contains(r.out,
                    lks_test_text(" on 4 hosts: %.0f years (", 200000001 * steps[2] / 31557600));
    r = lks_test_tool(SLOW, "--max_iters=3600000");
    assert_contains(r.out, lks_test_text(" on 4 hosts: %.0f days (", 3600001 * steps[2] / 86400));
#undef SLOW
    /* of a machine with little memory */
    char *text = strdup(TEXT("1", LINK));
    memcpy(strstr(text, "8e9"), "1e6", 3);
    r = lks_test_tool(PLAN, lks_test_text("--machine=%s", written(text)));
    free(text);
    assert_int_equal(r.exit_code, 0);
    assert_contains(r.out, "  doesn't fit\n", " MB of 1.0 MB per host");
}

TEST(test_command_refuses)
{
    /* nothing is started, so nothing fails */
    lks_test_result r =
        lks_test_do("lockstep", PLAN, "--nnodes=16", "--gradient_accumulation_steps=8");
    assert_contains(r.out, "impossible: 16 ranks can't share the run's 8 virtual ranks");
    r = lks_test_tool(PLAN, "--nnodes=16", "--gradient_accumulation_steps=24");
    assert_contains(r.out, "--gradient_accumulation_steps=32 --virtual_ranks=16 (a different run, "
                           "with 32 micro-batches per step instead of 24)");
    r = lks_test_tool(PLAN, "--nnodes=2", "--zero=1");
    assert_contains(r.out, "impossible: zero=1 divides the state over hosts");
    assert_exits(1, lks_test_tool(PLAN, lks_test_text("--machine=%s", written(TEXT("2", "")))),
                 "lockstep_machine must be 1");
    assert_exits(2, lks_test_tool("bench", "machine"), "--out=FILE");
}

/* Large sizes have larger units, and each size of a GPU is printed once. */
TEST(test_units)
{
    lks_test_result r = lks_test_do("lockstep", "plan", "--n_layer=96", "--n_head=96",
                                    "--n_embd=12288", "--nproc_per_node=8", "--block_size=64");
    assert_contains(r.out, " TB of moments; ", "total on 8 ranks: ");
    assert_contains(strstr(r.out, "total on 8 ranks: "), " TB\n");
    assert_contains(r.out, "times need --machine=FILE: `lockstep bench machine --out=FILE`");
    assert_contains(lks_test_do("lockstep", PLAN, "--mtbf_hours=9").out,
                    "times and the checkpoint interval need --machine=FILE");
    r = lks_test_do("lockstep", "plan", "--n_layer=2", "--n_head=2", "--n_embd=32",
                    "--device=cuda");
    const char *gradients = strstr(r.out, "gradients"), *acts = strstr(r.out, "activations");
    assert_true(gradients != NULL && strstr(gradients + 1, "gradients 0.0") == NULL);
    assert_contains(strstr(r.out, "a rank's GPU:"), ", gradients ");
    assert_null(strstr(r.out, "gradients:         0.0 MB"));
    assert_true(acts != NULL && strstr(acts + 1, "activations") == NULL);
}

/* In a shell of mpirun the process that is measured is alone, too. */
TEST(test_launched)
{
    const char *const argv[] = {"lockstep",   "plan",        "--n_layer=2",
                                "--n_head=2", "--n_embd=32", NULL};
    const char *const env[] = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
                               "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                               NULL};
    const lks_test_result r = assert_exits(0, lks_test_run(argv, env, 20));
    assert_contains(r.out, "\nprocess: ");
}

/* What bench machine writes is read. */
TEST(test_bench)
{
    const char *file = lks_test_text("%s/machine.json", lks_test_folder());
    lks_test_result r = lks_test_tool("bench", "machine", lks_test_text("--out=%s", file),
                                      "--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=16",
                                      "--batch_size=1", "--vocab_size=65", "--threads=1");
    lks__machine m;
    assert_int_equal(r.exit_code, 0);
    assert_ok(lks__machine_read(file, &m));
    assert_true(m.layers == 2 && m.ranks == 1 && !m.has_link);
    assert_true(m.layer_forward_s.value > 0 && m.layer_backward_s.value > 0);
    assert_true(m.memory_bandwidth.value > m.add_bandwidth.value);
    assert_true(m.reduce_bandwidth.value == 0 && m.engine_bandwidth.value == 0);
    assert_float_equal(m.micro_batch_tokens, 16, 0);
    r = lks_test_do("lockstep", PLAN, lks_test_text("--machine=%s", file), "--nnodes=2");
    assert_contains(r.out, "the machine file has no link");
}
