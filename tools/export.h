/* tools/export.h - the forms in which `lockstep export` writes a model: a row in
 * cmd_export.c's table and a file each. */
#ifndef LKS_TOOLS_EXPORT_H
#define LKS_TOOLS_EXPORT_H

#include "ckpt/ckpt.h"
#include "model/model.h"
#include "settings/settings.h"

typedef struct tool_model {
    const lks__settings *s; /* of the command */
    lks__ckpt ckpt;         /* the one to write; its optimizer is not opened */
    lks__settings run;      /* the settings that it was made with */
    lks__model_config config;
    lks__table table; /* its tensors, which have been checked */
} tool_model;

typedef lks_status tool_export_write(const tool_model *e);

tool_export_write tool_export_golf, tool_export_nanogpt, tool_export_hf, tool_export_safetensors;

/* All parameters, in an arena that the caller frees. */
lks_status tool_export_params(const tool_model *e, float **params_p);

/* Write a safetensors file with "format": "pt" under a temporary name, and rename it to `path`. */
lks_status tool_export_tensors(const char *path, const lks__st_tensor *tensors, size_t n);

/* A sentence for standard error. */
void tool_export_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
