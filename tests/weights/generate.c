/* generate_gpt2 FOLDER: a small GPT-2 as Hugging Face's loaders have one: config.json,
 * model.safetensors and tokenizer.json. For shell tests, in the place of the model that one would
 * download. */
#include "forge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const lks__model_config config = {
        .n_layer = 2, .n_head = 2, .n_embd = 32, .block_size = 64, .vocab_size = 640, .bias = true};
    const forge_hf how = {0};
    if (argc != 2) {
        fprintf(stderr, "generate_gpt2 FOLDER\n");
        return 2;
    }
    forge_model m = forge_open_as(&config);
    forge_write_hf(&m, argv[1], &how);
    forge_close(&m);
    char *text = json_dumps(json_object_get(lks_test_figure("bpe_small.json"), "tokenizer"), 0);
    lks_test_write(lks_test_text("%s/tokenizer.json", argv[1]), text, strlen(text));
    free(text);
    return 0;
}
