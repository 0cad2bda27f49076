#include "longer.h"

#include <stdarg.h>
#include <string.h>

#include "base/number/cpu.h"
#include "base/text/shell.h"
#include "plan/choose.h"
#include "tool.h"

void longer_begin(longer *l, char *command)
{
    l->n = 0;
    l->used = 0;
    l->full = false;
    longer_add(l, command);
}

void longer_add(longer *l, char *word)
{
    if (l->n < LONGER_WORDS)
        l->words[l->n++] = word;
    else
        l->full = true;
    l->words[l->n] = NULL;
}

void longer_add_text(longer *l, const char *fmt, ...)
{
    char *word = l->text + l->used;
    const size_t room = sizeof l->text - l->used;
    va_list ap;
    va_start(ap, fmt);
    const size_t n = (size_t)vsnprintf(word, room, fmt, ap);
    va_end(ap);
    if (n < room) {
        l->used += n + 1;
        longer_add(l, word);
    } else {
        l->full = true;
    }
}

void longer_add_ranks(longer *l, const lks__settings *s, int64_t virtual_ranks)
{
    const bool on_cpu = strcmp(s->device, "auto") == 0 || strcmp(s->device, "cpu") == 0;
    const int cores = lks__choose_cores();
    if (s->from[LKS__SETTING_nproc_per_node] != LKS__FROM_DEFAULT || tool_is_rank() || !on_cpu)
        return;
    const int ranks = lks__choose_ranks(cores, virtual_ranks);
    longer_add_text(l, "--nproc_per_node=%d", ranks);
    if (cores < lks__cpu_count() && s->threads == 0)
        longer_add_text(l, "--threads=%d", cores / ranks);
}

void longer_print(FILE *out, const longer *l)
{
    char word[2 * LKS__SETTING_STR];
    fputs(lks__shell_program(word, sizeof word), out);
    for (int i = 0; i < l->n; i++)
        fprintf(out, " %s", lks__shell_word(word, sizeof word, l->words[i]));
    fputc('\n', out);
}

lks_status longer_check(const longer *l)
{
    return l->full
               ? lks__fail(LKS_ERR_CONFIG, "the command line has more than %d words or %d bytes",
                           LONGER_WORDS, LONGER_TEXT)
               : LKS_OK;
}
