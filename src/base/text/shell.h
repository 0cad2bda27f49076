/* base/text/shell.h - words of commands that are printed for people to paste into a shell. */
#pragma once

#include <stddef.h>

/* Write `word` into `out` as a shell reads it, quoted if necessary. A word that can't be shown
 * completely and safely (a control character, invalid UTF-8, or too long) becomes "...". Returns
 * `out`. */
char *lks__shell_word(char *out, size_t bytes, const char *word);
/* The same in memory of the enclosing block. */
#define lks__quoted(word, bytes) lks__shell_word((char[bytes]){0}, bytes, word)

/* Write the program as the user started it, because it may not be in the path; "lockstep" in
 * another program, which uses this as a library. Returns `out`. */
char *lks__shell_program(char *out, size_t bytes);
