/* tools/longer.h - the longer command that a short one stands for: its words are collected, and
 * printed for a shell. */
#ifndef LKS_TOOLS_LONGER_H
#define LKS_TOOLS_LONGER_H

#include <stdio.h>

#include "base/status.h"
#include "settings/settings.h"

enum { LONGER_WORDS = 1024, LONGER_TEXT = 16 << 10 };

typedef struct longer {
    char *words[LONGER_WORDS + 1]; /* NULL ends them; not copied, or in `text` */
    int n;
    char text[LONGER_TEXT];
    size_t used;
    bool full; /* a word had no room */
} longer;

void longer_begin(longer *l, char *command);
void longer_add(longer *l, char *word);
void longer_add_text(longer *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Add --nproc_per_node for all cores of this machine, unless `s` says how many ranks there are, a
 * launcher has started this process, or the run is on GPUs; and --threads, if the process may use
 * fewer cores than it sees. Returns the number of ranks that was added; 0: none was. */
int longer_add_ranks(longer *l, const lks__settings *s, int64_t virtual_ranks);
/* "lockstep WORD WORD…", with the program as it was started, and a line feed. */
void longer_print(FILE *out, const longer *l);
/* ERR_CONFIG if a word had no room. */
lks_status longer_check(const longer *l);

#endif
