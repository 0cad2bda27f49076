/* lockstep sample: print text from a checkpoint as it is drawn. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "base/utf8.h"
#include "data/bpe.h"
#include "data/spm_text.h"
#include "session/signals.h"
#include "tool.h"
#include "use/generate.h"
#include "use/replica.h"

static const char usage[] =
    "Usage: lockstep sample --out_dir=DIR [--start=TEXT|FILE:PATH] [--key=value ...]\n"
    "\n"
    "Continues a text with the model of a checkpoint in --out_dir (--which). If its tokens are\n"
    "those of a SentencePiece model, give that as --tokenizer_path=MODEL; GPT-2's vocabulary is "
    "in\n"
    "--out_dir since the run began.\n";

enum { MAX_PROMPT_BYTES = 64 << 20 };

/* Turns tokens into text and back, with a SentencePiece model, GPT-2's vocabulary or the
 * checkpoint's own characters. */
struct sink {
    const lks__meta *meta;
    lks__spm *spm; /* or NULL */
    lks__bpe *bpe; /* or NULL */
    lks__utf8_stream text;
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
    char text[16];
    size_t n;
    if (s->spm != NULL)
        return lks__spm_text_add(s->spm, token, &s->text);
    if (s->bpe != NULL) {
        const char *bytes = lks__bpe_bytes(s->bpe, token, &n);
        return lks__utf8_stream_add(&s->text, bytes == NULL ? "\xef\xbf\xbd" : bytes,
                                    bytes == NULL ? 3 : n);
    }
    return write_text(NULL, text, lks__meta_decode(s->meta, token, text));
}

/* The vocabulary of GPT-2's tokens: --tokenizer_path, or the one that the run keeps. */
static lks_status open_vocabulary(const char *path, const lks__replica *r, struct sink *sink)
{
    char kept[4200], shown[256];
    uint64_t hash;
    snprintf(kept, sizeof kept, "%s/" LKS__BPE_FILE, r->run_dir);
    if (path[0] == '\0')
        path = kept;
    LKS__TRY(lks__bpe_open(path, &sink->bpe));
    LKS__TRY(lks__bpe_hash(sink->bpe, &hash));
    if (hash == r->meta.model_hash)
        return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        "the vocabulary %s is not the one that the checkpoint was trained with: its "
        "hash is %016" PRIx64 ", not %016" PRIx64 "; give that one as --tokenizer_path=DIR",
        lks__escape(shown, sizeof shown, path, strlen(path)), hash, r->meta.model_hash);
}

/* Open the model of --tokenizer_path, which must be the one that the checkpoint was trained
 * with. */
static lks_status open_tokenizer(const char *path, struct sink *sink)
{
    char shown[256];
    const lks__meta *meta = sink->meta;
    LKS__TRY(lks__spm_open(path, &sink->spm));
    lks__escape(shown, sizeof shown, path, strlen(path));
    if (lks__spm_size(sink->spm) != meta->vocab_size)
        return lks__fail(LKS_ERR_CONFIG,
                         "the SentencePiece model %s has %u tokens, but the checkpoint's "
                         "vocabulary has %u: give the model that it was trained with",
                         shown, lks__spm_size(sink->spm), meta->vocab_size);
    if (meta->is_sentencepiece && lks__spm_hash(sink->spm) != meta->model_hash)
        return lks__fail(LKS_ERR_CONFIG,
                         "the SentencePiece model %s is not the one that the checkpoint was "
                         "trained with: its hash is %016" PRIx64 ", not %016" PRIx64,
                         shown, lks__spm_hash(sink->spm), meta->model_hash);
    return LKS_OK;
}

/* Text to ids. If normalization leaves nothing, begin as documents do, with BOS. */
static lks_status encode_pieces(const lks__spm *spm, const char *text, size_t bytes,
                                int32_t **ids_p, size_t *n_p)
{
    uint32_t cp;
    for (size_t i = 0, n; i < bytes; i += n) {
        n = lks__utf8_decode(text + i, bytes - i, &cp);
        if (n == 0)
            return lks__fail(LKS_ERR_FORMAT, "byte 0x%02x at offset %zu is not valid UTF-8",
                             (unsigned char)text[i], i);
    }
    LKS__TRY(lks__spm_encode(spm, text, bytes, ids_p, n_p));
    if (*n_p == 0 && lks__spm_bos(spm) >= 0) /* there is room for one */
        (*ids_p)[(*n_p)++] = lks__spm_bos(spm);
    return LKS_OK;
}

static lks_status encode_bytes(const lks__bpe *bpe, const char *text, size_t bytes, int32_t **ids_p,
                               size_t *n_p)
{
    lks__bpe_work *work = lks__bpe_work_open();
    *ids_p = malloc((bytes + 1) * sizeof **ids_p);
    lks_status st = work == NULL || *ids_p == NULL
                        ? lks__fail(LKS_ERR_NOMEM, "no memory for the prompt's tokens")
                        : lks__bpe_encode(bpe, work, text, bytes, *ids_p, n_p);
    lks__bpe_work_close(work);
    return st;
}

/* The prompt as ids: --start's text, or the file after FILE:. */
static lks_status read_prompt(const lks__settings *s, const struct sink *sink, int32_t **ids_p,
                              size_t *n_p)
{
    char *text = NULL;
    size_t bytes;
    const char *start = s->start;
    const lks__meta *meta = sink->meta;
    if (strncmp(start, "FILE:", 5) == 0) {
        LKS__TRY(lks__sys_read_file(start + 5, MAX_PROMPT_BYTES, &text, &bytes));
        start = text;
    } else {
        bytes = strlen(start);
    }
    lks_status st;
    if (sink->spm != NULL)
        st = encode_pieces(sink->spm, start, bytes, ids_p, n_p);
    else if (sink->bpe != NULL)
        st = encode_bytes(sink->bpe, start, bytes, ids_p, n_p);
    else if (meta->is_sentencepiece)
        st = lks__fail(LKS_ERR_CONFIG,
                       "this checkpoint's tokens are those of a SentencePiece model: "
                       "give it as --tokenizer_path=MODEL");
    else if (meta->chars == NULL)
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
                                struct sink *sink, int32_t **ids_p, int64_t *n_whole_p)
{
    size_t n;
    LKS__TRY(lks__replica_open(s->out_dir, s, 1, session, r));
    sink->meta = &r->meta;
    fprintf(stderr, "lockstep sample: %s\n", r->took);
    sink->text = (lks__utf8_stream){.put = write_text};
    if (r->meta.is_bpe)
        LKS__TRY(open_vocabulary(s->tokenizer_path, r, sink));
    else if (s->tokenizer_path[0] != '\0')
        LKS__TRY(open_tokenizer(s->tokenizer_path, sink));
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
        LKS__TRY(lks__utf8_stream_end(&sink->text));
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
    lks__spm_close(sink.spm);
    lks__bpe_close(sink.bpe);
    lks__replica_close(&replica);
    lks__session_close(&session);
    return code;
}
