#include "base/text/jsontext.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/utf8.h"

static json_malloc_t allocate; /* jansson's allocator before ours was installed */
/* Target of the jump if an allocation fails; NULL outside calls of jansson. */
static _Thread_local jmp_buf *leave;

static void *allocate_or_leave(size_t bytes)
{
    void *p = allocate(bytes);
    if (p == NULL && leave != NULL)
        longjmp(*leave, 1);
    return p;
}

static void set_allocator(void)
{
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(allocate_or_leave, release);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

bool lks__json_in_memory(void (*call)(void *), void *arg)
{
    jmp_buf here, *const outer = leave;
    fenv_t callers;
    pthread_once(&once, set_allocator);
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    leave = &here;
    bool whole = setjmp(here) == 0;
    if (whole)
        call(arg);
    leave = outer;
    fesetenv(&callers);
    if (!whole && outer != NULL)
        longjmp(*outer, 1);
    return whole;
}

struct load {
    const char *text;
    size_t bytes, flags;
    json_error_t *error;
    json_t *json;
};

static void load(void *arg)
{
    struct load *l = arg;
    l->json = json_loadb(l->text, l->bytes, l->flags, l->error);
}

json_t *lks__json_load(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    struct load l = {text, bytes, flags, error, NULL};
    if (lks__json_in_memory(load, &l))
        return l.json;
    *error = (json_error_t){.line = -1};
    return NULL;
}

lks_status lks__json_parse(const char *text, size_t bytes, size_t flags, const char *name,
                           json_t **json_p)
{
    json_error_t error;
    *json_p = lks__json_load(text, bytes, flags, &error);
    if (*json_p != NULL)
        return LKS_OK;
    if (lks__json_no_memory(&error))
        return lks__no_memory("to read %s", name);
    return lks__fail(LKS_ERR_FORMAT, "%s is not valid JSON at line %d, column %d: %s", name,
                     error.line, error.column, lks__shown(error.text, JSON_ERROR_TEXT_LENGTH * 4));
}

lks_status lks__json_line(const char *line, size_t bytes, size_t flags, json_t **object_p)
{
    json_error_t error;
    const bool zeros = memchr(line, '\0', bytes) != NULL;
    json_t *json = zeros ? NULL : lks__json_load(line, bytes, flags, &error);
    *object_p = json_is_object(json) ? json : NULL;
    if (json == NULL && !zeros && lks__json_no_memory(&error))
        return lks__no_memory("to read a line of JSON");
    if (*object_p == NULL)
        json_decref(json);
    return LKS_OK;
}

bool lks__json_no_memory(const json_error_t *error)
{
    return json_error_code(error) == json_error_out_of_memory || error->text[0] == '\0';
}

struct dump {
    const json_t *json;
    size_t flags;
    char *text;
};

static void dump(void *arg)
{
    struct dump *d = arg;
    d->text = json_dumps(d->json, d->flags);
}

bool lks__json_same(const json_t *a, const json_t *b)
{
    return json_equal(a, b) ||
           (json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b));
}

double lks__json_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

const char *lks__json_str(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

json_int_t lks__json_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

bool lks__json_hash(const json_t *object, const char *key, uint64_t *hash_p)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (text == NULL || json_string_length(value) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *hash_p = strtoull(text, NULL, 16);
    return true;
}

json_t *lks__json_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

double lks__nine_digits(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.9g", x);
    return strtod(text, NULL);
}

json_t *lks__json_float(float x)
{
    return lks__json_real(lks__nine_digits((double)x));
}

void lks__json_shortest(double x, char *out, size_t bytes)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, bytes, "%.*g", digits, x);
        if (strtod(out, NULL) == x)
            return;
    }
}

const char *lks__json_text(const json_t *value, char out[256])
{
    char *text = NULL;
    if (json_is_string(value))
        snprintf(out, 256, "%s", json_string_value(value));
    else if (json_is_real(value))
        lks__json_shortest(json_real_value(value), out, 256);
    else if (json_is_integer(value))
        snprintf(out, 256, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_boolean(value))
        snprintf(out, 256, "%s", json_is_true(value) ? "true" : "false");
    else if (value != NULL && !json_is_null(value) &&
             (text = lks__json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT)) != NULL)
        snprintf(out, 256, "%s", text);
    else
        snprintf(out, 256, "-");
    free(text);
    lks__utf8_make(out);
    return out;
}

json_t *lks__json_utf8(const char *text)
{
    json_t *json = json_string_nocheck(text);
    if (json != NULL)
        lks__utf8_make((char *)(uintptr_t)json_string_value(json)); /* of the same length */
    return json;
}

char *lks__json_dump(const json_t *json, size_t flags)
{
    struct dump d = {json, flags, NULL};
    return lks__json_in_memory(dump, &d) ? d.text : NULL;
}
