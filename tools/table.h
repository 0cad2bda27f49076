/* tools/table.h - all commands and what they take, as lines for the programs that make the man
 * pages and the completions of shells (cmake/pages): `lockstep help --table`.
 *
 * Columns are separated by tabs:
 *
 *     version  VERSION
 *     command  COMMAND  HELP
 *     usage    COMMAND  LINE                     a line of `lockstep COMMAND --help`
 *     word     COMMAND  WORD                     a word that the command begins with
 *     option   COMMAND  NAME  KIND  DEFAULT  WORDS  RANGE  GROUP  HELP
 *     exit     CODE     MEANING
 *
 * NAME is with its dashes. KIND: flag (takes no value), truth (takes one or none), value, words,
 * path, dataset, run, checkpoint, weights. WORDS, separated by blanks: all values of kind `words`,
 * some of weights. */
#ifndef LKS_TOOLS_TABLE_H
#define LKS_TOOLS_TABLE_H

#include <stdbool.h>

/* While the table is printed, `COMMAND --help` gives its lines instead of the text for people. */
extern bool table_asked;

void table_usage(const char *command, const char *usage);
void table_settings(const char *command, unsigned bit);
void table_option(const char *command, const char *name, const char *kind, const char *preset,
                  const char *help);

#endif
