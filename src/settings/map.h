/* settings/map.h - every setting of every command, in one table.
 *
 * The table defines fields, parsing, defaults, ranges, help, the metrics' config line, checkpoints,
 * and the settings that may change on a resume. Names and defaults are nanoGPT's if it has the
 * setting. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "settings/rows/audit.h"
#include "settings/rows/golf.h"

enum {
    LKS__SETTING_STR = 1024, /* size of a string setting, with its 0 byte */
    LKS__SETTING_KEY = 64,   /* size of a name, with its 0 byte */
};

/* Commands that have settings, each with a bit: X(bit, command). */
/* clang-format off */
#define LKS__SETTING_COMMANDS(X)                                                                   \
    X(PREP, "prep") X(TRAIN, "train") X(SAMPLE, "sample") X(EVAL, "eval") X(BENCH, "bench")        \
    X(INFO, "info") X(EXPORT, "export") X(DOCTOR, "doctor") X(REPORT, "report") X(PLOT, "plot")    \
    X(WATCH, "watch") X(PLAN, "plan") X(FETCH, "fetch") X(DIFF, "diff") X(AUDIT, "audit")
/* clang-format on */

enum {
#define X(bit, command) LKS__CMD_NUMBER_##bit,
    LKS__SETTING_COMMANDS(X)
#undef X
        LKS__N_COMMANDS
};
enum {
#define X(bit, command) LKS__CMD_##bit = 1 << LKS__CMD_NUMBER_##bit,
    LKS__SETTING_COMMANDS(X)
#undef X
};
/* A setting's role in a run: exactly one of these. */
enum {
    LKS__SETTING_SHAPE = 1 << 0, /* the model's shape: taken from the checkpoint */
    LKS__SETTING_RUN = 1 << 1,   /* defines the run: taken from the checkpoint on a resume */
    LKS__SETTING_FREE = 1 << 2,  /* in the config line, but may change on a resume */
    LKS__SETTING_HOST = 1 << 3,  /* where and how it runs: never in the config line */
    LKS__SETTING_CONFIG = LKS__SETTING_SHAPE | LKS__SETTING_RUN | LKS__SETTING_FREE,
    /* In addition to one of those: 0 means "choose for me", so it matches every value. */
    LKS__SETTING_AUTO = 1 << 4,
    /* Used only by the golf family: omitted from other families' config lines and checkpoints. */
    LKS__SETTING_GOLF = 1 << 5,
    LKS__SETTING_OF_FAMILY = LKS__SETTING_GOLF, /* all flags of this kind */
    /* STR: may be given several times; each value is a line of the string. */
    LKS__SETTING_LIST = 1 << 6,
    /* Also used by runs with optimizer=muon, for any family. */
    LKS__SETTING_MUON = 1 << 7,
    /* SHAPE or RUN: missing in checkpoints of 0.1.0. The default keeps that version's behaviour. */
    LKS__SETTING_LATER = 1 << 8,
    /* Accepted only on the command line: no file and no variable may start commands. */
    LKS__SETTING_TYPED = 1 << 9,
    /* HOST: must be equal on all ranks of a run, like SHAPE, RUN and FREE. */
    LKS__SETTING_SAME = 1 << 10,
    /* HOST: a resume keeps the run's value, which is in its host lines (train/setup/remember.h). */
    LKS__SETTING_KEPT = 1 << 11,
    /* FREE: only rank 0 uses the value, so other ranks may have another value. */
    LKS__SETTING_FIRST = 1 << 12,
    /* INT: "None", nanoGPT's word, means 0. */
    LKS__SETTING_NONE = 1 << 13,
    /* In the short help of a command that accepts train's settings. */
    LKS__SETTING_SHORT = 1 << 14,
    /* RUN: the command line of a resume may change it, and a new segment of the run begins. */
    LKS__SETTING_SEGMENT = 1 << 15,
    /* STR: on the command line it may be without a value, and is "true" then. */
    LKS__SETTING_BARE = 1 << 16,
};

/* X(group, word of --help=WORD, title in the help). */
#define LKS__SETTING_GROUPS(X)                                                                     \
    X(FILES, "files", "Files")                                                                     \
    X(MODEL, "model", "Model")                                                                     \
    X(BATCH, "batches", "Batches and random numbers")                                              \
    X(OPTIM, "optimizer", "Optimizer")                                                             \
    X(REPORT, "logging", "Evaluation, logs, checkpoints")                                          \
    X(AUDITS, "audit", "Audits")                                                                   \
    X(MODEL_GOLF, "golf", "The golf family (names and defaults of parameter-golf's script)")       \
    X(SAMPLING, "sampling", "Sampling")                                                            \
    X(CLUSTER, "cluster", "Ranks and machine")                                                     \
    X(GPU, "gpu", "Device and precision")

enum {
#define X(group, word, title) LKS__GROUP_##group,
    LKS__SETTING_GROUPS(X)
#undef X
        LKS__N_GROUPS
};

/* The words of each CHOICE, in one place. The constant for the word `skip` of on_nan is
 * LKS__on_nan_skip. */
#define LKS__WORDS_format(X, of)      X(of, golf) X(of, nanogpt) X(of, hf) X(of, safetensors) X(of, gguf)
#define LKS__WORDS_gelu(X, of)        X(of, auto) X(of, tanh) X(of, exact)
#define LKS__WORDS_split(X, of)       X(of, train) X(of, val)
#define LKS__WORDS_sampler(X, of)     X(of, random) X(of, nanogpt) X(of, epoch) X(of, stream)
#define LKS__WORDS_on_nan(X, of)      X(of, stop) X(of, skip) X(of, rollback)
#define LKS__WORDS_stop_signal(X, of) X(of, none) X(of, USR1) X(of, USR2)
#define LKS__WORDS_lock(X, of)        X(of, on) X(of, off)
#define LKS__WORDS_axis(X, of)        X(of, steps) X(of, tokens) X(of, time)
#define LKS__WORDS_wire(X, of)        X(of, float32) X(of, bfloat16)
#define LKS__WORDS_replicas(X, of)    X(of, shared) X(of, private)
#define LKS__WORDS_recompute(X, of)   X(of, none) X(of, rows) X(of, block)
#define LKS__WORDS_exchange(X, of)    X(of, auto) X(of, nccl) X(of, staged)
#define LKS__WORDS_metric(X, of)                                                                   \
    X(of, val_loss) X(of, val_bpb) X(of, artifact_loss) X(of, artifact_bpb)
#define LKS__WORDS_bind(X, of)  X(of, auto) X(of, cores) X(of, none)
#define LKS__WORDS_dtype(X, of) X(of, auto) X(of, float32) X(of, bfloat16)

/* The events of exec_on: the beginnings of its values. */
#define LKS__EVENT_CHOICES "checkpoint:|best:|end:|failure:"

/* X(TYPE, name, default, range, commands, flags, group, help). In the help, a line "COMMAND: …" is
 * the meaning for that command, and the first line for all others. settings_table.c, which converts
 * the table to descriptors, defines the words of the last columns. TYPE: INT (int64_t), FLOAT
 * (double), BOOL (bool), STR (char[]), CHOICE (an enum: one of the words above), LISTED (int: the
 * index of a word in another file's list, returned by lks__NAME_word()). Help and the config line
 * follow this order; settings of a group must be adjacent. */
#define LKS__SETTING_MAP(X)                                                                        \
    X(STR, input, "", A_PATH, PREP, HOST | LIST, FILES,                                            \
      "text file (UTF-8), folder of text files, or - for standard input; may be given several "    \
      "times")                                                                                     \
    X(STR, out, "", A_PATH, PREP | EXPORT | PLOT | BENCH | FETCH, HOST, FILES,                     \
      "\nprep: folder for the token files\nfetch: folder for the files; empty: see NAME\n"         \
      "export: file or folder to write\nplot: picture to write, .svg or .png; empty: print as "    \
      "text\nbench: file that `lockstep bench machine` writes")                                    \
    X(STR, machine, "", A_PATH, PLAN, HOST, FILES,                                                 \
      "machine file of `lockstep bench machine`; empty: predict only memory and communication")    \
    X(CHOICE, format, golf, WORDS, EXPORT, HOST, FILES,                                            \
      "golf: parameter-golf's artifact, int8 compressed by zlib, or its raw model if --out ends "  \
      "in .pt; nanogpt: a ckpt.pt, with the optimizer; hf: a folder for Hugging Face's loaders; "  \
      "safetensors: only the parameters; gguf: a file for llama.cpp")                              \
    X(STR, code, "", A_PATH, TRAIN | EXPORT, HOST | LIST | GOLF | KEPT, FILES,                     \
      "file whose size counts as code of the submission (golf); may be given several times")       \
    X(FLOAT, val_fraction, 0.1, FROM_BELOW(0, 1), PREP, HOST, FILES,                               \
      "share of the text that is kept for validation: the end of the text (char, raw, and gpt2 "   \
      "with one plain file), random documents (openwebtext), or else the first documents; "        \
      "default for gpt2 and openwebtext: 0.0005; 0: no validation tokens")                         \
    X(BOOL, special, false, ANY, PREP | SAMPLE, HOST | SAME, FILES,                                \
      "true: <|endoftext|> and other special tokens' spellings in the text, or in a prompt of "    \
      "sample, become these tokens; false: they are ordinary text (gpt2)\nsample: if it isn't "    \
      "given, <|endoftext|> in --start is that token")                                             \
    X(INT, shards, 0, INTS(0, 2147483647) OR(auto), PREP | FETCH, HOST, FILES,                     \
      "write shards of this many tokens; auto: one train.bin and one val.bin, or with "            \
      "sentencepiece and bytes shards of 100,000,000\nfetch: number of training shards of "        \
      "fineweb-sp1024; auto: 1 (parameter-golf's script downloads 80)")                            \
    X(STR, mirror, "", A_PATH ALSO(from), FETCH, HOST, FILES,                                      \
      "address (http, https) or folder that contains the files; empty: the public address")        \
    X(INT, num_val_docs, 0, INTS(1, INT64_MAX) OR(auto), PREP, HOST, FILES,                        \
      "number of documents, from the first on, to keep for validation; auto: use "                 \
      "val_fraction")                                                                              \
    X(INT, tokenizer_train_docs, 0, INTS(1, INT64_MAX) OR(all), PREP, HOST, FILES,                 \
      "sentencepiece: documents to train the tokenizer on; all: up to 256 MiB of them")            \
    X(STR, field, "text", TEXT, PREP, HOST, FILES,                                                 \
      "JSON lines: name of the member that contains the text")                                     \
    X(STR, tokenizer, "", A_PATH, PREP | SAMPLE | EXPORT, HOST | SAME, FILES,                      \
      "sentencepiece: model to use, or its folder; empty: train one. gpt2: folder that contains "  \
      "vocab.bpe and encoder.json, or tokenizer.json; or gpt2, if that was fetched. char: data "   \
      "or a run that has the characters; empty: the text's own")                                   \
    X(STR, dataset, "openwebtext", A_DATASET, TRAIN | EVAL | BENCH | EXPORT | AUDIT | DIFF,        \
      HOST | SHORT, FILES,                                                                         \
      "folder that contains train.bin and val.bin, or shards (*_train*.bin and *_val*.bin); if "   \
      "NAME contains no tokens, data/NAME is tried\neval: folder of tokens, file of tokens, or "   \
      "pattern of shards; if "                                                                     \
      "NAME contains no tokens, data/NAME is tried\ndiff: data of each run whose own data folder " \
      "doesn't exist any more")                                                                    \
    X(STR, out_dir, "out", A_RUN, TRAIN | SAMPLE | EVAL | EXPORT | DOCTOR, HOST | SHORT, FILES,    \
      "the run's folder: checkpoints, metrics.jsonl, logs")                                        \
    X(STR, checkpoint, "", A_CHECKPOINT ALSO(which), SAMPLE | EVAL | EXPORT, HOST | SAME, FILES,   \
      "checkpoint in out_dir to use: best, latest, or an iteration; empty: best if the run has "   \
      "always_save_checkpoint=false, otherwise latest")                                            \
    X(STR, init_from, "scratch", WEIGHTS, TRAIN | SAMPLE | EVAL | EXPORT, HOST | SHORT, FILES,     \
      "weights to use instead of out_dir's, only on the command line: PATH, gpt2, gpt2-medium, "   \
      "gpt2-large or gpt2-xl (docs/guides/weights.md)\ntrain: initial weights: scratch, resume, "  \
      "a path, or gpt2; scratch: new weights; resume: continue from the newest checkpoint in "     \
      "out_dir; PATH, gpt2, gpt2-medium, gpt2-large or gpt2-xl: start with those weights "         \
      "(docs/guides/weights.md)")                                                                  \
    X(STR, serve, "", ANY, DOCTOR, HOST, FILES,                                                    \
      "address of this host on which to wait for `lockstep doctor` of other hosts")                \
    X(STR, artifact, "", PATH, EVAL, HOST, FILES,                                                  \
      "artifact to evaluate, instead of a checkpoint in out_dir")                                  \
    X(CHOICE, split, val, WORDS, EVAL, HOST | SAME, FILES, "tokens to evaluate on")                \
    X(INT, stride, 0, INTS(0, 1 << 20) OR(none), EVAL, HOST | SAME, FILES,                         \
      "tokens from the start of one window to the start of the next; windows overlap, and each "   \
      "token counts once; none: windows don't overlap")                                            \
    X(LISTED, family, 0, WORDS, TRAIN | BENCH, SHAPE, MODEL, "family of models")                   \
    X(INT, n_layer, 12, INTS(1, 1024), TRAIN | BENCH, SHAPE | SHORT, MODEL,                        \
      "number of transformer blocks")                                                              \
    X(INT, n_head, 12, INTS(1, 1024), TRAIN | SAMPLE | EVAL | BENCH | EXPORT, SHAPE | SHORT,       \
      MODEL, "attention heads per layer; must divide n_embd")                                      \
    X(INT, n_embd, 768, INTS(1, 65536), TRAIN | BENCH, SHAPE | SHORT, MODEL, "width of the model") \
    X(INT, block_size, 1024, INTS(1, 1 << 20), TRAIN | EVAL | BENCH, SHAPE | SHORT, MODEL,         \
      "context length in tokens\neval: context length in tokens; the model's by default")          \
    X(INT, vocab_size, 0, INTS(0, 1 << 24) OR(auto), PREP | TRAIN | BENCH, SHAPE | AUTO, MODEL,    \
      "number of token ids; auto: from the data's meta.json, or 50304 without that file\nprep: "   \
      "sentencepiece: number of ids to train; auto: 1024")                                         \
    X(BOOL, bias, false, ANY, TRAIN | BENCH, SHAPE, MODEL, "use biases in Linear and LayerNorm")   \
    X(CHOICE, gelu, auto, WORDS, TRAIN | SAMPLE | EVAL | BENCH | EXPORT, SHAPE | AUTO | LATER,     \
      MODEL,                                                                                       \
      "form of GELU: tanh as in GPT-2, exact as in nanoGPT; auto: the initial weights' form, or "  \
      "exact without initial weights")                                                             \
    X(FLOAT, dropout, 0.0, FROM_BELOW(0, 1), TRAIN | BENCH, FREE, MODEL,                           \
      "share of activations dropped in training")                                                  \
    X(INT, batch_size, 12, INTS(1, 65536), TRAIN | EVAL | BENCH, RUN | SEGMENT | SHORT, BATCH,     \
      "sequences per micro-batch\ntrain: sequences per micro-batch; auto: as many as fit into "    \
      "memory, with the same number of sequences per step as without auto")                        \
    X(STR, memory, "", ANY, TRAIN, HOST, BATCH,                                                    \
      "memory of each host, or with --device=cuda of each GPU, for batch_size=auto and for plan: " \
      "bytes, or a number with K, M, G (powers of 1024) or KB, MB, GB (of 1000), for example "     \
      "16G; empty: the free memory")                                                               \
    X(INT, gradient_accumulation_steps, 40, INTS(1, 65535), TRAIN, RUN | SEGMENT | SHORT, BATCH,   \
      "micro-batches per step, over all ranks together")                                           \
    X(INT, virtual_ranks, 0, INTS(0, 1024) OR(auto), TRAIN, RUN | SEGMENT | AUTO | SHORT, BATCH,   \
      "parts into which each step is split; any number of ranks up to this gives the same bytes; " \
      "auto: the largest power of two up to 8 that divides gradient_accumulation_steps")           \
    X(CHOICE, sampler, random, WORDS, TRAIN, RUN, BATCH,                                           \
      "random: uniform offsets by seed and step; nanogpt: the draws of nanoGPT's script; epoch: "  \
      "passes in DistributedSampler's order, each without samples that don't fill a batch; "       \
      "stream: all tokens in order (golf)")                                                        \
    X(BOOL, drop_last, false, ANY, TRAIN, RUN, BATCH,                                              \
      "epoch sampler: leave out samples that don't divide by virtual_ranks; false: repeat some "   \
      "samples")                                                                                   \
    X(INT, seed, 1337, INTS(0, INT64_MAX), TRAIN | SAMPLE | BENCH, RUN | SHORT, BATCH,             \
      "seed of all random numbers")                                                                \
                                                                                                   \
    X(LISTED, optimizer, 0, WORDS, TRAIN, RUN | AUTO | LATER, OPTIM, "optimizer")                  \
    X(STR, freeze, "", ANY, TRAIN, RUN | LATER, OPTIM,                                             \
      "regular expression (POSIX extended): tensors whose names contain a match are not trained; " \
      "they have no gradient and no optimizer state")                                              \
    X(FLOAT, learning_rate, 6e-4, FROM_TO(0, 1e6), TRAIN, FREE | SHORT, OPTIM,                     \
      "highest learning rate")                                                                     \
    X(INT, max_iters, 600000, INTS(0, 4294967294), TRAIN, FREE | SHORT, OPTIM,                     \
      "number of steps minus one, as in nanoGPT: N trains N + 1 steps")                            \
    X(FLOAT, weight_decay, 1e-1, FROM_TO(0, 1e6), TRAIN, FREE, OPTIM,                              \
      "weight decay of adamw and sgd, only on matrices and embeddings; muon refuses it")           \
    X(FLOAT, beta1, 0.9, FROM_BELOW(0, 1), TRAIN, FREE, OPTIM,                                     \
      "decay of AdamW's first moment; momentum of sgd")                                            \
    X(FLOAT, beta2, 0.95, FROM_BELOW(0, 1), TRAIN, FREE, OPTIM, "decay of AdamW's second moment")  \
    X(FLOAT, grad_clip, 1.0, FROM_TO(0, 1e30) OR(off), TRAIN, FREE, OPTIM,                         \
      "largest norm of the whole gradient; off: no clipping")                                      \
    X(BOOL, decay_lr, true, ANY, TRAIN, FREE, OPTIM,                                               \
      "true: warm-up and cosine decay; false: constant learning_rate")                             \
    X(INT, warmup_iters, 2000, INTS(0, 4294967294), TRAIN, FREE | SHORT, OPTIM,                    \
      "iterations of warm-up")                                                                     \
    X(INT, lr_decay_iters, 600000, INTS(0, 4294967294), TRAIN, FREE | SHORT, OPTIM,                \
      "iteration at which the rate reaches min_lr")                                                \
    X(FLOAT, min_lr, 6e-5, FROM_TO(0, 1e6), TRAIN, FREE, OPTIM,                                    \
      "learning rate after the decay; golf: the least share of each rate in the warmdown, 0 by "   \
      "default")                                                                                   \
                                                                                                   \
    X(CHOICE, on_nan, stop, WORDS, TRAIN, FREE, OPTIM,                                             \
      "if a loss or gradient is not finite: stop the run; skip the update; rollback: return to "   \
      "the newest checkpoint that was on schedule or improved the validation loss, and leave out " \
      "the data since then")                                                                       \
    X(INT, on_nan_limit, 10, INTS(1, 1000000), TRAIN, FREE, OPTIM,                                 \
      "stop after this many skipped updates in a row, or rollbacks without a new checkpoint")      \
                                                                                                   \
    X(INT, eval_interval, 2000, INTS(0, 4294967294) OR(off), TRAIN, FREE | SHORT, REPORT,          \
      "iterations between evaluations; off: never")                                                \
    X(INT, eval_iters, 200, INTS(1, 1000000), TRAIN, FREE, REPORT,                                 \
      "batches per split in an evaluation")                                                        \
    X(INT, log_interval, 1, INTS(0, 4294967294) OR(off), TRAIN, FREE | FIRST, REPORT,              \
      "iterations between log lines; off: never")                                                  \
    X(BOOL, always_save_checkpoint, true, ANY, TRAIN, FREE, REPORT,                                \
      "true: write a checkpoint every checkpoint_interval, when the validation loss falls, and "   \
      "at the end; false: without an interval only when it falls, and at the end")                 \
    X(INT, checkpoint_interval, 0, INTS(0, 4294967294) OR(auto), TRAIN, FREE, REPORT,              \
      "iterations between checkpoints; auto: eval_interval, or none with "                         \
      "always_save_checkpoint=false")                                                              \
    X(FLOAT, checkpoint_minutes, 10, FROM_TO(0, 1e6) OR(off), TRAIN, HOST | KEPT, REPORT,          \
      "write a checkpoint after this many minutes without one; the next checkpoint replaces it; "  \
      "off: none")                                                                                 \
    X(INT, keep, 3, INTS(0, 1000000) OR(all), TRAIN, HOST | KEPT | SHORT, REPORT,                  \
      "newest checkpoints to keep, besides the best one; all: keep every one")                     \
    X(INT, keep_every, 0, INTS(0, 4294967294) OR(off), TRAIN, HOST | KEPT, REPORT,                 \
      "also keep the checkpoints of iterations that are multiples of this; off: none")             \
    X(CHOICE, lock, on, WORDS, TRAIN, HOST, REPORT,                                                \
      "on: lock out_dir, so that only one run at a time writes to it; off: no lock, for file "     \
      "systems without locks")                                                                     \
    X(CHOICE, stop_signal, none, WORDS, TRAIN, HOST, REPORT,                                       \
      "signal that stops the run as SIGTERM does, for batch systems; by default SIGUSR1 and "      \
      "SIGUSR2 write a checkpoint and the run continues")                                          \
    X(BOOL, eval_only, false, ANY, TRAIN, HOST | SAME, REPORT,                                     \
      "evaluate once, then stop; with init_from=resume: evaluate the newest checkpoint and write " \
      "only evals.jsonl")                                                                          \
    X(INT, iters, 10, INTS(1, 1000000), BENCH, HOST, REPORT,                                       \
      "steps to time; comm: repetitions of the largest size")                                      \
    X(STR, trace, "", PATH, TRAIN | BENCH, HOST | SAME, REPORT,                                    \
      "file for a Chrome trace of all ranks; open it with chrome://tracing or Perfetto")           \
    X(BOOL, tensorboard, true, ANY, TRAIN, HOST | KEPT, REPORT,                                    \
      "write events for TensorBoard into out_dir")                                                 \
    X(INT, sample_tokens, 0, INTS(0, 1000) OR(off), TRAIN, HOST | KEPT, REPORT,                    \
      "tokens of a sample to generate after each evaluation, for metrics.jsonl, TensorBoard and "  \
      "`lockstep watch`; off: none")                                                               \
    X(BOOL, json, false, ANY, REPORT | PLAN | DIFF, HOST, REPORT, "print JSON, for programs")      \
    X(CHOICE, metric, val_loss, WORDS, REPORT, HOST, REPORT,                                       \
      "value to compare over seeds: the last validation loss, the last bits per byte, or those "   \
      "of golf's artifact")                                                                        \
    X(FLOAT, margin, 0, FROM_TO(0, 1e6), REPORT, HOST, REPORT,                                     \
      "test one-sided: is a group's mean lower than an earlier group's by more than this?")        \
    X(FLOAT, alpha, 0.05, BETWEEN(0, 1), REPORT, HOST, REPORT,                                     \
      "a difference with a smaller p counts as more than chance")                                  \
    X(BOOL, markdown, false, ANY, REPORT, HOST, REPORT, "print Markdown")                          \
    X(BOOL, csv, false, ANY, REPORT, HOST, REPORT, "print CSV: table, row, run, value")            \
    X(CHOICE, axis, steps, WORDS, PLOT, HOST, REPORT, "unit of the horizontal axis")               \
    X(BOOL, log_scale, false, ANY, PLOT, HOST, REPORT, "draw the logarithm of the losses")         \
    X(INT, port, 6007, INTS(0, 65535) OR(auto), WATCH, HOST, REPORT,                               \
      "port of the page; auto: a free one")                                                        \
    X(STR, address, "127.0.0.1", TEXT, WATCH, HOST, REPORT,                                        \
      "address of this host on which the page is served, in numbers; 0.0.0.0: all. Whoever can "   \
      "connect to it can read the runs")                                                           \
    X(BOOL, tty, false, ANY, WATCH, HOST, REPORT, "show the runs in the terminal")                 \
    X(STR, prometheus, "", A_PATH, TRAIN, HOST, REPORT,                                            \
      "file for the newest numbers, rewritten every 5 s, for Prometheus's node_exporter")          \
    X(STR, exec_on, "", BEGINS(LKS__EVENT_CHOICES), TRAIN, HOST | LIST | TYPED, REPORT,            \
      "EVENT:COMMAND: run COMMAND by /bin/sh when a checkpoint is written, when it is the best "   \
      "so far, at the end, or if the run fails; may be given several times, only on the command "  \
      "line (docs/guides/watch.md)")                                                               \
    X(FLOAT, exec_timeout, 60, OVER_TO(0, 86400), TRAIN, HOST, REPORT,                             \
      "seconds after which a command of exec_on is ended")                                         \
    X(STR, html, "", A_PATH, WATCH, HOST, REPORT,                                                  \
      "file for the page, with the current state of the runs; nothing is served")                  \
    X(BOOL, dry_run, false, ANY, TRAIN, HOST | SAME, REPORT,                                       \
      "print the memory that the run would need, and stop before the first step")                  \
                                                                                                   \
    X(BOOL, skip_fit_check, false, ANY, TRAIN, HOST, REPORT,                                       \
      "start even if this host has too little memory for the run")                                 \
    LKS__SETTING_ROWS_AUDIT(X)                                                                     \
    LKS__SETTING_ROWS_GOLF(X)                                                                      \
                                                                                                   \
    X(STR, start, "\n", TEXT, SAMPLE, HOST | SAME, SAMPLING, "text to continue, or FILE:PATH")     \
    X(INT, num_samples, 10, INTS(1, 1000000), SAMPLE, HOST | SAME, SAMPLING, "number of samples")  \
    X(INT, max_new_tokens, 500, INTS(1, 1000000000), SAMPLE, HOST | SAME, SAMPLING,                \
      "tokens per sample")                                                                         \
    X(FLOAT, temperature, 0.8, FROM_TO(0, 1e6) OR(greedy), SAMPLE, HOST | SAME, SAMPLING,          \
      "below 1: likely tokens more often; above 1: unlikely tokens more often; greedy: always "    \
      "the most likely token")                                                                     \
    X(INT, top_k, 200, INTS(0, 1 << 24) OR(all), SAMPLE, HOST | SAME | NONE, SAMPLING,             \
      "draw only from the k most likely tokens; all or None: from all")                            \
    X(FLOAT, top_p, 1.0, OVER_TO(0, 1), SAMPLE, HOST | SAME, SAMPLING,                             \
      "draw only from the most likely tokens whose probabilities add up to this; 1: from all")     \
    X(STR, stop, "", TEXT, SAMPLE, HOST | SAME | LIST, SAMPLING,                                   \
      "end a sample before this text; \\n is a line feed; may be given several times")             \
    X(BOOL, interactive, false, ANY, SAMPLE, HOST | SAME, SAMPLING,                                \
      "read lines from standard input and continue each, in one context")                          \
                                                                                                   \
    X(INT, nproc_per_node, 1, INTS(1, 1024) ALSO(ranks), TRAIN | EVAL | BENCH, HOST | SHORT,       \
      CLUSTER, "ranks (processes) to start here")                                                  \
    X(INT, nnodes, 1, INTS(1, 1024), PLAN, HOST, CLUSTER, "number of hosts to plan for")           \
    X(FLOAT, mtbf_hours, 0, FROM_TO(0, 1e6) OR(off), PLAN, HOST, CLUSTER,                          \
      "mean hours until a host fails, to find the checkpoint interval that loses least; off: "     \
      "none")                                                                                      \
    X(INT, max_restarts, 0, INTS(0, 1000000), TRAIN, HOST, CLUSTER,                                \
      "number of times to restart all ranks from the newest checkpoint after a rank has failed")   \
    X(FLOAT, shutdown_timeout, 30, OVER_TO(0, 1e6), TRAIN | EVAL | BENCH, HOST, CLUSTER,           \
      "seconds that ranks have to end after a signal to stop, counted from their last heartbeat")  \
    X(INT, threads, 0, INTS(0, 1024) OR(auto), TRAIN | SAMPLE | EVAL | BENCH | DIFF | AUDIT,       \
      HOST | AUTO, CLUSTER, "threads per rank; auto: cores / ranks on this machine")               \
    X(CHOICE, bind, auto, WORDS, TRAIN | EVAL | BENCH, HOST, CLUSTER,                              \
      "bind each rank to its share of this machine's cores: auto: if it has several memory nodes " \
      "and no launcher has bound the ranks; cores: always; none: never")                           \
    X(BOOL, allow_uneven, false, ANY, TRAIN, HOST, CLUSTER,                                        \
      "allow ranks to have different numbers of virtual ranks")                                    \
    X(STR, backend, "auto", BUILT(LKS__BACKEND_CHOICES), TRAIN | EVAL | BENCH, HOST, CLUSTER,      \
      "method by which ranks exchange data; auto: the first that works")                           \
    X(INT, zero, 0, INTS(0, 1), TRAIN, HOST | SAME, CLUSTER,                                       \
      "1: divide the optimizer's state over hosts (ZeRO-1); the same bytes")                       \
    X(CHOICE, wire, float32, WORDS, TRAIN, FREE, CLUSTER,                                          \
      "format of gradients between hosts; bfloat16: half the traffic, but the result depends on "  \
      "which ranks share a host")                                                                  \
    X(FLOAT, timeout, 60, OVER_TO(0, 86400), TRAIN | EVAL | BENCH, HOST, CLUSTER,                  \
      "end the run if a rank makes no progress for this many seconds")                             \
    X(INT, check_interval, 100, INTS(0, 4294967294) OR(off), TRAIN, HOST | SAME, CLUSTER,          \
      "iterations between checks that no parameter has changed by itself and that replicas are "   \
      "equal; off: never")                                                                         \
    X(FLOAT, recheck, 0, FROM_TO(0, 1) OR(off), TRAIN, HOST | SAME | KEPT, CLUSTER,                \
      "share of steps in which each rank also computes one gradient of another host, to find a "   \
      "host that computes wrongly; 1 doesn't check all gradients: W ranks check W of V; off: "     \
      "none")                                                                                      \
    X(CHOICE, replicas, shared, WORDS, TRAIN, HOST | SAME, CLUSTER,                                \
      "shared: one copy of parameters and moments for all ranks of a host; private: one copy per " \
      "rank")                                                                                      \
    X(FLOAT, bucket_mb, 4, FROM_TO(0, 65536), TRAIN | BENCH, HOST | SAME, CLUSTER,                 \
      "smallest size of a bucket (a part of the gradient that is reduced as one), in MiB")         \
    X(CHOICE, recompute, none, WORDS, TRAIN | BENCH, HOST, CLUSTER,                                \
      "values that backward computes again, to save memory: rows: norms and activation functions " \
      "(golf's default); block: everything in a block except its output; the same bytes")          \
    X(STR, device, "auto", BUILT(LKS__DEVICE_CHOICES), TRAIN | SAMPLE | EVAL | BENCH,              \
      HOST | SHORT, GPU,                                                                           \
      "device to compute on; auto: the CPU (CUDA is experimental); cuda: each rank uses the GPU "  \
      "of its number on this host; cuda:N: GPU N, counted from 0")                                 \
    X(BOOL, share_gpu, false, ANY, TRAIN | SAMPLE | EVAL | BENCH, HOST, GPU,                       \
      "allow several ranks of a host to compute on one GPU")                                       \
    X(CHOICE, exchange, auto, WORDS, TRAIN, HOST, GPU,                                             \
      "how gradients and parameters travel between GPUs: nccl: by NCCL; staged: through host "     \
      "memory; auto: nccl if it is available and ranks don't share GPUs; the same bytes")          \
    X(CHOICE, dtype, auto, WORDS_BUILT, TRAIN | SAMPLE | EVAL | BENCH, FREE | AUTO | SHORT, GPU,   \
      "precision to compute in; auto: the precision of the run or model; for a new one float32, "  \
      "on a GPU bfloat16")

enum {
#define X(type, name, ...) LKS__SETTING_##name,
    LKS__SETTING_MAP(X)
#undef X
        LKS__N_SETTINGS
};

/* typedef enum { LKS__on_nan_stop, … } lks__on_nan_choice; for each CHOICE. */
#define LKS__WORD_ID(of, word) LKS__##of##_##word,
#define LKS__CHOICES_INT(name)
#define LKS__CHOICES_FLOAT(name)
#define LKS__CHOICES_BOOL(name)
#define LKS__CHOICES_STR(name)
#define LKS__CHOICES_LISTED(name)
#define LKS__CHOICES_CHOICE(name)                                                                  \
    typedef enum { LKS__WORDS_##name(LKS__WORD_ID, name) } lks__##name##_choice;
#define X(type, name, ...) LKS__CHOICES_##type(name)
LKS__SETTING_MAP(X)
#undef X

/* Source of a value; a higher one wins. */
typedef enum lks__setting_from {
    LKS__FROM_DEFAULT = 0,
    LKS__FROM_CHECKPOINT = 1,
    LKS__FROM_FILE = 2,
    LKS__FROM_ENV = 3, /* golf's environment variables */
    LKS__FROM_ARG = 4,
} lks__setting_from;

#define LKS__FIELD_INT(name)    int64_t name;
#define LKS__FIELD_FLOAT(name)  double name;
#define LKS__FIELD_BOOL(name)   bool name;
#define LKS__FIELD_STR(name)    char name[LKS__SETTING_STR];
#define LKS__FIELD_CHOICE(name) lks__##name##_choice name;
#define LKS__FIELD_LISTED(name) int name;

typedef struct lks__settings {
#define X(type, name, ...) LKS__FIELD_##type(name)
    LKS__SETTING_MAP(X)
#undef X
    unsigned char from[LKS__N_SETTINGS]; /* lks__setting_from, by LKS__SETTING_<name> */
    /* Source of batch_size=auto (lks__setting_from); 0: it wasn't given. batch_size is then the
     * value without auto. */
    unsigned char auto_batch;
    bool as_ranks; /* nproc_per_node was given as ranks, its name on a single host */
} lks__settings;

void lks__settings_defaults(lks__settings *s);
const char *lks__setting_name(int setting);
/* The word of a CHOICE or LISTED setting in `s` (LKS__SETTING_on_nan: "stop"). */
const char *lks__setting_word(const lks__settings *s, int setting);
int lks__setting_find(const char *key); /* '-' equals '_'; -1 if unknown */
/* The same, but of settings with that other name, the one of the command. */
int lks__setting_find_for(unsigned command, const char *key);
bool lks__setting_is_text(int setting); /* STR, CHOICE, LISTED */
bool lks__setting_is_bool(int setting);

/* Parse numbers in settings: the whole text, no white space, no hexadecimal, finite. A whole number
 * may have an underscore between two digits, as in Python: 524_288. */
bool lks__parse_int(const char *text, int64_t *i_p);
bool lks__parse_float(const char *text, double *f_p);
/* true, True, 1, false, False, 0 */
bool lks__parse_bool(const char *text, bool *b_p);
