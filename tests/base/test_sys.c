/* Files through system/sys.h, and its faults. Faults are read once from the environment, so each
 * case runs this program again: `test_sys write PATH TEXT...`. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"

static lks_test_result run_self(const char *what, const char *path, const char *text,
                                const char *fault, const char *more)
{
    const char *env[] = {lks_test_text("LOCKSTEP_FAULT=%s", fault), more, NULL};
    return lks_test_run((const char *const[]){"/proc/self/exe", what, path, text, NULL}, env, 20);
}

/* In the child: 0, or 1 with the sentence on stdout. */
static int report(lks_status st)
{
    if (st == LKS_OK)
        return 0;
    printf("%s\n", lks_last_error());
    return 1;
}

static int child(int argc, char **argv)
{
    const char *what = argv[1], *path = argv[2], *text = argv[3];
    if (strcmp(what, "write") == 0)
        return report(lks__sys_write_file(path, text, strlen(text)));
    if (strcmp(what, "folder") == 0)
        return report(lks__sys_make_dirs(path));
    if (strcmp(what, "write-twice") == 0) {
        if (lks__sys_write_file(path, "first", 5) != LKS_OK)
            return 2;
        return report(lks__sys_write_file(path, text, strlen(text)));
    }
    if (strcmp(what, "write-forked") == 0) { /* the same call in parent and child */
        if (lks__sys_write_file(path, "first", 5) != LKS_OK)
            return 2;
        pid_t pid = fork();
        if (pid == 0)
            _exit(lks__sys_write_file(path, text, strlen(text)) == LKS_OK ? 0 : 1);
        int status;
        waitpid(pid, &status, 0);
        return WEXITSTATUS(status);
    }
    if (strcmp(what, "read") == 0) {
        char *data;
        size_t bytes;
        lks_status st = lks__sys_read_file(path, 1000, &data, &bytes);
        if (st == LKS_OK)
            free(data);
        return report(st);
    }
    if (strcmp(what, "arena") == 0) {
        int fd = lks__sys_memfd("test");
        if (fd < 0)
            return errno == EMFILE ? 10 : 20;
        if (lks__sys_fallocate(fd, 0, 4096) < 0)
            return errno == ENOSPC ? 11 : 21;
        return lks__sys_mmap(4096, PROT_READ, MAP_SHARED, fd, 0) ? 0 : errno == ENOMEM ? 12 : 22;
    }
    return 99;
}

static void assert_text_file(const char *path, const char *want)
{
    assert_string_equal(lks_test_read(path, NULL), want);
}

/* ---- without faults ---------------------------------------------------------------------- */

TEST(test_round_trip)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/a", folder);
    char *data;
    size_t bytes;
    assert_ok(lks__sys_write_file(path, "one\0two", 7));
    assert_ok(lks__sys_write_file(path, "three\0four", 10));
    assert_ok(lks__sys_read_file(path, 10, &data, &bytes));
    assert_int_equal(bytes, 10);
    assert_memory_equal(data, "three\0four", 11);
    free(data);
    assert_ok(lks__sys_write_file(path, "", 0));
    assert_ok(lks__sys_read_file(path, 0, &data, &bytes));
    assert_int_equal(bytes, 0);
    free(data);
    assert_int_equal(lks_test_count_files(folder), 1);
}

/* A temporary file left by a killed process with our number is no obstacle. */
TEST(test_stale_temporary)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/a", folder);
    lks_test_write_text(lks_test_text("%s.tmp-%ld", path, (long)getpid()), "stale and longer");
    assert_ok(lks__sys_write_file(path, "new", 3));
    assert_text_file(path, "new");
    assert_int_equal(lks_test_count_files(folder), 1);
}

/* A link in its place doesn't cause another file to be written. */
TEST(test_planted_link)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/a", folder);
    const char *victim = lks_test_text("%s/victim", folder);
    lks_test_write_text(victim, "safe");
    assert_int_equal(symlink(victim, lks_test_text("%s.tmp-%ld", path, (long)getpid())), 0);
    assert_ok(lks__sys_write_file(path, "new", 3));
    assert_text_file(victim, "safe");
    assert_text_file(path, "new");
}

/* What a link points to is written, and the link stays; a pipe isn't replaced, nor what a link to
 * it names. */
TEST(test_targets)
{
    const char *folder = lks_test_folder(), *other = lks_test_folder();
    const char *file = lks_test_text("%s/file", other), *link = lks_test_text("%s/link", folder);
    const char *fifo = lks_test_text("%s/fifo", other), *there = lks_test_text("%s/there", folder);
    struct stat info;
    lks_test_write_text(file, "old and longer");
    assert_int_equal(symlink(file, link), 0);
    assert_ok(lks__sys_write_file(link, "new", 3));
    assert_text_file(file, "new");
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink(fifo, there), 0);
    assert_fails(LKS_ERR_IO, lks__sys_write_file(fifo, "new", 3), fifo);
    assert_fails(LKS_ERR_IO, lks__sys_write_file(there, "new", 3), "a pipe or a socket");
    assert_int_equal(lstat(fifo, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    assert_int_equal(lks_test_count_files(other), 2);
    assert_int_equal(lks_test_count_files(folder), 2);
    /* Nor is a link to a pipe without a path, as /dev/stdout may be. */
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_fails(LKS_ERR_IO,
                 lks__sys_write_file(lks_test_text("/proc/self/fd/%d", ends[1]), "new", 3),
                 "a pipe or a socket");
    close(ends[0]);
    close(ends[1]);
    /* Nor is a link to nothing: its file may belong on another disk. */
    assert_int_equal(unlink(fifo), 0);
    assert_fails(LKS_ERR_IO, lks__sys_write_file(there, "new", 3), there,
                 "a symbolic link to noth");
    assert_int_equal(lks_test_count_files(folder), 2);
}

TEST(test_unreadable)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/a", folder);
    const char *fifo = lks_test_text("%s/fifo\x1b", folder);
    char *data;
    size_t bytes;
    lks_test_write_text(path, "12345");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_fails(LKS_ERR_FORMAT, lks__sys_read_file(path, 4, &data, &bytes), path, "5 bytes",
                 "at most 4");
    assert_fails(LKS_ERR_IO, lks__sys_read_file(folder, 99, &data, &bytes), folder,
                 "not a regular file");
    assert_fails(LKS_ERR_IO, lks__sys_read_file(fifo, 99, &data, &bytes), "fifo\\x1b",
                 "not a regular file");
    assert_fails(LKS_ERR_IO, lks__sys_read_file(lks_test_text("%s/none", folder), 9, &data, &bytes),
                 "/none", "No such file");
}

TEST(test_unwritable)
{
    const char *folder = lks_test_folder();
    assert_fails(LKS_ERR_IO, lks__sys_write_file(lks_test_text("%s/no/a", folder), "x", 1), "/no/a",
                 "No such file");
    assert_fails(LKS_ERR_IO, lks__sys_write_file(folder, "x", 1), folder); /* is a folder */
    assert_int_equal(lks_test_count_files(folder), 0);
    assert_false(lks_test_exists(lks_test_text("%s.tmp-%ld", folder, (long)getpid())));

    char *too_long = malloc(6000);
    memset(too_long, 'x', 5999);
    too_long[5999] = '\0';
    assert_fails(LKS_ERR_IO, lks__sys_write_file(too_long, "x", 1), "File name too long");
    assert_fails(LKS_ERR_IO, lks__sys_make_dirs(too_long), "File name too long");
    free(too_long);
}

TEST(test_read_at)
{
    const char *path = lks_test_text("%s/a", lks_test_folder());
    char buf[8] = "";
    lks_test_write_text(path, "0123456789");
    int fd = lks__sys_open(path, O_RDONLY, 0);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(lks__sys_read_at(fd, buf, 4, 6), 0);
    assert_memory_equal(buf, "6789", 4);
    errno = EIO;
    assert_int_equal(lks__sys_read_at(fd, buf, 5, 6), -1);
    assert_int_equal(errno, 0); /* the file ended early */
    assert_int_equal(lks__sys_read_at(fd, buf, 1, UINT64_MAX), -1);
    assert_int_equal(errno, EOVERFLOW);
    assert_int_equal(lks__sys_close(fd), 0);
    assert_int_equal(lks__sys_read_at(fd, buf, 1, 0), -1);
    assert_int_equal(errno, EBADF);
}

TEST(test_make_dirs)
{
    const char *folder = lks_test_folder();
    const char *deep = lks_test_text("%s//x/y/../z/", folder);
    assert_ok(lks__sys_make_dirs(deep));
    assert_ok(lks__sys_make_dirs(deep));
    assert_true(lks_test_exists(lks_test_text("%s/x/z", folder)));
    assert_ok(lks__sys_sync_dir(deep));

    lks_test_write_text(lks_test_text("%s/file", folder), "");
    assert_fails(LKS_ERR_IO, lks__sys_make_dirs(lks_test_text("%s/file", folder)), "/file",
                 "Not a directory");
    assert_fails(LKS_ERR_IO, lks__sys_make_dirs(lks_test_text("%s/file/a/b", folder)), "/file");
    const char *link = lks_test_text("%s/link", folder);
    assert_int_equal(symlink("unmounted", link), 0);
    assert_fails(LKS_ERR_IO, lks__sys_make_dirs(lks_test_text("%s/a", link)),
                 "/link: it is a symbolic link to nothing");
    const char *loop = lks_test_text("%s/loop", folder);
    assert_int_equal(symlink("loop", loop), 0); /* its stat() fails, as on a dead mount */
    assert_fails(LKS_ERR_IO, lks__sys_make_dirs(loop), "/loop: Too many levels");
    assert_fails(LKS_ERR_IO, lks__sys_make_dirs(""), "cannot make");
    assert_fails(LKS_ERR_IO, lks__sys_sync_dir(lks_test_text("%s/file", folder)), "/file");
}

/* A name may contain what else ends it; a process that doesn't exist has no state. */
TEST(test_process_state)
{
    char name[16];
    const pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(lks__sys_process_state(pid), 0);
    assert_int_equal(prctl(PR_GET_NAME, name), 0);
    assert_int_equal(prctl(PR_SET_NAME, "a) Z (b"), 0);
    assert_int_equal(lks__sys_process_state(getpid()), 'R');
    assert_int_equal(prctl(PR_SET_NAME, name), 0);
}

TEST(test_shared_memory)
{
    int fd = lks__sys_memfd("lockstep-test");
    assert_true(fd >= 0);
    assert_false(fcntl(fd, F_GETFD) & FD_CLOEXEC); /* ranks inherit it */
    assert_int_equal(lks__sys_fallocate(fd, 0, 8192), 0);
    char *p = lks__sys_mmap(8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_non_null(p);
    p[8191] = 'x';
    char c = 0;
    assert_int_equal(lks__sys_read_at(fd, &c, 1, 8191), 0);
    assert_int_equal(c, 'x');
    lks__sys_munmap(p, 8192);
    lks__sys_munmap(NULL, 0);
    assert_int_equal(lks__sys_truncate(fd, 10), 0);
    assert_int_equal(lks__sys_read_at(fd, &c, 1, 10), -1);
    lks__sys_close(fd);
    assert_null(lks__sys_mmap(8192, PROT_READ, MAP_SHARED, fd, 0));
}

/* Fields of /proc: kB are 1,024 bytes each, and a name that only begins alike is another one. */
TEST(test_proc_bytes)
{
    static const char text[] = "VmHWMark:\t7 kB\nVmHWM:\t    1234 kB\nVmRSS:\t5 kB\n";
    const char *path = lks_test_text("%s/status", lks_test_folder());
    lks_test_write_text(path, text);
    assert_int_equal(lks__sys_proc_bytes(path, "VmHWM"), 1263616);
    assert_int_equal(lks__sys_proc_bytes(path, "VmPeak"), 0);
    assert_int_equal(lks__sys_proc_bytes(lks_test_text("%s.none", path), "VmHWM"), 0);
    lks_test_write_text(path, "VmRSS 5\nVmHWM"); /* a name without a number */
    assert_int_equal(lks__sys_proc_bytes(path, "VmHWM"), 0);
}

static bool asked(void)
{
    return true;
}

/* Once a stop is asked for, reading and writing end, and the status is that of a stop. */
TEST(test_stop)
{
    const char *path = lks_test_text("%s/a", lks_test_folder());
    char *data, byte;
    size_t bytes;
    int ends[2];
    lks_test_write_text(path, "old");
    assert_int_equal(pipe(ends), 0);
    assert_ok(lks__sys_stop_check());
    lks__sys_stop_when(asked);
    assert_fails(LKS_ERR_STOPPED, lks__sys_stop_check(), "stopped");
    assert_fails(LKS_ERR_STOPPED, lks__sys_read_file(path, 9, &data, &bytes), path);
    assert_fails(LKS_ERR_STOPPED, lks__sys_write_file(path, "new", 3), path);
    assert_int_equal(lks__sys_read_some(ends[0], &byte, 1), -1);
    assert_int_equal(errno, ECANCELED);
    lks__sys_stop_when(NULL);
    close(ends[0]);
    close(ends[1]);
    assert_text_file(path, "old");
}

TEST(test_clock)
{
    double a = lks__sys_now(), b = lks__sys_now();
    assert_true(a > 0 && b >= a && b - a < 10);
}

/* ---- with faults ------------------------------------------------------------------------- */

/* If any step of replacing a file fails, the error names it, the old file stays complete, and no
 * other file is left. */
TEST(test_failed_replacement)
{
    static const struct {
        const char *fault, *cause;
    } cases[] = {
        {"open:1:EMFILE", "no file descriptor is left"},
        {"write:1:ENOSPC", "No space left"},
        {"write:1:short", "No space left"},
        {"fsync:1:EIO", "Input/output error"},
        {"rename:1:EACCES", "Permission denied"},
        {"any:2:ENOMEM", "Cannot allocate memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = lks_test_folder(), *path = lks_test_text("%s/a", folder);
        lks_test_write_text(path, "old");
        lks_test_result r =
            assert_exits(1, run_self("write", path, "new text", cases[i].fault, NULL));
        assert_contains(r.out, path, cases[i].cause);
        assert_text_file(path, "old");
        assert_int_equal(lks_test_count_files(folder), 1);
    }
}

/* The folder around each new one is synced, if the file system can; an existing folder needs no
 * sync. */
TEST(test_new_folders)
{
    const char *path = lks_test_text("%s/a/b", lks_test_folder());
    for (int made = 1; made <= 2; made++) {
        lks_test_result r = assert_exits(1, run_self("folder", path, "", "fsync:1:EIO", NULL));
        assert_contains(r.out, "cannot sync the folder");
    }
    assert_exits(0, run_self("folder", path, "", "fsync:1:EIO", NULL));
    assert_true(lks_test_exists(path));
    path = lks_test_text("%s/other", lks_test_folder());
    assert_exits(0, run_self("folder", path, "", "fsync:1:EINVAL", NULL));
}

TEST(test_counting)
{
    const char *path = lks_test_text("%s/a", lks_test_folder());
    assert_exits(0, run_self("write", path, "x", "write:2:EIO", NULL));
    assert_exits(1, run_self("write-twice", path, "x", "write:2:EIO", NULL));
    assert_text_file(path, "first");
    assert_exits(0, run_self("write-twice", path, "x", "write:3:EIO", NULL));
    assert_text_file(path, "x");
    /* open, write, fsync, rename, open, WRITE */
    lks_test_result r =
        assert_exits(1, run_self("write-twice", path, "x", "write:9:EIO,any:6:ENOSPC", NULL));
    assert_contains(r.out, "No space left");
    /* A forked rank has its own counts. */
    assert_exits(0, run_self("write-forked", path, "x", "write:2:EIO", NULL));
}

TEST(test_death)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/a", folder);
    lks_test_write_text(path, "old");
    lks_test_result r = run_self("write", path, "new", "rename:1:die", NULL);
    assert_int_equal(r.signal, SIGKILL);
    assert_text_file(path, "old");
    r = run_self("write", path, "new", "rename:1:die-after", NULL);
    assert_int_equal(r.signal, SIGKILL);
    assert_text_file(path, "new");
}

TEST(test_one_rank_only)
{
    const char *path = lks_test_text("%s/a", lks_test_folder());
    setenv("LOCKSTEP_FAULT_RANK", "1", 1);
    assert_exits(0, run_self("write", path, "x", "write:1:EIO", NULL));
    assert_exits(0, run_self("write", path, "x", "write:1:EIO", "RANK=0"));
    assert_exits(1, run_self("write", path, "x", "write:1:EIO", "RANK=1"));
    unsetenv("LOCKSTEP_FAULT_RANK");
}

TEST(test_other_calls)
{
    const char *path = lks_test_text("%s/a", lks_test_folder());
    lks_test_write_text(path, "0123");
    lks_test_result r = assert_exits(1, run_self("read", path, "", "read:1:short", NULL));
    assert_contains(r.out, "the file ended early");
    r = run_self("read", path, "", "read:1:EIO", NULL);
    assert_contains(r.out, "Input/output error");
    assert_exits(10, run_self("arena", "", "", "memfd:1:EMFILE", NULL));
    assert_exits(11, run_self("arena", "", "", "fallocate:1:ENOSPC", NULL));
    assert_exits(12, run_self("arena", "", "", "mmap:1:ENOMEM", NULL));
    assert_exits(0, run_self("arena", "", "", "mmap:2:ENOMEM", NULL));
}

/* Threads and processes: the error's own text doesn't say that there are too many. */
TEST(test_start_reason)
{
    assert_contains(lks__sys_start_reason(EAGAIN),
                    "the limit on processes (ulimit -u, or the container's) or on address space "
                    "(ulimit -v) may be too low");
    assert_string_equal(lks__sys_start_reason(ENOMEM), strerror(ENOMEM));
}

/* An invalid rule must not look like a run that survived a fault. */
TEST(test_bad_rules)
{
    static const char *const bad[] = {"write",          "write:1",     "write:0:EIO",
                                      "write:x:EIO",    "spell:1:EIO", "write:1:EWHAT",
                                      "write:1:EIO,so", "write:1x:EIO"};
    const char *path = lks_test_text("%s/a", lks_test_folder());
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_contains(run_self("write", path, "x", bad[i], NULL).err,
                        lks_test_text("rule %d of LOCKSTEP_FAULT", strchr(bad[i], ',') ? 2 : 1));
    assert_string_equal(run_self("write", path, "x", "", NULL).err, "");
}

/* Each of these reasons lasts, of the newest four failures, with more words around them. A
 * connection that is denied can succeed later. */
TEST(test_lasting)
{
    static const int reasons[] = {ENOSPC, EDQUOT, EACCES, EPERM, EROFS};
    const char *said[5];
    for (int i = 0; i < 5; i++) {
        errno = reasons[i];
        assert_fails(LKS_ERR_IO, lks__sys_fail("cannot write", lks_test_text("file %d", i)),
                     strerror(reasons[i]));
        said[i] = lks_test_text("a call: %s; and more", lks_last_error());
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(lks__sys_is_lasting(said[i]), i > 0);
    errno = EIO;
    lks__sys_fail("cannot write", "a file");
    assert_false(lks__sys_is_lasting(lks_last_error()));
    assert_false(lks__sys_is_lasting("can't connect to a: Permission denied"));
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return child(argc, argv);
    return lks_test_run_all(NULL, NULL);
}
