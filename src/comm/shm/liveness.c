/* A rank's facts in the shared memory of its host. */
#include <stdio.h>
#include <string.h>

#include "base/system/sys.h"
#include "comm/shm/shm.h"

void lks__shm_beat(lks_comm *comm)
{
    struct lks__shm *g = comm->state;
    if (g->line != NULL) /* a thread may still beat a closed group whose handle is being reused */
        atomic_store_explicit(&g->line->beat_us, (unsigned long long)(lks__sys_now() * 1e6),
                              memory_order_relaxed);
}

void lks__shm_beat_all(struct lks__shm *g)
{
    lks__shm_beat(g->comm);
    lks__comm_beat_whole(g->comm);
}

/* Write at most `bytes` - 1 bytes of the text, followed by 0 bytes. */
static void write_text(atomic_ullong *words, size_t bytes, const char *text)
{
    const size_t n = strnlen(text, bytes - 1);
    for (size_t i = 0; i < bytes / 8; i++) {
        unsigned long long word = 0;
        if (i * 8 < n)
            memcpy(&word, text + i * 8, n - i * 8 < 8 ? n - i * 8 : 8);
        atomic_store_explicit(&words[i], word, memory_order_relaxed);
    }
}

void lks__shm_note(lks_comm *comm, uint64_t step, const char *phase)
{
    struct lks__shm *g = comm->state;
    atomic_store_explicit(&g->line->step, step, memory_order_relaxed);
    write_text(g->line->phase, LKS__SHM_PHASE, phase);
    lks__shm_beat_all(g);
}

void lks__shm_uses(lks_comm *comm, const char *device)
{
    struct lks__shm *g = comm->state;
    write_text(g->line->device, LKS__SHM_DEVICE, device);
}

void lks__shm_saving(lks_comm *comm, bool saves)
{
    struct lks__shm *g = comm->state;
    atomic_store(&g->line->saving, saves);
}

void lks__shm_rank_failed(lks_comm *comm, const char *why)
{
    struct lks__shm *g = comm->state;
    lks__rank_status s;
    char where[96] = "", text[1024];
    lks__segment_status(g->segment, g->rank, &s);
    if (s.phase[0] != '\0' || s.step > 0)
        snprintf(where, sizeof where, " at step %llu%s%s", (unsigned long long)s.step,
                 s.phase[0] != '\0' ? ", phase " : "", s.phase);
    snprintf(text, sizeof text, "rank %d failed%s: %s", comm->first_rank + g->rank, where, why);
    const bool lasting = lks__sys_is_lasting(why);
    if (lks__segment_abort(g->segment, LKS_ERR_PEER, g->rank, text) && lasting)
        lks__segment_set_lasting(g->segment);
}
