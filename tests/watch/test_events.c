/* TensorBoard's events: a reader of our own checks frames, checksums and values, and that what is
 * left after each START is what metrics.jsonl has. watch_tensorboard asks TensorBoard itself. */
#include "poison.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "report/record/metrics/events.h"

/* --- a reader --------------------------------------------------------------------------------- */

struct point {
    char tag[64];
    uint64_t step;
    double value;
    bool text;
};

struct seen {
    struct point points[4000];
    size_t n;
    int files, starts;
    const char *settings, *sample; /* the newest ones */
};

struct bytes {
    const unsigned char *at, *end;
};

static uint64_t fixed(struct bytes *b, int n)
{
    uint64_t value = 0;
    assert_true(b->end - b->at >= n);
    for (int i = 0; i < n; i++)
        value |= (uint64_t)b->at[i] << (8 * i);
    b->at += n;
    return value;
}

static uint64_t varint(struct bytes *b)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(b->at < b->end && shift < 64);
        value |= (uint64_t)(*b->at & 0x7f) << shift;
        if ((*b->at++ & 0x80) == 0)
            return value;
    }
}

/* The next field: its number, and its value, or its bytes in `in`. */
static unsigned field(struct bytes *b, uint64_t *value_p, struct bytes *in)
{
    uint64_t key = varint(b);
    *in = (struct bytes){NULL, NULL};
    switch (key & 7) {
    case 0:
        *value_p = varint(b);
        break;
    case 1:
        *value_p = fixed(b, 8);
        break;
    case 5:
        *value_p = fixed(b, 4);
        break;
    case 2:
        *value_p = varint(b);
        assert_true(*value_p <= (uint64_t)(b->end - b->at));
        *in = (struct bytes){b->at, b->at + *value_p};
        b->at += *value_p;
        break;
    default:
        fail_msg("a field of wire type %u", (unsigned)(key & 7));
    }
    return (unsigned)(key >> 3);
}

static const char *text_of(struct bytes b)
{
    return lks_test_text("%.*s", (int)(b.end - b.at), (const char *)b.at);
}

static const char *string_in_tensor(struct bytes tensor)
{
    uint64_t value, type = 0;
    struct bytes in;
    const char *text = NULL;
    while (tensor.at < tensor.end)
        switch (field(&tensor, &value, &in)) {
        case 1:
            type = value;
            break;
        case 8:
            text = text_of(in);
            break;
        }
    assert_int_equal(type, 7); /* DT_STRING */
    return text;
}

static void read_value(struct seen *s, uint64_t step, struct bytes b)
{
    struct point *p = &s->points[s->n++];
    const char *text = NULL;
    uint64_t value;
    struct bytes in;
    assert_true(s->n <= sizeof s->points / sizeof s->points[0]);
    *p = (struct point){.step = step};
    while (b.at < b.end)
        switch (field(&b, &value, &in)) {
        case 1:
            snprintf(p->tag, sizeof p->tag, "%s", text_of(in));
            break;
        case 2: {
            uint32_t bits = (uint32_t)value;
            float f;
            memcpy(&f, &bits, sizeof f);
            p->value = (double)f;
            break;
        }
        case 8:
            p->text = true;
            text = string_in_tensor(in);
            break;
        }
    if (text != NULL && strcmp(p->tag, "sample") == 0)
        s->sample = text;
    else if (text != NULL)
        s->settings = text;
}

static void read_event(struct seen *s, struct bytes b)
{
    uint64_t value, step = 0;
    struct bytes in, summary = {NULL, NULL};
    bool start = false;
    while (b.at < b.end)
        switch (field(&b, &value, &in)) {
        case 2:
            step = value;
            break;
        case 5:
            summary = in;
            break;
        case 7:
            start = varint(&in) == (1 << 3) && varint(&in) == 1;
            break;
        }
    if (start) { /* as TensorBoard does, which keeps texts */
        size_t kept = 0;
        for (size_t i = 0; i < s->n; i++)
            if (s->points[i].step < step || s->points[i].text)
                s->points[kept++] = s->points[i];
        s->n = kept;
        s->starts++;
    }
    while (summary.at < summary.end) {
        assert_int_equal(field(&summary, &value, &in), 1);
        read_value(s, step, in);
    }
}

static uint32_t masked(const void *data, size_t bytes)
{
    uint32_t crc = lks__crc32c(data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void read_file(struct seen *s, const char *path)
{
    size_t bytes;
    const char *data = lks_test_read(path, &bytes);
    struct bytes b = {(const unsigned char *)data, (const unsigned char *)data + bytes};
    for (int i = 0; b.at < b.end; i++) {
        const unsigned char *head = b.at;
        uint64_t length = fixed(&b, 8), value;
        assert_int_equal(fixed(&b, 4), masked(head, 8));
        struct bytes record = {b.at, b.at + length}, in;
        assert_true(length <= (uint64_t)(b.end - b.at));
        b.at = record.end;
        assert_int_equal(fixed(&b, 4), masked(record.at, length));
        struct bytes first = record;
        if (i == 0) {
            while (field(&first, &value, &in) != 3)
                continue;
            assert_string_equal(text_of(in), "brain.Event:2");
        }
        read_event(s, record);
    }
}

static const char *file_of(const char *out, int i)
{
    return lks_test_text("%s/events.out.tfevents.%06d.lockstep", out, i);
}

static struct seen *read_run(const char *out)
{
    struct seen *s = lks_test_calloc(1, sizeof *s);
    while (lks_test_exists(file_of(out, s->files + 1)))
        read_file(s, file_of(out, ++s->files));
    return s;
}

/* --- beside metrics.jsonl --------------------------------------------------------------------- */

static size_t count(const struct seen *s, const char *tag)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += strcmp(s->points[i].tag, tag) == 0;
    return n;
}

/* `group/name` has the member `name` of each line of `kind`, once and rounded to float32. */
static void compare(const struct seen *s, const char *out, const char *kind, const char *group,
                    const char *name)
{
    const char *tag = lks_test_text("%s/%s", group, name);
    const json_t *lines = lks_test_record(out, kind);
    size_t n;
    int kept[1000] = {0};
    for (n = json_array_size(lines); n-- > 0;) { /* after a rollback the last one counts */
        const json_t *line = json_array_get(lines, n);
        const json_t *value = json_object_get(line, name);
        uint64_t step = (uint64_t)json_integer_value(json_object_get(line, "iter"));
        bool found = false;
        assert_true(json_is_number(value) && step < 1000);
        if (kept[step]++ > 0)
            continue;
        for (size_t i = 0; i < s->n; i++)
            if (strcmp(s->points[i].tag, tag) == 0 && s->points[i].step == step) {
                assert_false(found);
                found = true;
                assert_near(s->points[i].value, json_number_value(value),
                            1e-6 * fabs(json_number_value(value)));
            }
        if (!found)
            fail_msg("no %s at step %d", tag, (int)step);
    }
    size_t distinct = 0;
    for (int i = 0; i < 1000; i++)
        distinct += kept[i] > 0;
    assert_int_equal(count(s, tag), distinct);
    assert_true(distinct > 0);
}

static void compare_all(const struct seen *s, const char *out)
{
    static const char *const train[] = {"loss", "lr", "grad_norm"};
    static const char *const speed[] = {"ms", "tok_per_s", "mfu", "comm_exposed_ms"};
    static const char *const losses[] = {"train_loss", "val_loss"};
    for (size_t i = 0; i < sizeof train / sizeof train[0]; i++)
        compare(s, out, "train", "train", train[i]);
    for (size_t i = 0; i < sizeof speed / sizeof speed[0]; i++)
        compare(s, out, "train", "speed", speed[i]);
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        compare(s, out, "eval", "eval", losses[i]);
        compare(s, out, "final", "final", losses[i]);
    }
}

static const char *data(void)
{
    static const char *folder;
    if (folder == NULL) {
        folder = lks_test_folder();
        lks_test_generated_vocabulary(folder, 16);
    }
    return folder;
}

static void train(const char *out, const char *max_iters, const char *more, const char *also)
{
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", data()),
                lks_test_text("--out_dir=%s", out), lks_test_text("--max_iters=%s", max_iters),
                "--vocab_size=16", "--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=8",
                "--batch_size=2", "--gradient_accumulation_steps=2", "--eval_interval=4",
                "--eval_iters=2", "--threads=1", more, also);
}

TEST(test_run)
{
    const char *out = lks_test_text("%s/out", lks_test_folder());
    train(out, "10", "--seed=7", NULL);
    struct seen *s = read_run(out);
    assert_int_equal(s->files, 1);
    compare_all(s, out);
    assert_contains(s->settings, "    n_embd = 16\n", "    seed = 7\n");
    assert_int_equal(count(s, "memory/rank_0"), 4); /* evaluations 0, 4, 8 and the final one */
    const json_t *hosts = lks_test_record(out, "host");
    const json_t *end = json_array_get(hosts, json_array_size(hosts) - 1);
    const json_t *command = json_object_get(end, "command");
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    assert_int_equal(lks_test_number(end, "schema"), 1);
    assert_int_equal(strlen(lks_test_string(end, "time")), 20);
    assert_string_equal(lks_test_string(end, "host"), host);
    assert_string_equal(json_string_value(json_array_get(command, 1)), "train");
    assert_string_equal(json_string_value(json_array_get(command, 15)), "--seed=7");
    assert_int_equal(json_array_size(command), 16);
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->points[i].tag, "memory/all_ranks") == 0 && s->points[i].step == 11)
            assert_near(s->points[i].value / lks_test_number(end, "memory_bytes"), 1.0, 1e-6);
    assert_int_equal(count(s, "memory/all_ranks"), 4); /* evaluations 0, 4, 8, and the end */
    free(s);
}

/* ranks.jsonl: a line for each evaluation and for the end, with all ranks in it. */
TEST(test_ranks)
{
    static const int iters[] = {0, 4, 8, 11}, steps[] = {0, 4, 4, 3};
    const char *out = lks_test_text("%s/out", lks_test_folder());
    train(out, "10", "--nproc_per_node=2", NULL);
    const json_t *lines = lks_test_metrics(lks_test_text("%s/ranks.jsonl", out), NULL), *line;
    const json_t *hosts = lks_test_record(out, "host");
    const json_t *points = lks_test_record(out, "train");
    double memory = 0.0, waited = 0.0, took = 0.0;
    size_t i;
    assert_int_equal(json_array_size(lines), 4);
    json_array_foreach(lines, i, line)
    {
        assert_int_equal(lks_test_number(line, "iter"), iters[i]);
        assert_int_equal(lks_test_number(line, "steps"), steps[i]);
        assert_int_equal(json_array_size(lks_test_member(line, "memory_bytes")), 2);
        memory = lks_test_number(line, "memory_bytes.0") + lks_test_number(line, "memory_bytes.1");
        assert_true(lks_test_number(line, "memory_bytes.1") > 100000);
        assert_int_equal(json_object_get(line, "wait_ms") != NULL, i > 0);
        if (i == 0)
            continue;
        assert_true(lks_test_number(line, "compute_ms.1") > 0.0);
        assert_true(lks_test_number(line, "wait_ms.1") >= 0.0);
        waited += steps[i] * lks_test_number(line, "wait_ms.0");
        took +=
            steps[i] * (lks_test_number(line, "wait_ms.0") + lks_test_number(line, "compute_ms.0"));
    }
    /* Rank 0's own figures are those of the steps, and the last memory that of the run's end. */
    assert_near(memory, lks_test_number(hosts, "1.memory_bytes"), 0.0);
    json_array_foreach(points, i, line)
    {
        waited -= lks_test_number(line, "comm_exposed_ms");
        took -= lks_test_number(line, "ms");
    }
    struct seen *s = read_run(out); /* TensorBoard has the same sums */
    size_t n_sums = 0;
    for (i = 0; i < s->n; i++)
        if (strcmp(s->points[i].tag, "memory/all_ranks") == 0 && s->points[i].step == 11) {
            assert_near(s->points[i].value / memory, 1.0, 1e-6);
            n_sums++;
        }
    assert_int_equal(n_sums, 1);
    free(s);
    assert_near(waited, 0.0, 1e-4);
    assert_near(took, 0.0, 1e-4);
}

/* Evaluation 8 belongs to checkpoint 8, from which the second run goes on, and isn't made again. */
TEST(test_resume)
{
    const char *out = lks_test_text("%s/out", lks_test_folder());
    train(out, "9", "--checkpoint_interval=4", NULL);
    assert_int_equal(remove(lks_test_text("%s/ckpt-00000010/model.safetensors", out)), 0);
    assert_int_equal(remove(lks_test_text("%s/latest", out)), 0);
    assert_int_equal(rename(lks_test_text("%s/ckpt-00000010", out), lks_test_text("%s/aside", out)),
                     0);
    lks_test_write_text(lks_test_text("%s/latest", out), "ckpt-00000008");
    train(out, "13", "--checkpoint_interval=4", "--init_from=resume");
    struct seen *s = read_run(out);
    assert_int_equal(s->files, 2);
    assert_int_equal(s->starts, 2);
    compare_all(s, out);
    free(s);
    /* TensorBoard's server doesn't heed a START: the end that was none is in no file. */
    size_t first, again;
    const char *text = lks_test_read(file_of(out, 1), &first);
    assert_null(memmem(text, first, "final/", 6));
    assert_non_null(memmem(text, first, "eval/", 5));
    text = lks_test_read(file_of(out, 2), &again);
    assert_non_null(memmem(text, again, "final/", 6));
    /* What isn't ours is left as it is. */
    lks__events *e;
    char *odd = calloc(1, again + 100);
    memcpy(odd, text, again / 2);
    memset(odd + again / 2, 0xff, 100);
    lks_test_write(file_of(out, 2), odd, again / 2 + 100);
    assert_ok(lks__events_create(out, 3, &e));
    assert_ok(lks__events_close(e));
    size_t bytes;
    text = lks_test_read(file_of(out, 2), &bytes);
    assert_int_equal(bytes, again / 2 + 100);
    assert_memory_equal(text, odd, bytes);
    free(odd);
}

/* On the way back the run makes steps again, within one file. */
TEST(test_rollback)
{
    const char *out = lks_test_folder();
    law_args first = poison_train(out, 1), again = poison_train(out, 1);
    law_add(&first, "--iterations=2");
    law_run(&first);
    poison_embedding(out);
    law_add_all(&again, "--init_from=resume", "--iterations=10", "--on_nan=rollback");
    lks_test_run(again.argv, NULL, 60); /* at the end no artifact can be made of NaN */
    struct seen *s = read_run(out);
    assert_int_equal(s->files, 2);
    assert_int_equal(s->starts, 4); /* of two files, and two ways back */
    compare(s, out, "train", "train", "loss");
    free(s);
}

/* The value of `lockstep_NAME` in a Prometheus file. */
static double gauge(const char *text, const char *name, const char *label)
{
    const char *begin = lks_test_text("\nlockstep_%s%s ", name, label), *at = strstr(text, begin);
    double value = 0.0;
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(begin), "%lf", &value), 1);
    return value;
}

TEST(test_prometheus)
{
    const char *folder = lks_test_folder(), *out = lks_test_text("%s/a\"b\nc\xff", folder);
    const char *file = lks_test_text("%s/now.prom", folder);
    const double before = lks__sys_wall();
    train(out, "10", lks_test_text("--prometheus=%s", file), NULL);
    const char *text = lks_test_read(file, NULL);
    const json_t *finals = lks_test_record(out, "final");
    const json_t *steps = lks_test_record(out, "train");
    const char *label = lks_test_text("{run=\"%s/a\\\"b\\nc?\"}", folder);
    assert_contains(text, lks_test_text("\n# TYPE lockstep_loss gauge\nlockstep_loss%s ", label),
                    lks_test_text("\nlockstep_iteration%s 11\n", label));
    assert_near(gauge(text, "val_loss", label), lks_test_number(finals, "0.val_loss"), 1e-7);
    assert_near(gauge(text, "loss", label), lks_test_number(steps, "10.loss"), 1e-7);
    static const char *const fields[][2] = {{"learning_rate", "lr"},
                                            {"grad_norm", "grad_norm"},
                                            {"tokens_per_second", "tok_per_s"},
                                            {"mfu", "mfu"}};
    for (int i = 0; i < 4; i++) {
        const double is = lks_test_number(steps, lks_test_text("10.%s", fields[i][1]));
        assert_near(gauge(text, fields[i][0], label) / is, 1.0, 1e-6);
    }
    assert_contains(
        text,
        lks_test_text("\nlockstep_tokens%s %.0f\n", label, lks_test_number(steps, "10.tokens")),
        lks_test_text("\nlockstep_best_val_loss%s ", label));
    const double value = gauge(text, "updated_seconds", label);
    assert_true(value >= before && value <= lks__sys_wall());
    assert_int_equal(lks_test_count_files(folder), 2); /* the run, and the file */
    /* What there isn't is left out. */
    const char *bare = lks_test_text("%s/bare.prom", lks_test_folder());
    train(lks_test_folder(), "2", lks_test_text("--prometheus=%s", bare), "--eval_interval=0");
    text = lks_test_read(bare, NULL);
    assert_contains(text, "\nlockstep_loss{");
    assert_non_null(strstr(strstr(text, "\nlockstep_iteration{"), "\"} 3\n")); /* that of the end */
    assert_null(strstr(text, "best_val_loss"));
    assert_null(strstr(text, "nan"));
    /* The longest name of a run, in each line. */
    const char *deep = folder;
    for (int i = 0; i < 4; i++)
        deep = lks_test_text("%s/%0200d", deep, i);
    lks_test_do("mkdir", "-p", deep);
    train(deep, "0", lks_test_text("--prometheus=%s", bare), "--eval_interval=0");
    assert_contains(lks_test_read(bare, NULL), deep);
    /* A file that can't be written, or isn't one of ours: the run says so once, and continues. */
    const char *const others[] = {lks_test_text("%s/none/now.prom", folder),
                                  lks_test_text("%s/other-0/metrics.jsonl", folder)};
    for (int i = 0; i < 2; i++) {
        lks_test_result r = lks_test_do(
            "lockstep", "train", lks_test_text("--dataset=%s", data()),
            lks_test_text("--out_dir=%s/other-%d", folder, i), "--max_iters=4", "--vocab_size=16",
            "--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=8", "--batch_size=2",
            "--eval_interval=2", "--eval_iters=1", "--gradient_accumulation_steps=2",
            lks_test_text("--prometheus=%s", others[i]));
        const char *said = lks_test_find(r.err, "; the run continues without");
        assert_null(strstr(said + 1, "; the run continues without"));
    }
    assert_int_equal(lks_test_read(others[1], NULL)[0], '{');
}

/* --- samples ---------------------------------------------------------------------------------- */

/* A folder with the characters of `text`. */
static const char *characters(const char *text)
{
    const char *folder = lks_test_folder(), *input = lks_test_text("%s/text", folder);
    FILE *f = fopen(input, "w");
    assert_non_null(f);
    for (unsigned i = 0, x = 7; i < 2000; i++) {
        x = (x * 75 + 74) % 65537;
        fputc(i < strlen(text) ? text[i] : text[x % strlen(text)], f);
    }
    assert_int_equal(fclose(f), 0);
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", input),
                lks_test_text("--out=%s/data", folder));
    return lks_test_text("%s/data", folder);
}

static lks_test_result train_characters(const char *folder, const char *out, const char *more,
                                        const char *also)
{
    return lks_test_tool("train", lks_test_text("--dataset=%s", folder),
                         lks_test_text("--out_dir=%s", out), "--n_layer=1", "--n_head=2",
                         "--n_embd=16", "--block_size=8", "--batch_size=2", "--max_iters=9",
                         "--gradient_accumulation_steps=2", "--eval_interval=4", "--eval_iters=2",
                         "--dropout=0.1", more, also);
}

static const json_t *evals_of(const char *out)
{
    return lks_test_record(out, "eval");
}

/* What `lockstep sample` writes from the checkpoint of iteration 8, without the prompt. */
static const char *drawn_text(const char *out, const char *start)
{
    lks_test_result r = lks_test_tool("sample", lks_test_text("--out_dir=%s", out), "--which=8",
                                      "--num_samples=1", "--max_new_tokens=30", start);
    const char *end = strstr(r.out, "\n---------------\n");
    if (r.exit_code != 0 || end == NULL)
        fail_msg("%s", r.err);
    return lks_test_text("%.*s", (int)(end - r.out) - 1, r.out + 1);
}

static size_t samples_in(const struct seen *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->points[i].tag, "sample") == 0)
            assert_true(s->points[i].text && s->points[i].step % 4 == 0);
    return count(s, "sample");
}

/* Each evaluation has the text that `lockstep sample` draws from its checkpoint, on any number of
 * ranks, and the run is the one without texts. A resume doesn't lose it. */
TEST(test_sample)
{
    const char *folder = characters("\nabcd\n e"), *base = lks_test_folder();
    const char *none = lks_test_text("%s/none", base), *one = lks_test_text("%s/one", base);
    const char *two = lks_test_text("%s/two", base);
    assert_exits(0, train_characters(folder, none, "--threads=1", NULL));
    assert_exits(0, train_characters(folder, one, "--sample_tokens=30", "--threads=2"));
    assert_exits(0, train_characters(folder, two, "--sample_tokens=30", "--nproc_per_node=2"));
    law_assert_same_checkpoints(one, none);
    law_assert_same(two, one);
    const json_t *evals = evals_of(one), *line;
    size_t i;
    assert_int_equal(json_array_size(evals), 3);
    json_array_foreach(evals, i, line)
        assert_int_equal(strlen(lks_test_string(line, "sample")), 30);
    assert_string_equal(lks_test_string(evals, "2.sample"), drawn_text(one, "--start=\n"));
    struct seen *s = read_run(one);
    assert_int_equal(samples_in(s), 3);
    const char *shown = s->sample; /* each line is indented */
    const char *text = json_string_value(json_object_get(json_array_get(evals, 2), "sample"));
    for (bool begin = true; *text != '\0'; begin = *text++ == '\n') {
        if (begin) {
            assert_int_equal(strncmp(shown, "    ", 4), 0);
            shown += 4;
        }
        assert_int_equal(*shown++, *text);
    }
    free(s);
    assert_null(json_object_get(json_array_get(evals_of(none), 0), "sample"));
    /* On with checkpoint 8, as after a crash: its evaluation isn't made again. Then on with 4: the
     * run knows that it draws texts. */
    for (int from = 8; from >= 4; from -= 4) {
        for (int later = from + 1; later <= 10; later++)
            rename(lks_test_text("%s/ckpt-%08d", one, later),
                   lks_test_text("%s/aside-%d-%d", base, from, later));
        assert_int_equal(remove(lks_test_text("%s/latest", one)), 0);
        lks_test_write(lks_test_text("%s/latest", one), lks_test_text("ckpt-%08d", from), 13);
        assert_exits(0, train_characters(folder, one, "--init_from=resume", NULL));
        law_assert_same(one, two);
    }
    s = read_run(one);
    assert_int_equal(s->files, 3);
    assert_int_equal(samples_in(s), 4); /* that of evaluation 8 twice */
    free(s);
}

/* Without a line feed a text begins with the first character; without a tokenizer there is none. */
TEST(test_sample_prompt)
{
    const char *out = lks_test_text("%s/out", lks_test_folder());
    assert_exits(0,
                 train_characters(characters("abcde"), out, "--sample_tokens=30", "--threads=1"));
    assert_string_equal(lks_test_string(evals_of(out), "2.sample"), drawn_text(out, "--start=a"));
    assert_exits(2,
                 train_characters(data(), lks_test_text("%s.ids", out), "--sample_tokens=30",
                                  "--vocab_size=16"),
                 "sample_tokens: the data's meta.json names no tokenizer: leave ");
    assert_false(lks_test_exists(lks_test_text("%s.ids/metrics.jsonl", out)));
}

TEST(test_off)
{
    const char *out = lks_test_text("%s/out", lks_test_folder());
    train(out, "4", "--tensorboard=false", NULL);
    assert_false(lks_test_exists(file_of(out, 1)));
}

TEST(test_crc)
{
    unsigned char bytes[32] = {0}; /* RFC 3720, B.4 */
    assert_int_equal(lks__crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(lks__crc32c(bytes, sizeof bytes), 0x8a9136aau);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(lks__crc32c(bytes, sizeof bytes), 0x46dd794eu);
}

/* Steps of every length as a varint; and an earlier file is cut only at a tag, not at a text of
 * that beginning. */
TEST(test_steps)
{
    static const uint64_t steps[] = {0, 1, 127, 128, 129, 16383, 16384, UINT32_MAX};
    enum { N = sizeof steps / sizeof *steps };
    const char *out = lks_test_folder();
    lks__events *e;
    size_t before, after;
    assert_ok(lks__events_create(out, 0, &e));
    for (int i = 0; i < N; i++) {
        lks__events_begin(e, steps[i]);
        lks__events_text(e, "settings", "    out_dir = final/run\n");
        lks__events_scalar(e, "x", i);
        assert_ok(lks__events_end(e));
    }
    assert_ok(lks__events_close(e));
    struct seen *s = read_run(out);
    assert_int_equal(s->n, 2 * N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(s->points[2 * i + 1].step, steps[i]);
        assert_near(s->points[2 * i + 1].value, i, 0.0);
    }
    free(s);
    lks_test_read(file_of(out, 1), &before);
    assert_ok(lks__events_create(out, 0, &e));
    assert_ok(lks__events_close(e));
    lks_test_read(file_of(out, 1), &after);
    assert_int_equal(after, before);
}

/* A text that a record can't hold is an error, and writes nothing. */
TEST(test_limits)
{
    const char *out = lks_test_folder();
    lks__events *e;
    char *text = calloc(1, 300 << 10);
    size_t bytes, after;
    memset(text, 'x', (300 << 10) - 1);
    assert_ok(lks__events_create(out, 3, &e));
    lks_test_read(file_of(out, 1), &bytes);
    lks__events_begin(e, 3);
    lks__events_text(e, "text", text);
    assert_fails(LKS_ERR_NOMEM, lks__events_end(e), file_of(out, 1));
    lks_test_read(file_of(out, 1), &after);
    assert_int_equal(bytes, after);
    assert_ok(lks__events_close(e));
    free(text);
    assert_fails(LKS_ERR_IO, lks__events_create(lks_test_text("%s/none", out), 0, &e),
                 "can't make");
}
