/* The launcher: what ranks get, and that no kind of end leaves anything behind. Ranks are this
 * program (`--rank BODY`) or a line of shell; the launcher is a child process of the test. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/ranks.h"
#include "launch/launch.h"
#include "launch/ranks/supervisor.h"
#include "laws/marked.h"
#include "lockstep/comm.h"

enum { OUT_BYTES = 1 << 16 };

/* One launch, with its stdout and stderr in one text. Its processes have a mark in their
 * environment, by which they are found whatever their parent is. */
struct launch {
    pid_t pid;
    int fd;
    char mark[64];
    char out[OUT_BYTES];
    size_t n_out;
    double start_s, took_s;
};

/* What else the next launches get. */
static struct {
    const char *log_dir;
    double shutdown_timeout_s;
    int n_children; /* that the program has from before the launch */
} more;

/* Children, in a group of their own, that keep none of our descriptors. The group, which is the
 * first one's process id, and the last one's go to the output. */
static void make_children(int n)
{
    pid_t group = 0, pid = 0;
    for (int i = 0; i < n; i++) {
        pid = fork();
        if (pid == 0) {
            close_range(0, ~0u, 0);
            sleep((unsigned)(60 * lks_test_patience()));
            _exit(0);
        }
        group = i == 0 ? pid : group;
        setpgid(pid, group);
    }
    if (n > 0)
        dprintf(2, "earlier-%d\nlast-%d\n", (int)group, (int)pid);
}

static void start(struct launch *l, int nproc, char *const *argv)
{
    static int count;
    int fds[2];
    memset(l, 0, sizeof *l);
    snprintf(l->mark, sizeof l->mark, "LAUNCH_TEST=%d-%d", (int)getpid(), ++count);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    l->start_s = lks__sys_now();
    l->pid = fork();
    assert_true(l->pid >= 0);
    if (l->pid == 0) {
        int code = 99;
        lks__launch_options options = {.nproc = nproc,
                                       .argv = argv,
                                       .self = "lockstep test",
                                       .log_dir = more.log_dir,
                                       .shutdown_timeout_s = more.shutdown_timeout_s};
        lks_test_default_signals();
        setsid(); /* no terminal, and its own group */
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        make_children(more.n_children);
        putenv(l->mark);
        const int before = lks_test_count_files("/proc/self/fd");
        lks_status st = lks__launch(&options, &code);
        if (st != LKS_OK)
            dprintf(2, "launch failed: %s\n", lks_last_error());
        if (lks_test_count_files("/proc/self/fd") != before)
            dprintf(2, "a descriptor has leaked\n");
        _exit(st != LKS_OK ? 98 : code);
    }
    close(fds[1]);
    l->fd = fds[0];
}

/* Read until the output contains `text` (NULL: until its end, when no process has it open). */
static void read_until(struct launch *l, const char *text)
{
    for (;;) {
        if (text != NULL && strstr(l->out, text) != NULL)
            return;
        struct pollfd p = {.fd = l->fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, (int)(20000 * lks_test_patience())), 1);
        ssize_t n = read(l->fd, l->out + l->n_out, OUT_BYTES - 1 - l->n_out);
        assert_true(n >= 0);
        if (n == 0 && text != NULL)
            fail_msg("no \"%s\" in: %s", text, l->out);
        if (n == 0)
            return;
        l->n_out += (size_t)n;
        l->out[l->n_out] = '\0';
    }
}

/* Number of processes (without zombies) with the launch's mark in their environment. */
static int count_marked(const struct launch *l)
{
    return marked_processes(l->mark, NULL, 0);
}

/* Returns the launcher's wait status; checks that nothing of it is left. */
static int finish(struct launch *l)
{
    int status;
    read_until(l, NULL);
    close(l->fd);
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    l->took_s = lks__sys_now() - l->start_s;
    for (int i = 0; i < lks_test_tries(100) && count_marked(l) > 0; i++)
        usleep(10000); /* the kernel may need a moment to end killed processes */
    assert_int_equal(count_marked(l), 0);
    assert_null(strstr(l->out, "leaked"));
    return status;
}

/* It took less than `seconds` of an idle machine. */
static void expect_within(const struct launch *l, double seconds)
{
    if (l->took_s >= seconds * lks_test_patience())
        fail_msg("it took %.2f s, not less than %g s: %s", l->took_s, seconds, l->out);
}

static int launch(struct launch *l, int nproc, char *const *argv)
{
    start(l, nproc, argv);
    int status = finish(l);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define SHELL(script)                                                                              \
    (char *[])                                                                                     \
    {                                                                                              \
        "sh", "-c", script, NULL                                                                   \
    }

#define BODY(name)                                                                                 \
    (char *[])                                                                                     \
    {                                                                                              \
        "/proc/self/exe", "--rank", name, NULL                                                     \
    }

static void expect_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("no \"%s\" in: %s", part, text);
}

/* --- bodies of ranks ---------------------------------------------------------------------- */

/* Time limit of a group in which a rank hangs: the others must have come to step 12 by then. */
static const double HANG_S = 0.8;

/* All reach step 12; then rank 1 ends in some way and the others wait for it. */
static int end_like(const char *how)
{
    lks_comm *comm = ranks_open(strcmp(how, "hang") == 0 ? HANG_S * lks_test_patience() : 30);
    if (comm == NULL)
        return 20;
    lks_comm_note(comm, 12, "backward");
    lks_comm_barrier(comm);
    if (lks_comm_rank(comm) == 1) {
        if (strcmp(how, "kill") == 0)
            kill(getpid(), SIGKILL);
        if (strcmp(how, "exit") == 0)
            _exit(7); /* exits without leaving the group */
        if (strcmp(how, "abort") == 0 || strcmp(how, "say") == 0 || strcmp(how, "leave") == 0) {
            lks_comm_abort(comm, "the loss is not finite");
            if (strcmp(how, "leave") == 0)
                _exit(0);
            if (strcmp(how, "say") == 0)
                fputs("net: the loss is not finite\n", stderr);
            usleep(300000); /* the others end first, and must not be reported */
            _exit(9);
        }
        if (strcmp(how, "hang") == 0)
            for (;;)
                pause();
    }
    lks_status st = lks_comm_barrier(comm);
    if (strcmp(how, "fine") != 0 && st == LKS_OK)
        return 21;
    lks_comm_close(comm);
    return st == LKS_OK ? 0 : 3;
}

/* Seconds from a signal, or the last heartbeat after it, to the end of its time. */
static const double STOP_S = 0.5;

static volatile sig_atomic_t asked;

static void on_term(int sig)
{
    asked = 1;
}

/* When it is asked to stop, it works for twice its time, with heartbeats. */
static int stop_slowly(void)
{
    lks_comm *comm = ranks_open(30);
    if (comm == NULL)
        return 20;
    signal(SIGTERM, on_term);
    printf("ready-%d\n", lks_comm_rank(comm));
    fflush(stdout);
    while (!asked)
        usleep(1000);
    for (int i = 0; i < 20; i++) {
        usleep((useconds_t)(0.1 * STOP_S * lks_test_patience() * 1e6));
        lks_comm_beat(comm);
    }
    /* Together: a rank that ends first ends the group, and with it the other's heartbeats. */
    _exit(lks_comm_barrier(comm) == LKS_OK ? 7 : 21);
}

/* --- what ranks get ----------------------------------------------------------------------- */

TEST(test_environment)
{
    struct launch l;
    unsetenv("OMP_NUM_THREADS");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("RANK", "77", 1); /* set by an outer launcher */
    setenv("KEPT", "as it was", 1);
    assert_int_equal(
        launch(&l, 2,
               SHELL("echo \"<$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                     "$GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE $ROLE_NAME $MASTER_ADDR "
                     "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $OMP_NUM_THREADS "
                     "${TORCHELASTIC_USE_AGENT_STORE-unset} $KEPT>\"; "
                     "[ $MASTER_PORT -gt 1023 ] && [ -n \"$TORCHELASTIC_RUN_ID\" ] && "
                     "[ $(env | grep -c ^RANK=) = 1 ]")),
        0);
    expect_in(l.out, "<0 0 2 2 0 1 0 2 default 127.0.0.1 0 0 1 unset as it was>");
    expect_in(l.out, "<1 1 2 2 0 1 1 2 default 127.0.0.1 0 0 1 unset as it was>");
    setenv("OMP_NUM_THREADS", "5", 1);
    assert_int_equal(launch(&l, 2, SHELL("[ $OMP_NUM_THREADS = 5 ]")), 0);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(launch(&l, 1, SHELL("[ ${OMP_NUM_THREADS-unset} = unset ]")), 0);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("RANK");
    unsetenv("KEPT");
}

TEST(test_group_works)
{
    struct launch l;
    assert_int_equal(launch(&l, 1, BODY("fine")), 0);
    assert_int_equal(launch(&l, 4, BODY("fine")), 0);
    assert_string_equal(l.out, ""); /* no output */
    /* Through a shell, as users start programs: the descriptor must survive it. */
    char script[600];
    char exe[512] = "";
    assert_true(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);
    snprintf(script, sizeof script, "'%s' --rank fine", exe);
    assert_int_equal(launch(&l, 2, SHELL(script)), 0);
}

/* Descriptors 0, 1, 2 and the segment's, and no others. */
TEST(test_descriptors)
{
    struct launch l;
    assert_int_equal(launch(&l, 2, SHELL("ls -l /proc/$$/fd; echo $LOCKSTEP_SEGMENT")), 0);
    int links = 0;
    for (const char *p = l.out; (p = strstr(p, " -> ")) != NULL; p++)
        links++;
    assert_int_equal(links, 2 * 4);
    expect_in(l.out, "/memfd:lockstep");
}

/* --- ends --------------------------------------------------------------------------------- */

/* The "message" of a rank's error.json below more.log_dir; NULL: it has none. */
static json_t *error_of(int rank)
{
    const char *pattern = lks_test_text("%s/*/attempt_0/%d/error.json", more.log_dir, rank);
    glob_t found;
    json_t *message = NULL;
    if (glob(pattern, 0, NULL, &found) == 0) {
        json_t *error = json_load_file(found.gl_pathv[0], 0, NULL);
        message = json_incref(json_object_get(error, "message"));
        json_decref(error);
        globfree(&found);
        assert_non_null(message);
    }
    return message;
}

TEST(test_exit_codes)
{
    struct launch l;
    assert_int_equal(launch(&l, 3, SHELL("exit 0")), 0);
    assert_string_equal(l.out, "");
    assert_int_equal(launch(&l, 3, SHELL("[ $RANK = 2 ] && exit 7; sleep 50")), 7);
    expect_in(l.out, "lockstep test: rank 2 (pid ");
    expect_in(l.out, ") exited with code 7\n");
    expect_within(&l, 2);
    assert_int_equal(launch(&l, 3, SHELL("[ $RANK = 1 ] && kill -SEGV $$; sleep 50")), 128 + 11);
    expect_in(l.out, "lockstep test: rank 1 (pid ");
    expect_in(l.out, ") was killed by signal 11 (SIGSEGV)\n");
    expect_within(&l, 2);
    /* Ranks that ignore signals, with children that do so, too. */
    more.log_dir = lks_test_folder();
    assert_int_equal(launch(&l, 2,
                            SHELL("trap '' TERM; [ $RANK = 0 ] && sleep 0.1 && exit 5; "
                                  "sh -c \"trap '' TERM; sleep 50; sleep 50\" & sleep 50; "
                                  "sleep 50")),
                     5);
    expect_within(&l, 2.2);
    json_decref(error_of(0));
    assert_null(error_of(1)); /* it was killed because of rank 0 */
    more.log_dir = NULL;
}

/* What the ranks' files say of an end: in torchrun's form, with all that the last message has. */
TEST(test_error_files)
{
    static const struct {
        char *body, *message, *how;
        int code, errorCode;
    } cases[] = {
        {"abort", ") exited with code 9 at step 12, phase backward: the loss is not finite",
         "exit_code", 9, 9},
        {"kill", ") was killed by signal 9 (SIGKILL) at step 12, phase backward", "signal", 9, -9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct launch l;
        more.log_dir = lks_test_folder();
        assert_int_not_equal(launch(&l, 2, BODY(cases[i].body)), 0);
        json_t *message = error_of(1), *extra = json_object_get(message, "extraInfo");
        const char *text = json_string_value(json_object_get(message, "message"));
        assert_non_null(text);
        assert_true(strlen(text) > strlen(cases[i].message));
        assert_string_equal(text + strlen(text) - strlen(cases[i].message), cases[i].message);
        assert_int_equal(json_integer_value(json_object_get(message, "errorCode")),
                         cases[i].errorCode);
        assert_int_equal(json_integer_value(json_object_get(extra, cases[i].how)), cases[i].code);
        assert_int_equal(json_integer_value(json_object_get(extra, "step")), 12);
        assert_string_equal(lks_test_string(extra, "phase"), "backward");
        json_decref(message);
        more.log_dir = NULL;
    }
}

TEST(test_named_with_step)
{
    struct launch l;
    assert_int_equal(launch(&l, 3, BODY("kill")), 128 + 9);
    expect_in(l.out, "lockstep test: rank 1 (pid ");
    expect_in(l.out, ") was killed by signal 9 (SIGKILL) at step 12, phase backward\n");
    expect_within(&l, 2);
    assert_int_equal(launch(&l, 3, BODY("exit")), 7);
    expect_in(l.out, ") exited with code 7 at step 12, phase backward\n");
    assert_int_equal(launch(&l, 3, BODY("abort")), 9);
    expect_in(l.out, "lockstep test: rank 1 (pid ");
    expect_in(l.out, ") exited with code 9 at step 12, phase backward: the loss is not finite\n");
    assert_int_equal(launch(&l, 3, BODY("say")), 9); /* the last lines already have the reason */
    expect_in(l.out, ") exited with code 9 at step 12, phase backward; its last lines on stderr:\n"
                     "    net: the loss is not finite\n");
    assert_int_equal(launch(&l, 3, BODY("leave")), 3); /* with code 0 after its report */
    expect_in(l.out, ") exited with code 0 at step 12, phase backward: the loss is not finite\n");
    assert_int_equal(launch(&l, 3, BODY("hang")), 3);
    expect_in(l.out, "lockstep test: rank 1 (pid ");
    expect_in(l.out,
              lks_test_text(
                  "was ended by lockstep test: no answer for %g s in operation 2 (barrier at step "
                  "12) from rank 1",
                  HANG_S * lks_test_patience()));
}

/* Rank 0 has given up rank 1, but takes longer to exit than the launcher waits after it has
 * learnt of another node's end: both are killed at once. That must not count as a SIGKILL from
 * elsewhere. */
TEST(test_killed_while_exiting)
{
    struct lks__rank_process ranks[2] = {
        {.pid = 10, .by_signal = true, .code = SIGKILL, .late = true},
        {.pid = 11, .by_signal = true, .code = SIGKILL, .late = true}};
    const lks__launch_options options = {.self = "lockstep test"};
    struct lks__job job = {.options = &options, .host = ""};
    struct lks__attempt a = {.job = &job, .nproc = 2, .n_started = 2, .ranks = ranks};
    struct lks__supervisor sup = {.attempt = &a,
                                  .failed = true,
                                  .first_by_rank = true,
                                  .first_rank = 1,
                                  .first_text = "no answer for 3 s from rank 1"};
    struct lks__verdict v;
    assert_ok(lks__segment_create(2, &a.segment));
    lks__verdict(&sup, &v);
    lks__segment_close(a.segment);
    assert_int_equal(v.culprit, 1);
    assert_int_equal(v.exit_code, 1);
    assert_contains(
        v.text, "rank 1 (pid 11, host ) was ended by lockstep test: no answer for 3 s from rank 1");
}

/* Two ranks were seen to end at the same moment: the one that was killed is named, since the
 * other's exit code may be a consequence. */
TEST(test_ended_together)
{
    for (int killed = 0; killed < 2; killed++) {
        struct lks__rank_process ranks[2] = {{.pid = 10, .code = 3}, {.pid = 11, .code = 3}};
        ranks[killed].by_signal = true;
        ranks[killed].code = SIGSEGV;
        struct lks__job job = {.host = ""};
        struct lks__attempt a = {.job = &job, .nproc = 2, .n_started = 2, .ranks = ranks};
        struct lks__supervisor sup = {.attempt = &a, .failed = true};
        struct lks__verdict v;
        assert_ok(lks__segment_create(2, &a.segment));
        lks__verdict(&sup, &v);
        lks__segment_close(a.segment);
        assert_int_equal(v.culprit, killed);
        assert_int_equal(v.exit_code, 128 + SIGSEGV);
    }
}

/* After a signal to stop a rank that died of it counts, and not one that failed because of that. */
TEST(test_code_after_signal)
{
    struct lks__rank_process ranks[3] = {
        {.pid = 10, .code = 3}, {.pid = 11, .by_signal = true, .code = SIGTERM}, {.pid = 12}};
    struct lks__job job = {.host = ""};
    struct lks__attempt a = {.job = &job, .nproc = 3, .n_started = 3, .ranks = ranks};
    struct lks__supervisor sup = {.attempt = &a, .user_signal = SIGTERM, .killed = true};
    const lks__launch_options options = {.quiet = true};
    struct lks__verdict v;
    job.options = &options;
    lks__verdict(&sup, &v);
    assert_int_equal(v.culprit, -1);
    assert_int_equal(v.exit_code, 128 + SIGTERM);
}

/* A rank was killed, and the kernel has killed for lack of memory since the attempt began. */
TEST(test_out_of_memory)
{
    static const char said[] = "the kernel has killed processes for lack of memory";
    for (int sig = SIGTERM; sig >= SIGKILL; sig -= SIGTERM - SIGKILL) {
        struct lks__rank_process ranks[1] = {{.pid = 10, .by_signal = true, .code = sig}};
        struct lks__job job = {.host = ""};
        struct lks__attempt a = {
            .job = &job, .nproc = 1, .n_started = 1, .ranks = ranks, .oom_kills = -1};
        struct lks__supervisor sup = {.attempt = &a, .failed = true, .first_rank = -1};
        struct lks__verdict v;
        assert_ok(lks__segment_create(1, &a.segment));
        lks__verdict(&sup, &v);
        assert_int_equal(strstr(v.text, said) != NULL, sig == SIGKILL);
        a.oom_kills = lks__oom_kills();
        lks__verdict(&sup, &v);
        assert_null(strstr(v.text, said));
        lks__segment_close(a.segment);
    }
}

TEST(test_not_executable)
{
    struct launch l;
    assert_int_equal(launch(&l, 2, (char *[]){"no-such\x1bprogram", NULL}), 127);
    assert_string_equal(l.out, "lockstep test: can't execute \"no-such\\x1bprogram\": No such "
                               "file or directory\n");
    assert_int_equal(launch(&l, 2, (char *[]){"/etc/passwd", NULL}), 126);
    expect_in(l.out, "Permission denied");
    char *source = (char *)lks_test_text("%s/mlp.c", lks_test_folder());
    lks_test_write(source, "int main;", 9);
    assert_int_equal(launch(&l, 2, (char *[]){source, NULL}), 126);
    expect_in(l.out, "Permission denied; it is a source file: compile it");
    static const struct {
        const char *name; /* below the folder */
        mode_t mode;      /* 0: a folder */
        const char *text, *said;
    } files[] = {
        {"sub", 0, NULL, "Permission denied; it is a folder\n"},
        {"plain", 0600, "true\n", "Permission denied; the file is not executable (chmod +x)\n"},
        {"script", 0700, "#!/no/such\n", "directory; its first line (#!) names a program that is"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *path = (char *)lks_test_text("%s/%s", lks_test_folder(), files[i].name);
        if (files[i].mode == 0)
            assert_int_equal(mkdir(path, 0700), 0);
        else
            lks_test_write(path, files[i].text, strlen(files[i].text));
        assert_int_equal(chmod(path, files[i].mode == 0 ? 0700 : files[i].mode), 0);
        assert_int_equal(launch(&l, 2, (char *[]){path, NULL}), i == 2 ? 127 : 126);
        expect_in(l.out, files[i].said);
    }
    const char *const argv[] = {"sh",
                                "-c",
                                lks_test_text("cd \"$1\" && mkdir sub && : >plain && "
                                              "\"$0\" run sub; \"$0\" run plain; :"),
                                LKS_TEST_TOOL,
                                lks_test_folder(),
                                NULL};
    const lks_test_result r = lks_test_run(argv, NULL, 30);
    assert_contains(r.err, "\"sub\": No such file or directory in PATH; here it is a folder\n",
                    "\"plain\": No such file or directory in PATH; write ./ before its name");
    assert_int_equal(launch(&l, 0, SHELL("exit 0")), 98);
    assert_int_equal(launch(&l, 5000, SHELL("exit 0")), 98);
    expect_in(l.out, "1 to 1024");
}

/* Processes that ranks leave behind are ended, however the ranks end and whatever their process
 * group is. */
TEST(test_grandchildren)
{
    struct launch l;
    assert_int_equal(launch(&l, 2, SHELL("sleep 50 & exit 0")), 0);
    expect_within(&l, 2);
    assert_int_equal(launch(&l, 2, SHELL("setsid sleep 50 & sleep 0.2; exit 4")), 4);
    expect_within(&l, 2);
    assert_int_equal(launch(&l, 1,
                            SHELL("setsid sh -c 'trap \"\" TERM; sleep 50; sleep 50' & "
                                  "sleep 0.2; kill -9 $$")),
                     128 + 9);
    expect_within(&l, 3);
}

/* --- signals ------------------------------------------------------------------------------ */

TEST(test_launcher_killed)
{
    struct launch l;
    start(&l, 3, SHELL("sleep 50 & echo ready-$RANK; sleep 50"));
    read_until(&l, "ready-0");
    read_until(&l, "ready-1");
    read_until(&l, "ready-2");
    assert_true(count_marked(&l) >= 3);
    kill(l.pid, SIGKILL);
    int status = finish(&l); /* checks that nothing is left */
    assert_true(WIFSIGNALED(status));
    expect_within(&l, 2);
}

/* The process id that follows `name` in the output. */
static pid_t pid_behind(struct launch *l, const char *name)
{
    const char *at = lks_test_find(l->out, name);
    return (pid_t)atoi(at + strlen(name));
}

static bool is_gone(pid_t pid)
{
    char state = lks__sys_process_state(pid);
    return state == 0 || state == 'Z';
}

static void assert_gone(pid_t pid)
{
    for (int i = 0; i < lks_test_tries(200) && !is_gone(pid); i++)
        usleep(10000);
    if (!is_gone(pid)) {
        kill(pid, SIGKILL);
        fail_msg("process %d is still there", (int)pid);
    }
}

/* True if all threads have stopped: the kernel counts a process as stopped only then. */
static bool is_stopped(pid_t pid)
{
    static const char script[] =
        "! grep -h ^State: /proc/$1/task/*/status | grep -qv 'T (stopped)'";
    return lks_test_shell(script, "sh", lks_test_text("%d", (int)pid)).exit_code == 0;
}

/* Send SIGKILL to the launcher, or to the process in front of it, which has its process id:
 * everything that ranks have started is ended, also in other sessions, without our environment,
 * without parents. `stopped`: the kernel sends SIGHUP to a stopped launcher that has lost its
 * parent, but nobody has asked the job to stop. */
static void check_killed(bool front, bool stopped)
{
    static char script[] =
        "setsid sh -c 'echo one-$$; exec sleep 77' & "
        "(setsid env -i sh -c 'sh -c \"echo two-\\$\\$; exec sleep 77 >/dev/null 2>&1\" & "
        "sleep 0.05') & "
        "setsid sh -c 'trap \"\" TERM; echo three-$$; setsid sleep 77; sleep 77' & "
        "sleep 0.2; echo ready; sleep 50";
    static const char *const names[] = {"one-", "two-", "three-"};
    struct launch l;
    start(&l, 1, SHELL(script));
    for (int i = 0; i < 3; i++)
        read_until(&l, names[i]);
    read_until(&l, "ready"); /* "two" has no parent by now */
    pid_t launcher = marked_child_of(l.pid);
    if (stopped) { /* it would stay stopped if it were still running when it loses its parent */
        lks_test_kill(launcher, SIGSTOP);
        lks_test_until(is_stopped(launcher));
    }
    lks_test_kill(front ? l.pid : launcher, SIGKILL);
    int status = finish(&l);
    assert_null(strstr(l.out, "passing signal"));
    for (int i = 0; i < 3; i++)
        assert_gone(pid_behind(&l, names[i]));
    assert_gone(launcher);
    if (front) {
        assert_true(WIFSIGNALED(status));
    } else {
        assert_int_equal(WEXITSTATUS(status), 128 + SIGKILL);
        expect_in(l.out, "was killed by signal 9 (SIGKILL); its ranks were ended");
    }
    expect_within(&l, 5);
}

TEST(test_killed_with_detached)
{
    check_killed(true, false);
    check_killed(true, true);
    check_killed(false, false);
}

/* Children that the program has started before it became a launcher continue. All others end. */
TEST(test_earlier_children)
{
    struct launch l;
    more.n_children = 300;
    start(
        &l, 1,
        SHELL("echo launcher-$PPID; setsid sh -c 'echo rank-$$ ready; exec sleep 77' & sleep 50"));
    more.n_children = 0;
    read_until(&l, "launcher-");
    read_until(&l, "ready");
    const pid_t group = pid_behind(&l, "earlier-"), last = pid_behind(&l, "last-");
    lks_test_kill(pid_behind(&l, "launcher-"), SIGKILL);
    const int status = finish(&l);
    const bool left = !is_gone(group) && !is_gone(last);
    kill(-group, SIGKILL);
    assert_int_equal(WEXITSTATUS(status), 128 + SIGKILL);
    assert_true(left);
    assert_gone(pid_behind(&l, "rank-"));
}

/* SIGKILL to both at once: what is in the ranks' process groups is ended by the guard. The launcher
 * is stopped first, so that it can't end anything once the other is gone. */
TEST(test_both_killed)
{
    struct launch l;
    start(&l, 2, SHELL("sleep 77 & echo child-$!; echo ready-$RANK; sleep 50"));
    read_until(&l, "ready-0");
    read_until(&l, "ready-1");
    pid_t launcher = marked_child_of(l.pid);
    pid_t child = pid_behind(&l, "child-");
    assert_int_equal(lks_test_kill(launcher, SIGSTOP), 0);
    kill(l.pid, SIGKILL);
    kill(launcher, SIGKILL);
    assert_true(WIFSIGNALED(finish(&l)));
    assert_gone(launcher);
    assert_gone(child);
    expect_within(&l, 5);
}

static void signal_when_ready(struct launch *l, int sig)
{
    read_until(l, "ready-0");
    read_until(l, "ready-1");
    kill(l->pid, sig);
}

TEST(test_forwarding)
{
    static const struct {
        int sig;
        const char *name;
    } cases[] = {{SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct launch l;
        char script[300], count[32];
        /* It ends in its own time, with its own code; one signal arrives, not two. */
        snprintf(script, sizeof script,
                 "n=0; trap 'n=$((n+1))' %s; echo ready-$RANK; while [ $n = 0 ]; do sleep 0.02; "
                 "done; sleep 0.3; echo got-$n; exit 75",
                 cases[i].name);
        start(&l, 2, SHELL(script));
        signal_when_ready(&l, cases[i].sig);
        int status = finish(&l);
        assert_int_equal(WEXITSTATUS(status), 75);
        snprintf(count, sizeof count, "signal %d (SIG%s)", cases[i].sig, cases[i].name);
        expect_in(l.out, count);
        const char *first = lks_test_find(l.out, "got-1");
        assert_non_null(strstr(first + 1, "got-1"));
    }
    struct launch l; /* ranks without a handler */
    start(&l, 2, SHELL("echo ready-$RANK; exec sleep 50"));
    signal_when_ready(&l, SIGTERM);
    assert_int_equal(WEXITSTATUS(finish(&l)), 128 + 15);
    expect_in(l.out, "without a heartbeat for 30 s are killed. A second");
    expect_within(&l, 2);
}

/* All ranks are asked to stop, and one dies in another way: that is said, and it isn't the code. */
TEST(test_death_while_stopping)
{
    struct launch l;
    start(&l, 2,
          SHELL("trap '[ $RANK = 1 ] && kill -SEGV $$; sleep 0.3; exit 7' TERM; echo ready-$RANK; "
                "while :; do sleep 0.02; done"));
    signal_when_ready(&l, SIGTERM);
    assert_int_equal(WEXITSTATUS(finish(&l)), 7);
    expect_in(l.out, "lockstep test: rank 1 (pid ");
    expect_in(l.out, ") was killed by signal 11 (SIGSEGV)\n");
    expect_in(l.out, "lockstep test: rank 0 (pid ");
    expect_in(l.out, ") exited with code 7\n");
}

TEST(test_second_signal_kills)
{
    struct launch l;
    start(&l, 2, SHELL("trap '' INT TERM; echo ready-$RANK; while :; do sleep 0.1; done"));
    signal_when_ready(&l, SIGINT);
    kill(l.pid, SIGINT); /* at once: counts as the same request */
    usleep(600 * 1000);
    assert_true(count_marked(&l) > 0);
    kill(l.pid, SIGINT);
    assert_int_equal(WEXITSTATUS(finish(&l)), 128 + 9);
    expect_in(l.out, "the ranks were killed");
    expect_within(&l, 3);
}

/* A killed rank that can't end, as in a system call that waits for a dead disk: the message says
 * why the launcher waits. */
TEST(test_killed_but_stuck)
{
    struct launch l;
    int status;
    start(&l, 2, SHELL("echo ready-$RANK pid-$$ end-$RANK && exec sleep 50"));
    read_until(&l, "end-0");
    read_until(&l, "end-1");
    const pid_t rank = (pid_t)atoi(lks_test_find(l.out, "ready-0 pid-") + 12);
    const bool held = ptrace(PTRACE_SEIZE, rank, NULL, PTRACE_O_TRACEEXIT) == 0;
    kill((pid_t)atoi(lks_test_find(l.out, "ready-1 pid-") + 12), SIGKILL);
    if (held)
        read_until(&l, "hasn't ended: the kernel still works for it");
    while (held && waitpid(rank, &status, __WALL) == rank && WIFSTOPPED(status))
        ptrace(PTRACE_CONT, rank, NULL, NULL);
    assert_int_equal(WEXITSTATUS(finish(&l)), 128 + SIGKILL);
    expect_in(l.out, "lockstep test: rank 1 (pid ");
    if (!held)
        lks_test_lacks("process-memory", "ptrace is forbidden");
}

static void wait_for_state(pid_t pid, bool stopped)
{
    lks_test_until((lks__sys_process_state(pid) == 'T') == stopped);
}

/* The ranks don't fork: a shell whose child stops between vfork() and exec() is in state D, not T.
 */
TEST(test_suspend)
{
    struct launch l;
    start(&l, 2, SHELL("echo ready-$RANK pid-$$; exec sleep 50"));
    read_until(&l, "ready-0");
    read_until(&l, "ready-1");
    read_until(&l, "\n");
    const char *at = lks_test_find(l.out, "pid-");
    pid_t rank = (pid_t)atoi(at + 4);
    kill(l.pid, SIGTSTP);
    wait_for_state(l.pid, true);
    wait_for_state(rank, true);
    kill(l.pid, SIGCONT);
    wait_for_state(rank, false);
    kill(l.pid, SIGTERM);
    assert_int_equal(WEXITSTATUS(finish(&l)), 128 + SIGTERM);
}

/* Ranks with heartbeats have the time that they need. */
TEST(test_slow_stop)
{
    struct launch l;
    more.shutdown_timeout_s = STOP_S * lks_test_patience();
    start(&l, 2, BODY("stop_slowly"));
    more.shutdown_timeout_s = 0;
    signal_when_ready(&l, SIGTERM);
    assert_int_equal(WEXITSTATUS(finish(&l)), 7);
}

/* Start a rank and stop it. Returns a file: once it exists, the rank ends with 7. */
static const char *start_and_stop(struct launch *l)
{
    const char *saved = lks_test_text("%s/saved", lks_test_folder());
    more.shutdown_timeout_s = 1.5 * lks_test_patience();
    start(l, 1,
          SHELL((char *)(uintptr_t)lks_test_text(
              "trap 'echo asked; while [ ! -e \"%s\" ]; do sleep 0.02; done; exit 7' TERM; "
              "echo launcher-$PPID rank-$$ ready; while :; do sleep 0.02; done",
              saved)));
    read_until(l, "ready");
    kill(l->pid, SIGTERM);
    read_until(l, "asked");
    return saved;
}

/* The time for a stop doesn't run while all are suspended. */
TEST(test_suspended_stop)
{
    struct launch l;
    const char *saved = start_and_stop(&l);
    kill(l.pid, SIGTSTP);
    wait_for_state(l.pid, true);
    lks_test_write(saved, "", 0);
    usleep((useconds_t)(1e6 * more.shutdown_timeout_s));
    kill(l.pid, SIGCONT);
    more.shutdown_timeout_s = 0;
    assert_int_equal(WEXITSTATUS(finish(&l)), 7);
}

/* The launcher looks only after the time for a stop, and finds that its rank ended within it. */
TEST(test_stopped_in_time)
{
    struct launch l;
    const char *saved = start_and_stop(&l);
    const pid_t launcher = pid_behind(&l, "launcher-");
    lks_test_kill(launcher, SIGSTOP);
    wait_for_state(launcher, true);
    lks_test_write(saved, "", 0);
    assert_gone(pid_behind(&l, "rank-"));
    usleep((useconds_t)(1e6 * more.shutdown_timeout_s));
    lks_test_kill(launcher, SIGCONT);
    more.shutdown_timeout_s = 0;
    assert_int_equal(WEXITSTATUS(finish(&l)), 7);
}

/* On a terminal that stops background output: ranks still write, don't wait for its input, and get
 * Ctrl-C once each. */
TEST(test_terminal)
{
    struct launch l;
    int master;
    memset(&l, 0, sizeof l);
    snprintf(l.mark, sizeof l.mark, "LAUNCH_TEST=%d-tty", (int)getpid());
    l.pid = forkpty(&master, NULL, NULL, NULL);
    if (l.pid < 0 && errno == ENOENT)
        lks_test_lacks("terminals", "no pseudo terminal can be opened");
    assert_true(l.pid >= 0);
    if (l.pid == 0) {
        struct termios t;
        int code = 99;
        lks_test_default_signals();
        char *const *argv =
            SHELL("read x; n=0; trap 'n=$((n+1))' INT; echo ready-$RANK; while "
                  "[ $n = 0 ]; do sleep 0.02; done; sleep 0.2; echo got-$n; exit 6");
        lks__launch_options options = {.nproc = 2, .argv = argv, .self = "lockstep test"};
        tcgetattr(0, &t);
        t.c_lflag |= TOSTOP;
        tcsetattr(0, TCSANOW, &t);
        putenv(l.mark);
        lks__launch(&options, &code);
        _exit(code);
    }
    l.fd = master;
    read_until(&l, "ready-0");
    read_until(&l, "ready-1");
    assert_int_equal(write(master, "\x03", 1), 1);
    read_until(&l, "got-");
    int status;
    assert_int_equal(waitpid(l.pid, &status, 0), l.pid);
    assert_int_equal(WEXITSTATUS(status), 6);
    while (l.n_out < OUT_BYTES - 1) { /* reading from a terminal without processes gives EIO */
        ssize_t n = read(master, l.out + l.n_out, OUT_BYTES - 1 - l.n_out);
        if (n <= 0)
            break;
        l.n_out += (size_t)n;
    }
    l.out[l.n_out] = '\0';
    close(master);
    const char *first = lks_test_find(l.out, "got-1");
    assert_non_null(strstr(first + 1, "got-1"));
    assert_int_equal(count_marked(&l), 0);
}

TEST(test_memory_faults)
{
    /* Rules are read once in each process, so the launcher is a process of its own: this program
     * again. */
    static const char *const faults[] = {"memfd:1:EMFILE", "fallocate:1:ENOSPC", "mmap:1:ENOMEM"};
    for (size_t i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            setenv("LOCKSTEP_FAULT", faults[i], 1);
            execl("/proc/self/exe", "test", "--rank", "launch_two", NULL);
            _exit(1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

static int body_launch_two(void)
{
    int code = 0;
    lks__launch_options options = {.nproc = 2, .argv = SHELL("exit 0"), .self = "lockstep test"};
    return lks__launch(&options, &code) == LKS_ERR_NOMEM && strlen(lks_last_error()) > 20 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0)
        return strcmp(argv[2], "launch_two") == 0    ? body_launch_two()
               : strcmp(argv[2], "stop_slowly") == 0 ? stop_slowly()
                                                     : end_like(argv[2]);
    close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); /* descriptors that the test itself inherited */
    return lks_test_run_all(NULL, NULL);
}
