/* base/list.h - room for the elements of a growing array. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Make room for n elements of `bytes` in an array. list_p is the address of its pointer, and
 * *room_p the number of elements that fit, 0 at first. False if out of memory; the array is then
 * unchanged. */
static inline bool lks__list_room(void *list_p, size_t n, size_t *room_p, size_t bytes)
{
    void *list;
    if (n <= *room_p)
        return true;
    const size_t twice = *room_p == 0 ? 64 : 2 * *room_p, room = n > twice ? n : twice;
    memcpy(&list, list_p, sizeof list);
    list = realloc(list, room * bytes);
    if (list == NULL)
        return false;
    memcpy(list_p, &list, sizeof list);
    *room_p = room;
    return true;
}

/* The same for one more element after n. */
static inline bool lks__list_grow(void *list_p, size_t n, size_t *room_p, size_t bytes)
{
    return lks__list_room(list_p, n + 1, room_p, bytes);
}
