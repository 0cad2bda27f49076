/* lockstep prep: text to token files. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/sys.h"
#include "data/docs.h"
#include "data/prep_bpe.h"
#include "session/signals.h"
#include "tool.h"

#define NOTHING_LEFT "nothing was written, and --out is unchanged"

static const char usage[] =
    "Usage: lockstep prep char --input=TEXT --out=DIR [--val_fraction=0.1]\n"
    "       lockstep prep gpt2 --input=TEXT|FILE.jsonl|FOLDER --out=DIR --tokenizer=DIR\n"
    "                     [--val_fraction=0.1] [--field=text]\n"
    "       lockstep prep sentencepiece --input=TEXT|FILE.jsonl --out=DIR\n"
    "                     [--tokenizer=MODEL | --vocab_size=N] [--val_fraction=0.1]\n"
    "\n"
    "Turns a text into tokens.\n"
    "  char           every different character (Unicode code point) is a token:\n"
    "                 DIR/train.bin, DIR/val.bin and DIR/meta.json\n"
    "  gpt2           tokens of GPT-2's vocabulary (byte-level BPE): DIR/train.bin, DIR/val.bin,\n"
    "                 DIR/tokenizer.json and DIR/meta.json. A plain file is one document, byte "
    "for\n"
    "                 byte; <|endoftext|> follows each of several files or JSON lines\n"
    "  sentencepiece  tokens of a SentencePiece model, the one given or one that is trained, in\n"
    "                 shards as parameter-golf has them: DIR/fineweb_train_000000.bin ...,\n"
    "                 DIR/fineweb_val_000000.bin, DIR/sp.model and DIR/meta.json. Documents are "
    "the\n"
    "                 \"text\" of each JSON line, or the parts of a text between blank lines\n";

/* SentencePiece can't be stopped while it trains a model, which takes minutes for a large text.
 * Nothing has been written by then, so a thread ends the process. */
static atomic_bool trained;

static void *end_training(void *arg)
{
    while (!trained) {
        if (lks__stop_requested != 0)
            _exit(tool_stopped("prep", lks__stop_requested, NOTHING_LEFT));
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return NULL;
}

static void training(bool on)
{
    static pthread_t thread;
    static bool started;
    if (on) {
        trained = false;
        started = pthread_create(&thread, NULL, end_training, NULL) == 0;
    } else if (started) {
        trained = true;
        pthread_join(thread, NULL);
        started = false;
    }
}

/* Once a second, if somebody looks. */
static void show_progress(uint64_t done, uint64_t all)
{
    static double began, shown;
    const double now = lks__sys_now();
    if (!isatty(STDERR_FILENO) || all == 0)
        return;
    if (began == 0.0)
        began = shown = now;
    if (done >= all && shown > began)
        fputs("\r\033[K", stderr);
    if (done >= all || now - shown < 1.0 || done == 0)
        return;
    shown = now;
    fprintf(stderr, "\rlockstep prep: %.0f of %.0f MB, %.0f s left\033[K", (double)done / 1e6,
            (double)all / 1e6, (now - began) * (double)(all - done) / (double)done);
}

static bool is_jsonl_or_folder(const char *path)
{
    struct stat info;
    return lks__docs_is_jsonl(path) || (stat(path, &info) == 0 && S_ISDIR(info.st_mode));
}

static lks_status prep_gpt2(const lks__settings *s, lks__prep_result *result)
{
    static const double documents = 0.0005; /* as nanoGPT's prepare.py for openwebtext has it */
    if (!s->tokenizer[0])
        return lks__fail(LKS_ERR_CONFIG,
                         "--tokenizer=DIR is missing: a folder with GPT-2's vocab.bpe and "
                         "encoder.json (OpenAI's, about 1.5 MB), or a tokenizer.json");
    if (s->vocab_size != 0)
        return lks__fail(LKS_ERR_CONFIG, "--vocab_size has no meaning for gpt2 tokens: the "
                                         "vocabulary's files say it");
    const bool given = s->from[LKS__SETTING_val_fraction] != LKS__FROM_DEFAULT;
    const lks__prep_bpe_options options = {
        .input = s->input,
        .out_dir = s->out,
        .tokenizer = s->tokenizer,
        .field = s->field,
        .val_fraction = given || !is_jsonl_or_folder(s->input) ? s->val_fraction : documents,
        .n_threads = lks__cpu_count(),
        .progress = show_progress,
    };
    return lks__prep_bpe(&options, result);
}

static lks_status prep(const char *kind, const lks__settings *s, lks__prep_result *result)
{
    char shown[80];
    bool is_char = strcmp(kind, "char") == 0, is_gpt2 = strcmp(kind, "gpt2") == 0;
    if (!is_char && !is_gpt2 && strcmp(kind, "sentencepiece") != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "there is no kind of tokens \"%s\": this build makes char, gpt2 and "
                         "sentencepiece (lockstep prep char)",
                         lks__escape(shown, sizeof shown, kind, strlen(kind)));
    if (!s->input[0] || !s->out[0])
        return lks__fail(LKS_ERR_CONFIG, "--%s=%s is missing", s->input[0] ? "out" : "input",
                         s->input[0] ? "DIR" : "TEXT");
    if (is_char && (s->tokenizer[0] || s->vocab_size != 0))
        return lks__fail(LKS_ERR_CONFIG, "--%s has no meaning for char tokens",
                         s->tokenizer[0] ? "tokenizer" : "vocab_size");
    if (is_char)
        return lks__prep_char(s->input, s->out, s->val_fraction, result);
    if (is_gpt2)
        return prep_gpt2(s, result);
    lks__prep_spm_options options = {
        .input = s->input,
        .field = s->field,
        .out_dir = s->out,
        .tokenizer = s->tokenizer,
        .vocab_size = (uint32_t)s->vocab_size,
        .val_fraction = s->val_fraction,
        .shard_tokens = LKS__PREP_SHARD_TOKENS,
        .training = training,
    };
    if (!s->tokenizer[0] && s->vocab_size == 0)
        options.vocab_size = LKS__PREP_VOCAB;
    return lks__prep_sentencepiece(&options, result);
}

int tool_prep(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    lks__prep_result result;
    int code;
    if (!tool_settings("prep", LKS__CMD_PREP, usage, argc, argv, 1, &s, &args, &code))
        return code;
    tool_print_notes("prep", &args);
    if (args.n_positional == 0)
        return tool_fail("prep", lks__fail(LKS_ERR_CONFIG, "say what tokens to make: lockstep prep "
                                                           "char --input=TEXT --out=DIR"));
    tool_stoppable();
    bool was_there = access(s.out, F_OK) == 0;
    lks_status st = prep(args.positional[0], &s, &result);
    if (st != LKS_OK && lks__stop_requested != 0) {
        if (!was_there)
            rmdir(s.out);
        return tool_stopped("prep", lks__stop_requested, NOTHING_LEFT);
    }
    if (st != LKS_OK)
        return tool_fail("prep", st);
    printf("vocab size: %" PRIu32 "\n", result.vocab_size);
    printf("train has %" PRIu64 " tokens\n", result.n_train);
    printf("val has %" PRIu64 " tokens\n", result.n_val);
    return TOOL_OK;
}
