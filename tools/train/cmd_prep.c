/* lockstep prep: turns text into token files. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../progress.h"
#include "../tool.h"
#include "base/number/cpu.h"
#include "base/system/sys.h"
#include "files/checkpoint/folder.h"
#include "report/record/outdir.h"
#include "session/signals.h"
#include "train_text.h"
#include "weights/choice/known.h"
#include "weights/weights.h"

#define NOTHING_LEFT "nothing was written, and --out is unchanged"

static const char usage[] =
    "Usage: lockstep prep char --input=TEXT --out=DIR [--tokenizer=DIR]\n"
    "                     [--val_fraction=0.1]\n"
    "       lockstep prep gpt2 --input=TEXT --out=DIR --tokenizer=DIR\n"
    "                     [--val_fraction=0.0005]\n"
    "       lockstep prep openwebtext|shakespeare --input=TEXT --out=DIR\n"
    "                     --tokenizer=DIR\n"
    "       lockstep prep sentencepiece --input=TEXT --out=DIR\n"
    "                     [--tokenizer=MODEL | --vocab_size=N] [--val_fraction=0.1]\n"
    "       lockstep prep bytes|raw --input=TEXT --out=DIR [--val_fraction=0.1]\n"
    "\n"
    "Turns text into tokens for `lockstep train`. It writes DIR/train.bin,\n"
    "DIR/val.bin and DIR/meta.json, or shards instead of the two .bin files (with\n"
    "--shards=TOKENS, and always with sentencepiece and bytes).\n"
    "\n"
    "TEXT is a file, a folder, or - for standard input. --input may be given several\n"
    "times. Of a folder, all text files in it and in its folders are read, in the\n"
    "order of their paths. Hidden and binary files and links to folders are left out,\n"
    "and prep names them. NAME.jsonl and NAME.ndjson are files of JSON lines\n"
    "(--field=text). With --field standard input is read as JSON lines, too.\n"
    "\n"
    "  char           one token per different character (Unicode code point).\n"
    "                 --tokenizer: the characters of other data or of a run, to train\n"
    "                 that model further\n"
    "  gpt2           GPT-2's vocabulary (byte-level BPE); also writes\n"
    "                 DIR/tokenizer.json. A plain file is one document, byte for\n"
    "                 byte. With several files or JSON lines, <|endoftext|> follows\n"
    "                 each document\n"
    "  openwebtext    as gpt2, in the order and with the split of nanoGPT's\n"
    "                 prepare.py: documents are permuted by NumPy's generator\n"
    "  shakespeare    gpt2 with --val_fraction=0.1\n"
    "  sentencepiece  a SentencePiece model, either given or trained here; also\n"
    "                 writes DIR/sp.model. Documents are JSON lines, or the parts of\n"
    "                 a text between blank lines. A model trained here normalizes\n"
    "                 text as parameter-golf's do: line feeds, tabs and runs of\n"
    "                 blanks become one blank, and characters are folded (Unicode\n"
    "                 NFKC)\n"
    "  bytes          one token per byte (parameter-golf's 260 ids). Documents as\n"
    "                 with sentencepiece\n"
    "  raw            the same ids for one text, which is kept byte for byte (for a\n"
    "                 text that isn't UTF-8)\n"
    "\n"
    "If in doubt, use char for a text of your own:\n"
    "\n"
    "  lockstep prep char --input=my.txt --out=data/my\n";

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
        progress_text("training the tokenizer");
        trained = false;
        started = pthread_create(&thread, NULL, end_training, NULL) == 0;
    } else if (started) {
        trained = true;
        pthread_join(thread, NULL);
        started = false;
    }
}

static const char *command = "prep"; /* for messages */

static void show_progress(uint64_t done, uint64_t all)
{
    if (done >= all)
        progress_text("writing the tokens");
    else
        progress_text("preparing the text: %.0f of %.0f MB", (double)done / 1e6, (double)all / 1e6);
}

static void print_note(const char *sentence)
{
    progress_hide();
    fprintf(stderr, "lockstep %s: note: %s\n", command, sentence);
}

/* Refuse settings that this kind of tokens doesn't use. */
static lks_status check(const char *name, const lks__prep_kind *kind, const lks__settings *s)
{
    const char *unused = NULL;
    if (kind == NULL)
        return lks__fail(
            LKS_ERR_CONFIG,
            "there is no kind of tokens \"%s\": this build supports char, gpt2, "
            "openwebtext, shakespeare, sentencepiece, bytes and raw (lockstep prep char)%s",
            lks__shown(name, 80),
            strcmp(name, "shakespeare_char") == 0 ? "; did you mean char?" : "");
    if (s->tokenizer[0] && !lks__prep_takes(kind, LKS__PREP_TOKENIZER))
        unused = "tokenizer";
    if (s->vocab_size != 0 && !lks__prep_takes(kind, LKS__PREP_VOCAB_SIZE))
        unused = "vocab_size";
    if (s->special && !lks__prep_takes(kind, LKS__PREP_SPECIAL))
        unused = "special";
    if (s->num_val_docs != 0 && !lks__prep_takes(kind, LKS__PREP_VAL_DOCS))
        unused = "num_val_docs";
    if (s->tokenizer_train_docs != 0 && !lks__prep_takes(kind, LKS__PREP_TRAIN_DOCS))
        unused = "tokenizer_train_docs";
    if (unused == NULL && s->tokenizer_train_docs != 0 && s->tokenizer[0] != '\0')
        return lks__fail(LKS_ERR_CONFIG,
                         "--tokenizer is already trained: leave --tokenizer_train_docs out");
    if (unused == NULL && s->num_val_docs != 0 &&
        s->from[LKS__SETTING_val_fraction] != LKS__FROM_DEFAULT)
        return lks__fail(LKS_ERR_CONFIG, "--num_val_docs and --val_fraction both set the size of "
                                         "the validation split: leave one of them out");
    return unused == NULL
               ? LKS_OK
               : lks__fail(LKS_ERR_CONFIG, "--%s doesn't apply to %s tokens", unused, name);
}

/* Read the characters of tokens, of a run, or of a folder of `lockstep export --format=hf`. */
static lks_status read_chars(const char *path, lks__meta *meta)
{
    bool found;
    lks__weights *w;
    if (access(path, F_OK) != 0)
        return lks__sys_fail("cannot read", path);
    LKS__TRY(lks__meta_load_any(path, &found, meta));
    if (!found) {
        lks_status st = lks__weights_open(path, &(lks__weights_want){0}, &w);
        if (st == LKS_OK) {
            st = lks__weights_meta(w, meta);
            lks__weights_close(w);
        } else if (!lks__sys_has(path, "metrics.jsonl") && st != LKS_ERR_NOMEM) {
            st = LKS_OK; /* it is neither a run nor other weights */
        }
        LKS__TRY(st);
    }
    if (meta->chars != NULL)
        return LKS_OK;
    lks__meta_free(meta);
    return lks__fail(
        LKS_ERR_CONFIG,
        "--tokenizer=%s has no characters: give a folder of `lockstep prep char`, or a "
        "run on such data",
        lks__shown(path, 512));
}

static lks_status make_tokens(const char *name, lks__prep_options *o, lks__prep_result *result)
{
    lks__meta chars = {0};
    if (strcmp(name, "char") == 0 && o->tokenizer[0] != '\0') {
        LKS__TRY(read_chars(o->tokenizer, &chars));
        o->chars = &chars;
    }
    const lks_status st = lks__prep(lks__prep_kind_of(name), o, result);
    lks__meta_free(&chars);
    return st;
}

/* Refuse the folder of a run, whose tokenizer the new meta.json would replace, and, for a run in
 * progress, also one in it, such as its data, which needn't exist. */
static lks_status check_out(const char *out)
{
    char bare[LKS__SETTING_STR], parent[LKS__CKPT_PATH];
    snprintf(bare, sizeof bare, "%.*s", (int)lks__sys_path_length(out), out);
    if (access(bare, F_OK) == 0 && !lks__sys_is_folder(bare))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is a file: give a folder for the tokens, for example --out=data/my",
                         lks__shown(bare, 512));
    LKS__TRY(lks__outdir_free(out, true));
    if (lks__outdir_has_run(out) || lks__sys_has(out, LKS__CKPT_STATE))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is the folder of a run or checkpoint, and can't also be one of "
                         "tokens: give another --out",
                         lks__shown(out, 512));
    lks__ckpt_parent(bare, parent);
    LKS__TRY(lks__outdir_free(parent, true));
    snprintf(parent, sizeof parent, "%s/..", out); /* a link may lead elsewhere */
    return lks__outdir_free(parent, true);
}

static lks_status prep(const char *name, lks__settings *s, lks__prep_result *result)
{
    LKS__TRY(check(name, lks__prep_kind_of(name), s));
    if (strcmp(name, "sentencepiece") != 0 && strcmp(name, "char") != 0)
        LKS__TRY(lks__known_tokenizer(s->tokenizer, sizeof s->tokenizer));
    lks__prep_options options = {
        .input = s->input,
        .out_dir = s->out,
        .field = s->field,
        .field_given = s->from[LKS__SETTING_field] != LKS__FROM_DEFAULT,
        .tokenizer = s->tokenizer,
        .vocab_size = (uint32_t)s->vocab_size,
        .val_fraction =
            s->from[LKS__SETTING_val_fraction] == LKS__FROM_DEFAULT ? -1.0 : s->val_fraction,
        .special = s->special,
        .val_docs = (uint64_t)s->num_val_docs,
        .train_docs = (uint64_t)s->tokenizer_train_docs,
        .shard_tokens = (uint64_t)s->shards,
        .n_threads = lks__cpu_count(),
        .progress = show_progress,
        .note = print_note,
        .training = training,
    };
    LKS__TRY(check_out(s->out));
    return make_tokens(name, &options, result);
}

lks_status prep_text(const char *for_command, const char *kind, const char *input,
                     const char *tokenizer, const char *out, lks__prep_result *result)
{
    lks__prep_options options = {.input = input,
                                 .out_dir = out,
                                 .tokenizer = tokenizer,
                                 .val_fraction = tokenizer[0] != '\0' ? 0.1 : -1.0,
                                 .n_threads = lks__cpu_count(),
                                 .progress = show_progress,
                                 .note = print_note,
                                 .training = training};
    static char name[40];
    command = for_command;
    snprintf(name, sizeof name, "lockstep %s", command);
    progress_begin(name, "preparing the text");
    const lks_status st = make_tokens(kind, &options, result);
    progress_end();
    return st;
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
        return tool_fail(
            "prep",
            lks__fail(
                LKS_ERR_CONFIG,
                "name the kind of tokens, for example lockstep prep char --input=TEXT --out=DIR"));
    tool_stoppable();
    bool was_there = access(s.out, F_OK) == 0;
    progress_begin("lockstep prep", "reading");
    lks_status st = prep(args.positional[0], &s, &result);
    if (st != LKS_OK && lks__stop_requested != 0) {
        if (!was_there)
            rmdir(s.out);
        return tool_stopped("prep", lks__stop_requested, NOTHING_LEFT);
    }
    if (st != LKS_OK)
        return tool_fail("prep", st);
    progress_end();
    printf("vocab size: %" PRIu32 "\n", result.vocab_size);
    if (result.n_docs > 1)
        printf("documents: %" PRIu64 ", empty: %" PRIu64 "\n", result.n_docs, result.n_empty);
    printf("train has %" PRIu64 " tokens\n", result.n_train);
    printf("val has %" PRIu64 " tokens\n", result.n_val);
    st = tool_flush(); /* before the next message */
    fprintf(stderr, "lockstep prep: wrote the tokens to %s\n",
            lks__shown(s.out, 4 * LKS__SETTING_STR));
    return st == LKS_OK ? TOOL_OK : tool_fail("prep", st);
}
