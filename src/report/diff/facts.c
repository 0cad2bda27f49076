#include "report/diff/facts.h"

#include <string.h>

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

/* Only rank 0 uses it, for lines of train.log. */
static bool is_only_for_the_log(const char *setting)
{
    return strcmp(setting, "log_interval") == 0;
}

/* The hash of whole files says more than the digest only if digests are equal and both have one. */
static bool is_repeated(const char *name, const json_t *row, const json_t *a, const json_t *b)
{
    return strcmp(name, "data_hash") == 0 &&
           (json_is_null(json_object_get(row, "a")) || json_is_null(json_object_get(row, "b")) ||
            !json_equal(json_object_get(a, "data_digest"), json_object_get(b, "data_digest")));
}

/* True if a command line can set it: the config line has other members, too. */
static bool is_setting(const char *name)
{
    static const char *const others[] = {"version",     "parameters", "trained_parameters",
                                         "data_digest", "data_hash",  "init_hash"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i]) == 0)
            return false;
    return true;
}

static void add_settings(json_t *can_change, json_t *no_bit, const lks__history *a,
                         const lks__history *b)
{
    json_t *rows = json_array(), *row;
    size_t i;
    lks__facts_members(rows, a->settings, b->settings);
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (is_repeated(name, row, a->settings, b->settings))
            continue;
        json_t *since_a = json_object_get(a->changed, name);
        json_t *since_b = json_object_get(b->changed, name);
        if (is_setting(name))
            json_object_set_new(row, "setting", json_true());
        if (since_a != NULL)
            json_object_set(row, "since_a", since_a);
        if (since_b != NULL)
            json_object_set(row, "since_b", since_b);
        json_array_append(is_only_for_the_log(name) ? no_bit : can_change, row);
    }
    json_decref(rows);
}

struct fact {
    const char *key, *name; /* member of a host line, and its name in the report */
};

lks_status lks__facts_add(json_t *report, const lks__history *a, const lks__history *b)
{
    static const struct fact never[] = {
        {"world_size", "ranks"}, {"threads", "threads"},   {"host", "host"},
        {"cpu", "cpu"},          {"backend", "backend"},   {"replicas", "replicas"},
        {"gemm", "gemm"},        {"exchange", "exchange"},
    };
    static const struct fact can[] = {{"commit", "commit"}, {"device", "device"}};
    json_t *no_bit = json_array(), *can_change = json_array();
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        add_row(no_bit, never[i].name, never[i].key, a->host, b->host);
    add_settings(can_change, no_bit, a, b);
    for (size_t i = 0; i < sizeof can / sizeof can[0]; i++)
        add_row(can_change, can[i].name, can[i].key, a->host, b->host);
    /* The fingerprint decides the bits: the kernels' level doesn't, if the fingerprint is equal. */
    const bool other = add_row(can_change, "fingerprint", "fingerprint", a->host, b->host) != NULL;
    add_row(other ? can_change : no_bit, "kernels", "kernels", a->host, b->host);
    if (json_object_set_new(report, "changes_no_bit", no_bit) != 0 ||
        json_object_set_new(report, "can_change_bits", can_change) != 0)
        return lks__fail(LKS_ERR_NOMEM, "no memory to compare runs");
    return LKS_OK;
}
