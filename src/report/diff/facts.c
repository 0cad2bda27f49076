#include "report/diff/facts.h"

#include <string.h>

#include "base/text/jsontext.h"
#include "base/text/utf8.h"

/* Append a row if both objects differ in `key`. Returns the row, or NULL. */
static json_t *add_row(json_t *rows, const char *name, const char *key, const json_t *a,
                       const json_t *b)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    if (x == y || (x != NULL && y != NULL && json_equal(x, y)))
        return NULL;
    json_t *row = json_pack("{s:s, s:O?, s:O?}", "name", name, "a", x, "b", y);
    json_array_append_new(rows, row);
    return row;
}

void lks__facts_members(json_t *rows, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value)
    {
        if (strcmp(key, "kind") != 0)
            add_row(rows, key, key, a, b);
    }
    json_object_foreach((json_t *)b, key, value)
    {
        if (json_object_get(a, key) == NULL)
            add_row(rows, key, key, a, b);
    }
}

bool lks__facts_data(const char *name)
{
    return strcmp(name, "data_digest") == 0 || strcmp(name, "data_hash") == 0;
}

bool lks__facts_follow(const json_t *settings, const char *key)
{
    return strcmp(key, "parameters") == 0 || strcmp(key, "trained_parameters") == 0 ||
           (strcmp(key, "batch_size") == 0 &&
            json_object_get(settings, "train_batch_tokens") != NULL);
}

/* The hash of whole files says more than the digest only if digests are equal and both have one. */
static bool is_repeated(const char *name, const json_t *row, const json_t *a, const json_t *b)
{
    return strcmp(name, "data_hash") == 0 &&
           (json_is_null(json_object_get(row, "a")) || json_is_null(json_object_get(row, "b")) ||
            !json_equal(json_object_get(a, "data_digest"), json_object_get(b, "data_digest")));
}

static bool has(const json_t *settings, const char *name, const char *word)
{
    const char *value = lks__json_str(settings, name);
    return value != NULL && strcmp(value, word) == 0;
}

/* True if golf's time limit sets learning rates and the end. */
static bool has_limit(const json_t *settings)
{
    return json_number_value(json_object_get(settings, "max_wallclock_seconds")) > 0.0;
}

/* The array of the report in which a setting belongs. */
static const char *effect_of(const char *name, const json_t *a, const json_t *b)
{
    static const char *const lengths[] = {"max_iters", "log_interval", "warmup_steps", NULL};
    static const char *const saves[] = {"checkpoint_interval", "always_save_checkpoint", NULL};
    static const char *const evaluations[] = {"eval_interval", "eval_iters", "val_batch_size",
                                              "eval_stride", NULL};
    const bool rollback = has(a, "on_nan", "rollback") || has(b, "on_nan", "rollback");
    const bool draws = has(a, "sampler", "nanogpt") || has(b, "sampler", "nanogpt");
    if (lks__is_one_of(name, lengths) || (lks__is_one_of(name, saves) && !rollback))
        return "changes_no_bit";
    return lks__is_one_of(name, evaluations) && !rollback && !draws ? "changes_evaluations"
                                                                    : "can_change_bits";
}

/* True if a command line can set it: the config line has other members, too. */
static bool is_setting(const char *name)
{
    static const char *const others[] = {"version", "data_digest", "data_hash", "init_hash", NULL};
    return !lks__is_one_of(name, others);
}

bool lks__facts_machine(const json_t *row)
{
    static const char *const names[] = {"version", "commit",      "device", "kernels",
                                        "gemm",    "fingerprint", NULL};
    return lks__is_one_of(lks__json_str(row, "name"), names);
}

bool lks__facts_given(const json_t *row)
{
    static const char *const others[] = {"init_hash", "ranks", "ranks by host", NULL};
    const char *name = lks__json_str(row, "name");
    return !lks__facts_machine(row) && !lks__is_one_of(name, others);
}

static void add_settings(json_t *report, const lks__history *a, const lks__history *b)
{
    json_t *rows = json_array();
    lks__facts_members(rows, a->settings, b->settings);
    lks__each(row, rows) {
        const char *name = lks__json_str(row, "name");
        if (is_repeated(name, row, a->settings, b->settings) ||
            (lks__facts_follow(a->settings, name) && lks__facts_follow(b->settings, name)))
            continue;
        json_t *since_a = json_object_get(a->changed, name);
        json_t *since_b = json_object_get(b->changed, name);
        if (is_setting(name))
            json_object_set_new(row, "setting", json_true());
        if (since_a != NULL)
            json_object_set(row, "since_a", since_a);
        if (since_b != NULL)
            json_object_set(row, "since_b", since_b);
        json_array_append(json_object_get(report, effect_of(name, a->settings, b->settings)), row);
    }
    json_decref(rows);
}

/* Add the kernels' level and library. The fingerprint, a hash of the bits that they compute, tells
 * whether they change bits. It follows from dtype, too, and so does a device's and a program's: it
 * has a row only if nothing else explains it. */
static void add_kernels(json_t *report, const lks__history *a, const lks__history *b)
{
    static const char *const keys[] = {"kernels", "gemm"};
    json_t *fingerprint = json_array(), *can = json_object_get(report, "can_change_bits");
    bool explained = false;
    add_row(fingerprint, "fingerprint", "fingerprint", a->host, b->host);
    const bool other = json_array_size(fingerprint) > 0;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        add_row(other ? can : json_object_get(report, "changes_no_bit"), keys[k], keys[k], a->host,
                b->host);
    lks__each(row, can) {
        const char *name = lks__json_str(row, "name");
        explained |= strcmp(name, "dtype") == 0 || lks__facts_machine(row);
    }
    if (!explained)
        json_array_extend(can, fingerprint);
    json_decref(fingerprint);
}

/* The ranks of each host: [2, 2]. */
static json_t *ranks_by_host(const json_t *host)
{
    json_t *all = json_array();
    lks__each(row, json_object_get(host, "hosts"))
        json_array_append(all, json_object_get(row, "ranks"));
    return all;
}

/* Add the ranks. With wire=bfloat16 the sums depend on those of each host. */
static void add_ranks(json_t *report, const lks__history *a, const lks__history *b)
{
    const bool rounded =
        has(a->settings, "wire", "bfloat16") || has(b->settings, "wire", "bfloat16");
    json_t *rows = json_object_get(report, rounded ? "can_change_bits" : "changes_no_bit");
    add_row(rows, "ranks", "world_size", a->host, b->host);
    if (!rounded)
        return;
    json_t *x = json_pack("{s:o}", "ranks", ranks_by_host(a->host));
    json_t *y = json_pack("{s:o}", "ranks", ranks_by_host(b->host));
    add_row(rows, "ranks by host", "ranks", x, y);
    json_decref(x);
    json_decref(y);
}

void lks__facts_add(json_t *report, const lks__history *a, const lks__history *b)
{
    static const char *const never[] = {"threads", "host",     "cpu",
                                        "backend", "replicas", "exchange"};
    static const char *const can[] = {"commit", "device"};
    json_t *no_bit = json_object_get(report, "changes_no_bit");
    json_t *can_change = json_object_get(report, "can_change_bits");
    add_ranks(report, a, b);
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        add_row(no_bit, never[i], never[i], a->host, b->host);
    add_settings(report, a, b);
    if (has_limit(a->settings) || has_limit(b->settings))
        json_object_set_new(report, "by_clock", json_true());
    for (size_t i = 0; i < sizeof can / sizeof can[0]; i++)
        add_row(can_change, can[i], can[i], a->host, b->host);
    add_kernels(report, a, b);
}
