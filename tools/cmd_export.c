/* lockstep export: a trained model in another program's form. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "tool.h"
#include "weights/saved.h"
#include "weights/which.h"

static const char usage[] =
    "Usage: lockstep export --format=golf|nanogpt|hf|safetensors --out_dir=DIR --out=PATH\n"
    "\n"
    "Writes the model of a checkpoint in --out_dir (--which).\n"
    "\n"
    "golf: as parameter-golf's train_gpt.py saves it. A name that ends in .pt gets the raw model, "
    "any\n"
    "other the artifact: int8 with a scale for each row, under zlib. The size is printed together "
    "with\n"
    "that of the code files (--code=FILE, which may be given several times), with a warning if "
    "both\n"
    "are over the limit of 16,000,000 bytes.\n"
    "nanogpt: a ckpt.pt with the optimizer's state, which nanoGPT's sample.py and its resume load. "
    "It\n"
    "computes GELU exactly; a model with the tanh form is written if --gelu=exact is given. "
    "--dataset\n"
    "is what sample.py looks for its meta.pkl by.\n"
    "hf: a folder for Hugging Face's loaders: config.json, model.safetensors and the tokenizer; "
    "gpt2 alone.\n"
    "safetensors: the parameters in float32 under their own names.\n";

static const struct {
    const char *name;  /* of --format */
    const char *makes; /* what --out names */
    tool_export_write *write;
} formats[] = {
    {"golf", "file to write: --out=FILE", tool_export_golf},
    {"nanogpt", "file to write: --out=FILE", tool_export_nanogpt},
    {"hf", "folder to write: --out=FOLDER", tool_export_hf},
    {"safetensors", "file to write: --out=FILE", tool_export_safetensors},
};

static size_t format_of(const lks__settings *s)
{
    const char *name = lks__setting_word(s, LKS__SETTING_format);
    size_t i = 0;
    while (strcmp(formats[i].name, name) != 0) /* the settings table has no others */
        i++;
    return i;
}

void tool_export_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("lockstep export: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

lks_status tool_export_params(const tool_model *e, float **params_p)
{
    float *params = calloc(e->table.count, sizeof *params);
    if (!params)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a model of %zu parameters",
                         e->table.n_params);
    lks_status st = lks__state_read_params(e->ckpt.model, e->ckpt.path, &e->table, params);
    if (st == LKS_OK)
        *params_p = params;
    else
        free(params);
    return st;
}

static lks_status open_model(tool_model *e)
{
    lks__settings_defaults(&e->run);
    LKS__TRY(lks__state_settings(&e->ckpt, &e->run));
    e->config = lks__state_model_config(&e->run, (uint32_t)e->run.vocab_size);
    LKS__TRY(lks__model_table(&e->config, &e->table));
    return lks__state_check_params(e->ckpt.model, e->ckpt.path, &e->table);
}

static lks_status export_model(const lks__settings *s)
{
    char took[64];
    tool_model e = {.s = s};
    const size_t format = format_of(s);
    if (s->out[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG, "give the %s", formats[format].makes);
    LKS__TRY(lks__which_open(s->out_dir, s->which, &e.ckpt, took));
    fprintf(stderr, "lockstep export: %s\n", took);
    lks_status st = open_model(&e);
    if (st == LKS_OK)
        st = formats[format].write(&e);
    lks__table_free(&e.table);
    lks__ckpt_close(&e.ckpt);
    return st;
}

int tool_export(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("export", LKS__CMD_EXPORT, usage, argc, argv, 0, &s, &args, &code))
        return code;
    tool_print_notes("export", &args);
    lks_status st = export_model(&s);
    return st == LKS_OK ? TOOL_OK : tool_fail("export", st);
}
