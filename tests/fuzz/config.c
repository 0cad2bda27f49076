/* Config files: recipes (an even first byte) and nanoGPT's (an odd one). */
#include <stdlib.h>

#include "fuzz.h"
#include "settings/config/config_file.h"

const char *const fuzz_words[] = {
    "n_layer",
    "learning_rate",
    "= ",
    "5 * 8",
    " ** ",
    " // ",
    " % ",
    "((",
    "learning_rate / 10",
    "None",
    "True",
    "False",
    "true",
    "'",
    "\"",
    "\\n",
    "#",
    "import ",
    "wandb_",
    "compile",
    "dtype",
    "bfloat16",
    "\n",
    "\r\n",
    "device",
    "'out-' + ",
    "1e-3",
    "-1",
    "nan",
    "inf",
    "0x10",
    "always_save_checkpoint",
    "train_seq_len",
    "family = golf\n",
    "\xef\xbb\xbf",
    "\xff",
    NULL,
};

void fuzz_seeds(void)
{
    fuzz_seed_text("# a comment\nn_layer = 4\nn_head=4 # behind\nout_dir = 'out-x'\ndropout = 0.0\n"
                   "gradient_accumulation_steps = 5 * 8\nbias = false\nsampler = \"nanogpt\"\n");
    fuzz_seed_text("#\nfamily = golf\nnum_layers = 9\nmatrix_lr = 4e-2\ntie_embeddings = 1\n");
    fuzz_seed_text(
        "\"\"\"\ntext\n\"\"\"\nimport time\nout_dir = 'out-shakespeare'\nwandb_log = False\n"
        "wandb_run_name = 'ft-' + str(time.time())\nlearning_rate = 3e-5\n"
        "gradient_accumulation_steps = 5 * 8\ncompile = False\ndevice = 'cpu'\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const unsigned commands[] = {LKS__CMD_TRAIN, LKS__CMD_EVAL, LKS__CMD_BENCH};
    bool python = bytes > 0 && data[0] % 2 != 0;
    const char *path = fuzz_file(python ? "c.py" : "c.conf", data, bytes);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        static lks__settings s;
        static lks__args args;
        args = (lks__args){.n_notes = 0};
        lks__settings_defaults(&s);
        if (lks__config_file_read(&s, commands[i], path, &args) == LKS_OK)
            FUZZ_HOLDS(s.n_layer >= 1 && s.n_layer <= 1024 && s.dropout >= 0 && s.dropout < 1);
        FUZZ_HOLDS(args.n_notes >= 0);
    }
    return 0;
}
