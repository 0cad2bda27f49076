/* Every setting of prep, train, sample and eval is changed alone: what it should change changes,
 * and nothing else. A setting without a row fails the test. */
#include "support.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings/family.h"
#include "settings/settings_table.h"

enum {
    PREP = LKS__CMD_PREP,
    TRAIN = LKS__CMD_TRAIN,
    SAMPLE = LKS__CMD_SAMPLE,
    EVAL = LKS__CMD_EVAL
};

/* --- observable aspects of a run ---------------------------------------------------------- */

enum aspect {
    A_RESULT, /* exit code */
    A_START,  /* loss and norm of iteration 0 */
    A_COURSE, /* those of later iterations */
    A_RATES,  /* learning rates */
    A_TOKENS, /* tokens so far, after each step */
    A_STEPS,  /* iterations that have a line */
    A_SKIPS,  /* iterations without an update */
    A_EVALS,  /* iterations evaluated */
    A_VALUES, /* their results */
    A_SAVES,  /* iterations saved */
    A_PARAMS, /* hash of the final parameters */
    A_FILES,  /* files in the folder at the end */
    A_LOG,    /* train.log without numbers */
    A_HOST,   /* ranks, threads, backend, replicas, kernels */
    A_WORK,   /* micro-batches computed by each rank */
    A_TEXT,   /* standard output of commands without a log; prep: hashes of its files */
    N_ASPECTS
};

static const char *const aspect_names[] = {
    "the result", "the first step",  "the later steps", "the rates", "the tokens",  "the steps",
    "the skips",  "the evaluations", "their values",    "the saves", "the weights", "the files",
    "the log",    "the host line",   "the work",        "the text",
};

enum {
    RESULT = 1 << A_RESULT,
    START = 1 << A_START,
    COURSE = 1 << A_COURSE,
    RATES = 1 << A_RATES,
    TOKENS = 1 << A_TOKENS,
    STEPS = 1 << A_STEPS,
    SKIPS = 1 << A_SKIPS,
    EVALS = 1 << A_EVALS,
    VALUES = 1 << A_VALUES,
    SAVES = 1 << A_SAVES,
    PARAMS = 1 << A_PARAMS,
    FILES = 1 << A_FILES,
    LOG = 1 << A_LOG,
    HOST = 1 << A_HOST,
    WORK = 1 << A_WORK,
    TEXT = 1 << A_TEXT,
    /* Another model or other data from the start; another course from the first update on. */
    OTHER = START | COURSE | VALUES | PARAMS,
    LATER = COURSE | VALUES | PARAMS,
    ALL = (1 << N_ASPECTS) - 1,
    REFUSED = 1 << 30, /* no run at all */
};

struct seen {
    const char *at[N_ASPECTS];
    const char *said; /* both streams */
    const json_t *config;
};

struct row {
    unsigned command;
    const char *setting, *value;
    unsigned changes, may; /* what must change, and what may */
    const char *with;      /* settings of both runs, and variables (NAME=VALUE) */
    const char *says;      /* text in the output of the changed run that the other doesn't have */
    enum aspect where;     /* an aspect of the changed run ... */
    const char *is;        /* ... and its expected value */
    const char *first;     /* settings of an earlier run in the same folder */
    const char *also;      /* another setting in the config line that follows from this one */
    bool makes;            /* the value is a file that must exist afterwards */
};

/* --- places ------------------------------------------------------------------------------- */

static const char *const train_gpt2 =
    "train --dataset=@data --n_layer=2 --n_head=2 --n_embd=16 --block_size=8 --batch_size=2 "
    "--gradient_accumulation_steps=4 --virtual_ranks=2 --max_iters=8 --learning_rate=0.01 "
    "--min_lr=0.001 --warmup_iters=2 --lr_decay_iters=7 --grad_clip=0.5 --eval_interval=3 "
    "--eval_iters=2 --checkpoint_interval=3 --keep=0 --threads=1 --timeout=20";
static const char *const train_golf =
    "train --family=golf --sampler=stream --dataset=@golf --vocab_size=64 --n_layer=2 --n_head=2 "
    "--num_kv_heads=1 --n_embd=16 --block_size=16 --train_batch_tokens=128 "
    "--gradient_accumulation_steps=4 --virtual_ranks=2 --val_batch_size=64 --iterations=8 "
    "--warmdown_iters=4 --max_wallclock_seconds=0 "
    "--eval_interval=3 --log_interval=1 --checkpoint_interval=3 --keep=0 --threads=1 --timeout=20";
static const char *const sample_gpt2 = "sample --out_dir=@run --start=ab --num_samples=2 "
                                       "--max_new_tokens=200 --top_k=20 --threads=1";
static const char *const eval_gpt2 = "eval --out_dir=@run --dataset=@data --threads=1";
static const char *const prep_char = "prep char --input=@text";
static const char *const prep_bpe = "prep gpt2 --input=@eot --tokenizer=@bpe";
static const char *const prep_sp = "prep sentencepiece --input=@prose";

static const char *run_in(const char *out, const char *base, const char *more);

/* Text over 26 letters, made from `seed`. */
static void write_text(const char *path, unsigned seed, int n)
{
    char text[4096];
    for (int i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345u;
        text[i] = i < 26 ? (char)('a' + i) : (char)('a' + (seed >> 16) % 13 + 13u * (i % 2));
    }
    lks_test_write(path, text, (size_t)n);
}

/* Words from which SentencePiece can learn. */
static void write_prose(const char *path)
{
    static const char *const words[] = {"one",   "other",  "where", "rank",  "step",
                                        "loss",  "weight", "train", "bytes", "point",
                                        "under", "light",  "house"};
    char text[16384];
    size_t n = 0;
    unsigned seed = 3;
    for (int i = 0; i < 2400; i++) {
        seed = seed * 1103515245u + 12345u;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", words[(seed >> 16) % 13],
                              i % 12 == 11 ? ".\n\n" : " ");
    }
    lks_test_write(path, text, n);
}

static void write_shards(const char *dir)
{
    static uint16_t ids[6000];
    for (int i = 0; i < 6000; i++)
        ids[i] = (uint16_t)((i * i % 59 + i % 4) % 64);
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", dir), ids, 6000);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", dir), ids + 77, 400);
}

static void make_place(const char *name, const char *path)
{
    if (strcmp(name, "text") == 0 || strcmp(name, "text2") == 0)
        write_text(path, strlen(name) == 5 ? 99 : 7, 3001);
    else if (strcmp(name, "prose") == 0)
        write_prose(path);
    else if (strcmp(name, "eot") == 0)
        lks_test_write_text(path, "one<|endoftext|>two");
    else if (strcmp(name, "bpe") == 0) {
        const json_t *figure = lks_test_figure("bpe_small.json");
        assert_int_equal(mkdir(path, 0777), 0);
        assert_int_equal(json_dump_file(json_object_get(figure, "tokenizer"),
                                        lks_test_text("%s/tokenizer.json", path), 0),
                         0);
    } else if (strcmp(name, "lines") == 0) {
        assert_int_equal(mkdir(path, 0777), 0);
        static const char lines[] = "{\"text\":\"one other\",\"body\":\"light house\"}\n"
                                    "{\"text\":\"rank\",\"body\":\"step under\"}\n";
        lks_test_write_text(lks_test_text("%s/a.jsonl", path), lines);
    } else if (strcmp(name, "data") == 0)
        run_in(path, prep_char, NULL);
    else if (strcmp(name, "other") == 0)
        run_in(path, "prep char --input=@text2", NULL);
    else if (strcmp(name, "short") == 0) {
        write_text(lks_test_text("%s.txt", path), 7, 140); /* 15 samples of 8 tokens */
        run_in(path, lks_test_text("prep char --input=%s.txt", path), NULL);
    } else if (strcmp(name, "bare") == 0) {
        run_in(path, prep_char, NULL);
        unlink(lks_test_text("%s/meta.json", path));
    } else if (strcmp(name, "golf") == 0) {
        assert_int_equal(mkdir(path, 0777), 0);
        write_shards(path);
    } else if (strcmp(name, "run") == 0)
        run_in(path, train_gpt2, NULL);
    else if (strcmp(name, "run2") == 0)
        run_in(path, train_gpt2, "--seed=5");
    else if (strcmp(name, "golfrun") == 0)
        run_in(path, train_golf, NULL);
    else if (strcmp(name, "sprun") == 0)
        run_in(path, train_golf, "--dataset=@spbare --vocab_size=300");
    else if (strcmp(name, "sp") == 0)
        run_in(path, prep_sp, "--vocab_size=300");
    else if (strcmp(name, "sp2") == 0)
        run_in(path, "prep sentencepiece --input=@prose --vocab_size=310", NULL);
    else if (strcmp(name, "spbare") == 0) {
        run_in(path, prep_sp, "--vocab_size=300");
        unlink(lks_test_text("%s/meta.json", path));
    }
}

/* The path of @NAME, which is made on first use. Text after a '/' is kept. */
static const char *place(const char *name)
{
    static struct {
        const char *name, *path;
    } made[32];
    static const char *folder;
    size_t n = strcspn(name, "/");
    int i = 0;
    if (folder == NULL)
        folder = lks_test_folder();
    for (; made[i].name != NULL; i++)
        if (strlen(made[i].name) == n && strncmp(made[i].name, name, n) == 0)
            return lks_test_text("%s%s", made[i].path, name + n);
    made[i].name = lks_test_text("%.*s", (int)n, name);
    made[i].path = lks_test_text("%s/%s", folder, made[i].name);
    make_place(made[i].name, made[i].path);
    return lks_test_text("%s%s", made[i].path, name + n);
}

/* --- running ------------------------------------------------------------------------------ */

struct command {
    const char *argv[80], *env[8];
    int n, n_env;
};

/* Split `text` into words: settings, in which @NAME is a place, and variables. */
static void add_words(struct command *c, const char *text)
{
    while (text != NULL && *text != '\0') {
        size_t n = strcspn(text, " ");
        const char *word = lks_test_text("%.*s", (int)n, text), *at = strchr(word, '@');
        if (at != NULL)
            word = lks_test_text("%.*s%s", (int)(at - word), word, place(at + 1));
        if (strncmp(word, "LOCKSTEP_", 9) == 0)
            c->env[c->n_env++] = word;
        else
            c->argv[c->n++] = word;
        text += n + strspn(text + n, " ");
    }
}

static struct command command_of(const char *base, const char *with)
{
    struct command c = {.argv = {"lockstep"}, .n = 1};
    add_words(&c, base);
    add_words(&c, with);
    return c;
}

static lks_test_result run_command(const struct command *c)
{
    return lks_test_run(c->argv, c->env, 60);
}

/* A run in `out` that must succeed. */
static const char *run_in(const char *out, const char *base, const char *more)
{
    struct command c = command_of(base, more);
    c.argv[c.n++] =
        lks_test_text("--%s=%s", strncmp(base, "prep", 4) == 0 ? "out" : "out_dir", out);
    assert_exits(0, run_command(&c));
    return out;
}

/* --- looking ------------------------------------------------------------------------------ */

static const char *joined(const char *before, const char *more)
{
    return before[0] == '\0' ? more : lks_test_text("%s %s", before, more);
}

static void add(struct seen *s, enum aspect at, const char *text)
{
    s->at[at] = joined(s->at[at], text);
}

static const char *dumped(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    if (value == NULL)
        return "-";
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    assert_non_null(text);
    const char *kept = lks_test_text("%s", text);
    free(text);
    return kept;
}

static const char *kind_of(const json_t *line)
{
    return json_string_value(json_object_get(line, "kind"));
}

static void look_at_line(struct seen *s, const json_t *line)
{
    static const char *const host[] = {"world_size", "threads", "backend",     "replicas",
                                       "kernels",    "gemm",    "fingerprint", "resumed_iter"};
    const char *kind = kind_of(line), *iter = dumped(line, "iter");
    if (strcmp(kind, "config") == 0)
        s->config = line;
    else if (strcmp(kind, "host") == 0 && json_object_get(line, "micro_batches") != NULL)
        add(s, A_WORK, dumped(line, "micro_batches"));
    else if (strcmp(kind, "host") == 0)
        for (size_t i = 0; i < sizeof host / sizeof host[0]; i++)
            add(s, A_HOST, dumped(line, host[i]));
    else if (strcmp(kind, "train") == 0) {
        const char *both = lks_test_text("%s/%s", dumped(line, "loss"), dumped(line, "grad_norm"));
        add(s, strcmp(iter, "0") == 0 ? A_START : A_COURSE, both);
        add(s, A_STEPS, iter);
        add(s, A_RATES, dumped(line, "lr"));
        add(s, A_TOKENS, dumped(line, "tokens"));
    } else if (strcmp(kind, "skip") == 0 || strcmp(kind, "rollback") == 0)
        add(s, A_SKIPS, iter);
    else if (strcmp(kind, "checkpoint") == 0) {
        add(s, A_SAVES, iter);
        s->at[A_PARAMS] = dumped(line, "params_hash");
    } else { /* eval, artifact */
        add(s, A_EVALS, strcmp(kind, "eval") == 0 ? iter : kind);
        add(s, A_VALUES,
            lks_test_text("%s/%s/%s", dumped(line, "train_loss"), dumped(line, "val_loss"),
                          dumped(line, "val_bpb")));
    }
}

/* The log without numbers and without the folders' names. */
static const char *words_of(const char *text, const char *out)
{
    char *words = malloc(strlen(text) + 1);
    size_t n = 0;
    assert_non_null(words);
    while (*text != '\0') {
        if (strncmp(text, out, strlen(out)) == 0)
            text += strlen(out);
        else if (strncmp(text, "the last two validation losses", 30) == 0 ||
                 strncmp(text, "to compare them over", 20) == 0)
            text += strcspn(text, "\n") + 1; /* it depends on the values */
        else if (strchr("0123456789.-", *text) == NULL)
            words[n++] = *text++;
        else
            text++;
    }
    words[n] = '\0';
    const char *kept = lks_test_text("%s", words);
    free(words);
    return kept;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names in a folder, and targets of links; with hashes, if requested. */
static const char *list(const char *folder, bool hashes)
{
    const char *names[64], *all = "";
    size_t n = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return "";
    for (struct dirent *e; (e = readdir(dir)) != NULL && n < 64;)
        if (e->d_name[0] != '.')
            names[n++] = lks_test_text("%s", e->d_name);
    closedir(dir);
    qsort(names, n, sizeof names[0], by_name);
    for (size_t i = 0; i < n; i++) {
        const char *path = lks_test_text("%s/%s", folder, names[i]);
        all = joined(all, names[i]);
        if (strcmp(names[i], "best") == 0)
            continue; /* it depends on the values */
        if (lks_test_link(path)[0] != '\0')
            all = lks_test_text("%s=%s", all, lks_test_link(path));
        else if (hashes)
            all = lks_test_text("%s=%s", all, lks_test_sha256(path));
    }
    return all;
}

static struct seen look(unsigned command, const char *out, const lks_test_result *r)
{
    struct seen s = {.said = lks_test_text("%s%s", r->out, r->err)};
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    for (int i = 0; i < N_ASPECTS; i++)
        s.at[i] = "";
    s.at[A_RESULT] = lks_test_text("%d", r->exit_code);
    if (command != TRAIN || !lks_test_exists(metrics)) {
        s.at[A_TEXT] = command == PREP ? list(out, true) : r->out;
        return s;
    }
    const json_t *lines = lks_test_metrics(metrics, NULL);
    for (size_t i = 0; i < json_array_size(lines); i++)
        look_at_line(&s, json_array_get(lines, i));
    s.at[A_FILES] = list(out, false);
    add(&s, A_VALUES, lks_test_link(lks_test_text("%s/best", out)));
    s.at[A_LOG] = words_of(lks_test_read(lks_test_text("%s/train.log", out), NULL), out);
    return s;
}

/* `base` with one more setting, or without one (NULL). */
static struct seen seen_with(const struct row *row, const char *base, const char *setting)
{
    struct command c = command_of(base, row->with);
    const char *value = row->value, *out = lks_test_text("%s/out", lks_test_folder());
    bool folder = row->command == TRAIN || row->command == PREP;
    const char *name = row->command == PREP ? "out" : "out_dir";
    if (value[0] == '@')
        value = place(value + 1);
    if (folder && setting != NULL && strcmp(setting, name) == 0)
        out = value;
    if (row->first != NULL && setting != NULL)
        run_in(out, base, row->first);
    if (folder)
        c.argv[c.n++] = lks_test_text("--%s=%s", name, out);
    if (setting != NULL)
        c.argv[c.n++] = lks_test_text("--%s=%s", setting, value);
    lks_test_result r = run_command(&c);
    if (r.signal != 0)
        fail_msg("%s: signal %d: %s", setting, r.signal, r.err);
    if (row->makes && setting != NULL)
        assert_true(lks_test_exists(value));
    return look(row->command, out, &r);
}

/* Base runs, by their settings. */
static struct seen base_of(const struct row *row, const char *base)
{
    static struct {
        const char *base, *with;
        struct seen seen;
    } known[64];
    const char *with = row->with == NULL ? "" : row->with;
    int i = 0;
    for (; known[i].base != NULL; i++)
        if (strcmp(known[i].base, base) == 0 && strcmp(known[i].with, with) == 0)
            return known[i].seen;
    assert_true(i < 63);
    known[i].base = base;
    known[i].with = with;
    known[i].seen = seen_with(row, base, NULL);
    return known[i].seen;
}

/* --- comparing ---------------------------------------------------------------------------- */

static int n_wrong;

#define wrong(row, ...)                                                                            \
    do {                                                                                           \
        print_error("%s --%s=%s: ", lks__command_name((row)->command), (row)->setting,             \
                    (row)->value);                                                                 \
        print_error(__VA_ARGS__);                                                                  \
        print_error("\n");                                                                         \
        n_wrong++;                                                                                 \
    } while (0)

/* The config line has this setting, and otherwise no change. */
static void compare_configs(const struct row *row, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    const lks__setting *d = &lks__setting_table[lks__setting_find(row->setting)];
    bool told = d->flags & LKS__SETTING_CONFIG, found = false;
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        if (json_equal(value, json_object_get(a, key)))
            continue;
        if (strcmp(key, row->setting) == 0 && told)
            found = true;
        else if ((row->also == NULL || strcmp(key, row->also) != 0) &&
                 !(d->flags & LKS__SETTING_SHAPE && strstr(key, "parameters") != NULL))
            wrong(row, "the config line has another %s", key);
    }
    if (told && !found)
        wrong(row, "the config line doesn't tell of it");
    const bool more = row->also != NULL && json_object_get(a, row->also) == NULL &&
                      json_object_get(b, row->also) != NULL;
    if (json_object_size(a) + more != json_object_size(b))
        wrong(row, "the config line has other settings");
}

static void check(const struct row *row, const char *base)
{
    struct seen a = base_of(row, base), b = seen_with(row, base, row->setting);
    if (row->says != NULL && strstr(b.said, row->says) == NULL)
        wrong(row, "\"%s\" isn't said: %s", row->says, b.said);
    if (row->says != NULL && strstr(a.said, row->says) != NULL)
        wrong(row, "\"%s\" is said without it, too", row->says);
    if (row->changes == REFUSED) {
        if (b.at[A_RESULT][0] == '0' || b.at[A_STEPS][0] != '\0')
            wrong(row, "it isn't refused");
        return;
    }
    for (int i = 0; i < N_ASPECTS; i++) {
        bool same = strcmp(a.at[i], b.at[i]) == 0, wanted = row->changes >> i & 1;
        size_t n = 0; /* equal bytes */
        while (!same && a.at[i][n] == b.at[i][n])
            n++;
        if (same == wanted && !(row->may >> i & 1))
            wrong(row, "%s %s: \"...%.160s\" and \"...%.160s\"", aspect_names[i],
                  wanted ? "didn't change" : "changed", a.at[i] + n, b.at[i] + n);
    }
    if (row->is != NULL && strcmp(b.at[row->where], row->is) != 0)
        wrong(row, "%s: \"%s\" instead of \"%s\"", aspect_names[row->where], b.at[row->where],
              row->is);
    if (a.config != NULL && b.config != NULL)
        compare_configs(row, a.config, b.config);
}

/* --- the rows ----------------------------------------------------------------------------- */

#define DIES "--nproc_per_node=2 LOCKSTEP_FAULT=read:26:die LOCKSTEP_FAULT_RANK=1"
/* Ten times as long as what --timeout allows, so that a rank on a busy machine notices it. There a
 * rank may even join too late: that message names the seconds, too, which nothing else prints. */
#define IS_SLOW  "--nproc_per_node=2 LOCKSTEP_FAULT=read:26:slower LOCKSTEP_FAULT_RANK=1"
#define TOO_LATE "0.253 s"
#define DIVERGES "--learning_rate=1e6 --weight_decay=1e6 --decay_lr=false --checkpoint_interval=1"

#define ROW(command_, setting_, value_, ...)                                                       \
    {                                                                                              \
        .command = (command_), .setting = (setting_), .value = (value_), .changes = __VA_ARGS__    \
    }

static const struct row gpt2_rows[] = {
    ROW(TRAIN, "dataset", "@other", OTHER | LOG, .also = "data_digest"),
    ROW(TRAIN, "out_dir", "@elsewhere", 0),
    ROW(TRAIN, "init_from", "resume", LOG | HOST | WORK | FILES, .first = "--max_iters=2",
        .also = "max_iters", .says = "at iteration 3"),
    ROW(TRAIN, "init_from", "@run2", OTHER | LOG, .also = "init_hash",
        .says = "Initializing from the weights in"),
    ROW(TRAIN, "family", "golf", REFUSED, .says = "use --iterations"),
    ROW(TRAIN, "n_layer", "3", OTHER),
    ROW(TRAIN, "n_head", "4", OTHER),
    ROW(TRAIN, "n_embd", "24", OTHER | LOG), /* the unit of the parameters */
    ROW(TRAIN, "block_size", "7", OTHER | TOKENS),
    ROW(TRAIN, "vocab_size", "80", OTHER, .with = "--dataset=@bare --vocab_size=64"),
    ROW(TRAIN, "vocab_size", "80", REFUSED, .says = "give --vocab_size=0, which uses the data's"),
    ROW(TRAIN, "bias", "true", OTHER),
    ROW(TRAIN, "gelu", "tanh", OTHER),
    ROW(TRAIN, "dropout", "0.2", OTHER),
    ROW(TRAIN, "batch_size", "3", OTHER | TOKENS),
    ROW(TRAIN, "gradient_accumulation_steps", "6", OTHER | TOKENS | WORK),
    ROW(TRAIN, "virtual_ranks", "4", OTHER),
    ROW(TRAIN, "sampler", "epoch", OTHER),
    ROW(TRAIN, "sampler", "nanogpt", OTHER),
    ROW(TRAIN, "sampler", "stream", REFUSED, .says = "sampler=stream is the golf family's"),
    ROW(TRAIN, "drop_last", "true", LATER | LOG, .with = "--sampler=epoch --dataset=@short",
        .says = "each pass over the data leaves out"),
    ROW(TRAIN, "drop_last", "true", REFUSED, .says = "no effect with sampler=random"),
    ROW(TRAIN, "seed", "1338", OTHER),

    ROW(TRAIN, "optimizer", "sgd", LATER),
    ROW(TRAIN, "optimizer", "adamax", REFUSED, .says = "auto, adamw, muon"),
    ROW(TRAIN, "freeze", "wpe|h.0", OTHER | LOG, .also = "trained_parameters",
        .says = "frozen: transformer.wpe.weight"),
    ROW(TRAIN, "freeze", "h.[0", REFUSED, .says = "is not a POSIX extended regular expression"),
    ROW(TRAIN, "learning_rate", "0.02", RATES | LATER),
    ROW(TRAIN, "learning_rate", "0", RATES | LATER, .with = "--optimizer=muon --decay_lr=false"),
    ROW(TRAIN, "max_iters", "5",
        LATER | RATES | TOKENS | STEPS | EVALS | SAVES | FILES | LOG | WORK, .may = EVALS | VALUES,
        .where = A_STEPS, .is = "0 1 2 3 4 5"),
    ROW(TRAIN, "weight_decay", "0.5", LATER),
    ROW(TRAIN, "beta1", "0.8", LATER),
    ROW(TRAIN, "beta2", "0.9", LATER),
    ROW(TRAIN, "grad_clip", "0", LATER),
    ROW(TRAIN, "decay_lr", "false", RATES | LATER, .where = A_RATES,
        .is = "0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.01"),
    ROW(TRAIN, "warmup_iters", "4", RATES | LATER),
    ROW(TRAIN, "lr_decay_iters", "6", RATES | LATER),
    ROW(TRAIN, "min_lr", "0.002", RATES | LATER),
    ROW(TRAIN, "on_nan", "skip",
        RESULT | SKIPS | EVALS | VALUES | SAVES | FILES | PARAMS | LOG | WORK, .may = PARAMS,
        .with = DIVERGES, .says = "there is no update"),
    ROW(TRAIN, "on_nan", "rollback", SKIPS | LOG, .may = ALL & ~RESULT & ~START, .with = DIVERGES,
        .says = "; back to checkpoint "),
    ROW(TRAIN, "on_nan_limit", "2", RESULT | EVALS | SAVES | VALUES | SKIPS | FILES | LOG | WORK,
        .may = PARAMS, .with = DIVERGES " --on_nan=skip",
        .says = "once more than on_nan_limit allows"),

    ROW(TRAIN, "eval_interval", "4", EVALS | VALUES | LOG, .where = A_EVALS, .is = "0 4 8 final",
        .may = SAVES | FILES),
    ROW(TRAIN, "eval_interval", "0", EVALS | VALUES | LOG | FILES, .where = A_EVALS, .is = ""),
    ROW(TRAIN, "eval_iters", "3", VALUES),
    ROW(TRAIN, "log_interval", "2", LOG),
    ROW(TRAIN, "always_save_checkpoint", "false", SAVES | FILES | LOG, .where = A_SAVES,
        .is = "3 9",
        .with = "--checkpoint_interval=auto --batch_size=1 --learning_rate=0.3 --warmup_iters=30 "
                "--lr_decay_iters=60 --eval_iters=20"),
    ROW(TRAIN, "checkpoint_interval", "2", SAVES | FILES | LOG, .where = A_SAVES, .is = "2 4 6 8 9",
        .with = "--eval_interval=0"),
    ROW(TRAIN, "checkpoint_interval", "0", SAVES | FILES | LOG, .where = A_SAVES, .is = "4 8 9",
        .with = "--eval_interval=4"),
    ROW(TRAIN, "checkpoint_minutes", "off", 0), /* its checkpoints: laws_stop */
    ROW(TRAIN, "checkpoint_minutes", "never", REFUSED, .says = "at most 1,000,000, or off"),
    ROW(TRAIN, "keep", "2", FILES),
    ROW(TRAIN, "keep_every", "3", FILES, .with = "--keep=1"),
    ROW(TRAIN, "eval_only", "true", ALL & ~(RESULT | HOST | SKIPS | TEXT), .where = A_EVALS,
        .is = "0"),
    ROW(TRAIN, "lock", "off", 0),         /* what it is for: faults_output */
    ROW(TRAIN, "stop_signal", "USR1", 0), /* what the signal then does: laws_stop */
    ROW(TRAIN, "trace", "@trace", LOG, .makes = true),
    ROW(TRAIN, "prometheus", "@prometheus", 0, .makes = true),
    ROW(TRAIN, "exec_on", "end:true", FILES),
    ROW(TRAIN, "exec_on", "later:true", REFUSED,
        .says = "checkpoint:, best:, end: or failure: and a command, in one line of at most "
                "1023 bytes"),
    ROW(TRAIN, "exec_on", "end:", REFUSED, .says = "and a command"),
    ROW(TRAIN, "exec_timeout", "7", 0,
        .with = "--exec_on=end:true"), /* what it ends: watch_commands */
    ROW(TRAIN, "tensorboard", "false", FILES),
    ROW(TRAIN, "sample_tokens", "7", 0), /* texts: watch_events */
    ROW(TRAIN, "sample_tokens", "1001", REFUSED, .says = "sample_tokens"),
    ROW(TRAIN, "dry_run", "true", ALL & ~(RESULT | SKIPS), .says = "total on 1 rank"),
    ROW(TRAIN, "skip_fit_check", "true", 0),  /* test_tool: a run that doesn't fit */
    ROW(TRAIN, "tokenizer_path", "/none", 0), /* only for golf */
    ROW(TRAIN, "code", "/none", REFUSED, .says = "no effect in a run with family=gpt2"),
    ROW(TRAIN, "run_id", "none", REFUSED, .says = "no effect in a run with family=gpt2"),

    ROW(TRAIN, "nproc_per_node", "2", HOST | LOG | WORK),
    ROW(TRAIN, "max_restarts", "1", RESULT, .may = ALL & ~(START | TEXT), .with = DIES,
        .says = "restart 1 of 1"),
    ROW(TRAIN, "shutdown_timeout", "7", 0), /* what it limits: laws_interrupt */
    ROW(TRAIN, "threads", "2", HOST | LOG),
    ROW(TRAIN, "bind", "cores", 0), /* where it runs: launch_bind */
    ROW(TRAIN, "allow_uneven", "true", ALL & ~(SKIPS | TEXT),
        .with = "--nproc_per_node=3 --virtual_ranks=4"),
    ROW(TRAIN, "zero", "1", REFUSED, .says = "zero=1 divides the state over hosts"),
    ROW(TRAIN, "wire", "bfloat16", 0), /* between hosts: laws_hosts */
    ROW(TRAIN, "timeout", "0.253", RESULT, .may = ALL & ~TEXT, .with = IS_SLOW, .says = TOO_LATE),
    ROW(TRAIN, "check_interval", "1", 0), /* what it finds: faults_flips */
    ROW(TRAIN, "recheck", "0.1", REFUSED, .says = "but all ranks are on one host"),
    ROW(TRAIN, "recheck", "1.1", REFUSED, .says = "recheck"), /* its findings: faults_rechecks */
    ROW(TRAIN, "replicas", "private", HOST),
    ROW(TRAIN, "bucket_mb", "0.0001", 0), /* tested by test_buckets() */
    ROW(TRAIN, "memory", "900MB", 0, .with = "--batch_size=auto", .says = "may use 900 MB"),
    ROW(TRAIN, "memory", "1G", REFUSED, .says = "memory=1G is for batch_size=auto"),
    ROW(TRAIN, "recompute", "rows", 0),
    ROW(TRAIN, "recompute", "block", 0), /* what it saves: model_recompute, laws_recompute */
    ROW(TRAIN, "recompute", "layer", REFUSED, .says = "must be none, rows or block"),
    ROW(TRAIN, "device", "cpu", 0),
    ROW(TRAIN, "share_gpu", "true", 0),  /* on a host with GPUs: cuda_open */
    ROW(TRAIN, "exchange", "staged", 0), /* with --device=cuda: cuda_laws */
    ROW(TRAIN, "exchange", "nccl", REFUSED, .says = "device=cpu moves nothing between ranks"),
    ROW(TRAIN, "dtype", "bfloat16", OTHER | HOST),
};

static const struct row golf_rows[] = {
    ROW(TRAIN, "family", "gpt2", REFUSED, .says = "no effect in a run with family=gpt2"),
    ROW(TRAIN, "run_id", "a/b", REFUSED, .says = "run_id=a/b names the file logs/RUN_ID.txt"),
    ROW(TRAIN, "code", "@text", 0, .says = "Code size: 3001 bytes"),
    ROW(TRAIN, "num_kv_heads", "2", OTHER),
    ROW(TRAIN, "mlp_mult", "3", OTHER),
    ROW(TRAIN, "tie_embeddings", "false", OTHER | LOG),
    ROW(TRAIN, "rope_base", "100", OTHER),
    ROW(TRAIN, "logit_softcap", "5", OTHER),
    ROW(TRAIN, "qk_gain_init", "1", OTHER),
    ROW(TRAIN, "tied_embed_init_std", "0.1", OTHER),
    ROW(TRAIN, "train_batch_tokens", "192", OTHER | TOKENS, .also = "batch_size"),
    ROW(TRAIN, "iterations", "6", LATER | RATES | TOKENS | STEPS | SAVES | FILES | LOG | WORK,
        .where = A_STEPS, .is = "0 1 2 3 4 5"),
    ROW(TRAIN, "max_iters", "3", REFUSED, .says = "use --iterations"),
    ROW(TRAIN, "warmdown_iters", "2", RATES | LATER),
    ROW(TRAIN, "min_lr", "0.9", RATES | LATER),
    ROW(TRAIN, "min_lr", "1.5", REFUSED, .says = "it is a share of the rates, at most 1"),
    ROW(TRAIN, "eval_stride", "3", VALUES, .where = A_EVALS, .is = "0 3 6 final artifact"),
    ROW(TRAIN, "eval_stride", "1000", REFUSED, .says = "more than a window of train_seq_len"),
    ROW(TRAIN, "warmup_steps", "3", 0, .says = "warmup_steps:3"), /* by definition nothing else */
    ROW(TRAIN, "max_wallclock_seconds", "1000", RATES | LATER | LOG),
    ROW(TRAIN, "val_batch_size", "31", REFUSED, .says = "val_batch_size=31"),
    ROW(TRAIN, "val_batch_size", "32", VALUES), /* sums in another order */
    ROW(TRAIN, "embed_lr", "0.3", LATER, .with = "--tie_embeddings=false"),
    ROW(TRAIN, "head_lr", "0.02", LATER, .with = "--tie_embeddings=false"),
    ROW(TRAIN, "tied_embed_lr", "0.02", LATER),
    ROW(TRAIN, "tied_embed_lr", "0.02", 0, .with = "--tie_embeddings=false"),
    ROW(TRAIN, "optimizer", "adamw", LATER),
    ROW(TRAIN, "matrix_lr", "0.02", RATES | LATER),
    ROW(TRAIN, "matrix_lr", "1e-4", RATES | LATER, .says = "matrix_lr:0.0001 "), /* as Python */
    ROW(TRAIN, "matrix_lr", "1e-5", RATES | LATER | LOG, .says = "matrix_lr:1e-05 "),
    ROW(TRAIN, "scalar_lr", "0.02", LATER),
    ROW(TRAIN, "muon_momentum", "0.9", LATER),
    ROW(TRAIN, "muon_momentum_warmup_start", "0.5", LATER),
    ROW(TRAIN, "muon_momentum_warmup_steps", "6", LATER),
    ROW(TRAIN, "muon_backend_steps", "3", LATER),
    ROW(TRAIN, "muon_weight_decay", "0.1", LATER),
    ROW(TRAIN, "adam_eps", "1e-3", LATER),
    ROW(TRAIN, "control_tensor_name_patterns", "resid_mix,1.attn.c_k", LATER),
    ROW(TRAIN, "control_tensor_name_patterns", "resid_mix,atn", VALUES | LOG, /* the artifact's */
        .says = "no tensor's name contains \"atn\" of control_tensor_name_patterns"),
    ROW(TRAIN, "int8_keep_float_fp32_name_patterns", "tok_emb", VALUES),
    ROW(TRAIN, "int8_keep_float_fp32_name_patterns", "tok_emb,token", VALUES | LOG,
        .says = "no tensor's name contains \"token\" of int8_keep_float_fp32_name_patterns"),
    ROW(TRAIN, "beta1", "0.8", LATER),
    ROW(TRAIN, "beta2", "0.9", LATER),
    ROW(TRAIN, "grad_clip", "0.01", LATER),
    ROW(TRAIN, "weight_decay", "0.5", REFUSED, .says = "optimizer=muon applies no decay"),
    ROW(TRAIN, "weight_decay", "0", 0),
    ROW(TRAIN, "learning_rate", "0.5", REFUSED, .says = "use --matrix_lr"),
    ROW(TRAIN, "eval_interval", "2", EVALS | VALUES | LOG, .where = A_EVALS,
        .is = "0 2 4 6 8 final artifact", .may = SAVES | FILES),
    ROW(TRAIN, "log_interval", "2", LOG,
        .with = "--iterations=14"), /* the first ten are always printed */
    ROW(TRAIN, "log_interval", "3", LOG, .with = "--iterations=11 --log_interval=0",
        .says = "step:10/11 train_loss:"),
    ROW(TRAIN, "dtype", "bfloat16", OTHER | HOST),
    ROW(EVAL, "artifact", "@golfrun/final_model.int8.ptz", TEXT,
        .with = "--dataset=@golf --out_dir=@golfrun", .says = "), artifact"),
    ROW(EVAL, "split", "train", TEXT, .with = "--dataset=@golf --out_dir=@golfrun",
        .says = "over 374 windows"),
};

static const struct row other_rows[] = {
    ROW(SAMPLE, "out_dir", "@run2", TEXT),
    ROW(SAMPLE, "checkpoint", "3", TEXT),
    ROW(SAMPLE, "init_from", "@run2", REFUSED, .says = "leave one of them out"),
    ROW(SAMPLE, "n_head", "4", REFUSED, .says = "the model has n_head=2"),
    ROW(SAMPLE, "gelu", "tanh", REFUSED, .says = "the run has gelu=exact"),
    ROW(SAMPLE, "rope_base", "100", REFUSED, .says = "models of family=gpt2 don't use it"),
    ROW(SAMPLE, "logit_softcap", "5", REFUSED, .says = "models of family=gpt2 don't use it"),
    ROW(SAMPLE, "seed", "5", TEXT),
    ROW(SAMPLE, "special", "true", REFUSED, .says = "--special is only for GPT-2's tokens"),
    ROW(SAMPLE, "start", "ba", TEXT),
    ROW(SAMPLE, "num_samples", "3", TEXT),
    ROW(SAMPLE, "max_new_tokens", "150", TEXT),
    ROW(SAMPLE, "temperature", "1.5", TEXT),
    ROW(SAMPLE, "top_k", "4", TEXT),
    ROW(SAMPLE, "top_p", "0.3", TEXT),
    ROW(SAMPLE, "stop", "n", TEXT),
    ROW(SAMPLE, "interactive", "true", REFUSED, .says = "leave out --num_samples"),
    ROW(SAMPLE, "threads", "2", 0),
    ROW(SAMPLE, "device", "cpu", 0),
    ROW(SAMPLE, "share_gpu", "true", 0), /* on a host with GPUs: cuda_open */
    ROW(SAMPLE, "dtype", "bfloat16", TEXT),
    ROW(EVAL, "dataset", "@other", TEXT),
    ROW(EVAL, "out_dir", "@run2", TEXT),
    ROW(EVAL, "checkpoint", "3", TEXT, .says = "ckpt-00000003"),
    ROW(EVAL, "init_from", "@run2", REFUSED, .says = "leave one of them out"),
    ROW(EVAL, "n_head", "4", REFUSED, .says = "the model has n_head=2"),
    ROW(EVAL, "gelu", "tanh", REFUSED, .says = "the run has gelu=exact"),
    ROW(EVAL, "rope_base", "100", REFUSED, .says = "models of family=gpt2 don't use it"),
    ROW(EVAL, "logit_softcap", "5", REFUSED, .says = "models of family=gpt2 don't use it"),
    ROW(EVAL, "split", "train", TEXT, .says = "train loss"),
    ROW(EVAL, "stride", "3", TEXT, .says = "stride 3"),
    ROW(EVAL, "block_size", "5", TEXT, .says = "windows of 5 tokens"),
    ROW(EVAL, "batch_size", "5", 0, .may = TEXT), /* sums in another order */
    ROW(EVAL, "nproc_per_node", "2", 0),
    ROW(EVAL, "shutdown_timeout", "7", 0),
    ROW(EVAL, "threads", "2", 0),
    ROW(EVAL, "bind", "cores", 0), /* where it runs: launch_bind */
    ROW(EVAL, "timeout", "0.253", RESULT | TEXT, .says = TOO_LATE,
        .with = "--nproc_per_node=2 LOCKSTEP_FAULT=read:8:slower LOCKSTEP_FAULT_RANK=1"),
    ROW(EVAL, "device", "cpu", 0),
    ROW(EVAL, "share_gpu", "true", 0), /* on a host with GPUs: cuda_open */
    ROW(EVAL, "dtype", "bfloat16", TEXT),
    ROW(PREP, "input", "@text2", TEXT),
    ROW(PREP, "out", "@prepared", 0),
    ROW(PREP, "val_fraction", "0.2", TEXT),
    ROW(PREP, "shards", "100", TEXT),
    ROW(PREP, "num_val_docs", "3", REFUSED, .says = "doesn't apply to char tokens"),
    ROW(PREP, "tokenizer_train_docs", "3", REFUSED, .says = "doesn't apply to char tokens"),
};

/* With Gloo. */
static const struct row gloo_rows[] = {
    ROW(TRAIN, "backend", "gloo", HOST, .with = "--nproc_per_node=2"),
    ROW(EVAL, "backend", "gloo", 0, .with = "--nproc_per_node=2"),
};

/* GPT-2's tokens. */
static const struct row bpe_rows[] = {
    ROW(PREP, "special", "true", TEXT),
};

/* With SentencePiece. */
static const struct row sp_rows[] = {
    ROW(PREP, "vocab_size", "310", TEXT),
    ROW(PREP, "num_val_docs", "50", TEXT),
    ROW(PREP, "num_val_docs", "auto", 0),
    ROW(PREP, "num_val_docs", "0", REFUSED, .says = "at least 1, or auto"),
    ROW(PREP, "num_val_docs", "5000", REFUSED, .says = "at least one is needed for training"),
    ROW(PREP, "tokenizer_train_docs", "20", TEXT),
    ROW(PREP, "tokenizer_train_docs", "0", REFUSED, .says = "at least 1, or all"),
    ROW(PREP, "tokenizer_train_docs", "20", REFUSED, .with = "--tokenizer=@sp/sp.model",
        .says = "--tokenizer is already trained"),
    ROW(PREP, "tokenizer", "@sp2/sp.model", TEXT),
    ROW(PREP, "field", "body", TEXT, .with = "--input=@lines/a.jsonl --tokenizer=@sp/sp.model"),
    ROW(TRAIN, "sample_tokens", "7", 0, .with = "--dataset=@sp"), /* data with sp.model */
    ROW(TRAIN, "tokenizer_path", "@sp/sp.model", VALUES | LOG,
        .with = "--dataset=@spbare --vocab_size=300", .says = "val_bpb:"),
    ROW(SAMPLE, "tokenizer_path", "@sp/sp.model", RESULT | TEXT,
        .with = "--out_dir=@sprun --start=one"),
    ROW(SAMPLE, "tokenizer", "@sp/sp.model", RESULT | TEXT, .with = "--out_dir=@sprun --start=one"),
    ROW(EVAL, "tokenizer_path", "@sp/sp.model", TEXT, .with = "--out_dir=@sprun --dataset=@spbare",
        .says = "bits per byte"),
};

#define ROWS(rows) (rows), sizeof(rows) / sizeof(rows)[0]

static void check_rows(const struct row *rows, size_t n, const char *train, const char *prep)
{
    n_wrong = 0;
    for (size_t i = 0; i < n; i++)
        check(&rows[i], rows[i].command == TRAIN    ? train
                        : rows[i].command == SAMPLE ? sample_gpt2
                        : rows[i].command == EVAL   ? eval_gpt2
                                                    : prep);
    if (n_wrong > 0)
        fail_msg("%d of the rows above are wrong", n_wrong);
}

static bool has_row(const struct row *rows, size_t n, unsigned command, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].command == command && strcmp(rows[i].setting, name) == 0)
            return true;
    return false;
}

TEST(test_none_missing)
{
    static const unsigned commands[] = {PREP, TRAIN, SAMPLE, EVAL};
    int missing = 0;
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        for (size_t c = 0; c < sizeof commands / sizeof commands[0]; c++) {
            const lks__setting *d = &lks__setting_table[i];
            if (!(d->commands & commands[c]) || has_row(ROWS(gpt2_rows), commands[c], d->name) ||
                has_row(ROWS(golf_rows), commands[c], d->name) ||
                has_row(ROWS(other_rows), commands[c], d->name) ||
                has_row(ROWS(gloo_rows), commands[c], d->name) ||
                has_row(ROWS(bpe_rows), commands[c], d->name) ||
                has_row(ROWS(sp_rows), commands[c], d->name))
                continue;
            print_error("no row for %s of `lockstep %s`: add one to %s\n", d->name,
                        lks__command_name(commands[c]),
                        commands[c] == TRAIN ? "gpt2_rows or golf_rows" : "other_rows");
            missing++;
        }
    assert_int_equal(missing, 0);
}

/* Settings that golf's runs use as gpt2's do. Each other one of the config line has a row in
 * golf_rows, or golf refuses it, so that none is accepted without an effect. */
TEST(test_golf_knows)
{
    static const char same[] = " n_layer n_head n_embd block_size vocab_size virtual_ranks sampler "
                               "gradient_accumulation_steps drop_last seed freeze on_nan "
                               "on_nan_limit always_save_checkpoint checkpoint_interval wire ";
    const lks__family *golf = lks__families[1];
    assert_string_equal(golf->name, "golf");
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        const lks__setting *d = &lks__setting_table[i];
        const lks__setting_alias *a = golf->unused;
        while (a->theirs != NULL && strcmp(a->theirs, d->name) != 0)
            a++;
        if (d->commands & TRAIN && d->flags & LKS__SETTING_CONFIG && a->theirs == NULL &&
            strstr(same, lks_test_text(" %s ", d->name)) == NULL &&
            !has_row(ROWS(golf_rows), TRAIN, d->name))
            fail_msg("golf_rows has no row for %s: add one, or name the setting in `unused` of "
                     "families/golf.c",
                     d->name);
    }
}

TEST(test_gpt2)
{
    check_rows(ROWS(gpt2_rows), train_gpt2, NULL);
}

TEST(test_golf)
{
    check_rows(ROWS(golf_rows), train_golf, NULL);
}

TEST(test_gloo)
{
    lks_test_need_gloo();
    check_rows(ROWS(gloo_rows), train_gpt2, NULL);
}

TEST(test_sentencepiece)
{
    lks_test_need_sentencepiece();
    check_rows(ROWS(sp_rows), train_golf, prep_sp);
}

/* Smaller buckets are more buckets. */
TEST(test_buckets)
{
    for (int small = 0; small < 2; small++) {
        const char *trace = lks_test_text("%s/trace", lks_test_folder());
        run_in(lks_test_folder(), train_gpt2,
               lks_test_text("--nproc_per_node=2 --trace=%s --bucket_mb=%s", trace,
                             small ? "0.0001" : "4"));
        const char *text = lks_test_read(trace, NULL);
        assert_contains(text, "\"reduce bucket 0\"");
        assert_int_equal(strstr(text, "\"reduce bucket 2\"") != NULL, small);
    }
}

TEST(test_others)
{
    check_rows(ROWS(other_rows), NULL, prep_char);
    check_rows(ROWS(bpe_rows), NULL, prep_bpe);
}
