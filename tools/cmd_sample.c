/* lockstep sample: text from a checkpoint, as it is drawn. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "tool.h"
#include "train/generate.h"
#include "train/replica.h"

static const char usage[] =
    "Usage: lockstep sample --out_dir=DIR [--start=TEXT|FILE:PATH] [--key=value ...]\n"
    "\n"
    "Writes text that the newest checkpoint in --out_dir makes of a beginning.\n";

enum { MAX_PROMPT_BYTES = 64 << 20 };

struct sink {
    const lks__meta *meta;
};

static lks_status write_text(const char *text, size_t bytes)
{
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return lks__fail(LKS_ERR_IO, "can't write to standard output: %s", strerror(errno));
    return LKS_OK;
}

static lks_status write_token(void *ctx, int32_t token)
{
    const struct sink *s = ctx;
    char text[16];
    return write_text(text, lks__meta_decode(s->meta, token, text));
}

/* The beginning as ids: --start's text, or the file behind FILE:. */
static lks_status read_prompt(const lks__settings *s, const lks__meta *meta, int32_t **ids_p,
                              size_t *n_p)
{
    char *text = NULL;
    size_t bytes;
    const char *start = s->start;
    if (strncmp(start, "FILE:", 5) == 0) {
        LKS__TRY(lks__sys_read_file(start + 5, MAX_PROMPT_BYTES, &text, &bytes));
        start = text;
    } else {
        bytes = strlen(start);
    }
    lks_status st;
    if (meta->chars == NULL)
        st = lks__fail(LKS_ERR_SUPPORT, "this checkpoint has no tokenizer (its data folder had no "
                                        "meta.json), so text can't become tokens");
    else
        st = lks__meta_encode(meta, start, bytes, ids_p, n_p);
    free(text);
    if (st == LKS_OK && *n_p == 0)
        st = lks__fail(LKS_ERR_CONFIG, "--start is empty: give at least one character");
    return st == LKS_OK ? st : lks__fail_in(st, "--start");
}

static lks_status write_samples(const lks__settings *s, lks__session *session, lks__replica *r,
                                int32_t **ids_p)
{
    size_t n;
    LKS__TRY(lks__replica_open(s->out_dir, s, 1, session, r));
    LKS__TRY(read_prompt(s, &r->meta, ids_p, &n));
    struct sink sink = {&r->meta};
    for (int64_t i = 0; i < s->num_samples; i++) {
        lks__generate_options options = {
            .seed = (uint64_t)s->seed,
            .sample = (uint32_t)i,
            .max_new_tokens = (uint64_t)s->max_new_tokens,
            .temperature = s->temperature,
            .top_k = (uint32_t)s->top_k,
        };
        for (size_t j = 0; j < n; j++)
            LKS__TRY(write_token(&sink, (*ids_p)[j]));
        LKS__TRY(lks__generate(r->model, &r->config, r->params, &options, *ids_p, n, write_token,
                               &sink));
        LKS__TRY(write_text("\n---------------\n", 17));
    }
    return LKS_OK;
}

int tool_sample(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    lks__session session;
    lks__replica replica = {0};
    int32_t *ids = NULL;
    int code;
    if (!tool_settings("sample", LKS__CMD_SAMPLE, usage, argc, argv, 0, &s, &args, &code))
        return code;
    tool_print_notes("sample", &args);
    lks_status st = lks__session_open("auto", 60.0, (int)s.threads, &session);
    if (st != LKS_OK)
        return tool_fail("sample", st);
    st = write_samples(&s, &session, &replica, &ids);
    code = st == LKS_OK ? TOOL_OK : tool_fail("sample", st);
    free(ids);
    lks__replica_close(&replica);
    lks__session_close(&session);
    return code;
}
