/* A folder for one test program, and whole files in it. Failures end the test. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCRATCH_PATH = 512 };

extern char scratch[SCRATCH_PATH]; /* made by scratch_open() */

int scratch_open(void **state); /* for cmocka's group set-up and tear-down */
/* In memory, where a sync takes no time; on disk if there is no such folder, or in the second form
 * if it has no room for so many bytes. */
int scratch_open_in_memory(void **state);
int scratch_open_with_room(size_t bytes);
int scratch_close(void **state);

const char *in_scratch(const char *name); /* path; one of a few static buffers */
void remove_tree(const char *path);       /* OK if there is none */
void copy_tree(const char *from, const char *to);

/* Does a name in `folder` end with `tail`? False if there is no folder. */
bool any_name_ends(const char *folder, const char *tail);

/* xorshift64*: fixed seeds, the same on every machine. */
uint64_t next_random(uint64_t *state);
