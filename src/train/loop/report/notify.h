/* train/loop/report/notify.h - progress of a run for systemd: the protocol of sd_notify(3), if
 * NOTIFY_SOCKET and WATCHDOG_USEC ask for it. Rank 0 sends, which is not the process that systemd
 * has started, so a unit needs NotifyAccess=all. No call blocks, and failures to send are ignored.
 */
#pragma once

#include <stdbool.h>

typedef struct lks__notify {
    int fd;            /* -1: not asked for */
    double alive_s;    /* seconds between signs of life; 0: not asked for */
    double next_alive; /* lks__sys_now() of the next one ... */
    double next_text;  /* ... and of the next STATUS */
} lks__notify;

/* Send READY: the first step comes next. False, with errno, if NOTIFY_SOCKET can't be reached. */
bool lks__notify_open(lks__notify *n);
void lks__notify_close(lks__notify *n);

/* After progress; call it as often as you like. `text` is for `systemctl status`, or NULL. */
void lks__notify_alive(lks__notify *n, const char *text);
void lks__notify_stopping(lks__notify *n);
