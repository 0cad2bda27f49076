/* tools/longer.h - the longer command for which a short one stands, such as `train` for `resume`:
 * collects its words, and prints them for a shell. */
#pragma once

#include <stdio.h>

#include "base/status.h"
#include "settings/settings.h"

enum { LONGER_WORDS = 1024, LONGER_TEXT = 16 << 10 };

typedef struct longer {
    char *words[LONGER_WORDS + 1]; /* NULL ends them; the caller's memory, or `text` */
    int n;
    char text[LONGER_TEXT];
    size_t used;
    bool full;
} longer;

void longer_begin(longer *l, char *command);
void longer_add(longer *l, char *word);
void longer_add_text(longer *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Add --nproc_per_node for all cores of this machine, and --threads if the process may use fewer
 * cores than it sees. Adds neither if `s` sets the number of ranks, a launcher has started this
 * process, or the run is on GPUs. */
void longer_add_ranks(longer *l, const lks__settings *s, int64_t virtual_ranks);
/* Print "lockstep WORD WORD…" and a line feed, with the name by which this program was started. */
void longer_print(FILE *out, const longer *l);
/* ERR_CONFIG if the words were too many or too long. */
lks_status longer_check(const longer *l);
