/* lockstep sample: print text from a checkpoint as it is drawn. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "session/signals.h"
#include "tool.h"
#include "use/generate.h"
#include "use/text.h"

static const char usage[] =
    "Usage: lockstep sample --out_dir=DIR|--init_from=PATH [--start=TEXT|FILE:PATH] [--key=value "
    "...]\n"
    "\n"
    "Continues a text with the model of a checkpoint in --out_dir (--which). If its tokens are\n"
    "those of a SentencePiece model, give that as --tokenizer_path=MODEL; GPT-2's vocabulary is "
    "in\n"
    "--out_dir since the run began.\n";

enum { MAX_PROMPT_BYTES = 64 << 20 };

/* What a sample is written through. */
struct sink {
    lks__text text;
    lks__utf8_stream out;
};

static lks_status write_text(void *ctx, const char *text, size_t bytes)
{
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return lks__fail(LKS_ERR_IO, "can't write to standard output: %s", strerror(errno));
    return LKS_OK;
}

static lks_status write_token(void *ctx, int32_t token)
{
    struct sink *s = ctx;
    return lks__text_add(&s->text, token, &s->out);
}

/* The prompt as ids: --start's text, or the file after FILE:. */
static lks_status read_prompt(const lks__settings *s, const struct sink *sink, int32_t **ids_p,
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
    lks_status st = lks__text_encode(&sink->text, start, bytes, ids_p, n_p);
    free(text);
    if (st == LKS_OK && *n_p == 0)
        st = lks__fail(LKS_ERR_CONFIG, "--start is empty: give at least one character");
    return st == LKS_OK ? st : lks__fail_in(st, "--start");
}

static lks_status write_samples(const lks__settings *s, lks__session *session, lks__replica *r,
                                struct sink *sink, int32_t **ids_p, int64_t *n_whole_p)
{
    size_t n;
    LKS__TRY(lks__replica_open(s->out_dir, s, 1, session, r));
    fprintf(stderr, "lockstep sample: %s\n", r->took);
    sink->out = (lks__utf8_stream){.put = write_text};
    LKS__TRY(
        lks__text_open(s->tokenizer[0] != '\0' ? s->tokenizer : s->tokenizer_path, r, &sink->text));
    LKS__TRY(read_prompt(s, sink, ids_p, &n));
    for (int64_t i = 0; i < s->num_samples; i++) {
        lks__generate_options options = {
            .seed = (uint64_t)s->seed,
            .sample = (uint32_t)i,
            .max_new_tokens = (uint64_t)s->max_new_tokens,
            .temperature = s->temperature,
            .top_k = (uint32_t)s->top_k,
        };
        for (size_t j = 0; j < n; j++)
            LKS__TRY(write_token(sink, (*ids_p)[j]));
        LKS__TRY(lks__generate(r->model, &r->config, r->params.dev, &options, *ids_p, n,
                               write_token, sink));
        LKS__TRY(lks__utf8_stream_end(&sink->out));
        LKS__TRY(write_text(NULL, "\n---------------\n", 17));
        ++*n_whole_p;
    }
    return LKS_OK;
}

/* The text written so far stays. End its line, so that the message has its own. */
static int stopped(const lks__settings *s, int64_t n_whole)
{
    char left[128];
    fputs("\n", stdout);
    snprintf(left, sizeof left,
             "of %" PRId64 " sample%s %" PRId64 " %s whole, and any text behind is cut short",
             s->num_samples, s->num_samples == 1 ? "" : "s", n_whole, n_whole == 1 ? "is" : "are");
    return tool_stopped("sample", lks__stop_requested, left);
}

int tool_sample(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    lks__session session;
    lks__replica replica = {0};
    int32_t *ids = NULL;
    int64_t n_whole = 0;
    struct sink sink = {0};
    int code;
    if (!tool_settings("sample", LKS__CMD_SAMPLE, usage, argc, argv, 0, &s, &args, &code))
        return code;
    tool_print_notes("sample", &args);
    tool_stoppable();
    lks_status st = lks__session_open("auto", 60.0, (int)s.threads, &session);
    if (st != LKS_OK)
        return tool_fail("sample", st);
    st = lks__session_device(&session, s.device);
    if (st == LKS_OK)
        st = write_samples(&s, &session, &replica, &sink, &ids, &n_whole);
    code = st == LKS_OK               ? TOOL_OK
           : lks__stop_requested != 0 ? stopped(&s, n_whole)
                                      : tool_fail("sample", st);
    free(ids);
    lks__text_close(&sink.text);
    lks__replica_close(&replica);
    lks__session_close(&session);
    return code;
}
