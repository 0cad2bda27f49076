/* lockstep export: a trained model as one file. */
#include <stdio.h>
#include <stdlib.h>

#include "artifact/artifact.h"
#include "model/model.h"
#include "tool.h"
#include "train/state.h"
#include "weights/which.h"

static const char usage[] =
    "Usage: lockstep export --format=golf --out_dir=DIR --out=FILE [--code=FILE ...]\n"
    "\n"
    "Writes the model of a checkpoint in --out_dir (--which) as parameter-golf's artifact: int8 "
    "with\n"
    "a scale for each row, in a safetensors container under zlib. Its size is printed together "
    "with\n"
    "that of the code files, with a warning if both are over the limit of 16,000,000 bytes.\n"
    "--code may be given several times.\n";

static lks_status write_model(const lks__settings *s, const lks__ckpt *ckpt,
                              lks__artifact_stats *stats)
{
    lks__settings run;
    lks__table table;
    lks__settings_defaults(&run);
    LKS__TRY(lks__state_settings(ckpt, &run));
    lks__model_config config = lks__state_model_config(&run, (uint32_t)run.vocab_size);
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__state_check_params(ckpt->model, ckpt->path, &table);
    float *params = st == LKS_OK ? calloc(table.count, sizeof *params) : NULL;
    lks__artifact_about about = {
        .iter = ckpt->iter,
        .settings = json_object_get(ckpt->state, "settings"),
        .tokenizer = json_object_get(ckpt->state, "tokenizer"),
    };
    if (st == LKS_OK && !params)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for a model of %zu parameters", table.n_params);
    if (st == LKS_OK)
        st = lks__state_read_params(ckpt->model, ckpt->path, &table, params);
    if (st == LKS_OK)
        st = lks__artifact_write(s->out, &table, params, &about, stats);
    free(params);
    lks__table_free(&table);
    return st;
}

static void print_sizes(const lks__artifact_stats *stats, uint64_t model_bytes, uint64_t code_bytes)
{
    char lines[LKS__ARTIFACT_LINES], warning[200];
    lks__artifact_lines(stats, model_bytes, code_bytes, lines);
    fputs(lines, stdout);
    fflush(stdout); /* earlier lines first */
    if (lks__artifact_too_large(stats, code_bytes, warning))
        fprintf(stderr, "lockstep export: %s\n", warning);
}

static lks_status export_golf(const lks__settings *s)
{
    lks__ckpt ckpt;
    lks__artifact_stats stats;
    char path[sizeof ckpt.path + 32], took[64];
    uint64_t code_bytes, model_bytes;
    if (s->out[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG, "give the file to write the artifact to: --out=FILE");
    LKS__TRY(lks__artifact_code_bytes(s->code, &code_bytes));
    LKS__TRY(lks__which_open(s->out_dir, s->which, &ckpt, took));
    fprintf(stderr, "lockstep export: %s\n", took);
    snprintf(path, sizeof path, "%s/model.safetensors", ckpt.path);
    lks_status st = lks__artifact_file_bytes(path, &model_bytes);
    if (st == LKS_OK)
        st = write_model(s, &ckpt, &stats);
    lks__ckpt_close(&ckpt);
    if (st == LKS_OK)
        print_sizes(&stats, model_bytes, code_bytes);
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
    lks_status st = export_golf(&s);
    return st == LKS_OK ? TOOL_OK : tool_fail("export", st);
}
