#include "laws.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "marked.h"

/* Characters for the generated ids, so that checkpoints have a tokenizer: U+0100 and on. */
static void write_meta(const char *dir)
{
    char chars[2 * 65 + 1] = "";
    for (int i = 0; i < 65; i++) {
        chars[2 * i] = (char)(0xc4 + i / 64);
        chars[2 * i + 1] = (char)(0x80 + i % 64);
    }
    const char *text =
        lks_test_text("{\"kind\":\"char\",\"vocab_size\":65,\"chars\":\"%s\"}", chars);
    lks_test_write_text(lks_test_text("%s/meta.json", dir), text);
}

const char *law_data(void)
{
    static const char *dir;
    if (dir == NULL) {
        dir = lks_test_folder();
        lks_test_generated_tokens(dir);
        write_meta(dir);
    }
    return dir;
}

static void add(law_args *args, const char *fmt, va_list list)
{
    char text[4096];
    int n = vsnprintf(text, sizeof text, fmt, list);
    assert_true(n >= 0 && (size_t)n < sizeof text);
    assert_true(args->n < LAW_MAX_ARGS);
    args->argv[args->n++] = lks_test_text("%s", text);
    args->argv[args->n] = NULL;
}

void law_add(law_args *args, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    add(args, fmt, list);
    va_end(list);
}

void law_add_line(law_args *args, const char *fmt, ...)
{
    char line[4096], *save;
    va_list list;
    va_start(list, fmt);
    assert_in_range(vsnprintf(line, sizeof line, fmt, list), 1, sizeof line - 1);
    va_end(list);
    for (char *w = strtok_r(line, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save))
        law_add(args, "%s", w);
}

void law_add_words(law_args *args, const char *const words[])
{
    for (; words != NULL && *words != NULL; words++)
        law_add(args, "%s", *words);
}

void law_add_shell(law_args *args, const law_args *run, const char *script, ...)
{
    va_list list;
    law_add_all(args, "sh", "-c");
    va_start(list, script);
    add(args, script, list);
    va_end(list);
    law_add(args, "%s", lks_test_program());
    law_add_words(args, run->argv + 1);
}

law_args law_begin(const char *data, const char *out)
{
    law_args args = {.n = 0};
    law_add_all(&args, "lockstep", "train");
    law_add(&args, "--dataset=%s", data);
    law_add(&args, "--out_dir=%s", out);
    return args;
}

const char *law_words(const law_args *args)
{
    const char *words = lks_test_text("'%s'", lks_test_program());
    for (int i = 1; i < args->n; i++)
        words = lks_test_text("%s '%s'", words, args->argv[i]);
    return words;
}

static bool is_wide;

void law_wide_model(void)
{
    lks__cpu_level level;
    assert_ok(lks__cpu_level_get(&level));
    is_wide = level != LKS__CPU_PLAIN;
}

law_shape law_model(void)
{
    return is_wide ? (law_shape){3, 3, 48, 16} : (law_shape){3, 3, 24, 8};
}

lks__model_config law_config(void)
{
    const law_shape shape = law_model();
    return (lks__model_config){.n_layer = shape.n_layer,
                               .n_head = shape.n_head,
                               .n_embd = shape.n_embd,
                               .block_size = shape.block_size,
                               .vocab_size = 65,
                               .bias = true};
}

static law_args settings(const char *sampler, const char *out)
{
    const law_shape shape = law_model();
    law_args args = law_begin(law_data(), out);
    law_add(&args, "--sampler=%s", sampler);
    law_add_line(&args,
                 "--bias --n_layer=%d --n_head=%d --n_embd=%d --block_size=%d "
                 "--batch_size=6 --dropout=0.1 --virtual_ranks=%d "
                 "--gradient_accumulation_steps=%d --max_iters=%d --eval_interval=4 "
                 "--eval_iters=3 --checkpoint_interval=3 --keep=0 --learning_rate=1e-3 "
                 "--warmup_iters=3 --lr_decay_iters=12",
                 shape.n_layer, shape.n_head, shape.n_embd, shape.block_size, LAW_V, LAW_V * LAW_A,
                 LAW_LAST_ITER);
    law_add(&args, "--grad_clip=0.25"); /* below typical norms, so it clips */
    law_add_all(&args, "--bucket_mb=0.02", "--timeout=20");
    return args;
}

law_args law_train(const char *sampler, const char **out_p)
{
    *out_p = lks_test_folder();
    return settings(sampler, *out_p);
}

const char *law_golf_data(size_t n_val)
{
    static struct {
        const char *dir;
        size_t n_val;
    } made[4];
    size_t i = 0;
    while (made[i].dir != NULL && made[i].n_val != n_val)
        assert_true(++i < 4);
    if (made[i].dir == NULL) {
        made[i].dir = lks_test_folder();
        made[i].n_val = n_val;
        lks_test_golf_tokens(made[i].dir, n_val);
    }
    return made[i].dir;
}

static law_args golf_settings(const char *out)
{
    law_args args = law_begin(law_golf_data(1300), out); /* three batches */
    law_add_all(&args, "--family=golf", "--sampler=stream", "--vocab_size=1024", "--n_layer=3",
                "--n_head=4", "--num_kv_heads=2", "--n_embd=48", "--block_size=16",
                "--train_batch_tokens=512", "--val_batch_size=512", "--warmdown_iters=0",
                "--gradient_accumulation_steps=8", "--virtual_ranks=8", "--iterations=6",
                "--max_wallclock_seconds=0", "--eval_interval=3", "--keep=0", "--bucket_mb=0.02",
                "--matrix_lr=0.01", "--scalar_lr=0.01", "--tied_embed_lr=0.01");
    return args;
}

law_args law_family(bool golf, const char *out)
{
    return golf ? golf_settings(out) : settings("random", out);
}

const char *law_family_last(bool golf)
{
    return lks_test_text("ckpt-%08d", golf ? 6 : LAW_STEPS);
}

const char *law_family_trained(bool golf, const char *out, const char *const more[])
{
    const char *folder = out != NULL ? out : lks_test_folder();
    law_args args = law_family(golf, folder);
    law_add_words(&args, more);
    law_run(&args);
    return folder;
}

void law_run(const law_args *args)
{
    assert_exits(0, lks_test_run(args->argv, NULL, 60));
}

const char *law_trained(const char *sampler, const char *const more[])
{
    const char *out;
    law_args args = law_train(sampler, &out);
    law_add_words(&args, more);
    law_run(&args);
    return out;
}

void law_assert_remedy(const char *a, const char *b, const char *run, const char *other)
{
    lks_test_result r = lks_test_tool("diff", a, b);
    const char *at = strstr(r.out, "\nremedy ");
    if (r.exit_code != 3 || at == NULL)
        fail_msg("exit code %d, no remedy: %s%s", r.exit_code, r.out, r.err);
    at = strstr(at, " lockstep ");
    const char *command = lks_test_text("%s%.*s", lks_test_program(), (int)strcspn(at + 9, "\n"),
                                        at + strlen(" lockstep"));
    assert_exits(0, lks_test_shell(command));
    assert_exits(0, lks_test_tool("diff", other, run));
}

void law_resumed(const char *sampler, const char *out, const char *const more[])
{
    law_args args = settings(sampler, out);
    law_add(&args, "--init_from=resume");
    law_add_words(&args, more);
    law_run(&args);
}

/* ---- checkpoints ------------------------------------------------------------------------- */

void law_assert_same_checkpoint(const char *out, const char *reference, const char *name)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    const char *a = lks_test_text("%s/%s", out, name);
    const char *b = lks_test_text("%s/%s", reference, name);
    assert_int_equal(lks_test_count_files(a), sizeof files / sizeof files[0]);
    assert_int_equal(lks_test_count_files(b), sizeof files / sizeof files[0]);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        assert_same_file(lks_test_text("%s/%s", a, files[i]), lks_test_text("%s/%s", b, files[i]));
}

static bool is_checkpoint(const char *name)
{
    return strncmp(name, "ckpt-", 5) == 0 && strlen(name) == strlen("ckpt-00000000");
}

int law_count_checkpoints(const char *out)
{
    int n = 0;
    DIR *dir = opendir(out);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += is_checkpoint(e->d_name);
    closedir(dir);
    return n;
}

void law_assert_same_checkpoints(const char *out, const char *reference)
{
    assert_true(law_count_checkpoints(reference) > 0);
    DIR *dir = opendir(reference);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (is_checkpoint(e->d_name))
            law_assert_same_checkpoint(out, reference, lks_test_text("%s", e->d_name));
    closedir(dir);
}

bool law_on_schedule(int iter)
{
    return iter > 0 && (iter % 3 == 0 || iter % 4 == 0);
}

int law_named(const char *out, const char *name)
{
    const char *link = lks_test_link(lks_test_text("%s/%s", out, name));
    int iter;
    if (sscanf(link, "ckpt-%d", &iter) != 1 || strcmp(link, lks_test_text("ckpt-%08d", iter)) != 0)
        return -1;
    return iter;
}

/* ---- metrics ----------------------------------------------------------------------------- */

/* Append the line without the fields that depend on time. */
static void append_line(FILE *to, const char *line, size_t bytes)
{
    static const char *const timed[] = {
        ",\"ms\":", ",\"tok_per_s\":", ",\"mfu\":", ",\"comm_exposed_ms\":"};
    for (size_t i = 0; i < bytes;) {
        size_t skip = 0;
        for (size_t f = 0; f < sizeof timed / sizeof timed[0]; f++)
            if (strncmp(line + i, timed[f], strlen(timed[f])) == 0)
                skip = strlen(timed[f]) + strcspn(line + i + strlen(timed[f]), ",}");
        if (skip == 0)
            fputc(line[i++], to);
        i += skip;
    }
}

const char *law_lines(const char *out)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    const char *p = lks_test_read(lks_test_text("%s/metrics.jsonl", out), NULL);
    while (*p != '\0') {
        size_t n = strcspn(p, "\n");
        assert_true(p[n] == '\n');
        if (strncmp(p, "{\"kind\":\"host\"", 14) != 0)
            append_line(to, p, n + 1);
        p += n + 1;
    }
    fclose(to);
    const char *kept = lks_test_text("%s", text);
    free(text);
    return kept;
}

int law_count_lines(const char *out)
{
    FILE *f =
        fopen(lks_test_text("%s/metrics.jsonl", out), "r"); /* a resume may cut it meanwhile */
    int n = 0;
    for (int c; f != NULL && (c = fgetc(f)) != EOF;)
        n += c == '\n';
    if (f != NULL)
        fclose(f);
    return n;
}

bool law_has_line(const char *out, const char *kind, int iter)
{
    const json_t *lines = lks_test_record(out, kind);
    for (size_t i = 0; i < json_array_size(lines); i++)
        if ((int)lks_test_number(json_array_get(lines, i), "iter") == iter)
            return true;
    return false;
}

const char *law_common_lines(const char *out, const char *whole)
{
    const char *text = "";
    for (const char *p = law_lines(out), *end; *p != '\0'; p = end) {
        int iter;
        end = strchr(p, '\n') + 1;
        const bool asked = memmem(p, (size_t)(end - p), "\"asked\":", 8) != NULL;
        if (sscanf(p, "{\"kind\":\"checkpoint\",\"iter\":%d", &iter) != 1 ||
            (!asked && law_has_line(whole, "checkpoint", iter)))
            text = lks_test_text("%s%.*s", text, (int)(end - p), p);
    }
    return text;
}

const char *law_undisturbed_lines(const char *out)
{
    const char *text = "";
    for (const char *p = law_lines(out), *end; *p != '\0'; p = end) {
        end = strchr(p, '\n') + 1;
        const char *asked = strstr(p, "\"asked\":");
        if (asked == NULL || asked > end)
            text = lks_test_text("%s%.*s", text, (int)(end - p), p);
    }
    return text;
}

void law_assert_same_lines(const char *got, const char *want)
{
    for (int line = 1; *got != '\0' || *want != '\0'; line++) {
        size_t g = strcspn(got, "\n"), w = strcspn(want, "\n");
        if (g != w || memcmp(got, want, g) != 0)
            fail_msg("line %d of metrics.jsonl is\n  %.*s\nand should be\n  %.*s", line, (int)g,
                     got, (int)w, want);
        got += g + (got[g] == '\n');
        want += w + (want[w] == '\n');
    }
}

void law_assert_same_leaves(const char *out, const char *reference)
{
    size_t n, m;
    const char *lines = lks_test_read(lks_test_text("%s/metrics.jsonl", reference), NULL);
    if (lks_test_on_device() || strstr(lines, "\"device\":\"cuda") != NULL)
        return;
    const void *got = lks_test_read(lks_test_text("%s/leaves.bin", out), &n);
    const void *want = lks_test_read(lks_test_text("%s/leaves.bin", reference), &m);
    assert_int_equal(n, m);
    assert_memory_equal(got, want, n);
}

/* Events for TensorBoard have times in them, and each start of a run has a file of its own. Earlier
 * parts of the run have folders. */
static int count_files(const char *out)
{
    int n = lks_test_count_files(out) - lks_test_exists(lks_test_text("%s/leaves.bin", out));
    for (int i = 1; lks_test_exists(lks_test_text("%s/events.out.tfevents.%06d.lockstep", out, i));
         i++)
        n--;
    for (int i = 1; lks_test_exists(lks_test_text("%s/earlier-%d", out, i)); i++)
        n--;
    return n;
}

void law_assert_same(const char *out, const char *reference)
{
    law_assert_same_lines(law_lines(out), law_lines(reference));
    assert_true(law_named(out, "latest") >= 0 && law_named(out, "best") >= 0);
    assert_int_equal(law_named(out, "latest"), law_named(reference, "latest"));
    assert_int_equal(law_named(out, "best"), law_named(reference, "best"));
    law_assert_same_checkpoints(out, reference);
    law_assert_same_leaves(out, reference);
    /* and no other files: no half-written folder, no other checkpoint */
    assert_int_equal(count_files(out), count_files(reference));
}

/* ---- signals ----------------------------------------------------------------------------- */

/* Wait until the run has recorded checkpoint `iter`; false if it ended before. */
static bool wait_for_checkpoint(const lks_test_child *child, const char *out, int iter)
{
    const char *begins = lks_test_text("{\"kind\":\"checkpoint\",\"iter\":%d,", iter);
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    char line[4096];
    for (int i = 0; i < lks_test_tries(5000); i++) {
        FILE *f = fopen(metrics, "r");
        while (f != NULL && fgets(line, sizeof line, f) != NULL)
            if (strstr(line, begins) == line) {
                fclose(f);
                return lks_test_is_running(child);
            }
        if (f != NULL)
            fclose(f);
        usleep(4000);
    }
    return false;
}

/* Iteration 4 takes 0.4 s more on every rank, so that a signal that is sent once there is a
 * checkpoint reaches the run, which is otherwise over by then. The data of iterations 0 to 3 and of
 * two evaluations are 456 reads of all ranks together, and those of iteration 4 are 96. */
static const char *slow_iteration(int W)
{
    return lks_test_text("LOCKSTEP_FAULT=read:%d:slow", 500 / W);
}

const char *law_signalled(const char *sampler, int W, int signo, int exit_code, const char *more)
{
    for (int attempt = 0; attempt < 10; attempt++) {
        const char *out, *mark = marked_variable(), *env[] = {mark, slow_iteration(W), NULL};
        law_args args = law_train(sampler, &out);
        law_add(&args, "--nproc_per_node=%d", W);
        if (more != NULL)
            law_add(&args, "%s", more);
        lks_test_child child = lks_test_start(args.argv, env);
        if (wait_for_checkpoint(&child, out, 3))
            kill(child.pid, signo);
        lks_test_result r = lks_test_wait(&child, 60);
        marked_assert_gone(mark, 2);
        if (r.exit_code == 0)
            continue;
        if (r.signal != 0 ? r.signal != signo || exit_code != -1 : r.exit_code != exit_code)
            fail_msg("exit code %d, signal %d: %s", r.exit_code, r.signal, r.err);
        return out;
    }
    fail_msg("ten runs on %d ranks ended before signal %d reached them", W, signo);
    return NULL;
}

const char *law_saved(const char *sampler, int W, int *iter_p)
{
    for (int attempt = 0; attempt < 10; attempt++) {
        const char *out, *mark = marked_variable(), *env[] = {mark, slow_iteration(W), NULL};
        law_args args = law_train(sampler, &out);
        law_add(&args, "--nproc_per_node=%d", W);
        lks_test_child child = lks_test_start(args.argv, env);
        if (wait_for_checkpoint(&child, out, 4)) /* the next ones are 6 and 8 */
            kill(child.pid, SIGUSR1);
        lks_test_result r = lks_test_wait(&child, 60);
        marked_assert_gone(mark, 2);
        assert_exits(0, r);
        for (int i = 1; i < LAW_STEPS; i++) {
            *iter_p = i;
            if (!law_on_schedule(i) && lks_test_exists(lks_test_text("%s/ckpt-%08d", out, i)))
                return out;
        }
    }
    fail_msg("in ten runs on %d ranks SIGUSR1 fell on no iteration without a checkpoint", W);
    return NULL;
}
