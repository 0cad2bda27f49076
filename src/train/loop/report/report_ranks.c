/* train/loop/report/report_ranks.c - OUT/ranks.jsonl: each rank's compute time, waiting time and
 * memory. They aren't in metrics.jsonl, whose lines are the same on any number of ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "base/system/sys.h"
#include "train/loop/report/report.h"

enum { LINE_BYTES = 96 << 10 }; /* enough for 1,024 ranks */

void lks__report_ranks_add(lks__report *r, const lks__step_result *step)
{
    if (step->outcome != LKS__STEP_DONE)
        return;
    r->steps_s += step->seconds;
    r->wait_s += step->exposed_s;
    r->steps++;
}

/* Write milliseconds per step. */
static void write_times(lks__jsonw *w, const char *name, const lks__rank_tally *all, int W,
                        bool waits)
{
    lks__jsonw_array(w, name);
    for (int i = 0; i < W; i++)
        lks__jsonw_float(w, NULL,
                         (waits ? all[i].wait_s : all[i].compute_s) * 1e3 / (double)all[i].steps);
    lks__jsonw_end(w);
}

static lks_status write_line(const lks__trainer *t, const lks__rank_tally *all, char *line)
{
    const int W = t->ses.world.world_size;
    char path[LKS__SETTING_STR + 16];
    size_t bytes;
    lks__jsonw w;
    lks__jsonw_open(&w, line, LINE_BYTES);
    lks__jsonw_object(&w, NULL);
    lks__jsonw_u64(&w, "iter", t->state.iter);
    lks__jsonw_u64(&w, "steps", all[0].steps);
    if (all[0].steps > 0) {
        write_times(&w, "compute_ms", all, W, false);
        write_times(&w, "wait_ms", all, W, true);
    }
    lks__jsonw_array(&w, "memory_bytes");
    for (int i = 0; i < W; i++)
        lks__jsonw_u64(&w, NULL, all[i].pss);
    lks__jsonw_end(&w);
    lks__jsonw_end(&w);
    LKS__TRY(lks__jsonw_close(&w, &bytes));
    snprintf(path, sizeof path, "%s/ranks.jsonl", t->run.s.out_dir);
    int fd;
    LKS__TRY(lks__sys_append(path, &fd));
    lks_status st =
        lks__sys_write_all(fd, line, bytes) == 0 ? LKS_OK : lks__sys_fail("can't write", path);
    if (lks__sys_close(fd) != 0 && st == LKS_OK)
        st = lks__sys_fail("can't write", path);
    return st;
}

static lks_status write_ranks(lks__report *r, const lks__trainer *t, const lks__rank_tally *all)
{
    uint64_t pss = 0;
    LKS__TRY(lks__metrics_check(r->metrics));
    char *line = malloc(LINE_BYTES);
    lks_status st =
        line == NULL ? lks__no_memory("for a line about the ranks") : write_line(t, all, line);
    free(line);
    for (int i = 0; i < t->ses.world.world_size; i++)
        pss += all[i].pss;
    return st == LKS_OK ? lks__report_events_memory(r, &t->state, "memory/all_ranks", pss) : st;
}

lks_status lks__report_ranks(lks__report *r, const lks__trainer *t, lks__rank_tally **all_p)
{
    const lks__rank_tally mine = {
        .micro_batches = t->work.micro_batches,
        .pss = lks__sys_proc_bytes("/proc/self/smaps_rollup", "Pss"),
        .compute_s = r->steps_s - r->wait_s,
        .wait_s = r->wait_s,
        .steps = r->steps,
    };
    lks_status st = LKS_OK;
    lks__rank_tally *all = lks__session_gather(&t->ses, &mine, sizeof mine, &st);
    if (st == LKS_OK && r->metrics != NULL)
        st = write_ranks(r, t, all);
    r->steps_s = r->wait_s = 0.0;
    r->steps = 0;
    if (st != LKS_OK || all_p == NULL)
        free(all);
    else
        *all_p = all;
    return st;
}
