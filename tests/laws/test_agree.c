/* Hosts with different states: what they load is compared before the first step and after going
 * back. A difference ends all ranks, with host, file and hashes. This machine acts as the hosts;
 * each has a folder of its own, BASE/0 and on. */
#include "poison.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/hosts.h"
#include "comm/ranks.h"
#include "train/checkpoint.h"
#include "train/checks/agree.h"
#include "train/checks/divergence.h"
#include "train/setup/trainer.h"
#include "train/step.h"

enum { FIRST = 4, STEPS = 8, GOES_BACK = 10 };

static const char *engine;             /* "mpi", "gloo" */
static const char *base;               /* a run of FIRST iterations: checkpoints 2 and 4 */
static const char *whole;              /* the same, resumed to STEPS on one rank */
static const char *poisoned, *rounded; /* poisoned after 2; resumed to GOES_BACK on one rank */

static void shell(const char *command)
{
    lks_test_do("sh", "-ec", command);
}

static int train_alone(void **state)
{
    base = lks_test_folder();
    law_args args = poison_train(base, 1);
    law_add(&args, "--iterations=%d", FIRST);
    law_run(&args);
    whole = lks_test_copy_of(base);
    args = poison_train(whole, 1);
    law_add_line(&args, "--init_from=resume --iterations=%d", STEPS);
    law_run(&args);

    poisoned = lks_test_copy_of(base);
    shell(
        lks_test_text("cd '%s' && rm -r ckpt-00000004 && ln -sfn ckpt-00000002 latest", poisoned));
    poison_embedding(poisoned);
    rounded = lks_test_copy_of(poisoned);
    args = poison_train(rounded, 1);
    law_add_line(&args, "--init_from=resume --iterations=%d --on_nan=rollback", GOES_BACK);
    lks_test_result r = lks_test_run(args.argv, NULL, 60);
    assert_contains(r.err, "tensor tok_emb.weight can't be exported"); /* at the end of the run */
    return 0;
}

/* --- runs on hosts with folders of their own ------------------------------------------------- */

/* BASE/0 and on: copies of `out` for each host. */
static const char *folders(const char *hosts, const char *out)
{
    const char *all = lks_test_folder();
    for (size_t h = 0; h < strlen(hosts); h++)
        shell(lks_test_text("cp -a '%s' '%s/%zu'", out, all, h));
    return all;
}

/* Run the command in every rank, in its host's folder; each leaves its stderr in BASE/err.RANK and
 * its exit code in BASE/code.RANK. */
static int run_in(const char *hosts, const char *folders, const law_args *args)
{
    law_args all = {.n = 0};
    /* mpirun may kill a rank before it writes its own. */
    for (int r = 0; r < hosts_world(hosts); r++) {
        unlink(lks_test_text("%s/code.%d", folders, r));
        unlink(lks_test_text("%s/err.%d", folders, r));
    }
    law_add_shell(&all, args,
                  "cd '%s'/$GROUP_RANK; code=0; \"$0\" \"$@\" --out_dir='%s'/$GROUP_RANK "
                  "2>'%s'/err.$RANK || code=$?; "
                  "echo $code >'%s'/code.$RANK; exit $code",
                  folders, folders, folders, folders);
    law_add(&all, "--backend=%s", engine);
    law_add(&all, "--timeout=%g", 20 * lks_test_patience());
    return hosts_run(engine, hosts, all.argv);
}

static int resume_in(const char *hosts, const char *all, int steps, const char *more)
{
    law_args args = poison_train(all, 0);
    law_add_line(&args, "--init_from=resume --iterations=%d", steps);
    law_add(&args, "%s", more);
    return run_in(hosts, all, &args);
}

/* Returns the stderr of all ranks; checks that none went on or ended well. */
static const char *refusal(const char *hosts, const char *all)
{
    const char *said = hosts_failure();
    for (int r = 0; r < hosts_world(hosts); r++) {
        const char *code = lks_test_text("%s/code.%d", all, r);
        bool ended = lks_test_exists(code) && lks_test_read(code, NULL)[0] != '\0';
        if (strcmp(engine, "mpi") != 0 || ended) /* mpirun may have killed it before */
            assert_string_not_equal(lks_test_read(code, NULL), "0\n");
        const char *err = lks_test_text("%s/err.%d", all, r);
        if (strcmp(engine, "mpi") != 0 || lks_test_exists(err))
            said = lks_test_text("%s%s", said, lks_test_read(err, NULL));
    }
    return said;
}

/* The digits of a checkpoint's state_hash. */
static const char *state_hash(const char *ckpt)
{
    json_t *state = json_load_file(lks_test_text("%s/state.json", ckpt), 0, NULL);
    assert_non_null(state);
    const char *digits = lks_test_text("%s", lks_test_string(state, "state_hash"));
    json_decref(state);
    return digits;
}

/* Both sides of a difference are named: host, file, iteration and hash. */
static void assert_names(const char *said, const char *all, int rank, int host, int iter)
{
    char name[65] = "";
    gethostname(name, sizeof name - 1);
    for (int side = 0; side < 2; side++) {
        int r = side == 0 ? 0 : rank, h = side == 0 ? 0 : host, i = side == 0 ? FIRST : iter;
        const char *path = lks_test_text("%s/%d/ckpt-%08d", all, h, i);
        assert_contains(said,
                        lks_test_text("rank %d (host %s) has %s (iteration %d, state_hash %s)", r,
                                      name, path, i, state_hash(path)));
    }
}

static void assert_untouched(const char *all)
{
    assert_false(lks_test_exists(lks_test_text("%s/0/ckpt-00000006", all)));
    law_assert_same_checkpoints(lks_test_text("%s/0", all), base);
}

/* --- resume ---------------------------------------------------------------------------------- */

TEST(test_same)
{
    const char *all = folders("22", base);
    assert_int_equal(resume_in("22", all, STEPS, "--check_interval=1"), 0);
    law_assert_same(lks_test_text("%s/0", all), whole);
}

TEST(test_altered)
{
    static void (*const alter[])(const char *out) = {poison_weight, poison_moment, poison_value};
    for (int i = 0; i < 3; i++) {
        const char *all = folders("111", base);
        int host = i % 2 == 0 ? 2 : 1;
        alter[i](lks_test_text("%s/%d", all, host));
        assert_int_not_equal(resume_in("111", all, STEPS, "--check_interval=0"), 0);
        assert_names(refusal("111", all), all, host, host, FIRST);
        assert_untouched(all);
    }
}

/* Without the newest checkpoint, or with a `latest` that names the one before. */
TEST(test_older)
{
    static const char *const how[] = {"rm -r ckpt-00000004; ", ""};
    for (int i = 0; i < 2; i++) {
        const char *all = folders("22", base);
        shell(lks_test_text("cd '%s/1'; %sln -sfn ckpt-00000002 latest", all, how[i]));
        assert_int_not_equal(resume_in("22", all, STEPS, "--check_interval=0"), 0);
        assert_names(refusal("22", all), all, 2, 1, 2);
        assert_untouched(all);
    }
}

TEST(test_missing)
{
    for (int host = 0; host < 2; host++) {
        const char *all = folders("21", base);
        shell(lks_test_text("rm -r '%s/%d'/*", all, host));
        assert_int_not_equal(resume_in("21", all, STEPS, "--check_interval=0"), 0);
        const char *said = refusal("21", all), *path = lks_test_text("%s/%d", all, 1 - host);
        assert_contains(said, lks_test_text("there is no checkpoint in %s/%d", all, host),
                        lks_test_text("rank %d (host ", host == 0 ? 0 : 2),
                        lks_test_text("has %s/ckpt-00000004 (iteration 4, state_hash %s)", path,
                                      state_hash(lks_test_text("%s/latest", path))));
    }
}

/* Restarted after a failure: the first host has the job's checkpoint, the other has none of this
 * job. */
TEST(test_restart)
{
    const char *all = folders("21", base), *lock = "pid 1 on somewhere\nthe job\n";
    lks_test_write_text(lks_test_text("%s/0/.lock", all), lock);
    shell(lks_test_text("rm -r '%s/1'/*", all));
    setenv("LOCKSTEP_JOB", "the job", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    law_args args = poison_train(all, 0);
    law_add(&args, "--iterations=%d", STEPS);
    int code = run_in("21", all, &args);
    unsetenv("LOCKSTEP_JOB");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    assert_int_not_equal(code, 0);
    assert_contains(
        refusal("21", all),
        lks_test_text("has no checkpoint to continue from in %s/1, but rank 0 (host ", all));
    assert_untouched(all);
}

/* --- going back ------------------------------------------------------------------------------ */

/* The second host has the checkpoint to which rank 0 goes back, although its `latest` names
 * another. */
TEST(test_back_to_one)
{
    const char *all = folders("22", poisoned);
    shell(lks_test_text("cp -a '%s/ckpt-00000004' '%s/1'", rounded, all));
    resume_in("22", all, GOES_BACK, "--on_nan=rollback");
    assert_contains(refusal("22", all), "tensor tok_emb.weight can't be exported");
    law_assert_same_checkpoints(lks_test_text("%s/0", all), rounded);
}

TEST(test_back_to_others)
{
    for (int altered = 0; altered < 2; altered++) {
        const char *all = folders("22", poisoned);
        if (altered) {
            shell(lks_test_text("cp -a '%s/ckpt-00000004' '%s/1'", rounded, all));
            shell(lks_test_text("cd '%s/1'; ln -sfn ckpt-00000004 latest", all));
            poison_moment(lks_test_text("%s/1", all));
            shell(lks_test_text("cd '%s/1'; ln -sfn ckpt-00000002 latest", all));
        }
        assert_int_not_equal(resume_in("22", all, GOES_BACK, "--on_nan=rollback"), 0);
        const char *said = refusal("22", all);
        assert_contains(said, "on_nan=rollback at iteration 5: rank 2 (host ");
        if (altered)
            assert_names(said, all, 2, 1, 4);
        else
            assert_contains(said, lks_test_text("%s/1/ckpt-00000004: No such file", all));
        assert_false(lks_test_exists(lks_test_text("%s/0/ckpt-00000006", all)));
    }
}

/* --- other commands, other differences ------------------------------------------------------- */

TEST(test_eval)
{
    const char *all = folders("11", base);
    law_args args = {.n = 0};
    law_add_all(&args, "lockstep", "eval");
    law_add(&args, "--dataset=%s", poison_data());
    law_add(&args, "--batch_size=2");
    assert_int_equal(run_in("11", all, &args), 0);
    poison_weight(lks_test_text("%s/1", all));
    assert_int_not_equal(run_in("11", all, &args), 0);
    assert_names(refusal("11", all), all, 1, 1, FIRST);

    static const char artifact[] = "final_model.int8.ptz";
    law_add(&args, "--artifact=%s", artifact);
    assert_int_equal(run_in("11", all, &args), 0);
    shell(lks_test_text("cp '%s/%s' '%s/1'", whole, artifact, all));
    assert_int_not_equal(run_in("11", all, &args), 0);
    assert_contains(
        refusal("11", all),
        lks_test_text("the hash of the weights in %s differs between ranks: rank 0 (host ",
                      artifact));
}

/* One rank of eval or sample has another setting. */
TEST(test_eval_settings)
{
    static const struct {
        const char *command, *odd, *name, *first, *other;
    } cases[] = {
        {"eval", "--stride=4", "stride", "0", "4"},
        {"eval", "--block_size=4", "block_size", "(none)", "4"},
        {"eval", "--artifact=a.ptz", "artifact", "none", "a file"},
        {"eval", "--init_from=w.safetensors", "init_from", "scratch", "weights"},
        {"sample", "--seed=7", "seed", "1337", "7"},
        {"sample", "--tokenizer=/t", "tokenizer", "(none)", "/t"},
    };
    const char *all = lks_test_folder();
    const bool mpi = strcmp(engine, "mpi") == 0; /* mpirun takes a second */
    for (size_t i = 0; i < (mpi ? 1 : sizeof cases / sizeof cases[0]); i++) {
        const char *argv[] = {
            "sh",
            "-c",
            lks_test_text("exec 2>'%s'/err.$RANK; [ $RANK = 0 ] || set -- \"$@\" %s; code=0; "
                          "\"$0\" \"$@\" || code=$?; echo $code >'%s'/code.$RANK; exit $code",
                          all, cases[i].odd, all),
            lks_test_program(),
            cases[i].command,
            lks_test_text("--out_dir=%s", base),
            strcmp(cases[i].command, "eval") == 0 ? lks_test_text("--dataset=%s", poison_data())
                                                  : "--top_k=3",
            strcmp(cases[i].command, "eval") == 0 ? lks_test_text("--backend=%s", engine) : NULL,
            NULL};
        assert_int_not_equal(hosts_run(engine, "11", argv), 0);
        const char *said = refusal("11", all);
        assert_contains(
            said, lks_test_text("%s differs between ranks: rank 0 (host ", cases[i].name),
            lks_test_text(") has %s", cases[i].first), lks_test_text(") has %s", cases[i].other));
    }
}

/* One rank has other data, another check interval or other weights: neither run begins. */
TEST(test_settings)
{
    const char *other = lks_test_folder(), *all = folders("22", base);
    poison_write_data(other);
    uint16_t more[300] = {1};
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000001.bin", other), more, 300);
    const char *weights = lks_test_text("%s/ckpt-00000004", base);
    const char *const odd[][3] = {{"dataset", other, "the data"},
                                  {"check_interval", "7", "check_interval"},
                                  {"init_from", weights, "init_from"}};
    for (int i = 0; i < 3; i++) {
        law_args args = poison_train(all, 0);
        law_add(&args, "--iterations=%d", STEPS);
        if (i == 2)
            law_add(&args, "--init_from=%s/ckpt-00000002", base);
        const char *argv[LAW_MAX_ARGS + 8] = {
            "sh", "-c",
            lks_test_text("exec 2>'%s'/err.$RANK; [ $RANK = 3 ] && set -- \"$@\" --%s=%s; "
                          "\"$0\" \"$@\" --out_dir='%s'/fresh; "
                          "code=$?; echo $code >'%s'/code.$RANK; exit $code",
                          all, odd[i][0], odd[i][1], all, all),
            lks_test_program()};
        int n = 4;
        for (int a = 1; a < args.n; a++)
            argv[n++] = args.argv[a];
        argv[n++] = lks_test_text("--backend=%s", engine);
        assert_int_not_equal(hosts_run(engine, "22", argv), 0);
        const char *said = refusal("22", all);
        assert_contains(said, lks_test_text("%s differs between ranks: rank 0 (host ", odd[i][2]),
                        ", rank 3 (host ",
                        lks_test_text(i == 1 ? ") has %s: " : ") has %s (digest ", odd[i][1]));
        assert_false(lks_test_exists(lks_test_text("%s/fresh", all)));
    }
}

/* --- the state in memory ---------------------------------------------------------------------- */

/* The state of the last rank is changed: by hand, or at one of the places where a state is made. */
static const char *const fields[] = {"none",       "params",    "exp_avg",   "exp_avg_sq", "iter",
                                     "data_shift", "nonfinite", "eval_done", "best",       "clock",
                                     "time",       "segment",   "sampler",   "same",       "init",
                                     "load",       "back"};
static const char *field; /* of this rank's run */
static bool spoils;       /* from now on initialised or loaded values are changed */

static bool is(const char *name)
{
    return strcmp(field, name) == 0;
}

static bool odd_rank(void)
{
    return atoi(getenv("RANK")) == atoi(getenv("WORLD_SIZE")) - 1;
}

/* The linker's --wrap redirects calls of these functions to here. */
__typeof__(lks__model_init) __real_lks__model_init, __wrap_lks__model_init;
uint64_t __wrap_lks__model_init(const lks__model_config *config, const lks__table *table,
                                lks__mt *g, float *params)
{
    uint64_t draws = __real_lks__model_init(config, table, g, params);
    if (spoils && params != NULL)
        params[table->tensors[1].offset] += 1.0f;
    return draws;
}

__typeof__(lks__state_load) __real_lks__state_load, __wrap_lks__state_load;
lks_status __wrap_lks__state_load(lks__trainer *t, lks__ckpt *ckpt)
{
    lks_status st = __real_lks__state_load(t, ckpt);
    if (spoils)
        ((float *)t->state.memory->moments[0].host)[t->run.table.tensors[1].offset] += 1.0f;
    return st;
}

static bool arrives_late; /* this rank makes the file `arrived` in its first barrier from now on */

static const char *arrived(void)
{
    return lks_test_text("%s/%s.arrived", getenv("LKS_TEST_DONE"), field);
}

/* A rank that reports its failure ends the group, so all ranks must know the verdict before: one
 * that is still exchanging it would take its own failure for the first. */
__typeof__(lks_comm_barrier) __real_lks_comm_barrier, __wrap_lks_comm_barrier;
lks_status __wrap_lks_comm_barrier(lks_comm *comm)
{
    if (arrives_late) {
        arrives_late = false;
        usleep(200000);
        lks_test_write_text(arrived(), "");
    }
    return __real_lks_comm_barrier(comm);
}

__typeof__(lks_comm_abort) __real_lks_comm_abort, __wrap_lks_comm_abort;
void __wrap_lks_comm_abort(lks_comm *comm, const char *why)
{
    if (field != NULL && is("same") && !lks_test_exists(arrived())) {
        fprintf(stderr, "rank %s ends the group before all know why\n", getenv("RANK"));
        abort();
    }
    __real_lks_comm_abort(comm, why);
}

/* golf's, from scratch and by the clock, or from `base`; or nanoGPT's with its generators. */
static lks_status open_trainer(lks__trainer *t)
{
    law_args args = {.n = 0};
    lks__settings s;
    lks__args ignored;
    if (is("clock") || is("load") || is("back")) {
        args = poison_train(getenv("LKS_TEST_BASE"), 0);
        law_add(&args, is("clock") ? "--max_wallclock_seconds=100" : "--init_from=resume");
    } else {
        law_add_line(&args, "lockstep train --vocab_size=65 --n_layer=1 --n_head=1 --n_embd=16 "
                            "--block_size=8 --batch_size=2 --gradient_accumulation_steps=4 "
                            "--virtual_ranks=4 --allow_uneven --sampler=nanogpt");
    }
    law_add(&args, "--backend=%s", getenv("LKS_TEST_ENGINE"));
    law_add(&args, "--dataset=%s", getenv("LKS_TEST_DATA"));
    law_add(&args, "--timeout=%g", 20 * lks_test_patience());
    lks__settings_defaults(&s);
    LKS__TRY(lks__settings_parse(&s, LKS__CMD_TRAIN, args.n - 2,
                                 (char *const *)(uintptr_t)(args.argv + 2), 0, &ignored));
    return lks__trainer_open(&s, t, &(int){0});
}

static lks_status compare(lks__trainer *t)
{
    const bool odd = odd_rank();
    size_t last = t->run.table.tensors[t->run.table.n_tensors - 1].offset;
    arrives_late = odd && is("same");
    if (is("same"))
        return lks__session_same(&t->ses, "the thing", odd ? 0xabc : 0x123);
    if (is("back")) {
        lks__step_result step;
        LKS__TRY(lks__train_step(t, &step));
        spoils = odd;
        return lks__trainer_go_back(t);
    }
    if (odd && is("params"))
        ((float *)t->state.memory->params.host)[last] += 1.0f;
    if (odd && is("exp_avg"))
        ((float *)t->state.memory->moments[0].host)[last] += 1.0f;
    if (odd && is("exp_avg_sq"))
        ((float *)t->state.memory->moments[1].host)[last] += 1.0f;
    t->state.iter += odd && is("iter");
    t->state.data_shift += odd && is("data_shift");
    t->state.nonfinite += odd && is("nonfinite");
    t->state.eval_done ^= odd && is("eval_done");
    t->state.best_val_loss += odd && is("best");
    t->state.elapsed_s += odd && is("clock");
    t->checks.out_of_time |= odd && is("time");
    t->state.segment.data.position += odd && is("segment");
    if (odd && is("sampler"))
        lks__batch_sampler_step(t->state.sampler, 0);
    return lks__agree_state(t, true);
}

/* A rank: the last one's state differs in one field, and every rank must learn it. */
RANK(compare)
{
    static lks__trainer t;
    int rank = atoi(getenv("RANK"));
    field = getenv("LKS_TEST_FIELD");
    spoils = odd_rank() && (is("init") || is("load"));
    lks_status st = open_trainer(&t);
    if (!is("init") && !is("load")) {
        EXPECT(st == LKS_OK);
        st = compare(&t);
    }
    if (is("none")) {
        lks__divergence_vote note; /* the check is due: one rank of each host has a hash */
        const bool leads = rank != 1;
        EXPECT(st == LKS_OK);
        t.state.iter = (uint64_t)t.run.s.check_interval;
        lks__divergence_hash(&t, &note);
        EXPECT(note.iter == t.state.iter && note.compares == leads && (note.hash != 0) == leads);
    } else { /* each has the reason: mpirun kills all once one has ended */
        EXPECT(st == (rank == 0 ? LKS_ERR_DIVERGED : LKS_ERR_PEER));
        const char *said = lks_last_error();
        if (is("same")) {
            EXPECT(strstr(said, "the thing differs between ranks: rank 0 (host ") &&
                   strstr(said, ") has 0000000000000123, rank 2 (host ") &&
                   strstr(said, ") has 0000000000000abc"));
        } else {
            EXPECT(strstr(said, "rank 2 (host ") && strstr(said, "state_hash"));
        }
    }
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s.%d", getenv("LKS_TEST_DONE"), field, rank);
    FILE *done = fopen(path, "we"); /* mpirun has its own exit code for a group that failed */
    EXPECT(done != NULL && fclose(done) == 0);
    lks__trainer_close(&t);
    return 0;
}

TEST(test_state)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    const char *done = lks_test_folder();
    setenv("LKS_TEST_DONE", done, 1);
    setenv("LKS_TEST_ENGINE", engine, 1);
    setenv("LKS_TEST_BASE", base, 1);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const char *const argv[] = {self, "--rank", "compare", NULL};
        setenv("LKS_TEST_FIELD", fields[i], 1);
        field = fields[i];
        if (strcmp(engine, "mpi") == 0 && !is("none") && !is("params") && !is("load"))
            continue; /* the comparison doesn't depend on the engine, and mpirun takes a second */
        bool golf = is("clock") || is("load") || is("back");
        setenv("LKS_TEST_DATA", golf ? poison_data() : law_data(), 1);
        hosts_run(engine, "21", argv);
        for (int r = 0; r < (strcmp(engine, "mpi") == 0 ? 1 : 3); r++) /* mpirun kills the others */
            if (!lks_test_exists(lks_test_text("%s/%s.%d", done, fields[i], r)))
                fail_msg("rank %d doesn't notice a difference in %s", r, fields[i]);
    }
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    ranks_main(argc, argv);
    engine = argc == 2 ? argv[1] : "";
    hosts_need(engine);
    return lks_test_run_all(train_alone, NULL);
}
