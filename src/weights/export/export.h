/* weights/export/export.h - exports a trained model in another program's format: `lockstep export`.
 * A format is a word of LKS__WORDS_format (settings/map.h) and a file (form.h lists its inputs). */
#pragma once

#include "settings/settings.h"

/* Messages for the user; the caller prints them. */
typedef struct lks__export_sink {
    void (*result)(const char *lines);  /* the result's lines, each with a newline */
    void (*note)(const char *sentence); /* without a newline */
} lks__export_sink;

/* Write the model that `s` names (choice/given.h) as s->format to s->out. ERR_CONFIG if that format
 * can't represent the model. */
lks_status lks__export(const lks__settings *s, const lks__export_sink *sink);
