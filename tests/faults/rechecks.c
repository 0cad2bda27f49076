/* The campaign of --recheck: runs on 2 to 8 hosts, which this machine plays. An honest run must
 * have the bytes of a single rank, without an alarm. In the others one rank computes a gradient
 * with a wrong bit, or NaN, once or from some iteration on. If another host computed that gradient,
 * too, the host must be named. After a single error the run must still have the right bytes.
 *
 *     faults_rechecks [--runs=N] [--seed=S] [--only=I]
 *     faults_rechecks mpi
 *
 * Each rank is this program, with `train` and settings as arguments. */
#include "faults/chance.h"
#include "laws/laws.h"
#include "laws/poison.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text/shell.h"
#include "comm/hosts.h"
#include "train/checks/recheck.h"
#include "train/loop/loop.h"
#include "train/setup/trainer.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* --- a rank ----------------------------------------------------------------------------------- */

/* SIGN: of the first NaN, in checks only. */
enum wrong { BIT, NOT_A_NUMBER, SIGN };

/* In rank `rank`, `times` gradients are wrong from iteration `iter` on; -1: of any virtual rank or
 * rank. */
struct plant {
    int rank, iter, v, times, wrong;
};

static struct plant plant; /* of this rank */

static void spoil(float *grads)
{
    uint32_t bits;
    while (plant.wrong == SIGN ? !isnan(*grads) : *grads == 0.0f)
        grads++;
    memcpy(&bits, grads, sizeof bits);
    bits = plant.wrong == BIT    ? bits ^ 1u << 22
           : plant.wrong == SIGN ? bits ^ 1u << 31
                                 : 0x7fc00000u;
    memcpy(grads, &bits, sizeof bits);
}

/* Record every gradient that this rank computes: iteration, virtual rank, and if it was spoiled. */
static void note(uint32_t iter, int v, bool spoiled)
{
    FILE *f = fopen(lks_test_text("%s/%s", getenv("LKS_TEST_LOG"), getenv("RANK")), "ae");
    if (f == NULL || fprintf(f, "%u %d %d\n", iter, v, spoiled) < 0 || fclose(f) != 0)
        abort();
}

/* The linker's --wrap redirects calls to here. The last micro-batch is added to a gradient that has
 * become wrong. */
__typeof__(lks__model_train) __real_lks__model_train, __wrap_lks__model_train;
void __wrap_lks__model_train(lks__model *model, const float *params, const lks__micro_batch *batch,
                             const lks__backward *backward, float *loss)
{
    const int v = (int)(backward->vm >> 16), iter = (int)backward->step;
    const bool last = (backward->vm & 0xffff) == LAW_A - 1;
    const bool wrong =
        last && plant.times > 0 && (plant.v < 0 || plant.v == v) &&
        (plant.wrong == SIGN ? iter == plant.iter && backward->done != lks__reducer_group_done
                             : iter >= plant.iter);
    plant.times -= wrong;
    if (wrong && plant.wrong != SIGN)
        spoil(backward->grads);
    if (last)
        note(backward->step, v, wrong);
    __real_lks__model_train(model, params, batch, backward, loss);
    if (wrong && plant.wrong == SIGN)
        spoil(backward->grads);
}

static int run_rank(int argc, char **argv)
{
    static lks__trainer t;
    lks__settings s;
    lks__args ignored;
    int stopped;
    struct plant p;
    const char *text = getenv("LKS_TEST_PLANT");
    if (text != NULL &&
        sscanf(text, "%d %d %d %d %d", &p.rank, &p.iter, &p.v, &p.times, &p.wrong) == 5 &&
        (p.rank < 0 || p.rank == atoi(getenv("RANK"))))
        plant = p;
    lks__settings_defaults(&s);
    lks_status st = lks__settings_parse(&s, LKS__CMD_TRAIN, argc, argv, 0, &ignored);
    LKS__THEN(st, lks__trainer_open(&s, &t, &stopped));
    if (st != LKS_OK) {
        fprintf(stderr, "%s\n", lks_last_error());
        lks__trainer_close(&t);
        return 3;
    }
    st = lks__train_loop(&t, &stopped);
    lks__trainer_close(&t);
    return st == LKS_OK ? 0 : 1;
}

/* --- runs ------------------------------------------------------------------------------------- */

static struct setup {
    const char *name, *sampler; /* NULL: golf's */
    const char *settings[5];    /* of both runs */
    const char *on_hosts[3];    /* ended by NULL */
    const char *alone;          /* the run on one rank */
} setups[] = {
    {"random", "random", {NULL}, {"--check_interval=1", NULL}, NULL},
    {"nanogpt, muon", "nanogpt", {"--optimizer=muon", NULL}, {"--replicas=private", NULL}, NULL},
    {"epoch, zero", "epoch", {"--dtype=bfloat16", NULL}, {"--zero=1", "--recompute=rows"}, NULL},
    {"golf", NULL, {"--gradient_accumulation_steps=16", NULL}, {NULL}, NULL},
};

static law_args settings_of(const struct setup *s, const char **out_p)
{
    law_args args;
    if (s->sampler != NULL) {
        args = law_train(s->sampler, out_p);
    } else {
        *out_p = lks_test_folder();
        args = law_family(true, *out_p);
    }
    law_add_words(&args, s->settings);
    return args;
}

static int train_alone(void **state)
{
    for (size_t i = 0; i < COUNT(setups); i++) {
        law_args args = settings_of(&setups[i], &setups[i].alone);
        law_add(&args, "--threads=1");
        law_run(&args);
    }
    return 0;
}

static char self[PATH_MAX];
static const char *engine = "gloo";

struct outcome {
    int code;
    const char *out, *log; /* folders of the run, and of the notes of its ranks */
};

static int run_on(const char *hosts, law_args *args, const char *log, const struct plant *p)
{
    law_add_all(args, "--threads=1", "--allow_uneven");
    law_add(args, "--backend=%s", engine);
    args->argv[0] = self;
    setenv("LKS_TEST_LOG", log, 1);
    if (p != NULL)
        setenv("LKS_TEST_PLANT",
               lks_test_text("%d %d %d %d %d", p->rank, p->iter, p->v, p->times, p->wrong), 1);
    const int code = hosts_run(engine, hosts, args->argv);
    unsetenv("LKS_TEST_PLANT");
    return code;
}

static struct outcome trained(const struct setup *s, const char *hosts, double share,
                              const struct plant *p)
{
    struct outcome o = {.log = lks_test_folder()};
    law_args args = settings_of(s, &o.out);
    o.out = lks_test_text("%s/a run", o.out); /* a shell must get it in quotes */
    law_add(&args, "--out_dir=%s", o.out);
    law_add_words(&args, s->on_hosts);
    law_add(&args, "--recheck=%g", share);
    o.code = run_on(hosts, &args, o.log, p);
    return o;
}

/* --- the files of a run ----------------------------------------------------------------------- */

static const json_t *alarms(const char *out)
{
    return lks_test_record(out, "recheck");
}

static int host_of(const char *hosts, int rank, int *first_p)
{
    int h = 0, first = 0;
    while (first + hosts[h] - '0' <= rank)
        first += hosts[h++] - '0';
    *first_p = first;
    return h;
}

/* Find the spoiled gradient, and its iteration. True if a rank of another host computed it, too. */
static bool was_checked(const char *hosts, const char *log, struct plant *p)
{
    int first, iter, v, spoiled;
    const int host = host_of(hosts, p->rank, &first);
    bool found = false, checked = false;
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < hosts_world(hosts); r++) {
            FILE *f = fopen(lks_test_text("%s/%d", log, r), "re");
            assert_non_null(f);
            while (fscanf(f, "%d %d %d", &iter, &v, &spoiled) == 3) {
                if (pass == 0 && spoiled) {
                    found = true;
                    p->iter = iter;
                    p->v = v;
                }
                checked |= pass == 1 && found && iter == p->iter && v == p->v &&
                           host_of(hosts, r, &first) != host;
            }
            fclose(f);
        }
    return checked;
}

/* The result that the last lines of a run print. */
static const char *summary(const char *out)
{
    const char *log = lks_test_read(lks_test_text("%s/train.log", out), NULL), *line = NULL;
    while ((log = strstr(log, "\nrecheck: ")) != NULL)
        line = ++log;
    assert_non_null(line);
    return lks_test_text("%.*s", (int)strcspn(line, "\n"), line);
}

static void assert_summary(const char *out, const char *hosts, int different, const char *result)
{
    assert_string_equal(
        summary(out),
        lks_test_text("recheck: %d gradients computed again, %s",
                      (int)json_array_size(lks_test_record(out, "train")) * hosts_world(hosts) +
                          different,
                      result));
}

/* An alarm names the host of `rank`, and with `both` another one, too. */
static void assert_named(const json_t *alarm, const char *hosts, const struct plant *p, bool both)
{
    const json_t *wrong = json_object_get(alarm, "wrong"), *row;
    int first;
    bool named = false;
    size_t i;
    host_of(hosts, p->rank, &first);
    assert_int_equal(json_array_size(wrong), both ? 2 : 1);
    json_array_foreach(wrong, i, row) named |= (int)lks_test_number(row, "first_rank") == first;
    assert_true(named);
    assert_int_equal(lks_test_number(alarm, "iter"), p->iter);
    assert_true((json_object_get(alarm, "right") == NULL) == both);
    assert_string_not_equal(lks_test_string(alarm, "hash"), lks_test_string(alarm, "checked_hash"));
}

/* The run without its alarms. */
static const char *quiet_lines(const char *out)
{
    const char *text = "";
    for (const char *p = law_lines(out), *end; *p != '\0'; p = end) {
        end = strchr(p, '\n') + 1;
        if (strncmp(p, "{\"kind\":\"recheck\"", 17) != 0)
            text = lks_test_text("%s%.*s", text, (int)(end - p), p);
    }
    return text;
}

static void assert_right_bytes(const struct outcome *o, const struct setup *s)
{
    if (o->code != 0)
        fail_msg("exit code %d: %s", o->code, hosts_failure());
    law_assert_same_lines(quiet_lines(o->out), law_lines(s->alone));
    law_assert_same_checkpoints(o->out, s->alone);
    law_assert_same_leaves(o->out, s->alone);
}

/* --- one run ---------------------------------------------------------------------------------- */

static struct {
    const char *setup, *hosts, *what;
} at; /* for the report of a failure */

static struct {
    int honest, once, checked, always, hosts;
} tally;

static void honest(const struct setup *s, const char *hosts, double share)
{
    const struct outcome o = trained(s, hosts, share, NULL);
    assert_int_equal(json_array_size(alarms(o.out)), 0);
    assert_right_bytes(&o, s);
    if (share == 1.0)
        assert_summary(o.out, hosts, 0, "all equal");
    if (share == 1.0 && strcmp(hosts, "12") == 0) /* a host's ranks check different gradients */
        assert_string_not_equal(
            lks_test_text("%.3s", lks_test_read(lks_test_text("%s/1", o.log), NULL)),
            lks_test_text("%.3s", lks_test_read(lks_test_text("%s/2", o.log), NULL)));
    tally.honest++;
}

static void once(const struct setup *s, const char *hosts, double share, struct plant *p)
{
    const struct outcome o = trained(s, hosts, share, p);
    const json_t *all = alarms(o.out);
    tally.once++;
    if (!was_checked(hosts, o.log, p)) {
        assert_int_equal(json_array_size(all), 0);
        return;
    }
    assert_int_equal(json_array_size(all), 1);
    assert_named(json_array_get(all, 0), hosts, p, false);
    assert_int_equal(lks_test_number(all, "0.virtual_rank"), p->v);
    assert_right_bytes(&o, s);
    if (share == 1.0)
        assert_summary(o.out, hosts, 1, "1 differed: metrics.jsonl has a recheck line of each");
    tally.checked++;
}

/* Two hosts can't find out which one is wrong. */
static void always(const struct setup *s, const char *hosts, const struct plant *p)
{
    const bool two = strlen(hosts) == 2;
    const struct outcome o = trained(s, hosts, 1.0, p);
    const json_t *all = alarms(o.out);
    int first;
    const int host = host_of(hosts, p->rank, &first);
    assert_int_not_equal(o.code, 0);
    assert_int_equal(json_array_size(all), 3);
    for (size_t i = 0; i < 3; i++)
        assert_named(json_array_get(all, i), hosts, p, two);
    const char *said = hosts_failure();
    tally.always++;
    if (strcmp(engine, "mpi") == 0)
        return;
    assert_contains(
        said, lks_test_text(" (rank%s %d", hosts[host] > '1' ? "s" : "", first),
        two ? "(no majority of hosts shows which one)" : "; error 3 of 3)",
        two ? "; error 3 of 3) or host " : "; error 3 of 3) computes wrongly, and was ",
        lks_test_text(" lockstep train --init_from=resume --out_dir=%s", lks__quoted(o.out, 600)));
    if (hosts[host] == '1')
        assert_contains(said, p->iter > 0
                                  ? lks_test_text("last right in iteration %d: ", p->iter - 1)
                                  : "never right: ");
    const int others = hosts_world(hosts) - (hosts[host] - '0');
    const bool uneven = strstr(said, " --allow_uneven") != NULL;
    assert_int_equal(uneven, !two && LAW_V % others != 0);
}

static const char *draw_hosts(void)
{
    const int n = 2 + draw(7);
    const char *hosts = "";
    for (int h = 0; h < n; h++)
        hosts = lks_test_text("%s%d", hosts, n <= 4 ? 1 + draw(2) : 1);
    return hosts;
}

static void attempt(int index)
{
    struct setup *s = &setups[index % (int)COUNT(setups)];
    const char *hosts = at.hosts = draw_hosts();
    const double share = draw(2) ? 1.0 : 0.4;
    struct plant p = {draw(hosts_world(hosts)), draw(6), draw(2) ? -1 : draw(LAW_V), 1,
                      draw(2) ? BIT : NOT_A_NUMBER};
    const int kind = draw(4);
    at.setup = s->name;
    at.what = kind < 2 ? "honest" : kind == 2 ? "wrong once" : "always wrong";
    tally.hosts += (int)strlen(hosts);
    if (kind < 2) {
        honest(s, hosts, share);
    } else if (kind == 2) {
        once(s, hosts, share, &p);
    } else {
        p.v = -1;
        p.times = INT_MAX;
        p.wrong = BIT;
        always(s, hosts, &p);
    }
}

/* --- the tests -------------------------------------------------------------------------------- */

TEST(test_campaign)
{
    while (chance_next())
        attempt(chance.run);
}

/* All that was noted, sorted. */
static const char *noted(const char *log)
{
    return lks_test_do("sh", "-c", "cd \"$0\" && grep -H . * | sort", log).out;
}

/* A resume without --recheck computes the same gradients again and continues to count them, and on
 * one host it continues without checks. */
TEST(test_resume)
{
    const struct setup *s = &setups[0];
    const struct plant bit = {1, 2, -1, 1, BIT}; /* 2 and 11 are drawn */
    const struct outcome whole = trained(s, "11", 0.5, &bit);
    const char *log = lks_test_folder(), *out;
    law_args args = settings_of(s, &out);
    law_add_all(&args, "--recheck=0.5", "--max_iters=6");
    assert_int_equal(run_on("11", &args, log, &bit), 0);
    assert_int_equal(json_array_size(alarms(out)), 1);
    const char *copy = lks_test_folder();
    lks_test_do("cp", "-a", lks_test_text("%s/.", out), copy);
    law_resume("random", copy, "--threads=1");
    law_assert_same_checkpoint(copy, s->alone, "ckpt-00000014");
    const char *fresh;
    /* A killed run leaves lines after its checkpoint. */
    lks_test_do(
        "sh", "-c",
        "cd \"$0\" && sed 's/\"iter\":2,/\"iter\":11,/' metrics.jsonl | grep :11, >lines && "
        "cat lines >>metrics.jsonl",
        out);
    args = settings_of(s, &fresh);
    law_add(&args, "--out_dir=%s", out);
    law_add(&args, "--init_from=resume");
    assert_int_equal(run_on("11", &args, log, NULL), 0);
    law_assert_same_checkpoint(out, s->alone, "ckpt-00000014");
    assert_string_equal(noted(log), noted(whole.log));
    assert_string_equal(summary(out), summary(whole.out));
}

/* A resume continues to count: after two errors of a host its next one ends the run. */
TEST(test_count)
{
    enum { LEAVES = 3, ERROR = 1 + LEAVES + 1 }; /* rank 1's share of a check, a step, and a vote */
    const struct plant two = {1, 2, -1, 2 * ERROR, BIT}, more = {1, 8, -1, INT_MAX, BIT};
    const char *out, *fresh, *log = lks_test_folder();
    law_args args = settings_of(&setups[0], &out);
    law_add_all(&args, "--recheck=1", "--max_iters=5");
    assert_int_equal(run_on("111", &args, log, &two), 0);
    assert_int_equal(json_array_size(alarms(out)), 2);
    args = settings_of(&setups[0], &fresh);
    law_add(&args, "--out_dir=%s", out);
    law_add(&args, "--init_from=resume");
    assert_int_not_equal(run_on("111", &args, log, &more), 0);
    const json_t *all = alarms(out);
    assert_int_equal(json_array_size(all), 3);
    assert_int_equal(lks_test_number(all, "2.wrong.0.times"), 3);
    assert_int_equal(lks_test_number(all, "2.iter"), 8);
    assert_contains(hosts_failure(), "; error 3 of 3) computes wrongly");
}

/* A single error of each kind, and errors that don't end, on two and three hosts. */
TEST(test_named)
{
    struct plant bit = {2, 3, -1, 1, BIT}, nan = {1, 4, 2, 1, NOT_A_NUMBER};
    const struct plant bits = {1, 5, -1, INT_MAX, BIT};
    const int checked = tally.checked;
    once(&setups[1], "12", 1.0, &bit);
    once(&setups[0], "21", 1.0, &nan);
    assert_int_equal(tally.checked, checked + 2);
    always(&setups[0], "11", &bits);
    always(&setups[0], "111", &bits);
    honest(&setups[0], "12", 1.0);
}

/* Gradients that aren't finite on any host are no alarm, even if their NaN have other bits. */
TEST(test_honest_nan)
{
    const struct plant sign = {-1, 5, 2, INT_MAX, SIGN};
    const char *out = lks_test_folder(), *log = lks_test_folder();
    law_args args = poison_train(out, 1);
    law_add(&args, "--iterations=4");
    law_run(&args);
    poison_embedding(out);
    args = poison_train(out, 0);
    law_add_all(&args, "--init_from=resume", "--iterations=7", "--on_nan=skip", "--recheck=1");
    run_on("1111", &args, log, &sign); /* its artifact can't be exported */
    assert_contains(noted(log), ":5 2 1");
    assert_int_equal(json_array_size(alarms(out)), 0);
    assert_true(law_has_line(out, "skip", 5));
    assert_true(law_has_line(out, "skip", 6));
}

/* Gradients in a device's own memory aren't hashed. */
TEST(test_refused)
{
    const char *out;
    law_args args = settings_of(&setups[0], &out);
    law_add_all(&args, "--recheck=0.1", "--backend=gloo");
    args.argv[0] = LKS_TEST_DEFERRED;
    assert_int_not_equal(hosts_run("gloo", "11", args.argv), 0);
    assert_contains(hosts_failure(), "device=deferred has its own memory: leave --recheck out");
}

/* The command that continues without a host is complete, also with long names. */
TEST(test_long_names)
{
    enum { HOSTS = 20, LONGEST = 597 }; /* a longer folder's name is left out */
    static lks__trainer t;
    static lks__recheck_host hosts[HOSTS];
    struct lks__recheck c = {.hosts = hosts, .n_hosts = HOSTS, .agree = HOSTS - 5};
    for (int i = 0; i < HOSTS; i++) {
        memset(hosts[i].name, 'a' + i, LKS__HOST_NAME - 1);
        hosts[i].first_rank = i;
        hosts[i].end_rank = i + 1;
        hosts[i].wrong = i < 5;
        hosts[i].times = i < 5 ? 3 : 0;
    }
    memset(t.run.s.out_dir, 'o', LONGEST);
    t.checks.recheck = &c;
    t.run.V = HOSTS;
    assert_int_equal(lks__recheck_limit(&t), LKS_ERR_DIVERGED);
    assert_contains(
        lks_last_error(),
        lks_test_text("--hosts=… lockstep train --init_from=resume --out_dir=%s", t.run.s.out_dir));
    for (int i = 0; i < 5; i++)
        hosts[i].wrong = false;
    assert_int_equal(lks__recheck_limit(&t), LKS_OK);
    hosts[0].wrong = true;
    t.run.s.out_dir[3] = '\0';
    assert_int_equal(lks__recheck_limit(&t), LKS_ERR_DIVERGED);
    assert_contains(lks_last_error(), lks_test_text("--hosts=%s:1,", hosts[5].name),
                    "--out_dir=ooo --allow_uneven");
}

static void report(void)
{
    printf("%d honest runs without an alarm; %d wrong once, of which %d were checked and named; %d "
           "always wrong; %.1f hosts on average\n",
           tally.honest, tally.once, tally.checked, tally.always,
           (double)tally.hosts / (tally.honest + tally.once + tally.always + 1e-9));
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    if (argc > 2 && strcmp(argv[1], "train") == 0)
        return run_rank(argc - 2, argv + 2);
    if (argc == 2 && strcmp(argv[1], "mpi") == 0)
        engine = argv[1];
    else if (!chance_options(argc, argv, 2))
        return 2;
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    lks_test_modules();
    hosts_need(engine);
    if (engine[0] == 'm')
        lks_test_only("test_named");
    const int code = lks_test_run_all(train_alone, NULL);
    if (code == 1)
        printf("seed %d, run %d: %s on hosts %s, %s\n", chance.seed, chance.run, at.setup, at.hosts,
               at.what);
    report();
    return code;
}
