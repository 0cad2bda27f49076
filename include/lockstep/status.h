/* lockstep/status.h - the status that every call of the library returns. Any thread may call its
 * functions, and so may a child of fork(). A call that opens or allocates something sets the
 * pointer to NULL if it fails. */
#ifndef LOCKSTEP_STATUS_H
#define LOCKSTEP_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* all else in a shared liblockstep is hidden */

/* The only definition of the version; "-dev": not released yet. */
#define LKS_VERSION_MAJOR  0
#define LKS_VERSION_MINOR  2
#define LKS_VERSION_PATCH  0
#define LKS_VERSION_SUFFIX ""

/* The version as a number that grows, for `#if LKS_VERSION >= 200` (0.2.0), and as a text:
 * "0.2.0" or "0.2.0-dev". */
#define LKS_VERSION (LKS_VERSION_MAJOR * 10000 + LKS_VERSION_MINOR * 100 + LKS_VERSION_PATCH)
#define LKS_VERSION_TEXT                                                                           \
    LKS_VERSION_JOIN(LKS_VERSION_MAJOR, LKS_VERSION_MINOR, LKS_VERSION_PATCH)                      \
    LKS_VERSION_SUFFIX
#define LKS_VERSION_JOIN(major, minor, patch)  LKS_VERSION_JOIN_(major, minor, patch)
#define LKS_VERSION_JOIN_(major, minor, patch) #major "." #minor "." #patch

/* Enum, names and texts come from this one list, so they can't differ. */
#define LKS_STATUS_MAP(X)                                                                          \
    X(OK, 0, "success")                                                                            \
    X(IN_PROGRESS, 1, "operation still in progress")                                               \
    X(ERR_ARG, -1, "invalid argument")                                                             \
    X(ERR_NOMEM, -2, "out of memory")                                                              \
    X(ERR_PEER, -3, "a peer rank left or failed")                                                  \
    X(ERR_TIMEOUT, -4, "deadline passed")                                                          \
    X(ERR_SUPPORT, -5, "not supported here")                                                       \
    X(ERR_IO, -6, "input or output failed")                                                        \
    X(ERR_FORMAT, -7, "data does not fit its format")                                              \
    X(ERR_CONFIG, -8, "a setting is wrong, or a file lacks the requested content")                 \
    X(ERR_DIVERGED, -9, "ranks that must be equal differ")                                         \
    X(ERR_NAN, -10, "loss or gradient is not finite")                                              \
    X(ERR_STOPPED, -11, "a signal asked to stop")                                                  \
    X(ERR_DEVICE, -12, "a device failed")

typedef enum lks_status {
#define X(name, code, text) LKS_##name = code,
    LKS_STATUS_MAP(X)
#undef X
} lks_status;

const char *lks_status_text(lks_status st); /* static string, never NULL */

/* LKS_VERSION of the library that the program runs with, which may be newer than its headers. */
int lks_version(void);

/* The full sentence about this thread's last failure: the error, its location, and advice. Never
 * NULL; valid until the thread's next failure. */
const char *lks_last_error(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
