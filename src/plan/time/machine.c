#include "plan/time/machine.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"

#define MARK "lockstep_machine"

/* --- reading ---------------------------------------------------------------------------------- */

/* Single numbers of a file, and their ranges. */
static const struct {
    const char *name;
    size_t at; /* of an int if it is whole, else of a double */
    double low, high;
    bool whole;
} numbers[] = {
    {"cores", offsetof(lks__machine, cores), 1, 65536, true},
    {"ranks", offsetof(lks__machine, ranks), 1, 1024, true},
    {"threads", offsetof(lks__machine, threads), 1, 1024, true},
    {"layers", offsetof(lks__machine, layers), 1, LKS__MACHINE_LAYERS, true},
    {"memory_bytes", offsetof(lks__machine, memory_bytes), 1, 1e18, false},
    {"micro_batch_flops", offsetof(lks__machine, micro_batch_flops), 1, 1e24, false},
    {"micro_batch_tokens", offsetof(lks__machine, micro_batch_tokens), 1, 1e12, false},
};

static const struct {
    const char *name;
    size_t at;
    double low, high;
    int when;
} figures[] = {
#define X(name, low, high, when) {#name, offsetof(lks__machine, name), low, high, when},
    LKS__MACHINE_FIGURES(X)
#undef X
};

enum {
    N_NUMBERS = sizeof numbers / sizeof numbers[0],
    N_FIGURES = sizeof figures / sizeof figures[0],
};

static lks_status bad(const char *shown, const char *name, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s: %s %s", shown, name, what);
}

/* Read a member that is a number in [low, high]. */
static lks_status take(const char *shown, const char *name, const json_t *value, double low,
                       double high, double *number_p)
{
    char what[120];
    const double number = json_number_value(value);
    if (value == NULL)
        return bad(shown, name, "is missing");
    snprintf(what, sizeof what, "must be a number from %g to %g", low, high);
    if (!json_is_number(value) || !(number >= low && number <= high))
        return bad(shown, name, what);
    *number_p = number;
    return LKS_OK;
}

/* A figure given as one number has no spread. */
static lks_status take_figure(const char *shown, int i, const json_t *value, lks__figure *figure)
{
    const char *name = figures[i].name;
    const double low = figures[i].low, high = figures[i].high;
    if (!json_is_object(value)) {
        LKS__TRY(take(shown, name, value, low, high, &figure->value));
        figure->low = figure->high = figure->value;
        return LKS_OK;
    }
    if (json_object_size(value) != 3)
        return bad(shown, name,
                   "must be a number, or have exactly the members value, low and high");
    LKS__TRY(take(shown, name, json_object_get(value, "value"), low, high, &figure->value));
    LKS__TRY(take(shown, name, json_object_get(value, "low"), low, high, &figure->low));
    LKS__TRY(take(shown, name, json_object_get(value, "high"), low, high, &figure->high));
    if (figure->low > figure->value || figure->value > figure->high)
        return bad(shown, name, "must have low <= value <= high");
    return LKS_OK;
}

static bool is_known(const char *name)
{
    bool known = strcmp(name, MARK) == 0;
    for (int i = 0; i < N_NUMBERS; i++)
        known |= strcmp(name, numbers[i].name) == 0;
    for (int i = 0; i < N_FIGURES; i++)
        known |= strcmp(name, figures[i].name) == 0;
    return known;
}

static lks_status check_members(const char *shown, json_t *file)
{
    const char *name;
    json_t *value;
    char what[80];
    json_object_foreach(file, name, value)
    {
        if (!is_known(name))
            return bad(shown, lks__shown(name, 120), "is not a member of a machine file");
    }
    const json_t *version = json_object_get(file, MARK);
    if (version == NULL)
        return bad(shown, MARK, "is missing: this is not a machine file");
    snprintf(what, sizeof what, "must be %d, the version that this program reads",
             LKS__MACHINE_VERSION);
    return json_is_integer(version) && json_integer_value(version) == LKS__MACHINE_VERSION
               ? LKS_OK
               : bad(shown, MARK, what);
}

/* Layers are a part of the whole; the file's digits may round either. */
static lks_status check_layers(const char *shown, const char *name, const lks__figure *layer,
                               int layers, double whole)
{
    return layer->value * layers <= whole * 1.0001
               ? LKS_OK
               : bad(shown, name, "of all layers exceeds the whole model's");
}

static lks_status take_all(const char *shown, const json_t *file, lks__machine *m)
{
    char *at = (char *)m;
    for (int i = 0; i < N_NUMBERS; i++) {
        double number = 0;
        LKS__TRY(take(shown, numbers[i].name, json_object_get(file, numbers[i].name),
                      numbers[i].low, numbers[i].high, &number));
        if (!numbers[i].whole)
            *(double *)(void *)(at + numbers[i].at) = number;
        else if (number == floor(number))
            *(int *)(void *)(at + numbers[i].at) = (int)number;
        else
            return bad(shown, numbers[i].name, "must be a whole number");
    }
    for (int i = 0; i < N_FIGURES; i++) {
        const json_t *value = json_object_get(file, figures[i].name);
        if (value != NULL || figures[i].when == LKS__MACHINE_ALWAYS)
            LKS__TRY(take_figure(shown, i, value, (lks__figure *)(void *)(at + figures[i].at)));
    }
    LKS__TRY(check_layers(shown, "layer_flops", &m->layer_flops, m->layers, m->micro_batch_flops));
    LKS__TRY(
        check_layers(shown, "layer_forward_s", &m->layer_forward_s, m->layers, m->forward_s.value));
    LKS__TRY(check_layers(shown, "layer_backward_s", &m->layer_backward_s, m->layers,
                          m->backward_s.value));
    m->has_link = json_object_get(file, "link_bandwidth") != NULL;
    if (m->has_link != (json_object_get(file, "round_trip_s") != NULL))
        return bad(shown, m->has_link ? "round_trip_s" : "link_bandwidth",
                   "is missing: a link needs both");
    return LKS_OK;
}

lks_status lks__machine_read(const char *path, lks__machine *m)
{
    char *text;
    size_t bytes;
    json_t *file;
    memset(m, 0, sizeof *m);
    const char *shown = lks__shown(path, 512);
    LKS__TRY(lks__sys_read_file(path, 1 << 20, &text, &bytes));
    lks_status st = lks__json_parse(text, bytes, JSON_REJECT_DUPLICATES, shown, &file);
    free(text);
    if (st == LKS_OK && !json_is_object(file))
        st = lks__fail(LKS_ERR_FORMAT, "%s is not a JSON object", shown);
    LKS__THEN(st, check_members(shown, file));
    LKS__THEN(st, take_all(shown, file, m));
    json_decref(file);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */

lks_status lks__machine_write(const lks__machine *m, char text[LKS__MACHINE_TEXT])
{
    const char *at = (const char *)m;
    snprintf(text, LKS__MACHINE_TEXT, "{\n  \"" MARK "\": %d", LKS__MACHINE_VERSION);
    for (int i = 0; i < N_NUMBERS; i++) {
        const void *from = at + numbers[i].at;
        lks__append(text, LKS__MACHINE_TEXT, ",\n  ", "\"%s\": %.9g", numbers[i].name,
                    numbers[i].whole ? *(const int *)from : *(const double *)from);
    }
    for (int i = 0; i < N_FIGURES; i++) {
        const lks__figure *f = (const lks__figure *)(const void *)(at + figures[i].at);
        const bool given = figures[i].when == LKS__MACHINE_LINK    ? m->has_link
                           : figures[i].when == LKS__MACHINE_MAYBE ? f->value > 0
                                                                   : true;
        if (given)
            lks__append(text, LKS__MACHINE_TEXT, ",\n  ",
                        "\"%s\": {\"value\": %.6g, \"low\": %.6g, \"high\": %.6g}", figures[i].name,
                        f->value, f->low, f->high);
    }
    return lks__append(text, LKS__MACHINE_TEXT, "", "\n}\n")
               ? LKS_OK
               : lks__fail(LKS_ERR_NOMEM, "the machine file is too long");
}
