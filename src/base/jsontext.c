#include "base/jsontext.h"

#include <pthread.h>
#include <setjmp.h>

static json_malloc_t allocate;       /* jansson's, before ours came around it */
static _Thread_local jmp_buf *leave; /* in this thread's call of jansson; else NULL */

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

json_t *lks__json_load(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    jmp_buf here;
    pthread_once(&once, set_allocator);
    if (setjmp(here) != 0) {
        leave = NULL;
        *error = (json_error_t){.line = -1};
        return NULL;
    }
    leave = &here;
    json_t *json = json_loadb(text, bytes, flags, error);
    leave = NULL;
    return json;
}

bool lks__json_no_memory(const json_error_t *error)
{
    return json_error_code(error) == json_error_out_of_memory || error->text[0] == '\0';
}

char *lks__json_dump(const json_t *json, size_t flags)
{
    jmp_buf here;
    pthread_once(&once, set_allocator);
    if (setjmp(here) != 0) {
        leave = NULL;
        return NULL;
    }
    leave = &here;
    char *text = json_dumps(json, flags);
    leave = NULL;
    return text;
}
