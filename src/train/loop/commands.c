#include "train/loop/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"

enum {
    QUEUE = 32, /* commands that can wait */
    MOST_COMMANDS = LKS__SETTING_STR / 2,
    N_FACTS = 8,
    FACT_BYTES = 4400,
    TEXT = 400,
    PAUSE_MS = 20,
};

/* Seconds from SIGTERM to SIGKILL. */
static const double GRACE_S = 2.0;

struct waiting {
    const char *command; /* points into `text` */
    lks__command_event event;
    lks__command_facts facts;
};

struct lks__commands {
    char text[LKS__SETTING_STR]; /* the setting, with a 0 byte after each line */
    struct {
        lks__command_event event;
        const char *command;
    } commands[MOST_COMMANDS];
    int n_commands;
    char out_dir[4096], log[LKS__SYS_PATH];
    double timeout_s;
    void (*say)(void *ctx, const char *text);
    void *ctx;
    struct waiting queue[QUEUE]; /* queue[0] runs, if pid > 0 */
    int n;
    pid_t pid; /* leader of its session; 0: none runs */
    double deadline;
    bool sent_term; /* SIGTERM was sent */
};

/* --- the setting ------------------------------------------------------------------------------ */

/* The event's word in the setting, without its colon. */
static void event_word(lks__command_event event, char out[16])
{
    const char *at = LKS__EVENT_CHOICES;
    for (int i = 0; i < (int)event; i++)
        at = strchr(at, '|') + 1;
    snprintf(out, 16, "%.*s", (int)strcspn(at, ":"), at);
}

/* The command of this line, if it is for this event; else NULL. */
static const char *command_of(const char *line, lks__command_event event)
{
    char word[16];
    event_word(event, word);
    const size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && line[n] == ':' ? line + n + 1 : NULL;
}

bool lks__commands_any(const lks__settings *s, lks__command_event event)
{
    const char *line = s->exec_on;
    while (command_of(line, event) == NULL) {
        line = strchr(line, '\n');
        if (line == NULL)
            return false;
        line++;
    }
    return true;
}

lks_status lks__commands_open(const lks__settings *s, void (*say)(void *ctx, const char *text),
                              void *ctx, lks__commands **commands_p)
{
    *commands_p = NULL;
    if (s->exec_on[0] == '\0')
        return LKS_OK;
    lks__commands *c = calloc(1, sizeof *c);
    char *absolute = realpath(s->out_dir, NULL), *rest;
    if (c == NULL) {
        free(absolute);
        return lks__no_memory("for the commands of exec_on");
    }
    snprintf(c->text, sizeof c->text, "%s", s->exec_on);
    snprintf(c->out_dir, sizeof c->out_dir, "%s", absolute != NULL ? absolute : s->out_dir);
    snprintf(c->log, sizeof c->log, "%s/commands.log", c->out_dir);
    signal(SIGCHLD, SIG_DFL); /* if it is ignored, the commands' exit codes are lost */
    c->timeout_s = s->exec_timeout;
    c->say = say;
    c->ctx = ctx;
    for (char *line = strtok_r(c->text, "\n", &rest); line != NULL && c->n_commands < MOST_COMMANDS;
         line = strtok_r(NULL, "\n", &rest))
        for (int event = 0; event <= LKS__ON_FAILURE; event++)
            if (command_of(line, event) != NULL) {
                c->commands[c->n_commands].event = event;
                c->commands[c->n_commands++].command = command_of(line, event);
            }
    free(absolute);
    *commands_p = c;
    return LKS_OK;
}

void lks__commands_close(lks__commands *c)
{
    free(c);
}

static void say(const lks__commands *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const lks__commands *c, const char *fmt, ...)
{
    char text[TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->say(c->ctx, text);
}

/* "exec_on=checkpoint at iteration 100" */
static const char *name_of(const struct waiting *w, char out[80])
{
    char word[16], at[40] = "";
    event_word(w->event, word);
    if (w->facts.iter >= 0)
        snprintf(at, sizeof at, " at iteration %" PRId64, w->facts.iter);
    snprintf(out, 80, "exec_on=%s%s", word, at);
    return out;
}

/* --- the environment -------------------------------------------------------------------------- */

/* True for variables that make a process a rank of this job, or part of its service, which a
 * command isn't, and for facts, perhaps of a run that started this one. */
static bool dropped(const char *entry)
{
    static const char names[] =
        "RANK= LOCAL_RANK= WORLD_SIZE= LOCAL_WORLD_SIZE= GROUP_RANK= ROLE_RANK= GROUP_WORLD_SIZE= "
        "ROLE_WORLD_SIZE= ROLE_NAME= MASTER_ADDR= MASTER_PORT= TORCHELASTIC_ OMPI_ PMI_ PMIX_ "
        "MPI_LOCAL SLURM_PROCID= SLURM_LOCALID= SLURM_STEP_ LOCKSTEP_SEGMENT= LOCKSTEP_JOB= "
        "LOCKSTEP_STORE= LOCKSTEP_TOKEN= LOCKSTEP_LOCAL_ADDR= LOCKSTEP_TRAIN= NOTIFY_SOCKET= "
        "WATCHDOG_ LOCKSTEP_EVENT= LOCKSTEP_OUT_DIR= LOCKSTEP_ITER= LOCKSTEP_CHECKPOINT= "
        "LOCKSTEP_LOSS= LOCKSTEP_VAL_LOSS= LOCKSTEP_SIGNAL= LOCKSTEP_EXIT_CODE= ";
    const char *at = names;
    while (*at != '\0' && strncmp(entry, at, strcspn(at, " ")) != 0)
        at += strcspn(at, " ") + 1;
    return *at != '\0';
}

struct facts {
    int n;
    char text[N_FACTS][FACT_BYTES];
};

static void add(struct facts *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct facts *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->text[f->n++], FACT_BYTES, fmt, ap);
    va_end(ap);
}

static void collect(const lks__commands *c, const struct waiting *w, struct facts *f)
{
    const lks__command_facts *facts = &w->facts;
    char word[16];
    event_word(w->event, word);
    f->n = 0;
    add(f, "LOCKSTEP_EVENT=%s", word);
    add(f, "LOCKSTEP_OUT_DIR=%s", c->out_dir);
    if (facts->iter >= 0) {
        add(f, "LOCKSTEP_ITER=%" PRId64, facts->iter);
        add(f, "LOCKSTEP_CHECKPOINT=ckpt-%08" PRId64, facts->iter);
    }
    if (isfinite(facts->loss)) /* digits as in metrics.jsonl */
        add(f, "LOCKSTEP_LOSS=%.9g", facts->loss);
    if (isfinite(facts->val_loss))
        add(f, "LOCKSTEP_VAL_LOSS=%.9g", facts->val_loss);
    if (facts->signal > 0)
        add(f, "LOCKSTEP_SIGNAL=%d", facts->signal);
    if (facts->exit_code >= 0)
        add(f, "LOCKSTEP_EXIT_CODE=%d", facts->exit_code);
}

/* Free only the array. NULL if out of memory. */
static char **make_environment(struct facts *f)
{
    size_t n = 0, kept = 0;
    while (environ[n] != NULL)
        n++;
    char **env = malloc((n + N_FACTS + 1) * sizeof *env);
    if (env == NULL)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!dropped(environ[i]))
            env[kept++] = environ[i];
    for (int i = 0; i < f->n; i++)
        env[kept++] = f->text[i];
    env[kept] = NULL;
    return env;
}

/* --- processes -------------------------------------------------------------------------------- */

/* Start the command in a new session, so that the terminal's signals don't reach it. Returns an
 * errno. */
static int spawn(const struct waiting *w, char **env, int null, int log, pid_t *pid_p)
{
    char *const argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t) "--", (char *)(uintptr_t)w->command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    int err = posix_spawn_file_actions_init(&files);
    if (err != 0)
        return err;
    err = posix_spawnattr_init(&how);
    if (err != 0) {
        posix_spawn_file_actions_destroy(&files);
        return err;
    }
    const int streams[] = {null, log, log};
    for (int i = 0; i < 3 && err == 0; i++)
        err = posix_spawn_file_actions_adddup2(&files, streams[i], i);
    /* A command must not keep the ranks' shared memory, which is inherited. */
    if (err == 0)
        err = posix_spawn_file_actions_addclosefrom_np(&files, 3);
    if (err == 0)
        err = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
                                                 POSIX_SPAWN_SETSIGDEF);
    if (err == 0)
        err = posix_spawnattr_setsigmask(&how, &none);
    if (err == 0)
        err = posix_spawnattr_setsigdefault(&how, &all);
    if (err == 0)
        err = posix_spawn(pid_p, "/bin/sh", &files, &how, argv, env);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return err;
}

static int start(lks__commands *c, const struct waiting *w)
{
    struct facts *facts = malloc(sizeof *facts);
    if (facts == NULL)
        return ENOMEM;
    collect(c, w, facts);
    char **env = make_environment(facts);
    const int null = lks__sys_open("/dev/null", O_RDWR, 0);
    int log;
    lks__sys_append(c->log, &log);
    int err = env == NULL ? ENOMEM : null < 0 ? errno : 0;
    if (err == 0) /* run it without a log, too: a failed run may not have a folder */
        err = spawn(w, env, null, log >= 0 ? log : null, &c->pid);
    lks__sys_close(log);
    if (null >= 0)
        lks__sys_close(null);
    free(env);
    free(facts);
    return err;
}

static void drop_first(lks__commands *c)
{
    memmove(&c->queue[0], &c->queue[1], (size_t)--c->n * sizeof c->queue[0]);
    c->pid = 0;
}

static void start_next(lks__commands *c)
{
    char name[80];
    while (c->pid == 0 && c->n > 0) {
        const int err = start(c, &c->queue[0]);
        if (err == 0) {
            c->deadline = lks__sys_now() + c->timeout_s;
            c->sent_term = false;
            return;
        }
        say(c, "%s: the command can't be started: %s; the run continues",
            name_of(&c->queue[0], name), strerror(err));
        drop_first(c);
    }
}

/* True if the command has ended. A failure is reported. */
static bool ended(lks__commands *c)
{
    char name[80];
    int status;
    const pid_t got = waitpid(c->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR))
        return false;
    name_of(&c->queue[0], name);
    if (got > 0 && c->sent_term)
        say(c, "%s: the command ran longer than exec_timeout=%g s, and was ended", name,
            c->timeout_s);
    else if (got > 0 && WIFSIGNALED(status))
        say(c, "%s: the command was ended by signal %d; see commands.log", name, WTERMSIG(status));
    else if (got > 0 && WEXITSTATUS(status) != 0)
        say(c, "%s: the command ended with exit code %d; see commands.log", name,
            WEXITSTATUS(status));
    return true;
}

void lks__commands_poll(lks__commands *c)
{
    if (c == NULL || c->n == 0)
        return;
    if (c->pid > 0 && ended(c))
        drop_first(c);
    else if (c->pid > 0 && lks__sys_now() > c->deadline) {
        kill(-c->pid, c->sent_term ? SIGKILL : SIGTERM);
        c->sent_term = true;
        c->deadline = lks__sys_now() + GRACE_S;
    }
    start_next(c);
}

void lks__commands_on(lks__commands *c, lks__command_event event, const lks__command_facts *facts)
{
    char name[80];
    for (int i = 0; c != NULL && i < c->n_commands; i++) {
        const struct waiting w = {c->commands[i].command, event, *facts};
        if (c->commands[i].event != event)
            continue;
        if (c->n == QUEUE)
            say(c, "%s: %d commands are already waiting, so this one is skipped", name_of(&w, name),
                QUEUE - 1);
        else
            c->queue[c->n++] = w;
    }
    lks__commands_poll(c);
}

int lks__commands_waiting(const lks__commands *c)
{
    return c != NULL ? c->n : 0;
}

void lks__commands_wait(lks__commands *c, void (*alive)(void *ctx), void *ctx)
{
    const struct timespec pause = {0, PAUSE_MS * 1000000L};
    for (lks__commands_poll(c); c != NULL && c->n > 0; lks__commands_poll(c)) {
        if (alive != NULL)
            alive(ctx);
        nanosleep(&pause, NULL);
    }
}

/* --- a run that has failed -------------------------------------------------------------------- */

static void print(void *ctx, const char *text)
{
    fprintf(stderr, "%s: %s\n", (const char *)ctx, text);
}

void lks__commands_failed(const lks__settings *s, const char *name, int exit_code)
{
    const lks__command_facts facts = {
        .iter = -1, .loss = NAN, .val_loss = NAN, .exit_code = exit_code};
    lks__commands *c;
    if (!lks__commands_any(s, LKS__ON_FAILURE))
        return;
    if (lks__commands_open(s, print, (void *)(uintptr_t)name, &c) != LKS_OK) {
        print((void *)(uintptr_t)name, lks_last_error());
        return;
    }
    lks__commands_on(c, LKS__ON_FAILURE, &facts);
    lks__commands_wait(c, NULL, NULL);
    lks__commands_close(c);
}
