#include "report/diff/trails.h"

#include <fcntl.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "report/diff/facts.h"
#include "report/record/lines.h"

static const struct {
    const char *what, *phase;
} whats[] = {
#define X(name, what, phase) {what, phase},
    LKS__TRAIL_MAP(X)
#undef X
};

const char *lks__trail_name(enum lks__trail_what what)
{
    return whats[what].what;
}

const char *lks__trail_phase(const char *what)
{
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++)
        if (strcmp(whats[i].what, what) == 0)
            return whats[i].phase;
    return "";
}

bool lks__trail_entry_is(const json_t *entry, enum lks__trail_what what)
{
    const char *text = lks__json_str(entry, "what");
    return text != NULL && strcmp(text, whats[what].what) == 0;
}

bool lks__trail_same_result(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"virtual_rank", "micro_batch", "what", "name"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
        if (x != y && !json_equal(x, y))
            return false;
    }
    return true;
}

bool lks__trail_is(const char *path)
{
    static const char begin[] = "{\"what\":\"trail\"";
    char text[sizeof begin - 1];
    const int fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    const bool is = fd >= 0 && lks__sys_read_at(fd, text, sizeof text, 0) == 0 &&
                    memcmp(text, begin, sizeof text) == 0;
    lks__sys_close(fd);
    return is;
}

struct trail {
    lks__lines lines;
    json_t *head, *entry; /* entry NULL: the end */
};

/* Read the next entry; a trail without an end is incomplete. */
static lks_status next(struct trail *t)
{
    json_decref(t->entry);
    t->entry = NULL;
    LKS__TRY(lks__lines_next(&t->lines, &t->entry));
    if (t->entry == NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "a trail is incomplete: run the `lockstep audit --trail` that wrote it "
                         "again");
    if (!json_is_string(json_object_get(t->entry, "what")))
        return lks__lines_bad(&t->lines, "names no result");
    if (!lks__trail_entry_is(t->entry, LKS__TRAIL_END))
        return LKS_OK;
    json_decref(t->entry);
    t->entry = NULL;
    return LKS_OK;
}

static lks_status open_trail(const char *path, struct trail *t)
{
    LKS__TRY(lks__lines_open(path, &t->lines));
    LKS__TRY(lks__lines_next(&t->lines, &t->head));
    if (t->head != NULL && lks__trail_entry_is(t->head, LKS__TRAIL_HEAD) &&
        json_is_integer(json_object_get(t->head, "step")) &&
        json_is_object(json_object_get(t->head, "settings")) &&
        json_is_object(json_object_get(t->head, "host")))
        return LKS_OK;
    return lks__lines_bad(&t->lines, "is not the head of a trail");
}

/* Trails of different parts have no common order. */
static lks_status check_heads(const struct trail *a, const struct trail *b)
{
    static const char *const keys[] = {"step", "leaf", "virtual_ranks", "micro_batches"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *x = json_object_get(a->head, keys[i]), *y = json_object_get(b->head, keys[i]);
        if (x != y && (x == NULL || y == NULL || !json_equal(x, y)))
            return lks__fail(LKS_ERR_CONFIG,
                             "the trails can't be compared: they differ in \"%s\"; write both with "
                             "the same --step and --leaf, of runs with the same batch",
                             keys[i]);
    }
    return LKS_OK;
}

static void add_facts(const struct trail *a, const struct trail *b, json_t *report)
{
    const lks__history x = {.settings = json_object_get(a->head, "settings"),
                            .host = json_object_get(a->head, "host")};
    const lks__history y = {.settings = json_object_get(b->head, "settings"),
                            .host = json_object_get(b->head, "host")};
    lks__facts_add(report, &x, &y);
}

static lks_status compare(struct trail *a, struct trail *b, json_t *report)
{
    json_int_t equal = -1;
    LKS__TRY(check_heads(a, b));
    add_facts(a, b, report);
    do {
        LKS__TRY(next(a));
        LKS__TRY(next(b));
        equal++;
    } while (a->entry != NULL && b->entry != NULL && json_equal(a->entry, b->entry));
    const bool same = a->entry == NULL && b->entry == NULL;
    json_t *found = json_pack(
        "{s:O, s:I, s:o}", "step", json_object_get(a->head, "step"), "entries", equal, "place",
        same ? json_null() : json_pack("{s:O?, s:O?}", "a", a->entry, "b", b->entry));
    const bool added = found != NULL && json_object_update(report, found) == 0;
    json_decref(found);
    return added ? LKS_OK : lks__no_memory("to compare trails");
}

static void close_trail(struct trail *t)
{
    lks__lines_close(&t->lines);
    json_decref(t->head);
    json_decref(t->entry);
}

lks_status lks__trails_diff(const char *a, const char *b, json_t *report)
{
    struct trail x = {.head = NULL}, y = {.head = NULL};
    lks_status st = open_trail(a, &x);
    LKS__THEN(st, open_trail(b, &y));
    LKS__THEN(st, compare(&x, &y, report));
    close_trail(&x);
    close_trail(&y);
    return st;
}
