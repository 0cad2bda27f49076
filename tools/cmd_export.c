/* lockstep export: a trained model as one file for others. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "artifact/artifact.h"
#include "base/sys.h"
#include "model/model.h"
#include "tool.h"
#include "train/state.h"

static const char usage[] =
    "Usage: lockstep export --format=golf --out_dir=DIR --out=FILE [--code=FILE ...]\n"
    "\n"
    "Writes the model of the newest checkpoint in --out_dir as parameter-golf's artifact: int8 "
    "with\n"
    "a scale for each row, in a safetensors container under zlib. Its size is printed together "
    "with\n"
    "that of the code files, and it is said when both are over the limit of 16,000,000 bytes.\n"
    "--code may be given several times.\n";

static const char code_option[] = "--code=";

static lks_status file_size(const char *path, uint64_t *bytes_p)
{
    struct stat info;
    if (stat(path, &info) < 0)
        return lks__sys_fail("cannot read", path);
    if (!S_ISREG(info.st_mode)) {
        char shown[512];
        return lks__fail(LKS_ERR_IO, "cannot count the bytes of %s: it is not a regular file",
                         lks__escape(shown, sizeof shown, path, strlen(path)));
    }
    *bytes_p = (uint64_t)info.st_size;
    return LKS_OK;
}

/* All --code of the command line, as a setting keeps only the last; else the one of a config file.
 */
static lks_status code_size(const lks__settings *s, int argc, char **argv, uint64_t *bytes_p)
{
    const size_t n = sizeof code_option - 1;
    uint64_t bytes, sum = 0;
    bool given = false;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], code_option, n) != 0 || argv[i][n] == '\0')
            continue;
        LKS__TRY(file_size(argv[i] + n, &bytes));
        sum += bytes;
        given = true;
    }
    if (!given && s->code[0] != '\0')
        LKS__TRY(file_size(s->code, &sum));
    *bytes_p = sum;
    return LKS_OK;
}

static lks_status write_model(const lks__settings *s, const lks__ckpt *ckpt,
                              lks__artifact_stats *stats)
{
    lks__settings run;
    lks__table table;
    lks__settings_defaults(&run);
    LKS__TRY(lks__state_settings(ckpt, &run));
    lks__model_config config = lks__state_model_config(&run, (uint32_t)run.vocab_size);
    LKS__TRY(lks__model_table(&config, &table));
    float *params = calloc(table.count, sizeof *params);
    lks__artifact_about about = {
        .iter = ckpt->iter,
        .settings = json_object_get(ckpt->state, "settings"),
        .tokenizer = json_object_get(ckpt->state, "tokenizer"),
    };
    lks_status st =
        params
            ? lks__state_read_arena(ckpt->model, ckpt->path, &table, LKS__ARENA_PARAMS, params)
            : lks__fail(LKS_ERR_NOMEM, "no memory for a model of %zu parameters", table.n_params);
    if (st == LKS_OK)
        st = lks__artifact_write(s->out, &table, params, &about, stats);
    free(params);
    lks__table_free(&table);
    return st;
}

/* The script's lines: of the weights as they are in the checkpoint, then of the artifact. */
static void print_sizes(const lks__artifact_stats *stats, uint64_t model_bytes, uint64_t code_bytes)
{
    char lines[400];
    uint64_t total = stats->file_bytes + code_bytes;
    printf("Serialized model: %" PRIu64 " bytes\n", model_bytes);
    printf("Code size: %" PRIu64 " bytes\n", code_bytes);
    printf("Total submission size: %" PRIu64 " bytes\n", model_bytes + code_bytes);
    lks__artifact_lines(stats, code_bytes, lines);
    fputs(lines, stdout);
    if (total <= LKS__ARTIFACT_LIMIT)
        return;
    fflush(stdout); /* first what came first */
    fprintf(stderr,
            "lockstep export: TOO LARGE: artifact and code are %" PRIu64 " bytes together, %" PRIu64
            " over the limit of %d\n",
            total, total - LKS__ARTIFACT_LIMIT, LKS__ARTIFACT_LIMIT);
}

static lks_status export_golf(const lks__settings *s, int argc, char **argv)
{
    lks__ckpt ckpt;
    lks__artifact_stats stats;
    char path[sizeof ckpt.path + 32];
    uint64_t code_bytes, model_bytes;
    if (s->out[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG, "say where to write the artifact: --out=FILE");
    LKS__TRY(code_size(s, argc, argv, &code_bytes));
    LKS__TRY(lks__ckpt_open(s->out_dir, 0, &ckpt));
    snprintf(path, sizeof path, "%s/model.safetensors", ckpt.path);
    lks_status st = file_size(path, &model_bytes);
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
    lks_status st = export_golf(&s, argc, argv);
    return st == LKS_OK ? TOOL_OK : tool_fail("export", st);
}
