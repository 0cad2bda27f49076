/* weights/export/export.h - a trained model in the form of another program: `lockstep export`. A
 * form is a row in export.c and a file (weights/export/form.h says what it gets). */
#ifndef LKS_WEIGHTS_EXPORT_EXPORT_H
#define LKS_WEIGHTS_EXPORT_EXPORT_H

#include "settings/settings.h"

/* What the user should see; the caller prints it. */
typedef struct lks__export_sink {
    void (*result)(const char *lines);  /* lines of the result, each with a newline */
    void (*note)(const char *sentence); /* without a newline */
} lks__export_sink;

/* Write the model that `s` names (choice/given.h) as s->format to s->out. ERR_CONFIG if that form
 * can't hold the model. */
lks_status lks__export(const lks__settings *s, const lks__export_sink *sink);

#endif
