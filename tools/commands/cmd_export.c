/* lockstep export: writes a trained model in another program's form. */
#include <stdio.h>

#include "../progress.h"
#include "../runs.h"
#include "../tool.h"
#include "session/signals.h"
#include "weights/export/export.h"

static const char usage[] =
    "Usage: lockstep export RUN --format=FORMAT --out=PATH\n"
    "       lockstep export --init_from=PATH --format=FORMAT --out=PATH\n"
    "\n"
    "Writes a model in a format that other programs read. The model is a checkpoint\n"
    "(--checkpoint) of the run in the folder RUN, or the weights at --init_from, in\n"
    "any form that train accepts (docs/guides/weights.md). --out_dir=RUN is the older\n"
    "form of RUN.\n"
    "\n"
    "golf: as parameter-golf's train_gpt.py saves it. If the name ends in .pt, the\n"
    "file contains the raw model, otherwise the artifact: int8 with a scale per row,\n"
    "compressed by zlib. The command prints its size together with the size of the\n"
    "code files (--code=FILE, which may be given several times), and warns if the sum\n"
    "is over the limit of 16,000,000 bytes.\n"
    "\n"
    "nanogpt: a ckpt.pt with the optimizer's state, for nanoGPT's sample.py and for\n"
    "resuming there. nanoGPT computes GELU exactly, so a model with the tanh form\n"
    "needs --gelu=exact. --dataset is the name by which sample.py looks for meta.pkl.\n"
    "\n"
    "hf: a folder for Hugging Face's loaders: config.json, model.safetensors and the\n"
    "tokenizer. Only for the gpt2 family.\n"
    "\n"
    "safetensors: the parameters in float32, under lockstep's names.\n"
    "\n"
    "gguf: one file for llama.cpp and programs that are built on it, in float32, with\n"
    "the tokenizer. Only for the gpt2 family.\n"
    "\n"
    "  lockstep export out/my --format=hf --out=my-hf\n";

static void print_result(const char *lines)
{
    progress_hide();
    fputs(lines, stdout);
    (void)tool_flush(); /* before the notes that follow; main() reports a failure */
}

static void print_note(const char *sentence)
{
    progress_hide();
    fprintf(stderr, "lockstep export: %s\n", sentence);
    progress_text("writing");
}

int tool_export(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("export", LKS__CMD_EXPORT, usage, argc, argv, 0, &s, &args, &code))
        return code;
    tool_print_notes("export", &args);
    const lks_status there =
        lks__settings_uses_weights(&s) ? LKS_OK : tool_run_check("export", s.out_dir);
    if (there != LKS_OK)
        return tool_fail("export", there);
    tool_stoppable();
    const lks__export_sink sink = {print_result, print_note};
    progress_begin("lockstep export", "reading and writing");
    lks_status st = lks__export(&s, &sink);
    progress_end();
    if (st != LKS_OK && lks__stop_requested != 0)
        return tool_stopped("export", lks__stop_requested,
                            "the export wasn't completed; run the command again");
    if (st != LKS_OK)
        return tool_fail("export", st);
    tool_wrote("export", s.out);
    return TOOL_OK;
}
