/* tools/progress.h - how far a command is, in one line on the terminal that erases itself.
 *
 * It is written to stderr, if that is a terminal, by the first rank, and not before the command has
 * run for a second. A thread redraws it, so a long call needs no hooks. Nothing else may be written
 * to a terminal meanwhile: call progress_hide() first. */
#ifndef LKS_TOOLS_PROGRESS_H
#define LKS_TOOLS_PROGRESS_H

/* From now on show "NAME: TEXT, 12 s". `name` is kept, not copied. */
void progress_begin(const char *name, const char *text);
/* Another text; cheap enough for inner loops. Shows the line again after progress_hide(). */
void progress_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Erase the line, until the next text. */
void progress_hide(void);
/* Erase it for good. Does nothing if none has begun. */
void progress_end(void);

#endif
