#include "progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/world.h"

enum { TEXT = 120, LINE = 240, REDRAW_MS = 250 };

static const double FIRST_S = 1.0;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    pthread_t thread;
    bool on, hidden, drawn;
    double began;
    const char *name;
    char text[TEXT];
} line = {.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

/* True if stderr is a terminal, on the first of several ranks. */
static bool has_reader(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0 &&
           (!lks__env_set("RANK") || strcmp(getenv("RANK"), "0") == 0);
}

static void erase(void)
{
    if (line.drawn)
        fputs("\r\033[K", stderr);
    line.drawn = false;
}

/* Cut the line at the terminal's width: a wrapped line couldn't be erased. */
static void draw(void)
{
    char shown[LINE];
    struct winsize size;
    int columns = 80;
    const double seconds = lks__sys_now() - line.began;
    if (line.hidden || seconds < FIRST_S)
        return;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        columns = size.ws_col;
    snprintf(shown, sizeof shown, "%s: %s, %.0f s", line.name, line.text, seconds);
    fprintf(stderr, "\r%.*s\033[K", columns - 1, shown);
    line.drawn = true;
}

static void *redraw(void *arg)
{
    pthread_mutex_lock(&line.mutex);
    while (line.on) {
        struct timespec until;
        draw();
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += REDRAW_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&line.ended, &line.mutex, &until);
    }
    erase();
    pthread_mutex_unlock(&line.mutex);
    return NULL;
}

void progress_begin(const char *name, const char *text)
{
    if (line.on || !has_reader())
        return;
    line.name = name;
    line.began = lks__sys_now();
    line.hidden = false;
    snprintf(line.text, sizeof line.text, "%s", text);
    line.on = true;
    if (lks__thread_start(&line.thread, redraw, NULL) != 0)
        line.on = false;
}

void progress_text(const char *fmt, ...)
{
    va_list ap;
    if (!line.on)
        return;
    pthread_mutex_lock(&line.mutex);
    va_start(ap, fmt);
    vsnprintf(line.text, sizeof line.text, fmt, ap);
    va_end(ap);
    line.hidden = false;
    pthread_mutex_unlock(&line.mutex);
}

void progress_hide(void)
{
    if (!line.on)
        return;
    pthread_mutex_lock(&line.mutex);
    line.hidden = true;
    erase();
    pthread_mutex_unlock(&line.mutex);
}

void progress_end(void)
{
    if (!line.on)
        return;
    pthread_mutex_lock(&line.mutex);
    line.on = false;
    pthread_cond_signal(&line.ended);
    pthread_mutex_unlock(&line.mutex);
    pthread_join(line.thread, NULL);
}
