/* --exec_on: commands at a run's events, which change nothing in it; and systemd's socket. */
#include "laws.h"
#include "marked.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "train/loop/commands.h"

/* What a command writes of its event. */
#define TELL                                                                                       \
    "echo \"$LOCKSTEP_EVENT $LOCKSTEP_ITER $LOCKSTEP_CHECKPOINT $LOCKSTEP_LOSS "                   \
    "$LOCKSTEP_VAL_LOSS ${LOCKSTEP_SIGNAL-no} ${LOCKSTEP_EXIT_CODE-no} ${RANK-no} "                \
    "${LOCKSTEP_SEGMENT-no} $(ls -d \"$LOCKSTEP_OUT_DIR\"/ckpt-???????? | wc -l)\""

/* The lines that a run's own record implies: one for each checkpoint, one more if it was the best
 * so far, one for the end. The number of checkpoints at that moment isn't known: %n. */
static const char *implied(const char *out)
{
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    const json_t *lines = lks_test_record(out, NULL), *line;
    double loss = NAN, val = NAN, best = INFINITY;
    int evaluated = -1;
    char facts[200] = "";
    size_t i;
    json_array_foreach(lines, i, line)
    {
        const char *kind = json_string_value(json_object_get(line, "kind"));
        const int iter = (int)json_integer_value(json_object_get(line, "iter"));
        const bool final = strcmp(kind, "final") == 0;
        if (strcmp(kind, "train") == 0)
            loss = lks_test_number(line, "loss");
        if (strcmp(kind, "eval") == 0 || final) {
            val = lks_test_number(line, "val_loss");
            evaluated = iter;
        }
        if (strcmp(kind, "checkpoint") == 0 || final)
            snprintf(facts, sizeof facts, "%d ckpt-%08d %.9g %.9g", iter, iter, loss, val);
        if (strcmp(kind, "checkpoint") == 0)
            fprintf(to, "checkpoint %s no no no no \n", facts);
        if (strcmp(kind, "checkpoint") == 0 && evaluated == iter && val < best) {
            fprintf(to, "best %s no no no no \n", facts);
            best = val;
        }
    }
    fprintf(to, "end %s no no no no \n", facts);
    fclose(to);
    const char *kept = lks_test_text("%s", text);
    free(text);
    return kept;
}

/* Without the last word of each line. */
static const char *without_counts(const char *text)
{
    char *out = strdup(text), *to = out;
    for (const char *c = text; *c != '\0';) {
        size_t n = strcspn(c, "\n"), keep = n;
        while (keep > 0 && c[keep - 1] != ' ')
            keep--;
        memmove(to, c, keep);
        to += keep;
        *to++ = '\n';
        c += n + (c[n] == '\n');
    }
    *to = '\0';
    const char *kept = lks_test_text("%s", out);
    free(out);
    return kept;
}

/* The events, their order and their facts are those of the run, whose bytes stay as they are. */
TEST(test_run)
{
    const char *out, *reference = law_output("random", LAW_REFERENCE);
    law_args args = law_train("random", &out);
    law_add(&args, "--nproc_per_node=2");
    law_add(&args, "--exec_on=checkpoint:%s", TELL);
    law_add(&args, "--exec_on=best:%s", TELL);
    law_add(&args, "--exec_on=end:%s >&2", TELL); /* both streams go to the log */
    /* facts of another run, which started this one */
    static const char *const stale[] = {"LOCKSTEP_SIGNAL", "LOCKSTEP_EXIT_CODE", "LOCKSTEP_ITER"};
    for (int i = 0; i < 3; i++)
        setenv(stale[i], "9", 1);
    law_run(&args);
    for (int i = 0; i < 3; i++)
        unsetenv(stale[i]);
    const char *log = lks_test_text("%s/commands.log", out), *got = lks_test_read(log, NULL);
    assert_string_equal(without_counts(got), implied(out));
    /* At a checkpoint's event it is there, and at the end all are. */
    int n = 0;
    for (const char *c = got; (c = strchr(c, '\n')) != NULL; c++)
        n++;
    assert_true(n > 6);
    const char *last = got + strlen(got) - 2;
    while (last > got && last[-1] != ' ')
        last--;
    assert_int_equal(atoi(last), law_count_checkpoints(out));
    assert_int_equal(remove(log), 0);
    law_assert_same(out, reference);
}

/* Nothing is put into a command's text, whatever the folder is called. */
TEST(test_plain_text)
{
    const char *folder = lks_test_folder(), *out;
    law_args args = law_train("random", &out);
    const char *odd = lks_test_text("%s/$(touch oops); `touch oops`\" '", folder);
    law_add(&args, "--out_dir=%s", odd);
    law_add(&args, "--max_iters=1");
    law_add(&args, "--exec_on=end:printf %%s \"$LOCKSTEP_OUT_DIR\" >'%s/told'", folder);
    law_add(&args, "--nproc_per_node=2");
    /* ls itself, as the shell has files of its own while it redirects; 3 is the folder ls reads. */
    law_add_all(&args, "--exec_on=end:echo files; exec ls /proc/self/fd",
                "--exec_on=end:-x || echo 'a word that begins with a dash is a command'");
    /* The run ignores SIGPIPE, and a launcher's secret is none of theirs. */
    law_add_all(&args, "--exec_on=end:grep SigIgn /proc/self/status",
                "--exec_on=end:echo \"token ${LOCKSTEP_TOKEN-none}\"");
    const int open_file = dup(STDERR_FILENO); /* inherited by the run, but not by its commands */
    setenv("LOCKSTEP_TOKEN", "secret", 1);
    law_run(&args);
    unsetenv("LOCKSTEP_TOKEN");
    close(open_file);
    assert_string_equal(lks_test_read(lks_test_text("%s/told", folder), NULL), odd);
    const char *log = lks_test_read(lks_test_text("%s/commands.log", odd), NULL);
    assert_contains(log, "files\n0\n1\n2\n3\n");
    assert_null(strstr(log, "\n4\n"));
    assert_contains(log, "begins with a dash is a command");
    const char *ignored = lks_test_find(log, "SigIgn:\t");
    assert_false(strtoull(ignored + 8, NULL, 16) >> (SIGPIPE - 1) & 1);
    assert_contains(log, "\ntoken none\n");
    assert_false(lks_test_exists("oops"));
    assert_false(lks_test_exists(lks_test_text("%s/oops", folder)));
}

/* Commands that never end: the run says so and ends, and nothing is left of them. */
TEST(test_hang)
{
    const char *out, *mark = marked_variable(), *env[] = {mark, NULL};
    law_args args = law_train("random", &out);
    law_add_all(&args, "--exec_timeout=0.1", "--exec_on=checkpoint:sleep 1000",
                "--exec_on=end:trap '' TERM; while :; do sleep 1000; done");
    assert_exits(0, lks_test_run(args.argv, env, 60),
                 "exec_on=checkpoint at iteration 3: the command ran longer than "
                 "exec_timeout=0.1 s, and was ended",
                 lks_test_text("exec_on=checkpoint at iteration %d: the command ran", LAW_STEPS),
                 lks_test_text("exec_on=end at iteration %d: the command ran longer", LAW_STEPS));
    assert_contains(lks_test_read(lks_test_text("%s/train.log", out), NULL), "ran longer than");
    marked_assert_gone(mark, 2);
}

/* A command that fails: the run says so, also if a program that ignores SIGCHLD has started it. */
TEST(test_ignored_ends)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add_all(&args, "--exec_on=end:echo some words; exit 3", "--exec_on=end:kill -KILL $$");
    const char *script = lks_test_text("exec env --ignore-signal=CHLD %s", law_words(&args));
    assert_exits(0, lks_test_shell(script), "the command ended with exit code 3; see commands.log",
                 "the command was ended by signal 9; see commands.log");
    assert_string_equal(lks_test_read(lks_test_text("%s/commands.log", out), NULL), "some words\n");
}

/* While rank 0 waits for a command at the end, the others don't give it up. */
TEST(test_patience)
{
    const char *out;
    law_args args = law_train("random", &out);
    const int limit = (int)(2 * lks_test_patience());
    law_add_line(&args, "--nproc_per_node=2 --max_iters=1 --timeout=%d", limit);
    law_add(&args, "--exec_on=end:sleep %d; echo waited", limit + 4);
    law_run(&args);
    assert_string_equal(lks_test_read(lks_test_text("%s/commands.log", out), NULL), "waited\n");
}

static void count(void *ctx, const char *text)
{
    assert_string_equal(text, "exec_on=checkpoint at iteration 7: 31 commands are already waiting, "
                              "so this one is skipped");
    ++*(int *)ctx;
}

/* More events than commands can follow: the newest are left out, and said so. */
TEST(test_queue)
{
    static lks__settings s;
    const char *folder = lks_test_folder();
    const int files = lks_test_count_files("/proc/self/fd");
    int n = 0;
    lks__commands *c;
    lks__settings_defaults(&s);
    snprintf(s.out_dir, sizeof s.out_dir, "%s", folder);
    assert_ok(lks__commands_open(&s, count, &n, &c));
    assert_null(c);
    snprintf(s.exec_on, sizeof s.exec_on,
             "checkpoint:while [ ! -e '%s/go' ]; do sleep 0.01; done; echo once\nfailure:false",
             folder);
    assert_true(lks__commands_any(&s, LKS__ON_CHECKPOINT));
    assert_true(lks__commands_any(&s, LKS__ON_FAILURE));
    assert_false(lks__commands_any(&s, LKS__ON_BEST));
    assert_ok(lks__commands_open(&s, count, &n, &c));
    const lks__command_facts facts = {.iter = 7, .loss = NAN, .val_loss = NAN, .exit_code = -1};
    s.exec_on[0] = '\0'; /* it has its own */
    for (int i = 0; i < 40; i++)
        lks__commands_on(c, i < 36 ? LKS__ON_CHECKPOINT : LKS__ON_END, &facts);
    assert_int_equal(n, 4);
    lks_test_write_text(lks_test_text("%s/go", folder), "");
    lks__commands_wait(c, NULL, NULL);
    lks__commands_close(c);
    assert_int_equal(lks_test_count_files("/proc/self/fd"), files);
    size_t bytes;
    lks_test_read(lks_test_text("%s/commands.log", folder), &bytes);
    assert_int_equal(bytes, 32 * strlen("once\n"));
}

static void keep(void *ctx, const char *text)
{
    const char **said = ctx;
    *said = lks_test_text("%s%s\n", *said, text);
}

/* A command that had to be ended leaves no trace in the next one. */
TEST(test_after_hang)
{
    static lks__settings s;
    const lks__command_facts facts = {.iter = -1, .loss = NAN, .val_loss = NAN, .exit_code = -1};
    const char *said = "";
    lks__commands *c;
    lks__settings_defaults(&s);
    s.exec_timeout = 3 * lks_test_patience();
    snprintf(s.out_dir, sizeof s.out_dir, "%s", lks_test_folder());
    snprintf(s.exec_on, sizeof s.exec_on, "end:sleep 1000\nend:exit 3");
    assert_ok(lks__commands_open(&s, keep, &said, &c));
    lks__commands_on(c, LKS__ON_END, &facts);
    lks__commands_wait(c, NULL, NULL);
    lks__commands_close(c);
    assert_contains(said, "ran longer than");
    assert_contains(said, "and was ended\nexec_on=end: the command ended with exit code 3;");
}

/* An evaluation alone ends, too. */
TEST(test_eval_only)
{
    const char *out = law_output("random", "--max_iters=3"), *unused;
    law_args args = law_train("random", &unused);
    law_add(&args, "--out_dir=%s", out);
    law_add_all(&args, "--init_from=resume", "--eval_only",
                "--exec_on=end:echo \"$LOCKSTEP_EVENT $LOCKSTEP_ITER ${LOCKSTEP_SIGNAL-no}\"");
    law_run(&args);
    assert_string_equal(lks_test_read(lks_test_text("%s/commands.log", out), NULL), "end 4 no\n");
    /* stopped in its evaluation */
    law_add(&args, "--eval_iters=100000");
    const char *const env[] = {"LOCKSTEP_FAULT=read:1000:term", NULL};
    assert_exits(143, lks_test_run(args.argv, env, 60), "evaluation is discarded");
    assert_string_equal(lks_test_read(lks_test_text("%s/commands.log", out), NULL),
                        "end 4 no\nend 4 15\n");
}

/* --- a run that fails, or is stopped ---------------------------------------------------------- */

static law_args long_train(const char **out_p)
{
    law_args args = law_train("random", out_p);
    law_add_all(&args, "--max_iters=1000000", "--lr_decay_iters=1000000", "--keep=1");
    law_add(&args, "--exec_on=failure:echo \"$LOCKSTEP_EVENT $LOCKSTEP_EXIT_CODE "
                   "${LOCKSTEP_ITER-no} ${RANK-no}\"");
    law_add(&args, "--exec_on=end:echo \"$LOCKSTEP_EVENT $LOCKSTEP_SIGNAL ${RANK-no}\"");
    return args;
}

static const char *log_of(const char *out)
{
    const char *path = lks_test_text("%s/commands.log", out);
    return lks_test_exists(path) ? lks_test_read(path, NULL) : "";
}

TEST(test_failure)
{
    const char *out, *env[] = {"LOCKSTEP_FAULT=write:40:die", "LOCKSTEP_FAULT_RANK=0", NULL};
    law_args args = long_train(&out);
    law_add(&args, "--nproc_per_node=2");
    assert_exits(137, lks_test_run(args.argv, env, 60));
    assert_string_equal(log_of(out), "failure 137 no no\n");
    /* On one rank the process itself notices it, before there is a folder too. */
    const char *told = lks_test_text("%s/told", lks_test_folder());
    assert_exits(
        2, lks_test_tool("train", "--dataset=/none", lks_test_text("--out_dir=%s.none", out),
                         lks_test_text("--exec_on=failure:echo $LOCKSTEP_EXIT_CODE >%s", told)));
    assert_string_equal(lks_test_read(told, NULL), "2\n");
    assert_false(lks_test_exists(lks_test_text("%s.none", out)));
    /* Another launcher notices it, and not we. */
    assert_exits(2,
                 lks_test_tool("run", "--nproc-per-node=2", "--", lks_test_program(), "train",
                               "--dataset=/none", "--exec_on=failure:true"),
                 "lockstep run ... || COMMAND");
}

/* A stop is an end, not a failure. */
TEST(test_stop)
{
    for (int W = 1; W <= 2; W++) {
        const char *out;
        law_args args = long_train(&out);
        law_add(&args, "--nproc_per_node=%d", W);
        law_add(&args, "--exec_on=checkpoint:touch \"$LOCKSTEP_OUT_DIR.saved\"");
        lks_test_child child = lks_test_start(args.argv, NULL);
        lks_test_until(lks_test_exists(lks_test_text("%s.saved", out)));
        kill(child.pid, SIGTERM);
        assert_exits(143, lks_test_wait(&child, 60));
        assert_string_equal(log_of(out), "end 15 no\n");
        remove(lks_test_text("%s.saved", out));
    }
}

/* A second signal ends a run that has saved everything and waits for a command. */
TEST(test_stop_while_waiting)
{
    const char *out = lks_test_folder();
    for (int ranks = 1; ranks <= 2; ranks++) {
        law_args args = law_train("random", &out);
        law_add_line(&args, "--max_iters=1000000 --nproc_per_node=%d", ranks);
        law_add_all(&args, "--exec_on=end:echo $$; exec sleep 600", "--exec_timeout=600");
        lks_test_child child = lks_test_start(args.argv, NULL);
        lks_test_wait_for_text(lks_test_text("%s/metrics.jsonl", out), "{\"kind\":\"train\",");
        kill(child.pid, SIGTERM);
        lks_test_wait_for_text(lks_test_text("%s/train.log", out),
                               "waiting for 1 command of --exec_on; a second signal ends the run");
        lks_test_wait_for_text(lks_test_text("%s/commands.log", out), "\n");
        sleep(1); /* sooner, it counts as the first one */
        kill(child.pid, SIGTERM);
        const lks_test_result r = lks_test_wait(&child, 20);
        assert_int_equal(r.signal, ranks == 1 ? SIGTERM : 0);
        assert_int_equal(r.exit_code, ranks == 1 ? -1 : 128 + SIGKILL); /* the launcher's way */
        assert_null(strstr(r.err, "a checkpoint is being saved"));
        const int command = atoi(log_of(out)); /* a launcher has killed it */
        assert_true(command > 1);
        kill(command, SIGKILL);
    }
}

/* Nothing but the command line starts commands. */
TEST(test_sources)
{
    const char *folder = lks_test_folder(), *told = lks_test_text("%s/told", folder);
    static const char *const names[] = {"r.conf", "r.py"};
    for (int i = 0; i < 2; i++) {
        const char *file = lks_test_text("%s/%s", folder, names[i]);
        const char *text = lks_test_text("max_iters = 1\nexec_on = 'end:touch %s'\n", told);
        lks_test_write_text(file, text);
        static const char *const commands[] = {"train", "eval", "plan"};
        for (int k = 0; k < 3; k++) {
            assert_exits(2, lks_test_tool(commands[k], file),
                         lks_test_text("%s:2: exec_on is only accepted on the command "
                                       "line, because it starts commands",
                                       file));
        }
    }
    const char *out, *variable = lks_test_text("EXEC_ON=end:touch %s", told);
    law_args args = law_train("random", &out);
    law_add(&args, "--max_iters=1");
    assert_exits(0, lks_test_run(args.argv, (const char *const[]){variable, NULL}, 60));
    assert_false(lks_test_exists(told));
    /* A run doesn't keep them either. */
    law_add(&args, "--exec_on=end:touch %s", told);
    law_run(&args);
    assert_int_equal(remove(told), 0);
    args.n--;
    args.argv[args.n] = NULL;
    law_add_all(&args, "--init_from=resume", "--max_iters=2");
    law_run(&args);
    assert_false(lks_test_exists(told));
}

/* --- systemd ---------------------------------------------------------------------------------- */

/* A socket as systemd gives it, with a name in the file system or without ('@'). */
static int listen_at(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(strlen(name) < sizeof at.sun_path);
    memcpy(at.sun_path, name, strlen(name));
    if (name[0] == '@')
        at.sun_path[0] = '\0';
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    return fd;
}

/* All messages until one has `part`, with a blank line behind each. */
static const char *hear(int fd, const char *part)
{
    static char got[1 << 20];
    struct timeval limit = {(time_t)(20 * lks_test_patience()), 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (size_t n = 0; n + 1000 < sizeof got;) {
        ssize_t more = recv(fd, got + n, 900, 0);
        if (more <= 0)
            fail_msg("no %s after: %.*s", part, (int)n, got);
        n += (size_t)more;
        got[n++] = '\n';
        got[n] = '\0';
        if (strstr(got, part) != NULL)
            break;
    }
    return got;
}

TEST(test_systemd)
{
    const char *names[] = {lks_test_text("%s/notify", lks_test_folder_in_memory()),
                           lks_test_text("@lockstep-test-%d", (int)getpid())};
    for (int i = 0; i < 2; i++) {
        const char *out, *env[] = {lks_test_text("NOTIFY_SOCKET=%s", names[i]),
                                   i == 0 ? "WATCHDOG_USEC=400000" : "WATCHDOG_USEC=", NULL};
        int fd = listen_at(names[i]);
        law_args args = long_train(&out);
        law_add(&args, "--nproc_per_node=%d", 2 - i);
        lks_test_child child = lks_test_start(args.argv, env);
        const char *got = hear(fd, "STATUS=iter ");
        assert_int_equal(strncmp(got, "READY=1\n\n", 9), 0);
        assert_contains(got, "\nREADY=1\nSTATUS=iter ");
        const double asked = lks__sys_now();
        for (int again = 0; i == 0 && again < 2; again++) /* every tenth of a second */
            assert_contains(hear(fd, "WATCHDOG=1\n"), "READY=1\n");
        assert_true(lks__sys_now() - asked < 50.0);
        if (i != 0)
            assert_null(strstr(got, "WATCHDOG"));
        kill(child.pid, SIGTERM);
        hear(fd, "STOPPING=1\n");
        assert_exits(143, lks_test_wait(&child, 60));
        /* A command isn't a part of the service. */
        assert_string_equal(log_of(out), "end 15 no\n");
        close(fd);
    }
}

TEST(test_no_systemd)
{
    static const char *const names[] = {"/none/notify", "vsock:2:1"};
    for (int i = 0; i < 2; i++) {
        const char *out, *env[] = {lks_test_text("NOTIFY_SOCKET=%s", names[i]), NULL};
        law_args args = law_train("random", &out);
        law_add(&args, "--max_iters=1");
        assert_exits(0, lks_test_run(args.argv, env, 60),
                     "systemd's socket (NOTIFY_SOCKET) can't be reached: ");
    }
}
