/* lockstep bench: measures the speed of this machine, and how much of it a training step uses. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../progress.h"
#include "../tool.h"
#include "base/system/early.h"
#include "base/system/sys.h"
#include "base/text/shell.h"
#include "base/trace.h"
#include "bench.h"
#include "settings/family.h"
#include "train/procedure/procedure.h"

static const char usage[] =
    "Usage: lockstep bench peak [--threads=N]\n"
    "       lockstep bench step [--n_layer=… --n_embd=… --batch_size=… --iters=10 …]\n"
    "       lockstep bench comm --nproc_per_node=2 [--backend=NAME] [--n_layer=… …]\n"
    "       lockstep bench kernels\n"
    "                     [--device=cuda --n_embd=… --batch_size=… --iters=10 …]\n"
    "       lockstep bench machine --out=FILE [--nproc_per_node=2] [config/NAME.conf]\n"
    "\n"
    "Measures the speed of this machine.\n"
    "\n"
    "  peak     multiply-adds per second, of one core and of all cores together\n"
    "  step     whole training steps (forward, backward, reduction, clipping, AdamW)\n"
    "           of one micro-batch per rank, on random tokens: median time, tokens\n"
    "           per second, share of the peak, and the parts of the mean step.\n"
    "           Without settings of a model: one of 4 layers of width 128 with 4\n"
    "           heads and a context of 64\n"
    "  comm     collective operations of each backend by size, and the reduction of\n"
    "           gradients, compared with a plain sum and the link between hosts. With\n"
    "           a model: also the time of the reduction that a step can't overlap\n"
    "  kernels  each kernel by shape, compared with this machine's limit of\n"
    "           multiply-adds or memory. With another device: its operations by a\n"
    "           model's shapes; their results are first compared with the CPU's\n"
    "  machine  measures this machine, and steps of a model, for `lockstep plan`, and\n"
    "           writes a file. On several hosts it also measures the link between\n"
    "           them\n"
    "\n"
    "Example: how fast does the model of config/quickstart.conf train on 2 ranks?\n"
    "\n"
    "  lockstep bench step quickstart --nproc_per_node=2\n";

enum { BENCH_TOKENS = 1 << 16, WARM_UP = 3, PEAK_BURSTS = 200 };

lks_status bench_peak_of(const lks__session *s, int threads, double *flops_p)
{
    return lks__session_peak(s, threads, PEAK_BURSTS, flops_p);
}

static lks_status bench_peak(lks__settings *settings)
{
    lks__session s;
    double one = 0.0, all = 0.0;
    progress_text("measuring");
    LKS__TRY(lks__session_open(settings->backend, settings->timeout, (int)settings->threads,
                               (enum lks__bind)settings->bind, &s));
    lks_status st = lks__session_device(&s, settings->device, settings->share_gpu);
    if (st != LKS_OK || s.device != &s.cpu) {
        for (int i = 0; i < 2 && st == LKS_OK; i++) {
            struct bench_peaks peaks;
            st = lks__session_products(&s, i == 1);
            LKS__THEN(st, bench_device_peaks(&s, &peaks));
            if (st == LKS_OK)
                bench_print_peaks(s.device, &peaks);
        }
        lks__session_close(&s);
        return st;
    }
    const int n_dtypes = s.kernels.level >= LKS__CPU_AVX512_BF16 ? 2 : 1;
    for (int i = 0; i < n_dtypes && st == LKS_OK; i++) {
        s.ex.bf16 = i == 1;
        st = bench_peak_of(&s, 1, &one);
        LKS__THEN(st, bench_peak_of(&s, s.threads, &all));
        progress_hide();
        if (st == LKS_OK)
            printf("peak of %s multiply-adds (%s): %.1f GFLOP/s on one thread, %.1f on %d\n",
                   s.ex.bf16 ? "bf16" : "fp32", lks__cpu_level_name(s.kernels.level), one * 1e-9,
                   all * 1e-9, s.threads);
    }
    lks__session_close(&s);
    return st;
}

static const char *data_path(const lks__settings *s, const char *dir, int i,
                             char path[LKS__SETTING_STR + 64])
{
    snprintf(path, LKS__SETTING_STR + 64, "%s/%s", dir, lks__procedure_of(s)->data->files[i]);
    return path;
}

/* Write random tokens as a dataset into a new temporary folder. */
static lks_status write_data(const lks__settings *s, char dir[LKS__SETTING_STR])
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, LKS__SETTING_STR, "%s/lockstep-bench-XXXXXX", tmp == NULL ? "/tmp" : tmp);
    if (mkdtemp(dir) == NULL)
        return lks__sys_fail("can't make", dir);
    size_t n = (size_t)s->block_size * 4 + BENCH_TOKENS;
    uint16_t *ids = calloc(n, sizeof *ids);
    LKS__MEMORY(ids, "for %zu tokens", n);
    lks__mt g;
    lks__mt_seed(&g, (uint64_t)s->seed);
    uint64_t range = (uint64_t)(s->vocab_size < 65536 ? s->vocab_size : 65536);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint16_t)(lks__mt_u32(&g) % range);
    lks_status st = LKS_OK;
    for (int i = 0; i < 2 && st == LKS_OK; i++) {
        char path[LKS__SETTING_STR + 64];
        st = lks__procedure_of(s)->data->write(data_path(s, dir, i, path), ids, n);
    }
    free(ids);
    return st;
}

static void remove_data(const lks__settings *s, const char *dir)
{
    char path[LKS__SETTING_STR + 64];
    for (int i = 0; i < 2; i++)
        lks__sys_unlink(data_path(s, dir, i, path));
    lks__sys_rmdir(dir);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, compare_doubles);
    return times[n / 2];
}

static bool has_config_file;

bool bench_has_model(const lks__settings *s)
{
    static const int shapes[] = {LKS__SETTING_family, LKS__SETTING_n_layer, LKS__SETTING_n_head,
                                 LKS__SETTING_n_embd};
    bool chosen = has_config_file;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        chosen = chosen || s->from[shapes[i]] > LKS__FROM_CHECKPOINT;
    return chosen;
}

/* The model of config/train_shakespeare_char_cpu.conf: it needs seconds, GPT-2 minutes. */
static void choose_small_model(lks__settings *s)
{
    s->n_layer = 4;
    s->n_head = 4;
    s->n_embd = 128;
    if (s->from[LKS__SETTING_block_size] == LKS__FROM_DEFAULT)
        s->block_size = 64;
    if (s->from[LKS__SETTING_vocab_size] == LKS__FROM_DEFAULT &&
        s->from[LKS__SETTING_dataset] == LKS__FROM_DEFAULT)
        s->vocab_size = 65;
}

enum { NOTE = LKS__SETTING_STR + 100 };

/* Choose the vocabulary as `train` does: the dataset's, if one is named. `note` gets a message if
 * that dataset doesn't exist, else "". */
static lks_status choose_vocabulary(lks__settings *s, char note[NOTE])
{
    char dir[LKS__SETTING_STR + 8];
    lks__meta meta = {0};
    bool found;
    note[0] = '\0';
    if (s->vocab_size != 0)
        return LKS_OK;
    if (s->from[LKS__SETTING_dataset] == LKS__FROM_DEFAULT) {
        s->vocab_size = lks__procedure_of(s)->vocab_size;
        return LKS_OK;
    }
    if (lks__settings_data_dir(s, dir) != LKS_OK) {
        s->vocab_size = lks__procedure_of(s)->vocab_size;
        snprintf(note, NOTE, " (the dataset \"%s\" doesn't exist: --vocab_size=N chooses another)",
                 lks__shown(s->dataset, LKS__SETTING_STR));
        return LKS_OK;
    }
    LKS__TRY(lks__procedure_meta(s, dir, false, &found, &meta));
    s->vocab_size = meta.vocab_size;
    lks__meta_free(&meta);
    return LKS_OK;
}

lks_status bench_print_model(lks__settings *s)
{
    lks_world world;
    char note[NOTE];
    LKS__TRY(lks_world_from_env(&world));
    LKS__TRY(choose_vocabulary(s, note));
    if (world.rank != 0)
        return LKS_OK;
    progress_hide();
    printf("model: %s, %" PRId64 " layer%s, %" PRId64 " head%s, width %" PRId64 ", context %" PRId64
           ", vocabulary %" PRId64 "%s, %" PRId64 " sequence%s per micro-batch%s\n",
           lks__setting_word(s, LKS__SETTING_family), s->n_layer, s->n_layer == 1 ? "" : "s",
           s->n_head, s->n_head == 1 ? "" : "s", s->n_embd, s->block_size, s->vocab_size, note,
           s->batch_size, s->batch_size == 1 ? "" : "s",
           bench_has_model(s) ? ""
                              : "; config/NAME.conf, or --n_layer, --n_embd, … choose another");
    fflush(stdout); /* show the line in a file before the work begins */
    progress_text("making the model");
    return LKS_OK;
}

static lks_status time_steps(lks__trainer *t, int iters, double *times)
{
    lks__step_result result;
    double warm_up[LKS__N_PARTS];
    for (int i = 0; i < WARM_UP + iters; i++) {
        progress_text("step %d of %d", i + 1, WARM_UP + iters);
        if (i == WARM_UP)
            lks__trace_take_parts(lks__trace_current, warm_up);
        double t0 = lks__sys_now();
        LKS__TRY(lks__train_step(t, &result));
        if (i >= WARM_UP)
            times[i - WARM_UP] = lks__sys_now() - t0;
    }
    return LKS_OK;
}

/* Print a line per rank: the parts of its mean step, which add up to its time. */
static lks_status report_parts(lks__trainer *t, int iters)
{
    double mine[LKS__N_PARTS], *all = calloc((size_t)t->ses.world.world_size, sizeof mine);
    LKS__MEMORY(all, "for %d ranks", t->ses.world.world_size);
    lks__trace_take_parts(lks__trace_current, mine);
    lks_status st = lks_comm_all_gather(t->ses.comm, mine, all, sizeof mine, LKS_UINT8);
    for (int r = 0; r < t->ses.world.world_size && st == LKS_OK && t->ses.world.rank == 0; r++) {
        const double *parts = all + (size_t)r * LKS__N_PARTS;
        double sum = 0.0;
        for (int p = 0; p < LKS__N_PARTS; p++)
            sum += parts[p];
        printf("rank %d: mean %.2f ms =", r, sum / iters * 1e3);
        for (int p = 0; p < LKS__N_PARTS; p++)
            printf("%s %s %.2f", p > 0 ? " +" : "", lks__trace_part_name((lks__trace_part)p),
                   parts[p] / iters * 1e3);
        printf("\n");
    }
    free(all);
    return st;
}

/* FLOP/s of this rank's products. */
static lks_status peak_of_rank(lks__session *s, double *peak_p)
{
    struct bench_peaks peaks;
    if (s->device == &s->cpu)
        return bench_peak_of(s, s->threads, peak_p);
    LKS__TRY(bench_device_peaks(s, &peaks));
    *peak_p = peaks.flops;
    return LKS_OK;
}

static lks_status report_steps(lks__trainer *t, int iters, double *times)
{
    double peak;
    progress_text("measuring the peak");
    LKS__TRY(peak_of_rank(&t->ses, &peak));
    LKS__TRY(lks_comm_all_reduce(t->ses.comm, &peak, 1, LKS_FLOAT64, LKS_SUM));
    progress_end();
    if (t->ses.world.rank != 0)
        return LKS_OK;
    double median = bench_median(times, iters),
           tokens = (double)t->run.N * (double)t->run.s.batch_size * (double)t->run.s.block_size;
    double flops = tokens * lks__model_flops_per_token(&t->run.model_config, &t->run.table);
    if (flops / times[0] > peak) /* other programs disturbed the peak's measurement */
        peak = flops / times[0];
    printf("step: median %.2f ms (%.2f to %.2f), %.0f tokens/s, %.1f GFLOP/s, mfu %.1f%% of %.1f "
           "GFLOP/s, %d rank%s x %d thread%s, a step is one micro-batch per rank\n",
           median * 1e3, times[0] * 1e3, times[iters - 1] * 1e3, tokens / median,
           flops / median * 1e-9, flops / median / peak * 100.0, peak * 1e-9,
           t->ses.world.world_size, t->ses.world.world_size == 1 ? "" : "s", t->ses.threads,
           t->ses.threads == 1 ? "" : "s");
    return LKS_OK;
}

/* Each rank has one virtual rank. */
lks_status bench_open_trainer(lks__settings *s, int micro_batches, lks__trainer *t)
{
    lks_world world;
    char dir[LKS__SETTING_STR], note[NOTE];
    LKS__TRY(lks_world_from_env(&world));
    LKS__TRY(choose_vocabulary(s, note));
    s->virtual_ranks = world.world_size;
    s->gradient_accumulation_steps = s->virtual_ranks * micro_batches;
    if (lks__family_of(s)->prepare_bench != NULL)
        lks__family_of(s)->prepare_bench(s);
    lks__early_hold(); /* until the data is removed */
    lks_status st = write_data(s, dir);
    snprintf(s->dataset, sizeof s->dataset, "%s", dir);
    if (st == LKS_OK) {
        st = lks__trainer_open(s, t, &(int){0});
        if (st != LKS_OK)
            lks__trainer_close(t);
    }
    remove_data(s, dir);
    lks__early_release();
    return st;
}

static lks_status measure_step(const lks__settings *s, lks__trainer *t, double *times)
{
    const int iters = (int)s->iters;
    uint64_t dropped;
    LKS__TRY(time_steps(t, iters, times));
    progress_hide();
    LKS__TRY(report_parts(t, iters));
    LKS__TRY(report_steps(t, iters, times));
    LKS__TRY(lks__trace_file_write(&t->trace, &t->ses, &dropped));
    if (t->ses.world.rank == 0 && s->trace[0] != '\0')
        tool_wrote("bench", s->trace);
    return LKS_OK;
}

static lks_status bench_step(lks__settings *s)
{
    lks__trainer t;
    LKS__TRY(bench_print_model(s));
    LKS__TRY(bench_open_trainer(s, 1, &t));
    progress_text("warming up");
    double *times = calloc((size_t)s->iters, sizeof *times);
    lks_status st = LKS_OK;
    if (times == NULL)
        st = lks__no_memory("for %" PRId64 " times", s->iters);
    lks__trace *parts = NULL; /* stays NULL if --trace has opened one */
    if (st == LKS_OK && lks__trace_current == NULL)
        st = lks__trace_open(0, &parts);
    LKS__THEN(st, measure_step(s, &t, times));
    progress_hide();
    lks__trace_close(parts);
    lks__session_fail(&t.ses, st);
    lks__trainer_close(&t);
    free(times);
    return st;
}

static const struct {
    const char *name;
    lks_status (*run)(lks__settings *s);
    bool on_host; /* measures the host only */
    bool trains;  /* a small model, unless one is chosen */
} measurements[] = {
    {"peak", bench_peak, false, false},     {"step", bench_step, false, true},
    {"comm", bench_comm, true, false},      {"kernels", bench_kernels, false, false},
    {"machine", bench_machine, true, true},
};

enum { N_MEASUREMENTS = sizeof measurements / sizeof measurements[0] };

const char *bench_name(int i)
{
    return i < N_MEASUREMENTS ? measurements[i].name : NULL;
}

/* Suggest `bench step` for a recipe without a measurement. */
static lks_status suggest_step(int argc, char **argv)
{
    char words[2000] = "";
    bool whole = true;
    for (int i = 1; i < argc; i++)
        whole &= lks__append(words, sizeof words, "", " %s", lks__quoted(argv[i], 600));
    return lks__fail(LKS_ERR_CONFIG,
                     "name a measurement (peak, step, comm, kernels or machine), for example "
                     "`lockstep bench step%s`",
                     whole ? words : " FILE");
}

/* Refuse settings that don't apply to it. */
static lks_status check(const lks__settings *s, const char *what, int which)
{
    const bool on_host = measurements[which].on_host, trains = measurements[which].trains;
    if (on_host && strcmp(s->device, "auto") != 0 && strcmp(s->device, "cpu") != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "bench %s measures the host: --device=%s is for peak, kernels and step",
                         what, s->device);
    if (s->trace[0] != '\0' && measurements[which].run != bench_step)
        return lks__fail(LKS_ERR_CONFIG, "bench %s writes no trace: --trace is for step", what);
    if (!on_host && !trains && tool_launches(s))
        return lks__fail(LKS_ERR_CONFIG,
                         "bench %s measures one process: --nproc_per_node is for step, comm and "
                         "machine",
                         what);
    return LKS_OK;
}

int tool_bench(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code, which = 0;
    if (!tool_settings("bench", LKS__CMD_BENCH, usage, argc, argv, 1, &s, &args, &code))
        return code;
    const char *what = args.n_positional > 0 ? args.positional[0] : "";
    while (which < N_MEASUREMENTS && strcmp(what, measurements[which].name) != 0)
        which++;
    char name[40];
    const char *shown = lks__shown(what, 80);
    if (which == N_MEASUREMENTS && *what == '\0' && args.n_files > 0)
        return tool_fail("bench", suggest_step(argc, argv));
    if (which == N_MEASUREMENTS)
        return tool_fail("bench", lks__fail(LKS_ERR_CONFIG,
                                            "name a measurement: `lockstep bench peak`, `step`, "
                                            "`comm`, `kernels` or `machine`%s%s",
                                            *what ? ", not " : "", shown));
    lks_status st = check(&s, what, which);
    if (st != LKS_OK)
        return tool_fail("bench", st);
    const bool trains = measurements[which].trains;
    if (!tool_is_rank())
        tool_print_notes("bench", &args);
    if (tool_launches(&s))
        return trains ? tool_launch("bench", &s, argc, argv) : bench_comm_launch(&s, argc, argv);
    has_config_file = args.n_files > 0;
    if (trains && !bench_has_model(&s))
        choose_small_model(&s);
    snprintf(name, sizeof name, "lockstep bench %s", what);
    progress_begin(name, "preparing");
    st = measurements[which].run(&s);
    progress_end();
    return st == LKS_OK ? TOOL_OK : tool_fail("bench", st);
}
