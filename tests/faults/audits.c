/* The campaign of audits: small runs of random settings, over ranks, samplers, optimizers, resumes
 * and rollbacks, are audited. An honest run must be equal. Then single lies are planted in copies
 * of it: a bit of a gradient's hash, a digit of a figure, an element of a checkpoint with all
 * hashes computed again, a checkpoint's hash in the record, a deleted step, a digit of an
 * evaluation. A full audit must find and locate each, and an audit of a sample must find them at
 * the rate that it prints.
 *
 *     faults_audits [--runs=N] [--seed=S] [--only=I]
 *
 * Each run gets LIES lies. */
#include "faults/chance.h"
#include "laws/laws.h"
#include "laws/poison.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/diff/history.h"
#include "report/record/leaves.h"

enum { LIES = 5, FIRST = 2 }; /* a run with rollbacks begins at checkpoint FIRST */

static struct {
    char setup[2048], lie[512];
    const char *out; /* the honest run */
    bool rolls_back;
    lks__history record;
    uint64_t checkpoints[64]; /* after the first that an audit starts from */
    int n_checkpoints;
} at;

static struct {
    int honest, lies, sampled, found;
    double expected, variance;
} tally;

/* ---- honest runs ----------------------------------------------------------------------------- */

static void note(const char *setting)
{
    const size_t n = strlen(at.setup);
    snprintf(at.setup + n, sizeof at.setup - n, " %s", setting);
}

static void choose(law_args *args, const char *const choices[], int n)
{
    const char *choice = choices[draw(n)];
    if (choice[0] == '\0')
        return;
    law_add(args, "%s", choice);
    note(choice);
}
#define CHOOSE(args, ...)                                                                          \
    choose((args), (const char *const[]){__VA_ARGS__},                                             \
           (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

/* A run of golf's that meets numbers that aren't finite, and skips them or goes back. */
static void train_poisoned(const char *out)
{
    law_args first = poison_train(out, 1), rest;
    law_add(&first, "--iterations=%d", FIRST);
    law_run(&first);
    poison_embedding(out);
    rest = poison_train(out, 1 << draw(3));
    law_add_all(&rest, "--init_from=resume", "--iterations=10");
    CHOOSE(&rest, "--on_nan=skip", "--on_nan=rollback");
    lks_test_run(rest.argv, NULL, 60); /* its artifact can't be written */
}

static void train_golf(const char *out)
{
    law_args args = poison_train(out, 1 << draw(3));
    const int resume = draw(2) ? 3 + draw(5) : 0;
    law_add(&args, "--iterations=%d", resume > 0 ? resume : 10);
    law_run(&args);
    if (resume == 0)
        return;
    args = poison_train(out, 1 << draw(3));
    law_add_all(&args, "--init_from=resume", "--iterations=10");
    CHOOSE(&args, "--matrix_lr=0.02", "--muon_momentum=0.9", "");
    law_run(&args);
}

static void train_gpt2(const char *out)
{
    law_args args = law_begin(law_data(), out);
    law_add_all(&args, "--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=8",
                "--batch_size=2", "--virtual_ranks=4", "--gradient_accumulation_steps=8",
                "--threads=1", "--eval_interval=4", "--eval_iters=2", "--keep=0",
                "--checkpoint_interval=3", "--weight_decay=0");
    CHOOSE(&args, "--sampler=random", "--sampler=nanogpt", "--sampler=epoch");
    CHOOSE(&args, "--optimizer=adamw", "--optimizer=muon", "--optimizer=sgd");
    CHOOSE(&args, "--dropout=0.1", "--dropout=0");
    CHOOSE(&args, "", "", "--freeze=wpe|h.0.mlp");
    CHOOSE(&args, "", "", "--dtype=bfloat16");
    CHOOSE(&args, "--bias", "");
    law_args rest = args;
    const int resume = draw(3) ? 2 + draw(9) : 0;
    law_add(&args, "--max_iters=%d", resume > 0 ? resume : 12);
    CHOOSE(&args, "--nproc_per_node=1", "--nproc_per_node=2", "--nproc_per_node=4");
    law_run(&args);
    if (resume == 0)
        return;
    law_add_all(&rest, "--init_from=resume", "--max_iters=12");
    CHOOSE(&rest, "", "--learning_rate=5e-4", "--grad_clip=0.1", "--dropout=0.2",
           "--eval_interval=5");
    CHOOSE(&rest, "--nproc_per_node=1", "--nproc_per_node=2", "--nproc_per_node=4");
    law_run(&rest);
}

static void train(void)
{
    const int kind = draw(8);
    at.out = lks_test_folder();
    at.setup[0] = at.lie[0] = '\0';
    at.rolls_back = kind == 0;
    if (kind == 0)
        train_poisoned(at.out);
    else if (kind == 1)
        train_golf(at.out);
    else
        train_gpt2(at.out);
    assert_ok(lks__history_open(at.out, &at.record));
    assert_ok(lks__history_finish(&at.record));
    at.n_checkpoints = 0;
    for (size_t i = 0; i < at.record.claims.n_saves; i++) {
        const uint64_t iter = at.record.claims.saves[i].iter;
        const bool again = &at.record.claims.saves[i] != lks__claims_save(&at.record.claims, iter);
        if (!again && iter > (at.rolls_back ? FIRST : 0) && at.n_checkpoints < 64)
            at.checkpoints[at.n_checkpoints++] = iter;
    }
}

static lks_test_result audit(const char *out, const char *more)
{
    return lks_test_tool("audit", out, more != NULL ? more : at.rolls_back ? "--from=2" : "--to=0");
}

/* ---- lies ------------------------------------------------------------------------------------ */

/* A step that an audit computes. */
static const lks__claim *draw_step(void)
{
    for (;;) {
        const lks__claim *c = &at.record.claims.steps[draw((int)at.record.claims.n_steps)];
        if (!c->skipped && c->iter >= (at.rolls_back ? FIRST : 0))
            return c;
    }
}

static void lie_in_hash(const char *out)
{
    const uint64_t iter = draw_step()->iter;
    const char *path = lks_test_text("%s/" LKS__LEAVES_FILE, out);
    lks__leaves l;
    bool any = true;
    size_t bytes;
    assert_ok(lks__leaves_open(out, &l));
    do
        assert_ok(lks__leaves_next(&l, &any));
    while (any && l.last.iter != iter);
    assert_true(any);
    const int V = (int)l.last.V, v = draw(V);
    const uint64_t end = l.last.at;
    assert_ok(lks__leaves_close(&l));
    char *data = (char *)lks_test_read(path, &bytes);
    data[end - 8 * (uint64_t)(V - v) + (uint64_t)draw(8)] ^= (char)(1 << draw(8));
    lks_test_write(path, data, bytes);
    snprintf(at.lie, sizeof at.lie, "FALSE     step %d: the gradient of virtual rank %d of %d has",
             (int)iter, v, V);
}

/* Change one of the first digits after the point of a figure's newest line; false if it has none.
 */
static bool change_digit(char *text, const char *line, const char *figure)
{
    char *last = NULL;
    for (char *found = text; (found = strstr(found, line)) != NULL; found++)
        last = found;
    char *value = last != NULL ? strstr(last, figure) : NULL;
    if (value == NULL)
        return false;
    value += strlen(figure);
    char *point = value + strspn(value, "0123456789");
    const int digits = *point == '.' ? (int)strspn(point + 1, "0123456789") : 0;
    if (digits == 0)
        return false;
    char *digit = point + 1 + draw(digits < 6 ? digits : 6);
    *digit = (char)('0' + (*digit - '0' + 1 + draw(9)) % 10);
    return true;
}

static void lie_in_figure(const char *out)
{
    static const char *const figures[] = {"loss", "lr", "grad_norm"};
    const char *path = lks_test_text("%s/metrics.jsonl", out);
    for (bool done = false; !done;) {
        const uint64_t iter = draw_step()->iter;
        const char *figure = figures[draw(3)];
        char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL));
        done = change_digit(text, lks_test_text("\"train\",\"iter\":%d,", (int)iter),
                            lks_test_text("\"%s\":", figure));
        if (done)
            lks_test_write_text(path, text);
        snprintf(at.lie, sizeof at.lie, "FALSE     step %d: %s is ", (int)iter, figure);
    }
}

/* The evaluations that an audit compares. Returns their number. */
static int evaluations(const lks__claimed_eval *out[64])
{
    const lks__claims *c = &at.record.claims;
    int n = 0;
    for (size_t i = 0; i < c->n_evals && n < 64; i++) {
        const lks__claimed_eval *e = &c->evals[i];
        if (e == lks__claims_eval(c, e->iter) && lks__claims_changed(c, e->iter) == NULL &&
            isfinite(e->val_loss) && (!at.rolls_back || e->iter > FIRST))
            out[n++] = e;
    }
    return n;
}

static void lie_in_evaluation(const char *out)
{
    const lks__claimed_eval *all[64];
    const char *path = lks_test_text("%s/metrics.jsonl", out);
    const int n = evaluations(all), iter = (int)all[draw(n)]->iter;
    char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL));
    assert_true(
        change_digit(text, lks_test_text("\"final\",\"iter\":%d,", iter), "\"val_loss\":") ||
        change_digit(text, lks_test_text("\"eval\",\"iter\":%d,", iter), "\"val_loss\":"));
    lks_test_write_text(path, text);
    snprintf(at.lie, sizeof at.lie, "FALSE     evaluation %d: val_loss is ", iter);
}

static void delete_step(const char *out)
{
    const char *path = lks_test_text("%s/metrics.jsonl", out);
    const int iter = (int)draw_step()->iter;
    char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL)), *line = NULL;
    const char *step = lks_test_text("{\"kind\":\"train\",\"iter\":%d,", iter);
    for (char *found = text; (found = strstr(found, step)) != NULL; found++)
        line = found;
    assert_non_null(line);
    const char *next = strchr(line, '\n') + 1;
    memmove(line, next, strlen(next) + 1);
    lks_test_write_text(path, text);
    snprintf(at.lie, sizeof at.lie, "FALSE     step %d: metrics.jsonl has no line of this step",
             iter);
}

static int wanted_tensor, seen_tensors; /* -1: only count */
static char lie_tensor[128];
static size_t lie_element;

static void change_element(const char *name, float *x, size_t n, size_t width)
{
    uint32_t bits;
    if (strcmp(name, "sampler.state") == 0 || seen_tensors++ != wanted_tensor)
        return;
    lie_element = (size_t)draw((int)n);
    snprintf(lie_tensor, sizeof lie_tensor, "%s", name);
    memcpy(&bits, &x[lie_element], sizeof bits);
    bits ^= UINT32_C(1) << (20 + draw(3));
    memcpy(&x[lie_element], &bits, sizeof bits);
}

static void lie_in_checkpoint(const char *out)
{
    const uint64_t iter = at.checkpoints[draw(at.n_checkpoints)];
    const enum poison_part part = draw(2) ? POISON_MODEL : POISON_OPTIMIZER;
    seen_tensors = 0;
    wanted_tensor = -1;
    poison_alter_at(out, iter, part, change_element);
    wanted_tensor = draw(seen_tensors);
    seen_tensors = 0;
    poison_alter_at(out, iter, part, change_element);
    snprintf(at.lie, sizeof at.lie, "FALSE     checkpoint %d: %s, element %zu is ", (int)iter,
             lie_tensor, lie_element);
}

static void lie_in_params_hash(const char *out)
{
    const char *path = lks_test_text("%s/metrics.jsonl", out);
    const uint64_t iter = at.checkpoints[draw(at.n_checkpoints)];
    const lks__claimed_save *save = lks__claims_save(&at.record.claims, iter);
    char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL)), *found = NULL;
    for (char *next = text; (next = strstr(next, save->params_hash)) != NULL; next++)
        found = next;
    assert_non_null(found);
    found += draw(16);
    *found = *found == '7' ? '3' : '7';
    lks_test_write_text(path, text);
    snprintf(at.lie, sizeof at.lie, "FALSE     checkpoint %d: the weights have the hash ",
             (int)iter);
}

/* Audit two segments of the lying run, and count whether that finds the lie. A checkpoint is the
 * end of one segment and the start of another. */
static void audit_sample(const char *out, bool in_checkpoint)
{
    const lks_test_result r = audit(out, "--sample=2");
    int n, all;
    assert_int_equal(sscanf(r.out, "drawn %d of %d segments", &n, &all), 2);
    const bool last =
        strstr(at.lie,
               lks_test_text("checkpoint %d:", (int)at.checkpoints[at.n_checkpoints - 1])) != NULL;
    const int k = in_checkpoint && !last ? 2 : 1;
    double passes = 1;
    for (int i = 0; i < n; i++)
        passes *= all - i > k ? (double)(all - i - k) / (all - i) : 0;
    tally.sampled++;
    tally.found += r.exit_code == 3;
    tally.expected += 1 - passes;
    tally.variance += passes * (1 - passes);
    if (k == 1)
        assert_contains(r.out, lks_test_text("one false segment passes such a sample in %.3g %%",
                                             100 * passes));
}

static void tell_lie(void)
{
    static void (*const lies[])(const char *) = {lie_in_hash,       lie_in_figure,
                                                 lie_in_checkpoint, lie_in_params_hash,
                                                 delete_step,       lie_in_evaluation};
    const lks__claimed_eval *all[64];
    const int kind = draw(evaluations(all) > 0 ? 6 : 5);
    const char *out = lks_test_copy_of(at.out);
    lies[kind](out);
    const lks_test_result r = audit(out, NULL);
    const char *first = strstr(r.out, "FALSE     ");
    /* A false best loss contradicts the states of checkpoints, too, also of the one before it. */
    int iter;
    const bool spreads = sscanf(at.lie, "FALSE     evaluation %d:", &iter) == 1 &&
                         strstr(r.out, ": best_val_loss is ") != NULL;
    if (spreads &&
        strstr(first, lks_test_text("FALSE     checkpoint %d: best_val_loss is ", iter)) == first)
        first = strstr(first + 1, "FALSE     ");
    if (r.exit_code != 3 || first == NULL || strncmp(first, at.lie, strlen(at.lie)) != 0)
        fail_msg("exit code %d, and not \"%s\": %s%s", r.exit_code, at.lie, r.out, r.err);
    tally.lies++;
    /* The first segments of a run that rolls back can't be executed. */
    if (!at.rolls_back && !spreads)
        audit_sample(out, kind == 2);
    lks_test_do("rm", "-r", out);
}

TEST(test_audits)
{
    while (chance_next()) {
        train();
        assert_exits(0, audit(at.out, NULL));
        tally.honest++;
        for (int i = 0; i < LIES; i++)
            tell_lie();
        lks__history_close(&at.record);
        lks_test_do("rm", "-r", at.out);
    }
    const double error = fabs(tally.found - tally.expected);
    if (error > 1 + 4 * sqrt(tally.variance))
        fail_msg("samples found %d lies of %d, but %.1f are expected", tally.found, tally.sampled,
                 tally.expected);
}

int main(int argc, char **argv)
{
    if (!chance_options(argc, argv, 2))
        return 2;
    lks_test_need_zip();
    const int code = lks_test_run_all(NULL, NULL);
    if (code == 1)
        printf("seed %d, run %d:%s\nthe lie: %s\n", chance.seed, chance.run, at.setup, at.lie);
    printf(
        "%d honest runs are equal, %d of %d lies were found and located; samples found %d of %d, "
        "%.1f expected\n",
        tally.honest, tally.lies, tally.honest * LIES, tally.found, tally.sampled, tally.expected);
    return code;
}
