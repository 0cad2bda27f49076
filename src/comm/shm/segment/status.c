#include "comm/shm/segment/status.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "comm/shm/segment/segment_layout.h"

enum { ABORT_NONE = 0, ABORT_WRITING = 1, ABORT_READY = 2 };

bool lks__segment_abort(lks__segment *s, lks_status status, int rank, const char *text)
{
    return lks__segment_abort_report(s, status, rank, text, "");
}

bool lks__segment_abort_report(lks__segment *s, lks_status status, int rank, const char *text,
                               const char *report)
{
    struct lks__segment_header *h = lks__segment_header(s);
    unsigned expected = ABORT_NONE;
    if (!atomic_compare_exchange_strong(&h->abort_state, &expected, ABORT_WRITING))
        return false;
    h->abort_rank = rank;
    h->abort_status = status;
    snprintf(h->abort_text, sizeof h->abort_text, "%s", text);
    snprintf(h->abort_report, sizeof h->abort_report, "%s", report);
    atomic_store(&h->abort_state, ABORT_READY);
    return true;
}

void lks__segment_set_lasting(lks__segment *s)
{
    atomic_store(&lks__segment_header(s)->lasting, true);
}

bool lks__segment_lasting(const lks__segment *s)
{
    return atomic_load(&lks__segment_header(s)->lasting);
}

bool lks__segment_aborted(const lks__segment *s)
{
    return atomic_load_explicit(&lks__segment_header(s)->abort_state, memory_order_acquire) !=
           ABORT_NONE;
}

bool lks__segment_given_up(const lks__segment *s)
{
    const struct lks__segment_header *h = lks__segment_header(s);
    return atomic_load(&h->abort_state) == ABORT_READY && h->abort_status == LKS_ERR_STOPPED;
}

bool lks__segment_rank_ended(lks__segment *s, int rank, pid_t pid)
{
    struct lks__rank_line *line = lks__segment_line(s, rank);
    unsigned absent = LKS__RANK_ABSENT;
    const bool never_joined = atomic_compare_exchange_strong(&line->state, &absent, LKS__RANK_LEFT);
    if (never_joined)
        atomic_store(&line->pid, (int)pid);
    return never_joined;
}

void lks__segment_expect(lks__segment *s, int rank, pid_t pid)
{
    atomic_store(&lks__segment_line(s, rank)->pid, (int)pid);
}

void lks__segment_ask_stop(lks__segment *s, int signo)
{
    int none = 0;
    if (!lks__segment_aborted(s) || lks__segment_given_up(s))
        atomic_compare_exchange_strong(&lks__segment_header(s)->stop_signal, &none, signo);
}

int lks__segment_asked_stop(const lks__segment *s)
{
    int signo = atomic_load_explicit(&lks__segment_header(s)->stop_signal, memory_order_relaxed);
    return signo > 0 && signo < NSIG ? signo : 0;
}

double lks__segment_timeout_s(const lks__segment *s)
{
    return (double)atomic_load(&lks__segment_header(s)->timeout_us) * 1e-6;
}

void lks__segment_has_ended(lks__segment *s, int rank)
{
    unsigned none = 0;
    atomic_compare_exchange_strong(&lks__segment_header(s)->ended, &none, (unsigned)rank + 1);
}

int lks__segment_ended(const lks__segment *s)
{
    return (int)atomic_load(&lks__segment_header(s)->ended) - 1;
}

void lks__segment_saves_elsewhere(lks__segment *s, bool saves)
{
    atomic_store(&lks__segment_header(s)->saving_elsewhere, saves);
}

bool lks__segment_saving(const lks__segment *s, bool elsewhere)
{
    for (int r = 0; r < lks__segment_world_size(s); r++)
        if (atomic_load(&lks__segment_line(s, r)->saving) != 0)
            return true;
    return elsewhere && atomic_load(&lks__segment_header(s)->saving_elsewhere) != 0;
}

void lks__segment_failure(const lks__segment *s, lks_status *status_p, int *rank_p, char *text,
                          size_t text_bytes)
{
    const struct lks__segment_header *h = lks__segment_header(s);
    /* Writing takes microseconds. A writer that died while writing leaves no text. */
    for (int i = 0; atomic_load(&h->abort_state) == ABORT_WRITING && i < 200; i++)
        usleep(1000);
    bool ready = atomic_load(&h->abort_state) == ABORT_READY;
    int status = ready ? h->abort_status : LKS_ERR_PEER;
    int rank = ready ? h->abort_rank : -1;
    *status_p =
        status == LKS_ERR_ARG || status == LKS_ERR_TIMEOUT ? (lks_status)status : LKS_ERR_PEER;
    *rank_p = rank >= 0 && rank < lks__segment_world_size(s) ? rank : -1;
    if (text == NULL)
        return;
    char raw[sizeof h->abort_text] = "a rank failed before it could report a reason";
    if (ready) {
        memcpy(raw, h->abort_text, sizeof raw);
        raw[sizeof raw - 1] = '\0';
    }
    lks__utf8_printable(raw, false);
    snprintf(text, text_bytes, "%s", raw);
}

void lks__segment_report(const lks__segment *s, char *text)
{
    const struct lks__segment_header *h = lks__segment_header(s);
    text[0] = '\0';
    if (atomic_load(&h->abort_state) != ABORT_READY)
        return;
    memcpy(text, h->abort_report, sizeof h->abort_report);
    text[sizeof h->abort_report - 1] = '\0';
    lks__utf8_printable(text, true);
}

/* Read a text of `bytes` bytes, which another process may be writing. */
static void read_text(atomic_ullong *words, size_t bytes, char *text)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        const unsigned long long word = atomic_load(&words[i]);
        memcpy(text + i * 8, &word, 8);
    }
    text[bytes] = '\0';
    lks__utf8_printable(text, false);
}

void lks__segment_status(const lks__segment *s, int rank, lks__rank_status *status)
{
    struct lks__rank_line *line = lks__segment_line(s, rank);
    status->state = (int)atomic_load(&line->state);
    status->pid = (pid_t)atomic_load(&line->pid);
    const unsigned waiting = atomic_load(&line->waiting); /* before the heartbeat */
    status->waiting = waiting != LKS__WAIT_NONE;
    status->among_devices = waiting == LKS__WAIT_DEVICES;
    status->posted = atomic_load(&line->posted);
    status->step = atomic_load(&line->step);
    double age = lks__sys_now() - (double)atomic_load(&line->beat_us) * 1e-6;
    status->beat_age_s = age > 0 ? age : 0;
    read_text(line->phase, LKS__SHM_PHASE, status->phase);
    read_text(line->device, LKS__SHM_DEVICE, status->device);
}
