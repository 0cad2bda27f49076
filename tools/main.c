/* lockstep: finds the command and calls its tool_NAME(). */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "base/text/nearest.h"
#include "settings/settings_table.h"
#include "settings/synonyms.h"
#include "table.h"
#include "tool.h"

static const struct {
    const char *name, *help;
    tool_main *main;
    int flags;
} commands[] = {
#define X(name, flags, help) {#name, help, tool_##name, flags},
    TOOL_COMMANDS(X)
#undef X
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const struct {
    const char *code, *meaning;
} exits[] = {
    {"0", "success"},
    {"1", "failure; a message on stderr gives the reason and a remedy"},
    {"2", "a command or setting is unknown, mistyped or out of range; nothing was done"},
    {"3", "`lockstep diff` found a difference, or `lockstep audit` a false claim"},
    {"4", "`lockstep audit` can't execute the steps here"},
    {"126", "`lockstep run` can't execute the program"},
    {"127", "`lockstep run` can't find the program"},
    {"128+n", "ended by signal n, also if the run has saved a checkpoint first"},
};

enum { N_EXITS = sizeof exits / sizeof exits[0] };

static void print_help(FILE *out)
{
    fputs("Usage: lockstep COMMAND [ARGUMENTS]\n"
          "\n"
          "Trains GPT language models on one or many processes (ranks) and hosts. A run has\n"
          "the same bytes on any number of ranks and threads.\n"
          "\n"
          "Commands\n",
          out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-8s%s\n", commands[i].name, commands[i].help);
    fputs("\n"
          "Try it: train on a text, then let the model write.\n"
          "\n"
          "  lockstep train my.txt\n"
          "  lockstep sample out/my\n"
          "\n"
          "`lockstep COMMAND --help` lists a command's arguments and common settings,\n"
          "`lockstep COMMAND --help=all` all of them, and `lockstep help SETTING` explains\n"
          "a setting. `lockstep --version` (-V) prints the version. Write settings as\n"
          "--key=value or --key value, with - or _ in the key. --bias is short for\n"
          "--bias=true. The command line wins over config files.\n"
          "\n"
          "Exit codes\n",
          out);
    for (int i = 0; i < N_EXITS; i++)
        fprintf(out, "  %-8s%s\n", exits[i].code, exits[i].meaning);
}

static int print_table(void)
{
    table_asked = true;
    printf("version\t%s\n", LKS_VERSION_TEXT);
    for (int i = 0; i < N_COMMANDS; i++)
        printf("command\t%s\t%s\n", commands[i].name, commands[i].help);
    for (int i = 0; i < N_EXITS; i++)
        printf("exit\t%s\t%s\n", exits[i].code, exits[i].meaning);
    for (int i = 0; i < N_COMMANDS; i++)
        commands[i].main(2, (char *[]){(char *)commands[i].name, "--help", NULL});
    table_settings("settings", ~0u);
    return TOOL_OK;
}

/* Other programs' words for commands. */
static const struct {
    const char *word, *ours;
} synonyms[] = {
    {"prepare", "prep"}, {"continue", "resume"}, {"generate", "sample"},
    {"chat", "sample"},  {"evaluate", "eval"},
};

/* The command that `word` may stand for, or NULL. */
static const char *suggest(const char *word, const char *const names[N_COMMANDS])
{
    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++)
        if (strcmp(word, synonyms[i].word) == 0)
            return synonyms[i].ours;
    return lks__nearest(word, names, N_COMMANDS);
}

/* Words in the first lines of a run that are neither commands nor settings. */
static const struct {
    const char *word, *meaning;
} terms[] = {
    {"mfu", "model FLOPs utilization: the share of `peak` that training uses. Its operations per\n"
            "second, as nanoGPT counts them, are divided by the peak. A higher mfu is better."},
    {"peak",
     "the operations per second, in GFLOP/s, that matrix products of this machine's ranks\n"
     "reach at most. lockstep measures it on a CPU when a run begins. mfu is relative to it."},
};

/* `lockstep help train`, `lockstep help n_layer`, `lockstep help mfu`. */
static int help(const char *word)
{
    const char *names[N_COMMANDS + LKS__N_SETTINGS];
    word += strspn(word, "-");
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(word, names[i]) == 0)
            return commands[i].main(2, (char *[]){(char *)names[i], "--help", NULL});
    }
    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++)
        if (strcmp(word, terms[i].word) == 0) {
            printf("%s: %s\n", word, terms[i].meaning);
            return TOOL_OK;
        }
    char lower[LKS__SETTING_KEY]; /* accept NUM_LAYERS, as parameter-golf's script writes it */
    size_t n = 0;
    for (; word[n] != '\0' && n < sizeof lower - 1 && !islower((unsigned char)word[n]); n++)
        lower[n] = (char)tolower((unsigned char)word[n]);
    lower[n] = '\0';
    const char *key = word[n] == '\0' ? lower : word;
    int n_found = 0;
    for (int i = 0; i < LKS__N_SETTINGS; i++) /* "from" is one of two commands */
        if (lks__setting_find_for(lks__setting_table[i].commands, key) == i) {
            fputs(n_found++ > 0 ? "\n" : "", stdout);
            lks__setting_help(stdout, i);
        }
    if (n_found > 0)
        return TOOL_OK;
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        names[N_COMMANDS + i] = lks__setting_name(i);
    const char *shown = lks__shown(word, 80);
    char suggestion[LKS__SUGGESTION];
    const char *near = lks__nearest(word, names, N_COMMANDS + LKS__N_SETTINGS);
    if (near == NULL)
        near = lks__suggest_setting(word, ~0u, suggestion);
    if (near)
        fprintf(stderr, "lockstep: \"%s\" is neither a command nor a setting; did you mean %s?\n",
                shown, near);
    else
        fprintf(stderr,
                "lockstep: \"%s\" is neither a command nor a setting; `lockstep --help` lists "
                "commands, `lockstep COMMAND --help=all` lists settings\n",
                shown);
    return TOOL_USAGE;
}

/* A launcher needs a few descriptors per rank and node, and many systems allow 1,024 unless asked
 * for more. The limit stays finite because some programs close every possible descriptor. */
static void raise_descriptors(void)
{
    enum { ENOUGH = 65536 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= ENOUGH)
        return;
    limit.rlim_cur = limit.rlim_max < ENOUGH ? limit.rlim_max : ENOUGH;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* With less, ranks and their threads end by SIGSEGV, without a message. */
static bool has_stack(void)
{
    enum { LEAST = 256 << 10 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST)
        return true;
    fprintf(stderr,
            "lockstep: the limit on the stack is %llu KiB: at least %d are needed; raise "
            "`ulimit -s`\n",
            (unsigned long long)limit.rlim_cur >> 10, LEAST >> 10);
    return false;
}

static int dispatch(int argc, char **argv)
{
    const char *names[N_COMMANDS], *word = argc > 1 ? argv[1] : NULL;
    if (!word) {
        print_help(stderr);
        return TOOL_USAGE;
    }
    bool asks = strcmp(word, "help") == 0;
    if (asks && argc == 3 && strcmp(argv[2], "--table") == 0)
        return print_table();
    if (asks && argc > 2) {
        int code = TOOL_OK;
        for (int i = 2; i < argc && code == TOOL_OK; i++)
            code = help(argv[i]);
        return code;
    }
    if (asks || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_help(stdout);
        return TOOL_OK;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("lockstep %s\n", LKS_VERSION_TEXT);
        return TOOL_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(word, names[i]) != 0)
            continue;
        /* If the reader of a pipe ends, a write must fail instead of killing a run in mid-step. */
        if ((commands[i].flags & TOOL_HANDLES) != 0)
            lks__early_hold();
        if ((commands[i].flags & TOOL_LAUNCHES) == 0)
            signal(SIGPIPE, SIG_IGN);
        return commands[i].main(argc - 1, argv + 1);
    }
    const char *shown = lks__shown(word, 80);
    const char *near = suggest(word, names);
    if (near)
        fprintf(stderr, "lockstep: there is no command \"%s\"; did you mean %s?\n", shown, near);
    else
        fprintf(stderr, "lockstep: there is no command \"%s\"; `lockstep --help` lists all\n",
                shown);
    return TOOL_USAGE;
}

/* If a standard stream is closed, the next file opened would get its number, and messages would be
 * written into a checkpoint. Open /dev/null for it, in the wrong mode, so that using it fails. */
static void keep_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

static void end(int sig)
{
    _exit(128 + sig);
}

/* The first process of a container ignores signals without a handler: Ctrl-C wouldn't end it. */
static void end_on_signals(void)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    for (size_t i = 0; getpid() == 1 && i < sizeof ends / sizeof ends[0]; i++)
        if (!lks__signal_is_ignored(ends[i]))
            signal(ends[i], end);
}

/* Ranks are started through /proc/self/exe: without this, ps and top would show them as "exe". */
static void show_name(const char *path)
{
    if (path != NULL && path[0] != '\0')
        prctl(PR_SET_NAME, lks__sys_name(path));
}

int main(int argc, char **argv)
{
    show_name(argv[0]);
    keep_standard_streams();
    end_on_signals();
    raise_descriptors();
    int code = has_stack() ? dispatch(argc, argv) : TOOL_FAILED;
    /* A full disk shows only when the output is written. */
    lks_status st = tool_flush();
    const bool reader_left = ferror(stdout) && tool_reader_left();
    if (fclose(stdout) != 0 && st == LKS_OK)
        st = lks__fail(LKS_ERR_IO, "writing to the standard output failed: %s", strerror(errno));
    if (reader_left && code == TOOL_OK) {
        code = TOOL_SIGNAL + SIGPIPE; /* as `lockstep report | head -1` ends other programs */
    } else if (st != LKS_OK && code == TOOL_OK) {
        fprintf(stderr, "lockstep: %s\n", lks_last_error());
        code = TOOL_FAILED;
    }
    return code;
}
