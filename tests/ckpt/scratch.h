/* A folder for one test program, and whole files in it. Failures end the test. */
#ifndef LKS_TESTS_CKPT_SCRATCH_H
#define LKS_TESTS_CKPT_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCRATCH_PATH = 512 };

extern char scratch[SCRATCH_PATH]; /* made by scratch_open() */

int scratch_open(void **state); /* cmocka group set-up and tear-down */
int scratch_open_in_memory(
    void **state); /* where a sync takes no time; on disk if it can't be had */
int scratch_close(void **state);

const char *in_scratch(const char *name); /* path; one of a few static buffers */
void remove_tree(const char *path);       /* not there: fine */
void copy_tree(const char *from, const char *to);
bool exists(const char *path); /* links count, whatever they name */

char *read_bytes(const char *path, size_t *bytes_p); /* the caller frees */
void write_bytes(const char *path, const void *data, size_t bytes);

/* Does a name in `folder`, which may be missing, end with `tail`? */
bool any_name_ends(const char *folder, const char *tail);

/* xorshift64*: fixed seeds, the same on every machine. */
uint64_t next_random(uint64_t *state);

#endif
