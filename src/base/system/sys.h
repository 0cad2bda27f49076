/* base/system/sys.h - all system calls for files, shared memory, sockets and the clock.
 *
 * Each call is the system's, but it is repeated on EINTR, and reads and writes continue until
 * everything is transferred. Tests make the n-th call fail, tear a write or kill the process with
 *
 *     LOCKSTEP_FAULT=CALL:N:WHAT[,CALL:N:WHAT…]
 *
 * CALL is one of the names in LKS__SYS_CALLS or `any`. N counts this process's calls of that name
 * from 1; `*` means every call. WHAT is an errno name of `fault_names` (sys.c), `short` (transfer
 * half, then ENOSPC), `die` (SIGKILL before the call), `die-after`, `term` or `usr1` (that signal
 * before the call, which is then made), `slow` or `slower` (0.4 or 2.5 s late) or `hang` (never).
 * LOCKSTEP_FAULT_RANK=r limits faults to rank r (environment RANK). */
#pragma once

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/beat.h"
#include "base/status.h"

/* clang-format off */
#define LKS__SYS_CALLS(X)                                                                          \
    X(open) X(read) X(write) X(fsync) X(fdatasync) X(rename) X(mkdir) X(unlink) X(symlink)         \
    X(truncate) X(memfd) X(fallocate) X(mmap) X(lock)                                              \
    X(socket) X(bind) X(listen) X(accept) X(connect) X(send) X(recv)
/* clang-format on */

/* Bytes of the path of a file in a folder: PATH_MAX, and a name. */
enum { LKS__SYS_PATH = 4400 };

/* Unless a comment says otherwise, these return the system call's result: on failure -1 (or NULL
 * for mmap), with errno set. */
int lks__sys_open(const char *path, int flags, mode_t mode); /* always O_CLOEXEC */
int lks__sys_close(int fd);                                  /* a negative one does nothing */
/* 0 if all `bytes` were read at `offset`; -1 otherwise (errno 0: the file ended early). */
int lks__sys_read_at(int fd, void *buf, size_t bytes, uint64_t offset);
/* Read up to `bytes`, as soon as any are available, for example from a pipe. 0: its end. */
ssize_t lks__sys_read_some(int fd, void *buf, size_t bytes);
int lks__sys_write_all(int fd, const void *buf, size_t bytes); /* at the file's position */
int lks__sys_fsync(int fd);
int lks__sys_fdatasync(int fd); /* the data and the size of an existing file */
int lks__sys_rename(const char *from, const char *to);
int lks__sys_mkdir(const char *path, mode_t mode);
int lks__sys_unlink(const char *path);
int lks__sys_rmdir(const char *path); /* counted as unlink by planted faults */
int lks__sys_symlink(const char *target, const char *path);
int lks__sys_truncate(int fd, uint64_t bytes);
/* Lock a file that is open for writing, without waiting; EWOULDBLOCK: already locked. Each `part`
 * (0, 1, …) is a separate lock, which other descriptors of the same open() share. Unlike flock(),
 * this needs the right to write, so other users can't stop a run. */
int lks__sys_lock(int fd, int part);
bool lks__sys_is_locked(int fd, int part); /* by another open(); takes no lock */
bool lks__sys_lacks_locks(int err);        /* errno after it: the file system has no locks */
int lks__sys_memfd(const char *name);      /* close-on-exec is off: ranks inherit it */
int lks__sys_fallocate(int fd, uint64_t offset, uint64_t bytes);
void *lks__sys_mmap(size_t bytes, int prot, int flags, int fd, uint64_t offset);
void lks__sys_munmap(void *p, size_t bytes);

/* Sockets are close-on-exec. Writing to a closed peer fails with EPIPE and raises no signal. */
int lks__sys_socket(int domain, int type);
int lks__sys_bind(int fd, const struct sockaddr *addr, socklen_t bytes);
int lks__sys_listen(int fd, int backlog);
int lks__sys_accept(int fd); /* returns a non-blocking socket, too */
int lks__sys_connect(int fd, const struct sockaddr *addr, socklen_t bytes);
ssize_t lks__sys_send(int fd, const void *buf, size_t bytes);
ssize_t lks__sys_recv(int fd, void *buf, size_t bytes);

double lks__sys_now(void);         /* seconds, monotonic */
size_t lks__sys_page_bytes(void);  /* 4, 16 or 64 KiB */
double lks__sys_wall(void);        /* seconds since 1970 */
double lks__sys_cpu_seconds(void); /* of all threads of this process */
/* Read the number after `key` in a file of "key number" or "key: number kB" lines; kB as bytes.
 * False, and *value_p unchanged, if it is missing. */
bool lks__sys_field(const char *path, const char *key, uint64_t *value_p);
/* The value of `key` ("VmHWM", "Pss"), in bytes, from a file of /proc/self; 0 if it is missing. */
uint64_t lks__sys_proc_bytes(const char *path, const char *key);

/* State of a process: the letter of /proc/PID/stat ('R', 'S', 'D', 'T' stopped, 't' traced, 'Z'
 * ended), 0 if the process doesn't exist. */
char lks__sys_process_state(pid_t pid);

/* After each piece, reads, writes and fsyncs of this thread report progress, so that other ranks
 * see it during a long transfer. */
void lks__sys_on_progress(lks__beat beat);
void lks__sys_progress(void); /* in a long computation */

/* Between these calls, growing a file beyond the limit on file sizes (ulimit -f) fails with EFBIG
 * in this thread, and raises no SIGXFSZ. *before is for the second call. */
void lks__sys_limit_begin(sigset_t *before);
void lks__sys_limit_end(const sigset_t *before);

/* Make this thread's long work stoppable. Once asked() is true, reads and writes fail with
 * ECANCELED between their pieces. Long work without reads and writes calls lks__sys_stop_check()
 * between pieces: ERR_STOPPED once asked() is true. NULL (the initial state): nothing stops. */
void lks__sys_stop_when(bool (*asked)(void));
lks_status lks__sys_stop_check(void);
/* Make this thread's waits for other processes stoppable; they call the check. asked(other) returns
 * the signal that asks this process to stop, or 0; without one it adopts `other`, a signal that
 * another process got (0: none). NULL (the initial state): nothing stops. Files are still read to
 * their end. */
void lks__sys_give_up_when(int (*asked)(int other));
lks_status lks__sys_give_up_check(void); /* ERR_STOPPED if a signal asked */
int lks__sys_give_up_signal(int other);  /* asked(other) */

/* The size of an open file. ERR_IO, which names the path, if it isn't a regular file. */
lks_status lks__sys_file_bytes(int fd, const char *path, uint64_t *bytes_p);

/* Read a whole small file into malloc'd memory, followed by a 0 byte (not counted); the caller
 * frees. ERR_IO, or ERR_FORMAT if it is larger than `limit`; both name the path. */
lks_status lks__sys_read_file(const char *path, size_t limit, char **data_p, size_t *bytes_p);

/* Find the file that a rename to `path` should replace: links are followed. ERR_IO if it is a
 * device, a pipe, a socket or a link to nothing, which a rename would remove (root can remove
 * /dev/null), or if the name is too long. */
lks_status lks__sys_target(const char *path, char target[PATH_MAX]);

/* A file that is written completely or not at all: under a temporary name in the same folder as its
 * target (lks__sys_target()), until it is synced and renamed. */
typedef struct lks__sys_new {
    int fd;
    const char *path; /* kept, not copied */
    char target[PATH_MAX], temp[PATH_MAX];
} lks__sys_new;
/* ERR_IO names path and cause. */
lks_status lks__sys_new_open(const char *path, lks__sys_new *file);
/* If `st` is OK, give the file its name; else remove it. Returns `st`, or the error of a step. With
 * fd -1 it only returns `st`. */
lks_status lks__sys_new_close(lks__sys_new *file, lks_status st);
/* Write a small file in this way. */
lks_status lks__sys_write_file(const char *path, const void *data, size_t bytes);
/* ERR_IO if the path is a regular file, not empty, that doesn't begin with `begin`: its name may
 * have been given by mistake. */
lks_status lks__sys_may_replace(const char *path, const char *begin);

/* mkdir -p, durably. ERR_IO names the part that failed. */
lks_status lks__sys_make_dirs(const char *path);

/* Make one folder, or use an existing one. ERR_IO also for a link, which may lead anywhere. */
lks_status lks__sys_make_own_dir(const char *path);

/* Open a file for appending, and for reading; it is made if it is missing. ERR_IO, with errno, also
 * for a link, and for a FIFO, which would wait for a reader. */
lks_status lks__sys_append(const char *path, int *fd_p);

/* Bytes of the path without slashes at its end; of "/" 1. */
size_t lks__sys_path_length(const char *path);
/* The part of the path after its last slash; the whole path if it has none. */
const char *lks__sys_name(const char *path);
/* True if the path is a folder or a link to one; true if both paths lead to the same file or
 * folder. */
bool lks__sys_is_folder(const char *path);
bool lks__sys_same(const char *a, const char *b);
/* True if the folder has an entry of this name, even a link to a missing file. */
bool lks__sys_has(const char *folder, const char *name);

/* Call fn for each entry of the folder but "." and "..", until a call fails. `what` begins the
 * message if the folder can't be read: "cannot list". */
lks_status lks__sys_each_name(const char *what, const char *folder,
                              lks_status (*fn)(const char *folder, const char *name, void *ctx),
                              void *ctx);

/* fsync a folder, so that renames in it survive a crash. Some file systems sync only files
 * (EINVAL): LKS_OK there. */
lks_status lks__sys_sync_dir(const char *path);

/* strerror(), with advice if this process may open no more files. */
const char *lks__sys_reason(int err);
/* strerror() of a process or thread that can't be started, with advice if they are too many. */
const char *lks__sys_start_reason(int err);

/* "WHAT PATH: cause" as ERR_IO (path escaped), from errno; ECANCELED is ERR_STOPPED. */
lks_status lks__sys_fail(const char *what, const char *path);
/* True if the message, which may have more words around it, reports one of this thread's newest
 * failures that another attempt would meet, too: those that the next two functions recorded. */
bool lks__sys_is_lasting(const char *failure);
/* Record that the failure `st`, whose message was just set, lasts if it has one of these reasons: a
 * disk or quota is full, or access is denied (ENOSPC, EDQUOT, EACCES, EPERM, EROFS). Returns st.
 * lks__sys_fail() calls it. */
lks_status lks__sys_failed_for(int err, lks_status st);
/* Record that this failure, of this or another rank's thread, lasts. */
void lks__sys_set_lasting(const char *failure);
