/* base/jsonerr.h - what jansson's errors don't say by themselves. */
#ifndef LKS_BASE_JSONERR_H
#define LKS_BASE_JSONERR_H

#include <jansson.h>
#include <stdbool.h>

/* Did reading fail for want of memory? Where an allocation deep inside fails, jansson returns NULL
 * without a word, and the text would be blamed. */
static inline bool lks__json_no_memory(const json_error_t *error)
{
    return json_error_code(error) == json_error_out_of_memory || error->text[0] == '\0';
}

#endif
