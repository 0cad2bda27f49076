#include "launch/nodes/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/store/store.h"

/* Time for the other nodes' launchers to end after one has failed, and then for their commands. */
static const double GRACE_S = 15.0, SAVE_S = 300.0, END_S = 10.0;
static const double PATIENCE_S = 5.0; /* before a message about them */

enum { COMMAND_BYTES = 128 << 10, MAX_WORDS = 64, NAME_BYTES = 512 };

/* One node's launcher, or the command that starts it on that node. */
struct agent {
    pid_t pid;
    int lifeline; /* -1: closed */
    bool running, ended_by_us;
    bool never_began; /* it ended and left the token unread */
    int code;
};

/* --- whose hosts -------------------------------------------------------------------------- */

static lks_status add_host(const char *word, size_t n, int slots, struct lks__host *hosts, int *n_p)
{
    char shown[300];
    struct lks__host *h = &hosts[*n_p];
    size_t name = 0, kept = 0;
    bool plain = true, inside = false; /* the brackets around an IPv6 address, which ssh refuses */
    if (*n_p == LKS__MAX_HOSTS)
        return lks__fail(LKS_ERR_CONFIG, "more than %d hosts", LKS__MAX_HOSTS);
    for (; name < n && name < sizeof h->name && (inside || word[name] != ':'); name++) {
        plain = plain && isgraph((unsigned char)word[name]) && word[name] != ',';
        const bool opens = word[name] == '[' && (name == 0 || word[name - 1] == '@');
        const bool closes = inside && word[name] == ']';
        inside = opens || (inside && !closes);
        if (!opens && !closes)
            h->name[kept++] = word[name];
    }
    lks__escape(shown, sizeof shown, word, n);
    /* ssh would read a name that begins with - as an option. */
    if (kept == 0 || name >= sizeof h->name || h->name[0] == '-' || !plain || inside)
        return lks__fail(LKS_ERR_CONFIG, "\"%s\" is no host: expected HOST or HOST:RANKS", shown);
    h->name[kept] = '\0';
    h->slots = slots;
    if (name < n) {
        char *end;
        long value = strtol(word + name + 1, &end, 10);
        if (end == word + name + 1 || end != word + n || value < 1 || value > 1024)
            return lks__fail(LKS_ERR_CONFIG, "\"%s\": the ranks of a host are from 1 to 1024",
                             shown);
        h->slots = (int)value;
    }
    ++*n_p;
    return LKS_OK;
}

lks_status lks__hosts_parse(const char *text, int slots, struct lks__host *hosts, int *n_p)
{
    *n_p = 0;
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        LKS__TRY(add_host(at, n, slots, hosts, n_p));
        at += n;
        if (*at == '\0')
            return LKS_OK;
    }
}

static lks_status read_line(const char *path, char *line, int slots, struct lks__host *hosts,
                            int *n_p)
{
    char word[300], more[32] = "";
    int end = 0, end_of_more = 0;
    line[strcspn(line, "#")] = '\0';
    if (sscanf(line, "%299s %n", word, &end) < 1)
        return LKS_OK;
    size_t len = strlen(word);
    const char *rest = line + end;
    if (sscanf(rest, "slots=%31s %n", more, &end_of_more) == 1)
        len += (size_t)snprintf(word + len, sizeof word - len, ":%s", more);
    lks_status st =
        rest[end_of_more] != '\0'
            ? lks__fail(LKS_ERR_CONFIG, "\"%s\": expected HOST, HOST:N or HOST slots=N on a line",
                        lks__shown(line, 300))
        : len < sizeof word ? add_host(word, len, slots, hosts, n_p)
                            : lks__fail(LKS_ERR_CONFIG, "a line is too long");
    return st == LKS_OK ? st : lks__fail_in(st, "%s", path);
}

lks_status lks__hosts_read(const char *path, int slots, struct lks__host *hosts, int *n_p)
{
    char *text, *save = NULL;
    size_t bytes;
    *n_p = 0;
    LKS__TRY(lks__sys_read_file(path, 1 << 20, &text, &bytes));
    const char *shown = lks__shown(path, 300);
    lks_status st = strlen(text) == bytes
                        ? LKS_OK
                        : lks__fail(LKS_ERR_CONFIG, "%s is not a text: it contains 0 bytes", shown);
    for (char *line = strtok_r(text, "\n", &save); line != NULL && st == LKS_OK;
         line = strtok_r(NULL, "\n", &save))
        st = read_line(shown, line, slots, hosts, n_p);
    free(text);
    if (st == LKS_OK && *n_p == 0)
        st = lks__fail(LKS_ERR_CONFIG, "%s names no host", shown);
    return st;
}

/* --- starting ----------------------------------------------------------------------------- */

bool lks__host_is_here(const char *host)
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return strcmp(host, "localhost") == 0 || strcmp(host, name) == 0;
}

/* Append a word, quoted for a shell; false: no room. */
static bool quote(char *line, size_t bytes, const char *word)
{
    size_t n = strlen(line);
    if (n + 4 * strlen(word) + 4 >= bytes)
        return false;
    line[n++] = '\'';
    for (; *word != '\0'; word++)
        if (*word == '\'')
            n += (size_t)sprintf(line + n, "'\\''");
        else
            line[n++] = *word;
    memcpy(line + n, "' ", 3);
    return true;
}

/* The launcher's command line on host `i`; free the array, its strings are borrowed. */
static char **launcher_words(const lks__hosts_options *o, char *exe, char *rank, char *slots)
{
    static char run[] = "run", end_of_options[] = "--";
    size_t n = 0, n_options = 0, n_argv = 0;
    while (o->options[n_options] != NULL)
        n_options++;
    while (o->argv[n_argv] != NULL)
        n_argv++;
    char **words = calloc(n_options + n_argv + 6, sizeof *words);
    if (words == NULL)
        return NULL;
    words[n++] = exe;
    words[n++] = run;
    words[n++] = rank;
    words[n++] = slots;
    memcpy(words + n, o->options, n_options * sizeof *words);
    n += n_options;
    words[n++] = end_of_options;
    memcpy(words + n, o->argv, n_argv * sizeof *words);
    return words;
}

static bool remote_line(char *line, size_t bytes, const char *cwd, const char *role, char **words)
{
    snprintf(line, bytes, "cd ");
    bool fits = quote(line, bytes, cwd);
    size_t n = strlen(line);
    fits = fits && n + 128 < bytes;
    if (fits)
        snprintf(line + n, bytes - n, "&& exec env " LKS__LIFELINE_ENV "=%s ", role);
    for (int i = 0; fits && words[i] != NULL; i++)
        fits = quote(line, bytes, words[i]);
    return fits;
}

static _Noreturn void become_agent(int lifeline, const sigset_t *mask, bool ignores_pipe,
                                   char **words)
{
    setsid(); /* signals come through the lifeline */
    dup2(lifeline, STDIN_FILENO);
    if (!ignores_pipe)
        signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(words[0], words);
    dprintf(STDERR_FILENO, "lockstep run: can't execute \"%s\": %s\n", words[0], strerror(errno));
    _exit(127);
}

/* The command that runs `words` on host `i`; its strings are valid until the next call. */
static lks_status remote_words(const lks__hosts_options *o, int i, const char *cwd,
                               const char *role, char **words, char *remote[MAX_WORDS + 3])
{
    static char line[COMMAND_BYTES], rsh[4096];
    char *save = NULL;
    int n = 0;
    if (!remote_line(line, sizeof line, cwd, role, words))
        return lks__fail(LKS_ERR_CONFIG, "the command for another host is too long");
    const int length = snprintf(rsh, sizeof rsh, "%s",
                                o->rsh != NULL ? o->rsh
                                               : "ssh -o BatchMode=yes -o ConnectTimeout=10 "
                                                 "-o ServerAliveInterval=5");
    char *w = strtok_r(rsh, " ", &save);
    for (; w != NULL && n < MAX_WORDS; w = strtok_r(NULL, " ", &save))
        remote[n++] = w;
    if (w != NULL || length >= (int)sizeof rsh)
        return lks__fail(LKS_ERR_CONFIG, "--rsh may have %d words in %zu bytes", MAX_WORDS,
                         sizeof rsh - 1);
    remote[n++] = (char *)(uintptr_t)o->hosts[i].name;
    remote[n++] = line;
    remote[n] = NULL;
    return LKS_OK;
}

static lks_status start_agent(const lks__hosts_options *o, int i, const char *token,
                              const sigset_t *mask, bool ignores_pipe, struct agent *a)
{
    const char *role = i == 0 ? "first" : "more";
    const bool here = lks__host_is_here(o->hosts[i].name);
    char exe[4096] = "", cwd[4096], rank[64], slots[64], *remote[MAX_WORDS + 3];
    int fds[2];
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0 || getcwd(cwd, sizeof cwd) == NULL)
        return lks__fail(LKS_ERR_IO, "can't find the path of this program or folder: %s",
                         strerror(errno));
    snprintf(rank, sizeof rank, "--node-rank=%d", i);
    snprintf(slots, sizeof slots, "--nproc-per-node=%d", o->hosts[i].slots);
    char **words = launcher_words(o, exe, rank, slots);
    LKS__MEMORY(words, "for a command");
    lks_status st = here ? LKS_OK : remote_words(o, i, cwd, role, words, remote);
    if (st == LKS_OK && pipe2(fds, O_CLOEXEC) != 0)
        st = lks__fail(LKS_ERR_IO, "can't make a pipe for host %s: %s", o->hosts[i].name,
                       lks__sys_reason(errno));
    if (st != LKS_OK) {
        free(words);
        return st;
    }
    /* Before the command starts: if it ends at once, the token is unread, not unwritten. */
    dprintf(fds[1], "%s\n", token);
    if (here)
        setenv(LKS__LIFELINE_ENV, role, 1);
    a->pid = fork();
    if (a->pid == 0)
        become_agent(fds[0], mask, ignores_pipe, here ? words : remote);
    unsetenv(LKS__LIFELINE_ENV);
    lks__sys_close(fds[0]);
    free(words);
    if (a->pid < 0) {
        lks__sys_close(fds[1]);
        return lks__fail(LKS_ERR_NOMEM, "can't start the command for host %s: %s", o->hosts[i].name,
                         lks__sys_start_reason(errno));
    }
    a->running = true;
    a->lifeline = fds[1];
    return LKS_OK;
}

/* --- waiting ------------------------------------------------------------------------------ */

static void cut(struct agent *a)
{
    lks__sys_close(a->lifeline);
    a->lifeline = -1;
}

/* True if stderr has a reader. A missing reader must not block us. */
static bool can_say(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, 1000) != 0;
}

/* The i-th command's name in messages: "ssh for host b". */
static const char *name_of(const lks__hosts_options *o, int i, char name[NAME_BYTES])
{
    const bool here = lks__host_is_here(o->hosts[i].name);
    const char *by = here ? "the command" : o->rsh != NULL ? o->rsh : "ssh";
    snprintf(name, NAME_BYTES, "%.*s for host %s", (int)(here ? strlen(by) : strcspn(by, " ")), by,
             o->hosts[i].name);
    return name;
}

static void say_whom(const lks__hosts_options *o, const struct agent *agents, double left)
{
    char name[NAME_BYTES], more[32] = "";
    int first = -1, others = 0;
    for (int i = 0; i < o->n; i++) {
        others += agents[i].running && first >= 0;
        first = agents[i].running && first < 0 ? i : first;
    }
    if (others > 0)
        snprintf(more, sizeof more, " and %d more", others);
    if (first >= 0 && can_say())
        fprintf(stderr, "%s: waiting up to %.0f s for the end of %s%s\n", o->self, left,
                name_of(o, first, name), more);
}

/* True if the command that just ended, the i-th, never began, or was the first to fail. Then its
 * code may be the only explanation that the user gets. */
static bool unexplained(const lks__hosts_options *o, const struct agent *agents, int i)
{
    for (int j = 0; j < o->n && !agents[i].never_began; j++)
        if (j != i && !agents[j].running && agents[j].code != 0)
            return false;
    return true;
}

static void reap(const lks__hosts_options *o, struct agent *agents, bool asked, int *n_running)
{
    int status, unread = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < o->n; i++) {
            struct agent *a = &agents[i];
            if (!a->running || a->pid != pid)
                continue;
            a->running = false;
            a->never_began =
                a->lifeline >= 0 && ioctl(a->lifeline, FIONREAD, &unread) == 0 && unread > 0;
            a->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            /* Codes of ssh and of a shell are always named. A launcher here prints its own reason
             * unless it is killed. */
            const bool here = lks__host_is_here(o->hosts[i].name);
            const bool named =
                a->code == 255 || a->code == 127 || a->code == 126 ||
                ((!here || WIFSIGNALED(status)) && !asked && unexplained(o, agents, i));
            cut(a);
            --*n_running;
            const bool silent = a->code == 0;
            char name[NAME_BYTES];
            a->code = silent ? 1 : a->code == LKS__LIFELINE_DONE ? 0 : a->code;
            if (silent && can_say())
                fprintf(stderr,
                        "%s: %s ended before the ranks there did: it must wait for the command "
                        "that it starts, and end with the command's exit code\n",
                        o->self, name_of(o, i, name));
            if (!silent && a->code != 0 && named && can_say())
                fprintf(stderr, "%s: %s ended with code %d\n", o->self, name_of(o, i, name),
                        a->code);
        }
}

/* Send `sig` to the commands that still run, and to the processes that they have started. */
static void end_agents(const lks__hosts_options *o, const struct agent *agents, int sig)
{
    for (int i = 0; i < o->n; i++)
        if (agents[i].running)
            kill(-agents[i].pid, sig); /* the leader of a session */
}

/* The wait for all commands. Times are of lks__sys_now(). */
struct waiting {
    const lks__hosts_options *o;
    struct agent *agents;
    int n_running;
    int asked;       /* signals to end; several within LKS__SAME_CAUSE_S count once */
    int asked_by;    /* the last one's number */
    double asked_at; /* and its time */
    double cut_at;   /* cut the lifelines then, so that the other launchers end; 0: don't */
    double end_at;   /* after the cut, send `sig` to the commands then; 0: before the cut */
    double say_at;   /* name the commands that still run then; 0: no cut is due, INFINITY: named */
    int sig;         /* SIGTERM, then SIGKILL */
};

/* Pass a signal on to all hosts. The third one also ends ranks that save, and a host that doesn't
 * answer must not delay the user's stop. */
static void pass_on(struct waiting *w, int signo)
{
    const double now = lks__sys_now();
    if (signo != SIGUSR1 && signo != SIGUSR2) {
        w->asked += now - w->asked_at >= LKS__SAME_CAUSE_S;
        w->asked_by = signo;
        w->asked_at = now;
        if (w->end_at > 0)
            w->end_at = now;
        if (w->asked > 2 && (w->cut_at == 0 || w->cut_at > now + GRACE_S))
            w->cut_at = now + GRACE_S;
    }
    for (int i = 0; i < w->o->n; i++)
        if (w->agents[i].lifeline >= 0)
            dprintf(w->agents[i].lifeline, "%d\n", signo);
}

static void read_signals(struct waiting *w, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            pass_on(w, (int)info.ssi_signo);
}

/* After a command has failed, give the others time; after a signal, they may still save. If a
 * command never began, no rank has started: end at once. */
static void allow_time(struct waiting *w)
{
    for (int i = 0; i < w->o->n && w->cut_at == 0; i++) {
        const struct agent *a = &w->agents[i];
        if (!a->running && a->code != 0)
            w->cut_at = lks__sys_now() + (w->asked > 0 ? SAVE_S : a->never_began ? 0 : GRACE_S);
    }
}

/* Once the time is over, cut the lifelines, and later end the commands. */
static void end_late(struct waiting *w)
{
    if (w->cut_at > 0 && w->say_at == 0)
        w->say_at = lks__sys_now() + PATIENCE_S;
    if (w->say_at > 0 && lks__sys_now() >= w->say_at) {
        const double by = w->end_at > 0 ? w->end_at : w->cut_at + END_S;
        say_whom(w->o, w->agents, by - lks__sys_now());
        w->say_at = INFINITY;
    }
    if (w->end_at > 0 && lks__sys_now() >= w->end_at) {
        end_agents(w->o, w->agents, w->sig);
        w->sig = SIGKILL;
        w->end_at = lks__sys_now() + END_S;
    }
    if (w->cut_at == 0 || w->end_at > 0 || lks__sys_now() < w->cut_at)
        return;
    for (int i = 0; i < w->o->n; i++) {
        w->agents[i].ended_by_us = w->agents[i].running;
        cut(&w->agents[i]);
    }
    w->end_at = lks__sys_now() + END_S;
}

static int exit_code(const struct waiting *w)
{
    int code = 0;
    for (int i = w->o->n - 1; i >= 0; i--) {
        const struct agent *a = &w->agents[i];
        if (a->code != 0 && !a->ended_by_us && (code == 0 || a->code < 126 || i == 0))
            code = a->code;
    }
    for (int i = 0; i < w->o->n && code == 0 && w->asked > 0; i++)
        if (w->agents[i].ended_by_us)
            code = 128 + w->asked_by;
    return code;
}

/* Wait for all commands, and return the exit code. `failed`: some couldn't be started, so the
 * others must end. */
static int wait_for_all(const lks__hosts_options *o, struct agent *agents, int signals, bool failed)
{
    struct waiting w = {.o = o,
                        .agents = agents,
                        .asked_at = -LKS__SAME_CAUSE_S,
                        .cut_at = failed ? lks__sys_now() : 0,
                        .sig = SIGTERM};
    for (int i = 0; i < o->n; i++)
        w.n_running += agents[i].running;
    while (w.n_running > 0) {
        struct pollfd p = {.fd = signals, .events = POLLIN};
        poll(&p, 1, w.cut_at > 0 ? 100 : -1);
        read_signals(&w, signals);
        reap(o, agents, w.asked > 0, &w.n_running);
        allow_time(&w);
        end_late(&w);
    }
    return exit_code(&w);
}

lks_status lks__hosts_launch(const lks__hosts_options *o, int *exit_code_p)
{
    static const int passed_on[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    char token[LKS__TOKEN_BYTES];
    sigset_t mask, before;
    struct agent *agents = calloc((size_t)o->n, sizeof *agents);
    LKS__MEMORY(agents, "for %d hosts", o->n);
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++)
        if (passed_on[i] == SIGCHLD || !lks__signal_is_ignored(passed_on[i]))
            sigaddset(&mask, passed_on[i]);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &mask, &before);
    lks__early_subtract(&before);
    bool ignores_pipe = lks__signal_is_ignored(SIGPIPE);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    lks_status st =
        signals >= 0 ? lks__token_new(token)
                     : lks__fail(LKS_ERR_IO, "can't watch for signals: %s", lks__sys_reason(errno));
    for (int i = 0; i < o->n; i++)
        agents[i].lifeline = -1;
    for (int i = 0; i < o->n && st == LKS_OK; i++)
        st = start_agent(o, i, token, &before, ignores_pipe, &agents[i]);
    for (int i = 0; i < o->n && st != LKS_OK; i++)
        cut(&agents[i]);
    int code = wait_for_all(o, agents, signals, st != LKS_OK);
    if (st == LKS_OK)
        *exit_code_p = code;
    lks__sys_close(signals);
    lks__late_add(&mask, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(agents);
    return st;
}

/* --- the launcher's end ------------------------------------------------------------------- */

lks_status lks__lifeline_token(char *token, int bytes)
{
    int n = 0;
    for (char c = 0; n < bytes - 1; token[n++] = c) { /* read only this line */
        ssize_t got;
        do
            got = read(STDIN_FILENO, &c, 1);
        while (got < 0 && errno == EINTR);
        if (got != 1)
            return lks__fail(LKS_ERR_PEER, "the launching host is gone");
        if (c == '\n')
            break;
    }
    token[n] = '\0';
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    return LKS_OK;
}

int lks__lifeline_code(int code)
{
    return code == 0 ? LKS__LIFELINE_DONE : code == LKS__LIFELINE_DONE ? 1 : code;
}

int lks__lifeline_look(void)
{
    static char line[16];
    static size_t n;
    for (char c;;) {
        ssize_t got = read(STDIN_FILENO, &c, 1);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (got != 1)
            return -1;
        if (c != '\n' && n < sizeof line - 1) {
            line[n++] = c;
            continue;
        }
        line[n] = '\0';
        n = 0;
        int sig = atoi(line);
        if (sig > 0 && sig < 32)
            return sig;
    }
}
