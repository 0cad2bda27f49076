/* lockstep sample: prints text from a checkpoint as it is drawn. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../progress.h"
#include "../runs.h"
#include "../tool.h"
#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "sample.h"
#include "session/signals.h"
#include "train/checks/agree.h"
#include "train/setup/remember.h"
#include "weights/choice/known.h"

static const char usage[] =
    "Usage: lockstep sample RUN [--start=TEXT|FILE:PATH] [--key=value ...]\n"
    "       lockstep sample RUN --interactive\n"
    "       lockstep sample --init_from=PATH [--key=value ...]\n"
    "\n"
    "Generates text that continues --start. The model is a checkpoint (--checkpoint)\n"
    "of the run in the folder RUN, or the weights at --init_from. --out_dir=RUN is\n"
    "the older form of RUN.\n"
    "\n"
    "The run's folder contains GPT-2's vocabulary if the run used it. If the run's\n"
    "SentencePiece model has moved, give --tokenizer_path=MODEL.\n"
    "\n"
    "  lockstep sample out/my --start=\"Once upon\" --num_samples=2\n";

enum { MAX_PROMPT_BYTES = 64 << 20 };

/* Samples that are computed together. More would hardly save reads of the weights. */
enum { AT_ONCE = 16 };

/* With a smaller context, the model is so small that a pass over the whole context is quick. */
enum { LONG_CONTEXT = 512 };

struct generation {
    lks__settings *s;
    lks__session session;
    lks__replica replica;
    lks__text text;
    lks__generator *generator;
    bool *has; /* by id: true if the tokenizer knows it */
    int32_t *prompt;
    size_t n_prompt;
    char stop[LKS__SETTING_STR];             /* the texts of --stop, each ended by a 0 byte */
    const char *stops[LKS__SETTING_STR + 1]; /* their beginnings; NULL ends the list */
    lks__writer writer;
    uint64_t n_whole;
    double seconds; /* spent drawing */
};

static lks_status write_text(void *ctx, const char *text, size_t bytes)
{
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return lks__fail(LKS_ERR_IO, "can't write to standard output: %s", strerror(errno));
    return LKS_OK;
}

/* A model of a text in one line knows no line feed, the default --start: begin with its first
 * character instead. */
static lks_status begin_with_known_character(struct generation *g)
{
    char spelling[8] = "", shown[40];
    g->prompt = calloc(1, sizeof *g->prompt);
    LKS__MEMORY(g->prompt, "for a prompt");
    g->n_prompt = 1;
    const size_t n = lks__utf8_encode(g->text.meta->chars[0], spelling);
    fprintf(stderr,
            "lockstep sample: the model knows no line feed, so samples begin with \"%s\"; --start "
            "sets another beginning\n",
            lks__escape(shown, sizeof shown, spelling, n));
    return LKS_OK;
}

/* True if the prompt's special tokens count. As in nanoGPT's sample.py, <|endoftext|> is one unless
 * --special=false says otherwise. */
static bool has_special(const struct generation *g, const char *start, size_t bytes)
{
    static const char end[] = "<|endoftext|>";
    if (g->s->from[LKS__SETTING_special] != LKS__FROM_DEFAULT)
        return g->s->special;
    return g->text.bpe != NULL && memmem(start, bytes, end, sizeof end - 1) != NULL;
}

static lks_status read_prompt(struct generation *g)
{
    char *text = NULL;
    size_t bytes;
    const char *start = g->s->start;
    if (strcmp(start, "FILE:") == 0)
        return lks__fail(LKS_ERR_CONFIG, "--start=FILE: needs a path: --start=FILE:prompt.txt");
    if (strncmp(start, "FILE:", 5) == 0) {
        LKS__TRY(lks__sys_read_file(start + 5, MAX_PROMPT_BYTES, &text, &bytes));
        start = text;
    } else {
        bytes = strlen(start);
    }
    g->text.special = has_special(g, start, bytes);
    lks_status st = lks__text_encode(&g->text, start, bytes, &g->prompt, &g->n_prompt);
    g->text.special = g->s->special;
    free(text);
    if (st != LKS_OK && g->s->from[LKS__SETTING_start] == LKS__FROM_DEFAULT &&
        g->text.meta->chars != NULL && !g->s->special)
        return begin_with_known_character(g);
    if (st == LKS_OK && g->n_prompt == 0)
        st = lks__fail(LKS_ERR_CONFIG, "it is empty: give at least one character");
    return st == LKS_OK ? st : lks__fail_in(st, "--start");
}

/* Split --stop into lines, one text each. "\\n" in a text is a line feed, "\\\\" a backslash. */
static lks_status find_stops(struct generation *g)
{
    size_t n = 0, n_stops = 0;
    for (const char *s = g->s->stop, *end; *s != '\0'; s = end + (*end != '\0')) {
        const size_t first = n;
        end = strchrnul(s, '\n');
        for (; s < end; s++) {
            const bool escaped = *s == '\\' && s + 1 < end && (s[1] == 'n' || s[1] == '\\');
            s += escaped;
            g->stop[n++] = escaped && *s == 'n' ? '\n' : *s;
        }
        g->stop[n++] = '\0';
        if (n - first == 1)
            return lks__fail(LKS_ERR_CONFIG, "--stop is empty: give the text before which a sample "
                                             "ends, with \\n for a line feed");
        g->stops[n_stops++] = g->stop + first;
    }
    return LKS_OK;
}

/* Printed before the text: a terminal would show a later message in its middle. */
static void print_full(size_t block_size)
{
    if (block_size < LONG_CONTEXT)
        return;
    fprintf(stderr,
            "lockstep sample: each new token takes longer once the context of %zu tokens is full\n",
            block_size);
}

static void print_count(const lks__settings *s)
{
    if (s->from[LKS__SETTING_num_samples] == LKS__FROM_DEFAULT && s->num_samples > 1)
        fprintf(stderr,
                "lockstep sample: %" PRId64 " samples of up to %" PRId64
                " tokens; --num_samples=1 writes one\n",
                s->num_samples, s->max_new_tokens);
}

/* The path of the tokenizer that was given; "" if none. TOKENIZER_PATH may be in the environment
 * for other runs, so models of characters or bytes ignore it. */
static const char *tokenizer_of(const struct generation *g)
{
    const lks__settings *s = g->s;
    if (s->tokenizer[0] != '\0')
        return s->tokenizer;
    const lks__meta *meta = &g->replica.meta;
    if (s->from[LKS__SETTING_tokenizer_path] != LKS__FROM_ENV ||
        (meta->chars == NULL && !meta->is_bytes))
        return s->tokenizer_path;
    fprintf(stderr, "lockstep sample: not used here: TOKENIZER_PATH: the tokens are %s\n",
            meta->is_bytes ? "single bytes" : "characters");
    return "";
}

/* As in nanoGPT's sample.py, tokens of which nothing is known are GPT-2's if their number fits. */
static lks_status assume_tokenizer(struct generation *g)
{
    char path[LKS__CKPT_PATH];
    const lks__meta *meta = &g->replica.meta;
    if (meta->is_sentencepiece)
        return lks__fail(LKS_ERR_CONFIG, "this checkpoint uses a SentencePiece model's tokens: "
                                         "give the model as --tokenizer_path=MODEL");
    if (!lks__known_ids(meta))
        return lks__fail(
            LKS_ERR_SUPPORT,
            "the model comes without a tokenizer: give the vocabulary as --tokenizer=DIR");
    if (!lks__known_vocabulary(path))
        return lks__fail(LKS_ERR_SUPPORT,
                         "the model comes without a tokenizer. If its %" PRIu32
                         " tokens are GPT-2's, `lockstep fetch gpt2-vocab` downloads the "
                         "vocabulary; otherwise give the vocabulary as --tokenizer=DIR",
                         meta->vocab_size);
    lks__text_close(&g->text);
    LKS__TRY(lks__text_open(path, &g->replica, &g->text));
    fprintf(stderr,
            "lockstep sample: the model comes without a tokenizer; its %" PRIu32
            " tokens are read as GPT-2's, with the vocabulary in %s\n",
            meta->vocab_size, lks__shown(path, 512));
    return LKS_OK;
}

static lks_status open_generation(struct generation *g)
{
    const lks__settings *s = g->s;
    char gone[LKS__SETTING_STR];
    if (s->interactive && s->from[LKS__SETTING_num_samples] == LKS__FROM_ARG)
        return lks__fail(LKS_ERR_CONFIG,
                         "--interactive continues a single text: leave out --num_samples");
    LKS__TRY(lks__agree_settings(&g->session, s, LKS__CMD_SAMPLE));
    LKS__TRY(find_stops(g));
    LKS__TRY(lks__session_device(&g->session, s->device, s->share_gpu));
    progress_hide();
    tool_print_device_note("sample", &g->session);
    LKS__TRY(lks__replica_open(s->out_dir, s, &g->session, &g->replica));
    progress_hide();
    fprintf(stderr, "lockstep sample: %s\n", g->replica.origin);
    if (g->replica.run_dir[0] != '\0' && g->replica.meta.is_sentencepiece)
        LKS__TRY(lks__remember_tokenizer(&g->session, g->replica.run_dir,
                                         lks__setting_word(&g->replica.run, LKS__SETTING_family),
                                         g->s, gone));
    LKS__TRY(lks__known_tokenizer(g->s->tokenizer, sizeof g->s->tokenizer));
    LKS__TRY(lks__text_open(tokenizer_of(g), &g->replica, &g->text));
    if (!lks__text_known(&g->text))
        LKS__TRY(assume_tokenizer(g));
    LKS__TRY(lks__text_ids(&g->text, (size_t)g->replica.config.vocab_size, &g->has));
    return read_prompt(g);
}

/* Open a generator for `*at_once` samples. If memory is short, halve the number until it fits. */
static lks_status open_generator(struct generation *g, uint64_t tokens, size_t *at_once)
{
    const lks__replica *r = &g->replica;
    while (true) {
        const lks__generator_size size = {.samples = *at_once, .tokens = tokens};
        const lks_status st = lks__generator_open(&r->config, &r->table, r->params.dev, &size,
                                                  g->session.device, &g->generator);
        if (st != LKS_ERR_NOMEM || *at_once == 1)
            return st;
        *at_once /= 2;
    }
}

static lks__writer writer_of(struct generation *g)
{
    const lks__settings *s = g->s;
    return (lks__writer){.generator = g->generator,
                         .text = &g->text,
                         .how = {.draw = {.seed = (uint64_t)s->seed,
                                          .temperature = s->temperature,
                                          .top_k = (uint32_t)s->top_k,
                                          .top_p = s->top_p,
                                          .has = g->has},
                                 .max_new_tokens = (uint64_t)s->max_new_tokens},
                         .stops = g->stops,
                         .put = write_text};
}

static lks_status write_samples(struct generation *g)
{
    const lks__settings *s = g->s;
    size_t at_once = s->num_samples < AT_ONCE ? (size_t)s->num_samples : AT_ONCE;
    LKS__TRY(open_generator(g, (uint64_t)g->n_prompt + (uint64_t)s->max_new_tokens, &at_once));
    g->writer = writer_of(g);
    const size_t T = (size_t)g->replica.config.block_size;
    if (g->n_prompt + (size_t)s->max_new_tokens > T)
        print_full(T);
    print_count(s);
    const double start = lks__sys_now();
    const lks_status st = lks__write_samples(&g->writer, g->prompt, g->n_prompt, at_once,
                                             (uint64_t)s->num_samples, &g->n_whole);
    g->seconds = lks__sys_now() - start;
    return st;
}

/* The conversation begins with --start if that was given. */
static lks_status converse(struct generation *g)
{
    size_t at_once = 1;
    LKS__TRY(open_generator(g, UINT64_MAX, &at_once));
    g->writer = writer_of(g);
    print_full((size_t)g->replica.config.block_size);
    lks__generator_begin(g->generator, 1);
    if (g->s->from[LKS__SETTING_start] != LKS__FROM_DEFAULT)
        lks__generator_read(g->generator, g->prompt, g->n_prompt);
    return sample_chat(&g->writer, &g->text);
}

static void print_end(const struct generation *g)
{
    const double memory = (double)lks__sys_proc_bytes("/proc/self/status", "VmHWM");
    char speed[64] = "", held[64] = "";
    if (g->seconds > 0.0)
        snprintf(speed, sizeof speed, " in %.1f s (%.1f tokens/s)", g->seconds,
                 (double)g->writer.tokens / g->seconds);
    if (memory > 0.0) /* unknown without /proc */
        snprintf(held, sizeof held, ", %s of memory at most", lks__units_memory(memory));
    fprintf(stderr, "lockstep sample: %" PRIu64 " new tokens%s%s\n", g->writer.tokens, speed, held);
}

/* The text written so far stays: end its line before the message. */
static int stopped(const struct generation *g)
{
    char left[128];
    const int64_t n = g->s->num_samples;
    fputs("\n", stdout);
    if (g->s->interactive) /* SIGINT ends the program only if no text is being written */
        return tool_stopped("sample", lks__stop_requested,
                            lks__stop_requested == SIGINT ? "all text is complete"
                                                          : "any text is cut short");
    snprintf(left, sizeof left,
             "of %" PRId64 " sample%s %" PRIu64
             " %s complete, and any text after them is cut short",
             n, n == 1 ? "" : "s", g->n_whole, g->n_whole == 1 ? "is" : "are");
    return tool_stopped("sample", lks__stop_requested, left);
}

int tool_sample(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    struct generation g = {.s = &s};
    int code;
    if (!tool_settings("sample", LKS__CMD_SAMPLE, usage, argc, argv, 0, &s, &args, &code))
        return code;
    tool_print_notes("sample", &args);
    const lks_status there =
        lks__settings_uses_weights(&s) ? LKS_OK : tool_run_check("sample", s.out_dir);
    if (there != LKS_OK)
        return tool_fail("sample", there);
    tool_stoppable();
    lks_status st = lks__session_open("auto", 60.0, (int)s.threads, LKS__BIND_NONE, &g.session);
    if (st == LKS_ERR_STOPPED)
        return tool_stopped("sample", lks__stop_requested, "no text was drawn");
    if (st != LKS_OK)
        return tool_fail("sample", st);
    progress_begin("lockstep sample", "opening the model");
    st = open_generation(&g);
    progress_end();
    LKS__THEN(st, s.interactive ? converse(&g) : write_samples(&g));
    if (st == LKS_OK)
        print_end(&g);
    code = st == LKS_OK               ? TOOL_OK
           : lks__stop_requested != 0 ? stopped(&g)
           /* As after `lockstep sample RUN | head -1`: main() chooses the exit code. */
           : ferror(stdout) && tool_reader_left() ? TOOL_OK
                                                  : tool_fail("sample", st);
    lks__generator_close(g.generator);
    free(g.prompt);
    free(g.has);
    lks__text_close(&g.text);
    lks__replica_close(&g.replica);
    lks__session_close(&g.session);
    return code;
}
