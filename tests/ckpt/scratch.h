/* A folder for one test program, and whole files in it. Failures end the test. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int scratch_open(void **state);           /* for cmocka's group set-up */
int scratch_open_in_memory(void **state); /* where a sync takes no time */

const char *in_scratch(const char *name); /* path */
void remove_tree(const char *path);       /* OK if there is none */

/* Does a name in `folder` end with `tail`? False if there is no folder. */
bool any_name_ends(const char *folder, const char *tail);

/* xorshift64*: fixed seeds, the same on every machine. */
uint64_t next_random(uint64_t *state);
