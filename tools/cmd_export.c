/* lockstep export: a trained model in another program's form. */
#include <stdio.h>

#include "export/export.h"
#include "session/signals.h"
#include "tool.h"

static const char usage[] =
    "Usage: lockstep export --format=golf|nanogpt|hf|safetensors --out_dir=DIR --out=PATH\n"
    "       lockstep export --format=golf|nanogpt|hf|safetensors --init_from=PATH --out=PATH\n"
    "\n"
    "Writes the model of a checkpoint in --out_dir (--which), or the weights at --init_from: any "
    "form\n"
    "that train takes (docs/weights.md), in any of these.\n"
    "\n"
    "golf: as parameter-golf's train_gpt.py saves it. A name that ends in .pt gets the raw model, "
    "any\n"
    "other the artifact: int8 with a scale for each row, under zlib. The size is printed together "
    "with\n"
    "that of the code files (--code=FILE, which may be given several times), with a warning if "
    "both\n"
    "are over the limit of 16,000,000 bytes.\n"
    "nanogpt: a ckpt.pt with the optimizer's state, which nanoGPT's sample.py and its resume load. "
    "It\n"
    "computes GELU exactly; a model with the tanh form is written if --gelu=exact is given. "
    "--dataset\n"
    "is what sample.py looks for its meta.pkl by.\n"
    "hf: a folder for Hugging Face's loaders: config.json, model.safetensors and the tokenizer; "
    "gpt2 alone.\n"
    "safetensors: the parameters in float32 under their own names.\n";

static void print_result(const char *lines)
{
    fputs(lines, stdout);
    fflush(stdout); /* before the notes that follow */
}

static void print_note(const char *sentence)
{
    fprintf(stderr, "lockstep export: %s\n", sentence);
}

int tool_export(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("export", LKS__CMD_EXPORT, usage, argc, argv, 0, &s, &args, &code))
        return code;
    tool_print_notes("export", &args);
    tool_stoppable();
    const lks__export_sink sink = {print_result, print_note};
    lks_status st = lks__export(&s, &sink);
    if (st != LKS_OK && lks__stop_requested != 0)
        return tool_stopped("export", lks__stop_requested,
                            "what was to be written is not complete; give the command again");
    return st == LKS_OK ? TOOL_OK : tool_fail("export", st);
}
