/* `lockstep run` from outside: options, streams, files, last lines, restarts. */
#include "laws/marked.h"
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"

static lks_test_result run_env(const char *const env[], const char *const argv[])
{
    return lks_test_run(argv, env, 60);
}
#define RUN(...) run_env(NULL, (const char *const[]){"lockstep", "run", __VA_ARGS__, NULL})
#define RUN_ENV(variable, ...)                                                                     \
    run_env((const char *const[]){variable, NULL},                                                 \
            (const char *const[]){"lockstep", "run", __VA_ARGS__, NULL})

static const char *host(void)
{
    static char name[64];
    gethostname(name, sizeof name - 1);
    return name;
}

static const char *prefixed(int rank, const char *line)
{
    return lks_test_text("[%s:%d] %s\n", host(), rank, line);
}

static void assert_lacks(const char *text, const char *part)
{
    if (strstr(text, part) != NULL)
        fail_msg("there is \"%s\" in: %s", part, text);
}

/* --- streams ------------------------------------------------------------------------------ */

TEST(test_prefixes)
{
    lks_test_result r =
        assert_exits(0, RUN("--nproc-per-node=2", "sh", "-c", "echo out; echo err >&2"));
    for (int rank = 0; rank < 2; rank++) {
        assert_contains(r.out, prefixed(rank, "out"));
        assert_contains(r.err, prefixed(rank, "err"));
    }
    r = RUN("sh", "-c", "echo out; echo err >&2"); /* one rank needs no prefix */
    assert_string_equal(r.out, "out\n");
    assert_string_equal(r.err, "err\n");
}

/* On a terminal, which `script` makes, each rank has a colour; elsewhere none has. */
TEST(test_colours)
{
    const char *command = lks_test_text("'%s' run --nproc-per-node=2 echo hi", LKS_TEST_TOOL);
    const char *const argv[] = {"script", "-qec", command, "/dev/null", NULL};
    if (system("command -v script >/dev/null 2>&1") != 0)
        lks_test_lacks("script", "the program that makes a terminal");
    static const int colours[2] = {36, 32};
    for (int plain = 0; plain < 2; plain++) {
        const char *env[] = {"TERM=xterm", lks_test_text("NO_COLOR=%s", plain ? "1" : ""), NULL};
        lks_test_result r = assert_exits(0, lks_test_run(argv, env, 20));
        for (int rank = 0; rank < 2; rank++)
            assert_contains(r.out, plain ? lks_test_text("[%s:%d] hi", host(), rank)
                                         : lks_test_text("\033[%dm[%s:%d]\033[0m hi", colours[rank],
                                                         host(), rank));
        assert_true((strchr(r.out, '\033') == NULL) == plain);
    }
    lks_test_result r = RUN("--nproc-per-node=2", "echo", "hi");
    assert_null(strchr(r.out, '\033'));
}

static double seconds_of_job(void)
{
    const double began = lks__sys_now();
    assert_exits(0, RUN("--nproc-per-node=2", "true"));
    return lks__sys_now() - began;
}

/* The launcher waits for no process of its own: nothing needs the second of grace (TERM_GRACE_S).
 */
TEST(test_prompt_end)
{
    lks_test_until(seconds_of_job() < 0.9);
}

/* Lines stay whole, whatever pieces they come in. */
TEST(test_lines)
{
    lks_test_result r = assert_exits(
        0, RUN("--nproc-per-node=2", "sh", "-c",
               "for i in 1 2 3 4 5 6 7 8 9; do printf half; sleep 0.01; echo -$RANK; done; "
               "printf 'a\\r\\nb\\rc\\rd'"));
    for (int rank = 0; rank < 2; rank++) {
        const char *line = prefixed(rank, lks_test_text("half-%d", rank));
        int n = 0;
        for (const char *p = r.out; (p = strstr(p, line)) != NULL; p++)
            n++;
        assert_int_equal(n, 9);
        assert_contains(r.out, lks_test_text("[%s:%d] a\r\n", host(), rank),
                        lks_test_text("[%s:%d] b\r[%s:%d] c\r", host(), rank, host(), rank),
                        prefixed(rank, "d"));
    }
    /* The end of the output as it was: a line feed only if no line end stands there. */
    r = RUN("--nproc-per-node=2", "sh", "-c", "[ $RANK = 0 ] || printf 'x\\ny\\r'");
    assert_string_equal(r.out, lks_test_text("[%s:1] x\n[%s:1] y\r", host(), host()));
    r = RUN("--nproc-per-node=2", "sh", "-c", "[ $RANK = 0 ] || printf 'x\\ny'");
    assert_string_equal(r.out, lks_test_text("[%s:1] x\n[%s:1] y\n", host(), host()));
    /* A line of any length, completely. */
    r = RUN("--nproc-per-node=2", "sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; echo");
    size_t n = 0;
    for (const char *p = r.out; *p; p++)
        n += *p == 'x';
    assert_int_equal(n, 2 * 200000 + (strchr(host(), 'x') ? 1000000 : 0));
}

TEST(test_last_words)
{
    lks_test_result r =
        assert_exits(7, RUN("--nproc-per-node=3", "sh", "-c",
                            "[ $RANK = 1 ] || exec sleep 50; "
                            "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i >&2; done; "
                            "printf 'the\\033 reason' >&2; exit 7"));
    assert_true(r.seconds < 20 * lks_test_patience()); /* the others were ended, not waited for */
    const char *last = lks_test_find(r.err, "lockstep run: rank 1 (pid ");
    assert_contains(
        last, lks_test_text(", host %s) exited with code 7; its last lines on stderr:\n", host()),
        ":\n    line 4\n    line 5\n");
    assert_lacks(last, "line 3\n");
    size_t n = strlen(last);
    assert_true(n > 16 && strcmp(last + n - 16, "    the? reason\n") == 0);
    /* More than is kept, in many pieces. */
    r = RUN("--nproc-per-node=2", "sh", "-c",
            "[ $RANK = 0 ] || exec sleep 50; i=100; while [ $i -lt 400 ]; do echo line $i of many "
            ">&2; i=$((i + 1)); [ $i -lt 397 ] || sleep 0.1; done; exit 7");
    const char *lines = "; its last lines on stderr:\n";
    for (int i = 390; i < 400; i++)
        lines = lks_test_text("%s    line %d of many\n", lines, i);
    assert_contains(r.err, lines);
}

/* --- files -------------------------------------------------------------------------------- */

/* The only entry of a folder, with its path. */
static const char *only_entry(const char *folder)
{
    DIR *d = opendir(folder);
    const char *found = NULL;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        assert_null(found);
        found = lks_test_text("%s/%s", folder, e->d_name);
    }
    closedir(d);
    assert_non_null(found);
    return found;
}

static void assert_file(const char *path, const char *text)
{
    size_t n;
    const char *got = (const char *)lks_test_read(path, &n);
    assert_string_equal(got, text);
}

TEST(test_log_dir)
{
    const char *dir = lks_test_folder();
    lks_test_result r =
        assert_exits(3, RUN("--nproc-per-node=2", lks_test_text("--log-dir=%s", dir),
                            "--rdzv_id=a/b", "sh", "-c",
                            "echo out $RANK; echo err $RANK >&2; touch \"$0-$RANK\"; [ $RANK = 0 ] "
                            "&& exec sleep 50; "
                            "while [ ! -e \"$0-0\" ]; do sleep 0.01; done; exit 3",
                            lks_test_text("%s/ready", lks_test_folder())));
    const char *job = only_entry(dir);
    assert_contains(job, "/a_b_");
    assert_string_equal(only_entry(job), lks_test_text("%s/attempt_0", job));
    for (int rank = 0; rank < 2; rank++) {
        assert_file(lks_test_text("%s/attempt_0/%d/stdout.log", job, rank),
                    lks_test_text("out %d\n", rank));
        assert_file(lks_test_text("%s/attempt_0/%d/stderr.log", job, rank),
                    lks_test_text("err %d\n", rank));
        assert_contains(r.out, prefixed(rank, lks_test_text("out %d", rank)));
    }
    json_error_t at;
    json_t *error = json_load_file(lks_test_text("%s/attempt_0/1/error.json", job), 0, &at);
    assert_non_null(error);
    json_t *message = json_object_get(error, "message");
    assert_contains(json_string_value(json_object_get(message, "message")), "exited with code 3");
    assert_int_equal(json_integer_value(json_object_get(message, "errorCode")), 3);
    json_t *extra = json_object_get(message, "extraInfo");
    assert_string_equal(lks_test_string(extra, "host"), host());
    assert_string_equal(lks_test_string(extra, "stderr"), "    err 1\n");
    assert_int_equal(json_integer_value(json_object_get(extra, "rank")), 1);
    json_decref(error);
    /* Rank 0 was ended because of rank 1, so it has no failure of its own. */
    assert_false(lks_test_exists(lks_test_text("%s/attempt_0/0/error.json", job)));
    /* Last lines that aren't text. */
    dir = lks_test_folder();
    assert_exits(3, RUN(lks_test_text("--log-dir=%s", dir), "sh", "-c",
                        "head -c 4000 /dev/zero | tr '\\0' '\\377' >&2; exit 3"));
    assert_true(lks_test_exists(lks_test_text("%s/attempt_0/0/error.json", only_entry(dir))));
    /* An error file that the program wrote itself is kept. */
    dir = lks_test_folder();
    assert_exits(4, RUN(lks_test_text("--log-dir=%s", dir), "sh", "-c",
                        "echo '{}' > $TORCHELASTIC_ERROR_FILE; exit 4"));
    assert_file(lks_test_text("%s/attempt_0/0/error.json", only_entry(dir)), "{}\n");
}

TEST(test_tee_and_redirects)
{
    const char *dir = lks_test_folder(), *script = "echo o$RANK; echo e$RANK >&2";
    lks_test_result r = assert_exits(0, RUN("--nproc-per-node=3", "--log_dir", dir, "-r",
                                            "0:3,1:1,2:2", "-t", "2:2", "sh", "-c", script));
    const char *a = lks_test_text("%s/attempt_0", only_entry(dir));
    assert_lacks(r.out, "o0");
    assert_lacks(r.err, "e0");
    assert_file(lks_test_text("%s/0/stdout.log", a), "o0\n");
    assert_file(lks_test_text("%s/0/stderr.log", a), "e0\n");
    assert_lacks(r.out, "o1");
    assert_contains(r.err, "e1");
    assert_file(lks_test_text("%s/1/stdout.log", a), "o1\n");
    assert_false(lks_test_exists(lks_test_text("%s/1/stderr.log", a)));
    assert_contains(r.out, "o2");
    assert_contains(r.err, "e2");
    assert_file(lks_test_text("%s/2/stderr.log", a), "e2\n");
    assert_false(lks_test_exists(lks_test_text("%s/2/stdout.log", a)));
    /* Only some are shown; the files have all. */
    dir = lks_test_folder();
    r = RUN("--nproc-per-node=3", "--log-dir", dir, "--tee=3", "--local-ranks-filter=0,2", "sh",
            "-c", script);
    a = lks_test_text("%s/attempt_0", only_entry(dir));
    assert_contains(r.out, "o0");
    assert_lacks(r.out, "o1");
    assert_contains(r.out, "o2");
    assert_file(lks_test_text("%s/1/stdout.log", a), "o1\n");
    /* Without --log-dir: a folder of its own, whose path is printed. */
    dir = lks_test_folder();
    r = RUN_ENV(lks_test_text("TMPDIR=%s", dir), "--redirects=1", "sh", "-c", script);
    assert_contains(r.err, lks_test_text("log files are in %s", only_entry(dir)));
    assert_file(lks_test_text("%s/attempt_0/0/stdout.log", only_entry(dir)), "o0\n");
    /* --tee alone wants one, too, and no TMPDIR is /tmp. */
    r = RUN_ENV("TMPDIR=", "--rdzv-id=lockstep-test", "--tee=1", "sh", "-c", script);
    const char *said = lks_test_find(r.err, "log files are in /tmp/lockstep-test_");
    said += strlen("log files are in ");
    const char *made = lks_test_text("%.*s", (int)strcspn(said, "\n"), said);
    assert_file(lks_test_text("%s/attempt_0/0/stdout.log", made), "o0\n");
    lks_test_run((const char *const[]){"rm", "-r", made, NULL}, NULL, 20);
}

/* --- readers ------------------------------------------------------------------------------ */

static pid_t start_piped(const char *mark, const char *script, int *out_p)
{
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        lks_test_default_signals();
        dup2(fds[1], 1);
        putenv((char *)(uintptr_t)mark);
        execl(LKS_TEST_TOOL, "lockstep", "run", "--nproc-per-node=2", "sh", "-c", script, NULL);
        _exit(127);
    }
    close(fds[1]);
    *out_p = fds[0];
    return pid;
}

/* Nobody reads, and the pipe is full: a rank's death is still noticed and acted on. */
TEST(test_reader_that_does_not_read)
{
    const char *mark = marked_variable();
    int out, status;
    pid_t pid =
        start_piped(mark, "if [ $RANK = 0 ]; then yes; else sleep 0.5; kill -9 $$; fi", &out);
    usleep(500000);
    /* The launcher has output left; front and guard wait for it. */
    lks_test_until(marked_processes(mark, (pid_t[16]){0}, 16) <= 3);
    close(out);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 128 + 9);
    marked_assert_gone(mark, 1);
}

TEST(test_reader_that_leaves)
{
    const char *mark = marked_variable();
    char some[100];
    int out, status;
    pid_t pid = start_piped(mark, "exec yes", &out);
    assert_true(read(out, some, sizeof some) > 0);
    close(out);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 128 + SIGPIPE); /* as `yes` alone would end */
    marked_assert_gone(mark, 1);
}

/* --- other options ------------------------------------------------------------------------ */

TEST(test_signals)
{
    static const char script[] = "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; "
                                 "trap '' INT; kill -USR1 $PPID; sleep 0.2; kill -INT $PPID; "
                                 "sleep 0.5; kill -TERM $PPID; sleep 5 & wait; wait";
    lks_test_result r =
        assert_exits(128 + 9, RUN("--signals-to-handle=SIGTERM,SIGUSR1,SIGINT", "sh", "-c",
                                  script)); /* the second signal that asks to stop kills */
    assert_contains(r.out, "usr1");
    r = assert_exits(128 + 9,
                     RUN("--shutdown-timeout=0.3", "sh", "-c",
                         "trap '' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"),
                     "without a heartbeat for 0.3 s are killed");
    assert_true(r.seconds < 20 * lks_test_patience());
}

TEST(test_environment)
{
    lks_test_result r = RUN_ENV("PET_NPROC_PER_NODE=3", "sh", "-c", "echo $WORLD_SIZE-$RANK");
    assert_contains(r.out, prefixed(2, "3-2"));
    r = RUN_ENV("PET_NPROC_PER_NODE=3", "--nproc-per-node=1", "sh", "-c", "echo $WORLD_SIZE");
    assert_string_equal(r.out, "1\n");
    r = RUN("--rdzv-id=my job", "--role=worker", "--max-restarts=4", "sh", "-c",
            "echo $TORCHELASTIC_RUN_ID $ROLE_NAME $TORCHELASTIC_MAX_RESTARTS");
    assert_string_equal(r.out, "my job worker 4\n");
    r = RUN("--master-addr=[127.0.0.2]", "--master-port=4567", "--local-addr=[127.0.0.3]", "sh",
            "-c", "echo $MASTER_ADDR $MASTER_PORT $LOCKSTEP_LOCAL_ADDR");
    assert_string_equal(r.out, "127.0.0.2 4567 127.0.0.3\n");
    /* torchrun's command lines work; options without a meaning here are named. */
    assert_exits(0,
                 RUN("--standalone", "--monitor_interval", "5", "--no-python",
                     "--log-line-prefix-template=[${role_name}]", "--duplicate-stdout-filters",
                     "loss", "--duplicate_stderr_filters=error", "true"),
                 "not used here: --monitor_interval", "not used here: --no_python",
                 "not used here: --log_line_prefix_template",
                 "not used here: --duplicate_stdout_filters",
                 "not used here: --duplicate_stderr_filters");
    /* A Python module; its options follow it. */
    const char *folder = lks_test_folder();
    static const char module[] = "import os, sys\nprint(os.environ['RANK'], sys.argv[1:])\n";
    lks_test_write(lks_test_text("%s/mine.py", folder), module, sizeof module - 1);
    r = RUN_ENV(lks_test_text("PYTHONPATH=%s", folder), "--nproc-per-node=2", "-m", "mine", "-m");
    assert_contains(r.out, prefixed(1, "1 ['-m']"));
    /* A secret must not be an argument, or in a log. */
    r = assert_exits(
        0, RUN("--nproc-per-node=2", "sh", "-c",
               "all=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '); "
               "case $all in *$LOCKSTEP_TOKEN*) exit 1;; *lockstep*) ;; *) exit 2;; esac; "
               "[ ${#LOCKSTEP_TOKEN} = 32 ] && [ ${#LOCKSTEP_JOB} = 32 ] && echo "
               "${LOCKSTEP_STORE%:*}"));
    assert_contains(r.out, prefixed(1, "127.0.0.1"));
}

/* The ranks' own connections have it, too; the option wins over the variable. */
TEST(test_link_timeout)
{
    static const char show[] = "echo link ${LOCKSTEP_LINK_TIMEOUT-none}";
    lks_test_result r = RUN("sh", "-c", show);
    assert_contains(r.out, "link none\n");
    r = RUN("--link-timeout=20", "sh", "-c", show);
    assert_contains(r.out, "link 20\n");
    r = RUN_ENV("LOCKSTEP_LINK_TIMEOUT=30", "sh", "-c", show);
    assert_contains(r.out, "link 30\n");
    r = RUN_ENV("LOCKSTEP_LINK_TIMEOUT=30", "--link-timeout=20", "sh", "-c", show);
    assert_contains(r.out, "link 20\n");
    assert_exits(2, RUN_ENV("LOCKSTEP_LINK_TIMEOUT=1", "touch", "/nowhere/at-all"),
                 "LOCKSTEP_LINK_TIMEOUT is \"1\"");
}

TEST(test_wrong_options)
{
    static const struct {
        const char *option, *text;
    } cases[] = {
        {"--nproc-per-node=0", "--nproc-per-node must be"},
        {"--nproc-per-node=1025", "1 to 1024"},
        {"--max-restarts=-1", "--max-restarts must be"},
        {"--shutdown-timeout=0", "--shutdown-timeout must be"},
        {"--shutdown-timeout=1x", "not \"1x\""},
        {"--link-timeout=1", "--link-timeout must be a whole number from 2 to 3600"},
        {"--link-timeout=3601", "--link-timeout must be"},
        {"--link-timeout=9s", "--link-timeout must be"},
        {"--tee=4", "--tee must be"},
        {"--tee=1:1", "--tee must be"},
        {"--redirects=0:1,", "--redirects must be"},
        {"--redirects=", "--redirects must be"},
        {"--local-ranks-filter=0,", "--local-ranks-filter must be"},
        {"--local-ranks-filter=1", "--local-ranks-filter must be"},
        {"--nnodes=2:1", "--nnodes must be a whole number, or MIN:MAX, not \"2:1\""},
        {"--signals-to-handle=SIGKILL", "--signals-to-handle must be"},
        {"--signals-to-handle=TERM", "--signals-to-handle must be"},
        {"--signals-to-handle=", "--signals-to-handle must be"},
        {"--max-restart=1", "did you mean --max-restarts"},
        {"--nproc=2", "did you mean --nproc-per-node"},
        {"--host=a,b", "did you mean --hosts"},
        {"-H=a,b", "did you mean --hosts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_exits(2, RUN(cases[i].option, "touch", "/nowhere/at-all"), cases[i].text);
    assert_exits(2, lks_test_tool("train", "--node-rank=1", "--dataset=x"),
                 "--node-rank is an option of the launcher: `lockstep run --node-rank ");
    assert_exits(2, lks_test_tool("train", "--standalone", "--dataset=x"), /* it takes no value */
                 "--standalone is an option of the launcher: `lockstep run --standalone ");
    assert_exits(1, RUN("--log-dir=/proc/none", "true"), "/proc/none");
    const char *deep = lks_test_folder();
    while (strlen(deep) < 4085)
        deep =
            lks_test_text("%s/%0*d", deep, strlen(deep) < 3884 ? 200 : 4084 - (int)strlen(deep), 0);
    assert_exits(1, RUN(lks_test_text("--log-dir=%s", deep), "true"), "File name too long");
}

/* --- restarts ----------------------------------------------------------------------------- */

TEST(test_restarts)
{
    const char *dir = lks_test_folder();
    lks_test_result r =
        assert_exits(0, RUN("--nproc-per-node=2", "--max-restarts=2",
                            lks_test_text("--log-dir=%s", dir), "sh", "-c",
                            "echo n$TORCHELASTIC_RESTART_COUNT-$RANK $LOCKSTEP_JOB; "
                            "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 1 ] && kill "
                            "-9 $$; sleep 50"));
    assert_true(r.seconds < 20 * lks_test_patience());
    assert_contains(r.err, "lockstep run: restart 1 of 2", "lockstep run: restart 2 of 2");
    const char *job = lks_test_find(r.out, "n0-1 ");
    for (int n = 0; n <= 2; n++)
        for (int rank = n < 2; rank < 2; rank++) /* the same job name in all starts */
            assert_contains(r.out, lks_test_text("n%d-%d %.32s\n", n, rank, job + 5));
    assert_true(lks_test_exists(lks_test_text("%s/attempt_2/1/stdout.log", only_entry(dir))));
    assert_true(lks_test_exists(lks_test_text("%s/attempt_1/1/error.json", only_entry(dir))));
    /* No more restarts than that; then the failure is the job's. */
    r = assert_exits(
        2, RUN("--max-restarts=2", "sh", "-c", "echo n$TORCHELASTIC_RESTART_COUNT; exit 2"));
    assert_string_equal(r.out, "n0\nn1\nn2\n");
    /* Cases without a restart: success, a stop by the user, and a program that can't start. */
    r = RUN("--max-restarts=2", "sh", "-c", "echo n$TORCHELASTIC_RESTART_COUNT");
    assert_string_equal(r.out, "n0\n");
    r = assert_exits(128 + 15, RUN("--max-restarts=2", "sh", "-c",
                                   "echo n$TORCHELASTIC_RESTART_COUNT; kill -TERM $PPID; sleep 5"));
    assert_string_equal(r.out, "n0\n");
    r = assert_exits(127, RUN("--max-restarts=2", "/no/such/program"));
    assert_lacks(r.err, "restart");
}
