/* train/loop/report/report_recheck.c - reports a host that computed wrongly (--recheck). */
#include <inttypes.h>

#include "base/number/units.h"
#include "train/checks/recheck.h"
#include "train/loop/report/report.h"

static void write_hash(lks__jsonw *w, const char *key, uint64_t hash)
{
    lks__jsonw_str(w, key, lks__hex(hash));
}

lks_status lks__report_recheck(lks__report *r, const lks__checks *checks,
                               const lks__step_result *step)
{
    const struct lks__recheck *c = checks->recheck;
    char text[LKS__RECHECK_TEXT];
    lks__jsonw *w = lks__metrics_begin(r->metrics, "recheck");
    lks__jsonw_u64(w, "iter", step->iter);
    lks__jsonw_int(w, "virtual_rank", c->v);
    lks__jsonw_int(w, "rank", c->owner);
    write_hash(w, "hash", c->owner_hash);
    lks__jsonw_int(w, "checked_by", c->checker);
    write_hash(w, "checked_hash", c->checker_hash);
    if (c->agree > 0)
        write_hash(w, "right", c->right);
    lks__jsonw_array(w, "wrong");
    for (const lks__recheck_host *h = c->hosts; h < c->hosts + c->n_hosts; h++) {
        if (!h->wrong)
            continue;
        lks__jsonw_object(w, NULL);
        lks__jsonw_str(w, "host", h->name);
        lks__jsonw_int(w, "first_rank", h->first_rank);
        lks__jsonw_int(w, "times", h->times);
        lks__jsonw_end(w);
    }
    lks__jsonw_end(w);
    lks__log_message(&r->log, "iteration %" PRIu64 ": %s; the step is made again", step->iter,
                     lks__recheck_text(checks, text));
    return lks__metrics_end(r->metrics);
}
