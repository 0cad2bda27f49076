#include "train/audit/audit.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/number/rng.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/checkpoint/folder.h"
#include "report/diff/history.h"
#include "train/audit/points.h"
#include "train/audit/seal.h"
#include "train/audit/settings.h"
#include "train/audit/steps.h"
#include "train/audit/trail.h"

/* Steps [from, end). */
struct part {
    uint64_t from, end;
};

struct audit {
    const lks__settings *s;
    FILE *out;
    lks__history record;
    lks__replay replay;
    uint64_t first, end; /* the record's steps */
    lks__points points;
    bool impossible; /* a part couldn't be executed */
    size_t executed; /* parts that were */
};

/* --- one part --------------------------------------------------------------------------------- */

/* Seconds that these steps took in the run. */
static double recorded_seconds(const lks__claims *c, uint64_t start, uint64_t end)
{
    double ms = 0.0;
    for (size_t i = 0; i < c->n_steps; i++)
        if (c->steps[i].iter >= start && c->steps[i].iter < end && isfinite(c->steps[i].ms))
            ms += c->steps[i].ms;
    return ms / 1e3;
}

/* "3 steps" */
static void print_count(FILE *out, const char *before, uint64_t n, const char *name)
{
    fprintf(out, "%s%" PRIu64 " %s%s", before, n, name, n == 1 ? "" : "s");
}

/* "3 steps, ", unless there is none. */
static void print_some(FILE *out, uint64_t n, const char *name)
{
    if (n == 0)
        return;
    print_count(out, "", n, name);
    fputs(", ", out);
}

/* Steps [start, end) were made on so many ranks: "4 ranks", or "1 to 4 ranks" with resumes. */
static void print_ranks(const struct audit *a, uint64_t start, uint64_t end)
{
    json_int_t least = 0, most = 0;
    lks__each(host, a->record.claims.starts) {
        const json_int_t ranks = lks__json_int(host, "world_size");
        const uint64_t first = lks__claims_resumed(host);
        if (first >= end)
            continue;
        least = first <= start || ranks < least ? ranks : least;
        most = first <= start || ranks > most ? ranks : most;
    }
    if (least < most)
        fprintf(a->out, "%" JSON_INTEGER_FORMAT " to ", least);
    print_count(a->out, "", (uint64_t)most, "rank");
}

static void print_start(const struct audit *a, const struct part *p, uint64_t start)
{
    char from[LKS__POINT_TEXT];
    fprintf(a->out, "%" PRIu64 "-%" PRIu64 "  from %s", p->from, p->end,
            lks__point_text(start, from));
    print_count(a->out, ", ", p->end - start, "step");
    fprintf(a->out, " to compute; the run took %.1f s on ",
            recorded_seconds(&a->record.claims, start, p->end));
    print_ranks(a, start, p->end);
    fputs(a->replay.evaluates ? ", without evaluations\n" : "\n", a->out);
    fflush(a->out);
}

static uint64_t compared(const lks__replay *r)
{
    return r->steps + r->gradients + r->saves + r->evals;
}

static void print_result(const struct audit *a, const lks__replay *before, lks_status st,
                         double seconds)
{
    const lks__replay *r = &a->replay;
    const uint64_t findings = r->findings - before->findings;
    const uint64_t unhashed = r->unhashed - before->unhashed;
    if (st != LKS_OK && findings == 0 && compared(r) == compared(before))
        return;
    if (findings > 0)
        print_count(a->out, "          FALSE: ", findings, "claim");
    else
        fputs(st == LKS_OK ? "          equal" : "          equal so far", a->out);
    fputs(" (", a->out);
    print_some(a->out, r->steps - before->steps, "step");
    print_some(a->out, r->gradients - before->gradients, "gradient");
    print_some(a->out, r->saves - before->saves, "checkpoint");
    if (r->hashed > before->hashed)
        fprintf(a->out, "%" PRIu64 " by hash only, ", r->hashed - before->hashed);
    print_some(a->out, r->evals - before->evals, "evaluation");
    fprintf(a->out, "%.1f s)\n", seconds);
    if (unhashed > 0) {
        print_count(a->out, "          there are no hashes of the gradients of ", unhashed, "step");
        fprintf(a->out, ", the first is step %" PRIu64 "\n", r->first_unhashed);
    }
}

static lks_status audit_part(struct audit *a, const struct part *p)
{
    const lks__replay before = a->replay;
    const double began = lks__sys_now();
    lks__replay *r = &a->replay;
    uint64_t start;
    r->first_unhashed = UINT64_MAX;
    lks_status st = lks__points_before(&a->points, p->from, &start);
    if (st == LKS_OK) {
        print_start(a, p, start);
        st = lks__replay_steps(r, start, p->end);
    } else {
        fprintf(a->out, "%" PRIu64 "-%" PRIu64 "\n", p->from, p->end);
    }
    if (st == LKS_ERR_NOMEM)
        return st;
    if (st != LKS_OK) {
        a->impossible = true;
        fprintf(a->out, "          not possible here: %s\n", lks_last_error());
    }
    a->executed += st == LKS_OK;
    print_result(a, &before, st, lks__sys_now() - began);
    return LKS_OK;
}

/* Audit a part in pieces: one ends where a resume changed what only set-up reads. */
static lks_status audit_pieces(struct audit *a, const struct part *p)
{
    uint64_t from = p->from;
    for (size_t i = 0; i < a->points.n; i++) {
        const uint64_t at = a->points.at[i];
        if (at <= from || at >= p->end || lks__audit_reopens(&a->record.claims, at) == NULL)
            continue;
        LKS__TRY(audit_part(a, &(struct part){from, at}));
        from = at;
    }
    return audit_part(a, &(struct part){from, p->end});
}

/* --- a sample --------------------------------------------------------------------------------- */

static lks_status read_draw(const char *text, uint64_t *draw_p)
{
    if (text[0] == '\0') {
        if (getrandom(draw_p, sizeof *draw_p, 0) != sizeof *draw_p)
            return lks__fail(LKS_ERR_IO, "the system gives no random numbers");
        return LKS_OK;
    }
    *draw_p = strtoull(text, NULL, 16);
    if (strlen(text) > 16 || strspn(text, "0123456789abcdefABCDEF") != strlen(text))
        return lks__fail(LKS_ERR_CONFIG, "draw must be up to 16 hexadecimal digits");
    return LKS_OK;
}

/* Put n of all segments, drawn by `draw`, at the beginning of order[n_points]. */
static void shuffle(size_t *order, size_t n_all, size_t n, uint64_t draw)
{
    for (size_t i = 0; i < n_all; i++)
        order[i] = i;
    for (size_t i = 0; i < n; i++) {
        const uint32_t counter[4] = {(uint32_t)i};
        uint32_t words[4];
        lks__philox4x32(lks__philox_key_of(draw), counter, words);
        const size_t other = i + ((size_t)words[0] << 32 | words[1]) % (n_all - i);
        const size_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

/* The chance that n of n_all segments, drawn at random, contain none of `k` false ones. */
static double passes(size_t n_all, size_t n, size_t k)
{
    double p = 1.0;
    for (size_t i = 0; i < n; i++)
        p *= n_all - i > k ? (double)(n_all - i - k) / (double)(n_all - i) : 0.0;
    return p;
}

static int by_number(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Steps before `end` can't be computed, if there are any. */
static bool lacks_start(struct audit *a, uint64_t end)
{
    if (end <= a->first)
        return false;
    a->impossible = true;
    fprintf(a->out,
            "%" PRIu64 "-%" PRIu64 "  not compared, because there is no checkpoint before\n",
            a->first, end);
    return true;
}

static lks_status audit_sample(struct audit *a)
{
    const size_t n_all = a->points.n, asked = (size_t)a->s->sample;
    const size_t n = asked < n_all ? asked : n_all;
    uint64_t draw;
    LKS__TRY(read_draw(a->s->draw, &draw));
    size_t *order = malloc((n_all + 1) * sizeof *order);
    LKS__MEMORY(order, "for a sample");
    shuffle(order, n_all, n, draw);
    qsort(order, n, sizeof *order, by_number);
    fprintf(a->out,
            "drawn     %zu of %zu segments between checkpoints; --draw=%" PRIx64
            " draws the same ones\n",
            n, n_all, draw);
    if (n_all == 0) {
        a->impossible = true;
        fputs("          not possible here: the run's first weights aren't in its folder, and "
              "there is no checkpoint before its end\n",
              a->out);
    }
    const size_t n_false = n_all + (n_all > 0 && lacks_start(a, a->points.at[0]));
    lks_status st = LKS_OK;
    for (size_t i = 0; i < n && st == LKS_OK; i++) {
        const size_t k = order[i];
        const struct part p = {a->points.at[k], k + 1 < n_all ? a->points.at[k + 1] : a->end};
        st = audit_part(a, &p);
    }
    free(order);
    if (st == LKS_OK && a->executed > 0)
        fprintf(a->out,
                "          a record with one false segment passes such a sample in %.3g %% of all "
                "draws, one with three in %.3g %%\n",
                100 * passes(n_false, a->executed, 1), 100 * passes(n_false, a->executed, 3));
    return st;
}

/* --- the whole -------------------------------------------------------------------------------- */

static bool given(const struct audit *a, int setting)
{
    return a->s->from[setting] != LKS__FROM_DEFAULT;
}

/* `after`: 0 for the number of a step, 1 for the number after a step. */
static lks_status outside(const struct audit *a, const char *name, uint64_t value, uint64_t after)
{
    return lks__fail(LKS_ERR_CONFIG,
                     "%s=%" PRIu64 ", but the record has steps %" PRIu64 " to %" PRIu64
                     ": give %" PRIu64 " to %" PRIu64,
                     name, value, a->first, a->end - 1, a->first + after, a->end - 1 + after);
}

/* The part that the settings ask for, without a sample. */
static lks_status choose_part(const struct audit *a, struct part *p)
{
    *p = (struct part){a->first, a->end};
    if (given(a, LKS__SETTING_step)) {
        p->from = (uint64_t)a->s->step;
        p->end = p->from + 1;
    }
    if (given(a, LKS__SETTING_from_step))
        p->from = (uint64_t)a->s->from_step;
    else if (!given(a, LKS__SETTING_step) && !lks__points_seed(&a->record.claims) &&
             a->points.n > 0)
        p->from = a->points.at[0];
    if (a->s->to_step > 0)
        p->end = (uint64_t)a->s->to_step;
    const json_int_t V =
        json_integer_value(lks__claims_setting(&a->record.claims, "virtual_ranks", p->from + 1));
    if (p->from < a->first || p->from >= a->end)
        return outside(a, given(a, LKS__SETTING_step) ? "step" : "from", p->from, 0);
    if (p->end > a->end)
        return outside(a, "to", p->end, 1);
    if (p->from >= p->end)
        return lks__fail(LKS_ERR_CONFIG,
                         "from=%" PRIu64 " isn't below to=%" PRIu64 ", before which an audit ends",
                         p->from, p->end);
    if (V > 0 && a->replay.leaf >= V)
        return lks__fail(LKS_ERR_CONFIG,
                         "leaf=%d, but step %" PRIu64 " has %" JSON_INTEGER_FORMAT
                         " virtual ranks: give 0 to %" JSON_INTEGER_FORMAT,
                         a->replay.leaf, p->from, V, V - 1);
    return LKS_OK;
}

static lks_status check_settings(const struct audit *a)
{
    const bool step = given(a, LKS__SETTING_step), sample = a->s->sample > 0;
    const bool range = given(a, LKS__SETTING_from_step) || given(a, LKS__SETTING_to_step);
    if (step + range + sample > 1)
        return lks__fail(LKS_ERR_CONFIG, "give one of --step, --sample, and --from with --to");
    if (strcmp(a->s->seal, "true") == 0 && step + range + sample > 0)
        return lks__fail(LKS_ERR_CONFIG, "--seal without a value only prints the seal: leave the "
                                         "steps out, or give the seal to compare with");
    if (given(a, LKS__SETTING_leaf) && !step)
        return lks__fail(LKS_ERR_CONFIG, "--leaf needs --step: a leaf is the gradient of one "
                                         "virtual rank in one step");
    if (a->s->trail[0] != '\0' && !step)
        return lks__fail(LKS_ERR_CONFIG, "--trail needs --step: it is the trail of one step");
    if (a->s->draw[0] != '\0' && !sample)
        return lks__fail(LKS_ERR_CONFIG, "--draw needs --sample, the number of segments");
    return LKS_OK;
}

static void print_limits(const struct audit *a)
{
    const uint64_t unprinted = a->replay.findings - a->replay.printed;
    if (unprinted > 0) {
        print_count(a->out, "          ", unprinted, "more false claim");
        fputs(": one setting that is false makes all steps false, so look at the first ones\n",
              a->out);
    }
    fprintf(a->out,
            "not compared: %s%s%s%stimes, hosts, parameters, settings without an effect, text "
            "samples, golf's artifact, and all files but metrics.jsonl, leaves.bin and "
            "checkpoints;\n"
            "              of state.json: val_loss, nonfinite and tokenizer\n",
            a->replay.leaf >= 0 ? "the step's own loss, norm and rate, " : "",
            a->replay.evaluates ? "" : "evaluations, ",
            a->replay.lacks_bpb ? "val_bpb because the tokenizer isn't here, " : "",
            a->record.claims.n_rollbacks > 0 ? "the reasons of rollbacks, " : "");
    fputs("not shown: where the data come from, and how many runs were made before this one was "
          "chosen\n",
          a->out);
    if (a->replay.leaf >= 0)
        fputs(
            "          that the gradient was used: a right hash only shows that it was computed\n",
            a->out);
}

/* With the trail of --step. */
static lks_status audit_step(struct audit *a, const struct part *p)
{
    lks__trail_file file = {.file = NULL};
    if (a->s->trail[0] == '\0')
        return audit_pieces(a, p);
    LKS__TRY(lks__trail_file_open(a->s->trail, &file));
    a->replay.trail = &file.trail;
    lks_status st = audit_pieces(a, p);
    const lks_status closed = lks__trail_file_close(&file);
    st = st == LKS_OK ? closed : st;
    if (st == LKS_OK && file.complete)
        fprintf(a->out, "trail     %s has the results of step %" PRIu64 "\n",
                lks__shown(a->s->trail, 512), p->from);
    return st;
}

/* --seal=… alone compares the files only. */
static bool executes(const struct audit *a)
{
    return a->s->seal[0] == '\0' || a->s->sample > 0 || given(a, LKS__SETTING_step) ||
           given(a, LKS__SETTING_from_step) || given(a, LKS__SETTING_to_step);
}

/* The newest checkpoints, of any kind and of those to which a rollback goes; 0: none. */
struct newest {
    uint64_t any, scheduled;
};

static lks_status newest_checkpoints(const char *run, struct newest *newest)
{
    lks__entry *entries;
    lks__ckpt target = {.iter = 0};
    size_t n;
    *newest = (struct newest){0, 0};
    LKS__TRY(lks__ckpt_scan(run, &entries, &n));
    for (size_t i = 0; i < n && newest->any == 0; i++) /* the newest is the first */
        if (entries[i].kind == LKS__ENTRY_CKPT)
            newest->any = entries[i].iter;
    free(entries);
    if (lks__ckpt_open_target(run, UINT64_MAX, LKS__CKPT_ONLY_STATE, &target) == LKS_OK)
        newest->scheduled = target.iter;
    lks__ckpt_close(&target);
    return LKS_OK;
}

/* Claims after the record's end would never be compared. */
static void check_end(struct audit *a)
{
    const lks__claims *c = &a->record.claims;
    for (size_t i = 0; i < c->n_saves; i++)
        if (c->saves[i].iter > a->end)
            lks__replay_false(&a->replay,
                              "checkpoint %" PRIu64 ": metrics.jsonl has no steps before it",
                              c->saves[i].iter);
    for (size_t i = 0; i < c->n_evals; i++)
        if (c->evals[i].iter > a->end)
            lks__replay_false(&a->replay,
                              "evaluation %" PRIu64 ": metrics.jsonl has no steps before it",
                              c->evals[i].iter);
}

/* `newest`: checkpoints that existed before the record was read. Their steps are durable. */
static void check_record(struct audit *a, const struct newest *newest)
{
    const lks__lines *lines = &a->record.lines;
    const lks__claims *c = &a->record.claims;
    if (c->config == NULL)
        lks__replay_false(&a->replay, "metrics.jsonl has no config line");
    if ((newest->any > c->longest && newest->any > a->end) || newest->scheduled > a->end)
        lks__replay_false(&a->replay,
                          "metrics.jsonl ends before step %" PRIu64 ", but checkpoint %" PRIu64
                          " exists",
                          newest->any > c->longest ? c->longest : a->end,
                          newest->any > c->longest ? newest->any : newest->scheduled);
    if (c->odd_rollback > 0)
        lks__replay_false(&a->replay,
                          "step %" PRIu64 ": metrics.jsonl has a rollback that no run makes there",
                          c->odd_rollback - 1);
    check_end(a);
    if (lines->offset + lines->at < lines->bytes)
        fputs("          the last line of metrics.jsonl is incomplete, so it isn't compared\n",
              a->out);
}

static lks_status audit(struct audit *a)
{
    struct part p = {0, 0};
    struct newest newest;
    LKS__TRY(lks__history_open(a->replay.run, &a->record));
    LKS__TRY(newest_checkpoints(a->replay.run, &newest));
    LKS__TRY(lks__history_finish(&a->record));
    if (strcmp(a->s->seal, "true") == 0)
        return lks__seal_print(&a->replay);
    lks__claims_range(&a->record.claims, &a->first, &a->end);
    LKS__TRY(lks__points_find(a->replay.run, &a->record.claims, &a->points));
    if (a->s->sample == 0)
        LKS__TRY(choose_part(a, &p));
    if (a->s->seal[0] != '\0')
        LKS__TRY(lks__seal_check(&a->replay, a->s->seal));
    if (!executes(a)) {
        fputs("not compared: the record with the run, because only --seal was given; "
              "add --sample, --step, or --from and --to\n",
              a->out);
        return LKS_OK;
    }
    check_record(a, &newest);
    if (a->s->sample == 0 && !given(a, LKS__SETTING_step) && !given(a, LKS__SETTING_from_step))
        lacks_start(a, p.from);
    LKS__TRY(a->s->sample > 0 ? audit_sample(a) : audit_step(a, &p));
    print_limits(a);
    return LKS_OK;
}

/* Fail if the run's record isn't the one that was read any more: a run that goes back, or a new run
 * in the folder, also changes the other files, so claims can seem false. */
static lks_status check_unchanged(const struct audit *a)
{
    const lks__lines *read = &a->record.lines;
    lks__lines now;
    LKS__TRY(lks__lines_open(read->path, &now));
    const bool same = now.bytes >= read->offset + read->have &&
                      lks__sys_read_at(now.fd, now.chunk, read->have, read->offset) == 0 &&
                      memcmp(now.chunk, read->chunk, read->have) == 0;
    lks__lines_close(&now);
    return same ? LKS_OK
                : lks__fail(LKS_ERR_IO,
                            "%s was cut or replaced during the audit, so the claims above may be "
                            "right: audit the run again",
                            lks__shown(read->path, 512));
}

lks_status lks__audit(const char *run, const lks__settings *s, FILE *out,
                      enum lks__verdict *verdict_p)
{
    struct audit a = {.s = s, .out = out};
    a.replay = (lks__replay){
        .asked = s,
        .run = run,
        .claims = &a.record.claims,
        .out = out,
        .evaluates = s->from[LKS__SETTING_step] == LKS__FROM_DEFAULT,
        .leaf = s->from[LKS__SETTING_leaf] != LKS__FROM_DEFAULT ? (int)s->leaf : -1,
    };
    lks_status st = check_settings(&a);
    LKS__THEN(st, audit(&a));
    if (st == LKS_OK && a.replay.findings > 0)
        st = check_unchanged(&a);
    lks__history_close(&a.record);
    lks__points_free(&a.points);
    *verdict_p = a.replay.findings > 0                ? LKS__VERDICT_FALSE
                 : a.impossible || a.replay.lacks_bpb ? LKS__VERDICT_IMPOSSIBLE
                                                      : LKS__VERDICT_EQUAL;
    return st;
}
