#include "comm/liveness.h"

#include <stdio.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/hier/hier.h"
#include "comm/shm/host.h"

/* NULL if the group isn't open in this process. Call it with the lock in functions for any thread,
 * because the program may close the group meanwhile. */
static lks_comm *host_of(const lks_comm *comm)
{
    return comm != NULL && !lks__comm_is_inherited(comm) ? comm->host : NULL;
}

/* True while the thread that tells the other hosts of a failure hasn't done so. */
static bool is_telling(const lks_comm *comm)
{
    lks__comm_lock();
    const bool telling = host_of(comm) != NULL && lks__hier_serves(comm);
    lks__comm_unlock();
    return telling;
}

void lks_comm_abort(lks_comm *comm, const char *why)
{
    static const double TELL_S = 0.5;
    LKS__FLOAT_MODE();
    lks__comm_lock();
    if (host_of(comm) != NULL)
        lks__shm_rank_failed(comm->host, why != NULL ? why : "no reason was given");
    lks__comm_unlock();
    for (double end = lks__sys_now() + TELL_S; is_telling(comm) && lks__sys_now() < end;)
        usleep(1000); /* the process may end next */
}

lks_status lks__comm_fail_call(lks_comm *comm, lks_status st)
{
    lks_comm_abort(comm, lks_last_error());
    return st;
}

lks_status lks__comm_fail_alone(lks_comm *comm, lks_status st)
{
    return st == LKS_OK || st == LKS_ERR_ARG ? st : lks__comm_fail_call(comm, st);
}

lks_status lks__comm_not_opened(lks_comm *comm, lks_status st)
{
    char text[64];
    lks_comm *host = host_of(comm);
    lks__segment *segment = lks__shm_segment(host);
    const bool recorded =
        segment != NULL && lks__segment_aborted(segment) && !lks__segment_given_up(segment);
    /* A signal to stop may reach the others later. This failure tells them to stop, too. */
    lks__comm_ask_stop(comm, lks__sys_give_up_signal(lks__comm_asked_stop(comm)));
    if (st == LKS_ERR_PEER && !recorded && lks__sys_give_up_signal(0) != 0)
        st = lks__fail(LKS_ERR_STOPPED, "the wait was given up");
    if (st == LKS_ERR_STOPPED && segment != NULL) {
        const int rank = host->world.rank;
        snprintf(text, sizeof text, "a signal stopped rank %d", host->first_rank + rank);
        lks__segment_abort(segment, st, rank, text);
    }
    return lks__comm_fail_call(comm, st);
}

void lks_comm_note(lks_comm *comm, uint64_t step, const char *phase)
{
    LKS__FLOAT_MODE();
    if (comm == NULL)
        return;
    comm->noted = false;
    lks__comm_note_for(comm, step, phase);
    comm->noted = true;
}

void lks__comm_note_for(lks_comm *comm, uint64_t step, const char *phase)
{
    if (comm->noted || host_of(comm) == NULL)
        return;
    comm->step = comm->host->step = step;
    comm->has_step = comm->host->has_step = true;
    lks__shm_note(comm->host, step, phase != NULL ? phase : "");
}

void lks_comm_beat(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    lks__comm_lock();
    for (const lks_comm *c = comm; c != NULL; c = c->whole)
        if (host_of(c) != NULL)
            lks__shm_beat(c->host);
    lks__comm_unlock();
}

void lks__comm_beat_whole(const lks_comm *comm)
{
    if (comm->whole != NULL)
        lks_comm_beat(comm->whole);
}

static void beat(void *comm)
{
    lks_comm_beat(comm);
}

lks__beat lks__comm_beats(lks_comm *comm)
{
    return (lks__beat){beat, comm};
}

void lks__comm_ask_stop(lks_comm *comm, int signo)
{
    if (host_of(comm) != NULL)
        lks__segment_ask_stop(lks__shm_segment(comm->host), signo);
}

int lks__comm_asked_stop(const lks_comm *comm)
{
    return host_of(comm) != NULL ? lks__segment_asked_stop(lks__shm_segment(comm->host)) : 0;
}

void lks__comm_saving(lks_comm *comm, bool saving)
{
    if (host_of(comm) != NULL)
        lks__shm_saving(comm->host, saving);
}

void lks__comm_uses(lks_comm *comm, const char *device)
{
    if (host_of(comm) != NULL)
        lks__shm_uses(comm->host, device);
}

lks_status lks__comm_among_devices(lks_comm *comm, bool waits)
{
    return host_of(comm) != NULL ? lks__shm_among_devices(comm->host, waits) : LKS_OK;
}
