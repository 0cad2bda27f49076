/* tools/table.h - `lockstep help --table`: all commands and their arguments, as lines from which
 * cmake/pages makes man pages and shell completions.
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
 * An option of the command "settings" is a setting, with its help for all commands.
 *
 * NAME begins with dashes. KIND: flag (no value), truth and help (an optional value), value, words,
 * path, dataset, run, checkpoint, weights. WORDS, separated by blanks: all values of the kinds
 * `words` and `help`, some of weights. */
#pragma once

#include <stdbool.h>

/* If true, `COMMAND --help` prints lines of the table instead of the text for people. */
extern bool table_asked;

void table_usage(const char *command, const char *usage);
void table_settings(const char *command, unsigned bit);
void table_option(const char *command, const char *name, const char *kind, const char *preset,
                  const char *help);
