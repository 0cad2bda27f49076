/* base/text/memstream.h - the end of a text that was written to open_memstream(). */
#pragma once

#include <stdio.h>
#include <stdlib.h>

/* Close the stream whose text is *text_p, and return the text, which the caller frees. If a write
 * or glibc's last reallocation was out of memory, return NULL and set *text_p to NULL. */
static inline char *lks__memstream_end(FILE *out, char **text_p)
{
    if (fclose(out) == 0)
        return *text_p; /* NULL after that reallocation, for which fclose() returns 0 */
    free(*text_p);
    return *text_p = NULL;
}
