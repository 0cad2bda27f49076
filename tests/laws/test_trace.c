/* --trace=FILE changes no bit of a run, and shows every rank's steps with the spans inside them,
 * and reductions that begin during backward. */
#include "laws.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"

enum { W = 2, MICRO_STEPS = LAW_V / W * LAW_A };

static const char *trace_path;
static json_t *trace;
static double took_us; /* the newest run with a trace, with its launcher */

/* A run with a trace, which replaces the last one. */
static const char *trace_run(void)
{
    json_error_t error;
    const double start = lks__sys_now();
    const char *out = law_output("random", lks_test_text("--nproc_per_node=%d", W),
                                 lks_test_text("--trace=%s", trace_path));
    took_us = (lks__sys_now() - start) * 1e6;
    json_decref(trace);
    trace = json_load_file(trace_path, JSON_REJECT_DUPLICATES, &error);
    if (trace == NULL)
        fail_msg("%s:%d: %s", trace_path, error.line, error.text);
    return out;
}

static int train(void **state)
{
    const char *plain = law_output("random", "--threads=1");
    trace_path = lks_test_text("%s/trace.json", lks_test_folder());
    law_assert_same(trace_run(), plain);
    return 0;
}

static const char *text(const json_t *e, const char *key)
{
    const char *value = json_string_value(json_object_get(e, key));
    return value == NULL ? "" : value;
}

static double number(const json_t *e, const char *key)
{
    const json_t *value = json_object_get(e, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static double end_of(const json_t *e)
{
    return number(e, "ts") + number(e, "dur");
}

/* Is this a closed span ("X") of that rank? */
static bool is_span(const json_t *e, int rank)
{
    return strcmp(text(e, "ph"), "X") == 0 && number(e, "pid") == rank;
}

/* The n-th entry of a rank with that phase and name; NULL if there are fewer. */
static const json_t *nth(int rank, const char *ph, const char *name, int n)
{
    size_t i;
    const json_t *e;
    json_array_foreach(trace, i, e) if (strcmp(text(e, "ph"), ph) == 0 &&
                                        number(e, "pid") == rank &&
                                        strcmp(text(e, "name"), name) == 0 && n-- == 0) return e;
    return NULL;
}

static int count_inside(const json_t *outer, int rank, const char *name)
{
    int n = 0;
    size_t i;
    const json_t *e;
    json_array_foreach(trace, i, e) if (is_span(e, rank) && strcmp(text(e, "name"), name) == 0) n +=
        number(e, "ts") >= number(outer, "ts") && end_of(e) <= end_of(outer) + 0.002;
    return n;
}

TEST(test_entries)
{
    assert_true(json_is_array(trace));
    for (int r = 0; r < W; r++) {
        const json_t *named = nth(r, "M", "process_name", 0);
        assert_non_null(named);
        assert_string_equal(lks_test_string(named, "args.name"), lks_test_text("rank %d", r));
        const json_t *labels = nth(r, "M", "process_labels", 0);
        assert_non_null(labels);
        assert_contains(lks_test_string(labels, "args.labels"), "0 older ones dropped");
    }
    assert_null(nth(W, "M", "process_name", 0));
}

/* Times are microseconds from the first rank's beginning: none is negative, and together they are
 * most of what the processes took. */
TEST(test_unit)
{
    double last = 0;
    size_t i;
    const json_t *e;
    json_array_foreach(trace, i, e) if (strcmp(text(e, "ph"), "M") != 0)
    {
        assert_true(number(e, "ts") >= 0);
        last = fmax(last, is_span(e, 0) ? end_of(e) : number(e, "ts"));
    }
    if (last > took_us || last < took_us / 10)
        fail_msg("the trace has %.0f us of the %.0f us of the processes", last, took_us);
}

/* On one rank any two spans are apart or nested (to the printed nanosecond). */
TEST(test_nesting)
{
    static double ends[64];
    static const double digit = 0.002;
    for (int r = 0; r < W; r++) {
        int n_spans = 0;
        size_t i;
        const json_t *e;
        json_array_foreach(trace, i, e) n_spans += is_span(e, r);
        assert_true(n_spans > 14 * MICRO_STEPS * 8);

        /* They are in the order of their ends. Going backwards, a span must lie completely in the
         * innermost one that began before its end. */
        int depth = 0, deepest = 0;
        for (size_t k = json_array_size(trace); k-- > 0;) {
            e = json_array_get(trace, k);
            if (!is_span(e, r))
                continue;
            while (depth > 0 && end_of(e) <= ends[depth - 1] + digit)
                depth--; /* it lies before that one */
            if (depth > 0)
                assert_true(number(e, "ts") >= ends[depth - 1] - digit);
            assert_true(depth < 64);
            ends[depth++] = number(e, "ts");
            deepest = depth > deepest ? depth : deepest;
        }
        assert_true(deepest >= 3); /* step, backward, layer */
    }
}

TEST(test_step)
{
    for (int r = 0; r < W; r++) {
        for (int s = 0; s < LAW_STEPS; s++) {
            const json_t *step = nth(r, "X", lks_test_text("step %d", s), 0);
            assert_non_null(step);
            assert_int_equal(count_inside(step, r, "forward"), MICRO_STEPS);
            assert_int_equal(count_inside(step, r, "backward"), MICRO_STEPS);
            assert_int_equal(count_inside(step, r, "forward layer 1"), MICRO_STEPS);
            assert_int_equal(count_inside(step, r, "backward layer 0"), MICRO_STEPS);
            assert_int_equal(count_inside(step, r, "head"), MICRO_STEPS);
            assert_int_equal(count_inside(step, r, "data"), MICRO_STEPS);
            assert_int_equal(count_inside(step, r, "reduce bucket 0"), 1);
            assert_int_equal(count_inside(step, r, "update"), 1);
        }
        assert_non_null(nth(r, "X", "set-up", 0));
        assert_non_null(nth(r, "X", "evaluation 4", 0));
    }
    assert_non_null(nth(0, "X", "checkpoint 3", 0));
    assert_null(nth(1, "X", "checkpoint 3", 0)); /* only rank 0 writes */
}

/* The end of the last layer's backward in a rank's last micro-step of step s. */
static double backward_end(int rank, int s)
{
    const json_t *last = nth(rank, "X", "backward layer 0", (s + 1) * MICRO_STEPS - 1);
    assert_non_null(last);
    return end_of(last);
}

/* The first bucket is started before backward ends, on every rank in every step. The rank that
 * starts it last finds the others there, so it sums its share at once. Counts in how many steps
 * each rank did so. */
static void count_early(int early[W])
{
    for (int s = 0; s < LAW_STEPS; s++) {
        int now = 0;
        for (int r = 0; r < W; r++) {
            const json_t *begun = nth(r, "b", "bucket 0", s), *done = nth(r, "e", "bucket 0", s);
            const json_t *share = nth(r, "X", "reduce bucket 0", s);
            assert_true(begun != NULL && done != NULL && share != NULL);
            assert_true(number(begun, "ts") < backward_end(r, s));
            assert_true(end_of(share) <= number(done, "ts") + 0.002);
            early[r] += number(share, "ts") < backward_end(r, s);
            now += number(share, "ts") < backward_end(r, s);
        }
        assert_true(now > 0);
    }
}

static bool all_early(const int early[W])
{
    for (int r = 0; r < W; r++)
        if (early[r] == 0)
            return false;
    return true;
}

/* With a core for each, every rank sums early sometimes. On a busy machine one of them may be first
 * all through a run: then try some more runs. */
TEST(test_overlap)
{
    enum { RUNS = 10 };
    cpu_set_t cores;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    int early[W] = {0};
    count_early(early);
    if (CPU_COUNT(&cores) < W)
        return;
    for (int run = 1; run < RUNS && !all_early(early); run++) {
        trace_run();
        count_early(early);
    }
    assert_true(all_early(early));
}

/* A file that can't be written is found before the run, and a failed run leaves none. */
TEST(test_failures)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add(&args, "--trace=%s/not/there.json", out);
    law_add(&args, "--nproc_per_node=2");
    assert_exits(1, lks_test_run(args.argv, NULL, 60), "can't write the trace", "not/there.json");
    assert_false(lks_test_exists(lks_test_text("%s/latest", out)));

    const char *pipe = lks_test_text("%s/pipe", lks_test_folder()); /* without a reader */
    assert_int_equal(mkfifo(pipe, 0600), 0);
    args = law_train("random", &out);
    law_add(&args, "--trace=%s", pipe);
    assert_exits(1, lks_test_run(args.argv, NULL, 60), "can't write the trace", "/pipe: No such");
    const int reader = open(pipe, O_RDONLY | O_NONBLOCK); /* writing waits for a slow reader */
    assert_true(fcntl(reader, F_SETPIPE_SZ, 4096) >= 4096);
    const char *const copy[] = {"dd", "bs=16", lks_test_text("if=%s", pipe), NULL};
    const lks_test_child slow = lks_test_start(copy, NULL);
    assert_exits(0, lks_test_run(args.argv, NULL, 60));
    close(reader);
    assert_contains(lks_test_wait(&slow, 60).out, "\n]\n");

    args = law_train("random", &out);
    law_add_all(&args, "--max_iters=1", "--trace=/dev/full");
    assert_exits(1, lks_test_run(args.argv, NULL, 60),
                 "can't write the trace /dev/full: No space left on device");

    args = law_train("random", &out);
    const char *path = lks_test_text("%s/trace.json", lks_test_folder());
    law_add(&args, "--trace=%s", path);
    law_add(&args, "--learning_rate=1e6"); /* makes the loss infinite */
    law_add_all(&args, "--grad_clip=0", "--weight_decay=1000");
    assert_exits(1, lks_test_run(args.argv, NULL, 60));
    assert_false(lks_test_exists(path));
    /* An old trace stays; any other file must not be overwritten. */
    static const char *const old[] = {"[\n{\"ph\":old", "old"};
    for (int i = 0; i < 2; i++) {
        lks_test_write_text(path, old[i]);
        assert_exits(1, lks_test_run(args.argv, NULL, 60),
                     i == 1 ? "trace.json, which has other contents: remove it, or" : "");
        assert_string_equal(lks_test_read(path, NULL), old[i]);
    }
}

/* An old trace is replaced, shorter or longer. */
TEST(test_again)
{
    size_t bytes;
    lks_test_read(trace_path, &bytes);
    char *old = test_malloc(2 * bytes);
    memset(old, 'x', 2 * bytes);
    memcpy(old, "[\n{\"ph\":", 8);
    lks_test_write(trace_path, old, 2 * bytes);
    test_free(old);
    law_output("random", "--max_iters=1", lks_test_text("--trace=%s", trace_path));
    json_t *again = json_load_file(trace_path, 0, NULL);
    assert_true(json_is_array(again));
    json_decref(again);
}

/* The times of metrics.jsonl: steps follow one another, so all of them fit into the time of the
 * process; a step's wait for other ranks is a part of it; tokens are counted in that time. */
TEST(test_times)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        const char *out;
        law_args args = law_train("random", &out);
        law_add_all(&args, "--max_iters=79", "--eval_interval=0", "--checkpoint_interval=1000");
        law_add(&args, "--nproc_per_node=%d", ranks);
        lks_test_result r = assert_exits(0, lks_test_run(args.argv, NULL, 60));
        const json_t *lines = lks_test_record(out, "train");
        assert_int_equal(json_array_size(lines), 80);
        const double tokens = lks_test_number(lines, "0.tokens");
        double ms = 0.0, exposed = 0.0;
        assert_true(tokens == LAW_V * LAW_A * 6.0 * law_model().block_size);
        for (size_t i = 0; i < 80; i++) {
            const json_t *line = json_array_get(lines, i);
            assert_true(lks_test_number(line, "tokens") == (double)(i + 1) * tokens);
            const double now = lks_test_number(line, "ms");
            const double waited = lks_test_number(line, "comm_exposed_ms");
            assert_true(waited >= 0 && waited <= now);
            assert_near(lks_test_number(line, "tok_per_s") * now / 1e3, tokens, 1e-4 * tokens);
            ms += now;
            exposed += waited;
        }
        if (ms > r.seconds * 1e3 || ms < 0.55 / lks_test_patience() * r.seconds * 1e3)
            fail_msg("80 steps took %.0f ms of the %.0f ms of the process", ms, r.seconds * 1e3);
        assert_true(ranks == 1 ? exposed == 0 : exposed > 0);
    }
}

int main(void)
{
    return lks_test_run_all(train, NULL);
}
