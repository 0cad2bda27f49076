/* tools/progress.h - a line on the terminal that shows a command's progress and erases itself.
 *
 * Rank 0 prints it to stderr, if that is a terminal, once the command has run for a second. A
 * thread redraws it, so a long call needs no hooks. Call progress_hide() before other output. */
#pragma once

/* Show "NAME: TEXT, 12 s". `name` is not copied. */
void progress_begin(const char *name, const char *text);
/* Change the text; cheap enough for inner loops. Shows the line again after progress_hide(). */
void progress_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Erase the line until the next text. */
void progress_hide(void);
/* Erase the line for good. Does nothing if none has begun. */
void progress_end(void);
