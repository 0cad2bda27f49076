/* base/sys.h - the one door to files, shared memory, sockets and the clock.
 *
 * Each call is the system's own, but retried on EINTR and, for reads and writes, until everything
 * is transferred. Tests make the n-th call fail, tear a write or kill the process through
 *
 *     LOCKSTEP_FAULT=CALL:N:WHAT[,CALL:N:WHAT…]
 *
 * CALL is one of the names in LKS__SYS_CALLS or `any`; N counts from 1 over this process's calls of
 * that name (`*`: every one); WHAT is an errno name (ENOSPC, EIO, ENOMEM, EMFILE, EACCES, EPERM,
 * EOPNOTSUPP, EROFS), `short` (transfer half,
 * then ENOSPC), `die` (SIGKILL before the call), `die-after`, `term` (SIGTERM before the call,
 * which goes on), `slow` (0.4 s late) or `hang` (never). With LOCKSTEP_FAULT_RANK=r only rank r
 * (environment RANK) is hit. */
#ifndef LKS_BASE_SYS_H
#define LKS_BASE_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/status.h"

/* clang-format off */
#define LKS__SYS_CALLS(X)                                                                          \
    X(open) X(read) X(write) X(fsync) X(rename) X(link) X(mkdir) X(unlink) X(symlink)                      \
    X(truncate) X(memfd) X(fallocate) X(mmap) X(lock)                                              \
    X(socket) X(bind) X(listen) X(accept) X(connect) X(send) X(recv)
/* clang-format on */

/* All return what the system call returns, -1 (or NULL for mmap) with errno set on failure. */
int lks__sys_open(const char *path, int flags, mode_t mode); /* always O_CLOEXEC */
int lks__sys_close(int fd);
/* 0 when all `bytes` were read at `offset`; -1 otherwise (errno 0: the file ended early). */
int lks__sys_read_at(int fd, void *buf, size_t bytes, uint64_t offset);
int lks__sys_write_all(int fd, const void *buf, size_t bytes); /* at the file's position */
int lks__sys_fsync(int fd);
int lks__sys_rename(const char *from, const char *to);
int lks__sys_link(const char *from, const char *to); /* one more name for the file */
int lks__sys_mkdir(const char *path, mode_t mode);
int lks__sys_unlink(const char *path);
int lks__sys_rmdir(const char *path); /* counts as unlink */
int lks__sys_symlink(const char *target, const char *path);
int lks__sys_truncate(int fd, uint64_t bytes);
int lks__sys_lock(int fd); /* the whole file, without waiting; EWOULDBLOCK: somebody has it */
int lks__sys_memfd(const char *name); /* close-on-exec is off: ranks inherit it */
int lks__sys_fallocate(int fd, uint64_t offset, uint64_t bytes);
void *lks__sys_mmap(size_t bytes, int prot, int flags, int fd, uint64_t offset);
void lks__sys_munmap(void *p, size_t bytes);

/* Sockets are close-on-exec; a peer that is gone is an error (EPIPE), never a signal. */
int lks__sys_socket(int domain, int type);
int lks__sys_bind(int fd, const struct sockaddr *addr, socklen_t bytes);
int lks__sys_listen(int fd, int backlog);
int lks__sys_accept(int fd); /* also non-blocking */
int lks__sys_connect(int fd, const struct sockaddr *addr, socklen_t bytes);
ssize_t lks__sys_send(int fd, const void *buf, size_t bytes);
ssize_t lks__sys_recv(int fd, void *buf, size_t bytes);

double lks__sys_now(void); /* seconds, monotonic */
/* The figure, in bytes, of `key` ("VmHWM", "Pss") in a file of /proc/self that has it in kB; 0
 * where it has none. */
uint64_t lks__sys_proc_bytes(const char *path, const char *key);

/* What a process is doing: the letter of /proc/PID/stat ('R', 'S', 'D', 'T' stopped, 't' traced,
 * 'Z' ended), 0 where there is none of that number. */
char lks__sys_process_state(pid_t pid);

/* Reads, writes and fsyncs of this thread call fn(ctx) for each piece that is done, so that other
 * ranks see that a long one moves. NULL: nobody waits. */
void lks__sys_on_progress(void (*fn)(void *ctx), void *ctx);

/* Work that can be stopped: once asked() is true, reads and writes of this thread fail with
 * ECANCELED between their pieces. What takes long without them asks lks__sys_stop_check() between
 * pieces of its own: ERR_STOPPED, once it is true. NULL (as at the start): nothing stops. */
void lks__sys_stop_when(bool (*asked)(void));
lks_status lks__sys_stop_check(void);

/* Whole small file into malloc'd memory with a 0 byte behind it (not counted); the caller frees.
 * ERR_IO or ERR_FORMAT (larger than `limit`), naming the path. */
lks_status lks__sys_read_file(const char *path, size_t limit, char **data_p, size_t *bytes_p);

/* Write a small file whole: temporary name beside it, fsync, rename. ERR_IO names path and cause.
 */
lks_status lks__sys_write_file(const char *path, const void *data, size_t bytes);

/* mkdir -p. ERR_IO names the part that failed. */
lks_status lks__sys_make_dirs(const char *path);

/* fsync a folder, so that renames in it last. */
lks_status lks__sys_sync_dir(const char *path);

/* "WHAT PATH: cause" as ERR_IO (path escaped), from errno; ECANCELED is ERR_STOPPED. */
lks_status lks__sys_fail(const char *what, const char *path);

#endif
