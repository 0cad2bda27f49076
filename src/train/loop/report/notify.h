/* train/loop/report/notify.h - how a run goes on, for systemd: the protocol of sd_notify(3), if the
 * environment asks for it (NOTIFY_SOCKET, WATCHDOG_USEC). Rank 0 sends, and not the process that
 * systemd has started, so a unit has NotifyAccess=all. Nothing here waits, and a run goes on
 * without. */
#ifndef LKS_TRAIN_LOOP_REPORT_NOTIFY_H
#define LKS_TRAIN_LOOP_REPORT_NOTIFY_H

#include <stdbool.h>

typedef struct lks__notify {
    int fd;            /* -1: nobody asks */
    double alive_s;    /* seconds between signs of life; 0: none are asked for */
    double next_alive; /* lks__sys_now() of the next one ... */
    double next_text;  /* ... and of the next STATUS */
} lks__notify;

/* The run is ready: its first step comes next. False: NOTIFY_SOCKET can't be reached; errno. */
bool lks__notify_open(lks__notify *n);
void lks__notify_close(lks__notify *n);

/* The run makes progress; call it as often as you like. `text` for `systemctl status`, or NULL. */
void lks__notify_alive(lks__notify *n, const char *text);
/* The run ends, or stops. */
void lks__notify_stopping(lks__notify *n);

#endif
