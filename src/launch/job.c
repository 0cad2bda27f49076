/* A launch's identity, store, messages and signals. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "comm/store/address.h"
#include "launch/job.h"
#include "launch/nodes/hosts.h"

/* Seconds. */
static const double READER_S = 5.0; /* for a slow reader, when ranks must end */
static const double INSIST_S = 0.2; /* ... if the user sends another signal */

enum { MESSAGE_BYTES = 16 << 10 };

void lks__show(const struct lks__job *job, const char *text)
{
    if (job->output != NULL)
        lks__output_drain(job->output, false);
    if (job->consoles != NULL && *text != '\0')
        lks__consoles_say(job->consoles, text);
}

static void say(const struct lks__job *job, const char *fmt, va_list ap)
{
    char text[MESSAGE_BYTES];
    int n = snprintf(text, sizeof text, "%s: ", job->options->self);
    vsnprintf(text + n, sizeof text - (size_t)n - 1, fmt, ap);
    strcat(text, "\n");
    lks__show(job, text);
}

void lks__say(const struct lks__job *job, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!job->options->quiet)
        say(job, fmt, ap);
    va_end(ap);
}

void lks__say_here(const struct lks__job *job, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(job, fmt, ap);
    va_end(ap);
}

void lks__hurry(const struct lks__job *job)
{
    double third = job->options->shutdown_timeout_s / 3;
    lks__consoles_hurry(job->consoles, third < READER_S ? third : READER_S);
}

void lks__hurry_most(const struct lks__job *job)
{
    lks__consoles_hurry(job->consoles, INSIST_S);
}

int lks__lifeline_fd(const struct lks__job *job)
{
    return job->options->lifeline && !job->cut ? STDIN_FILENO : -1;
}

int lks__lifeline_signal(struct lks__job *job)
{
    int sig = lks__lifeline_fd(job) >= 0 ? lks__lifeline_look() : 0;
    job->cut |= sig < 0;
    return sig < 0 ? SIGHUP : sig;
}

int lks__job_next_signal(const struct lks__job *job)
{
    struct signalfd_siginfo info;
    if (read(job->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return 0;
    return lks__front_is_gone() ? LKS__FRONT_GONE : (int)info.ssi_signo;
}

int lks__job_pending_signal(struct lks__job *job)
{
    for (int sig; (sig = lks__job_next_signal(job)) != 0;) {
        if (sig == LKS__FRONT_GONE)
            _exit(128 + SIGKILL);
        if (sig == SIGTSTP)
            raise(SIGSTOP);
        else if (sig == SIGUSR1 || sig == SIGUSR2)
            job->early |= 1u << sig; /* for ranks that don't run yet */
        else if (sig != SIGCHLD)
            return sig;
    }
    const int sig = lks__lifeline_signal(job);
    if (sig != SIGUSR1 && sig != SIGUSR2)
        return sig;
    job->early |= 1u << sig;
    return 0;
}

lks_status lks__job_open(struct lks__job *job)
{
    const lks__launch_options *o = job->options;
    char name[sizeof job->host] = "localhost";
    gethostname(name, sizeof name - 1);
    lks__escape(job->host, sizeof job->host, name, strlen(name));
    LKS__TRY(lks__token_new(job->id));
    lks__address_bare(job->master_addr, sizeof job->master_addr,
                      o->endpoint_host != NULL ? o->endpoint_host : "127.0.0.1");
    job->given_id = o->run_id != NULL ? o->run_id : "none";
    job->role = o->role != NULL ? o->role : "default";
    bool several = o->max_nodes > 1;
    snprintf(job->run_id, sizeof job->run_id, "%s",
             o->run_id != NULL || several ? job->given_id : job->id);
    LKS__TRY(lks__files_open(job));
    if (several) {
        snprintf(job->token, sizeof job->token, "%s", o->token);
        snprintf(job->store_host, sizeof job->store_host, "%s", job->master_addr);
        job->store_port = o->endpoint_port;
        return LKS_OK;
    }
    LKS__TRY(lks__token_new(job->token));
    lks__address_bare(job->local_address, sizeof job->local_address,
                      o->local_addr != NULL ? o->local_addr : "127.0.0.1");
    snprintf(job->store_host, sizeof job->store_host, "127.0.0.1");
    LKS__TRY(lks__store_serve(job->store_host, 0, job->token, &job->store));
    job->store_port = lks__store_port(job->store);
    return LKS_OK;
}
