/* A checkpoint's state.json; the files beside it are good. If the input has a place for its own
 * hash, the right hash is written there seven times out of eight: otherwise no later code would be
 * reached. */
#include "files/checkpoint/ckpt.h"
#include "base/number/units.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "comm/backend.h"
#include "files/checkpoint/folder.h"
#include "fuzz.h"
#include "lockstep/checkpoint.h"
#include "model/model.h"
#include "train/checkpoint.h"

const char *const fuzz_words[] = {
    "\"format\": ",
    "\"iter\": ",
    "\"files\": ",
    "\"params_hash\": ",
    "\"settings\": ",
    "\"tokenizer\": ",
    "\"program\": ",
    "\n  \"state_hash\": \"",
    "\"n_layer\": ",
    "\"n_embd\": ",
    "\"model.safetensors\"",
    "\"optimizer.safetensors\"",
    "\"kind\": \"char\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    "null",
    "true",
    "1e999",
    "9223372036854775807",
    "\"0123456789abcdef\"",
    NULL,
};

static void save(const char *family)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    static lks__settings s;
    const lks__st_tensor tensor = {
        .name = "a", .dtype = "F32", .n_dims = 2, .shape = {2, 3}, .data = x, .bytes = 24};
    char name[32], hash[17];
    lks__settings_defaults(&s);
    FUZZ_HOLDS(lks__settings_set(&s, LKS__CMD_TRAIN, "family", family, LKS__FROM_ARG, "x") ==
               LKS_OK);
    json_t *state = json_pack("{s:o, s:{s:s, s:i, s:s}, s:s, s:b, s:f, s:[f, n]}", "settings",
                              lks__settings_to_json(&s), "tokenizer", "kind", "char", "vocab_size",
                              3, "chars", "abc", "data_digest", "0123456789abcdef", "eval_done", 1,
                              "best_val_loss", 2.5, "program", 0.5);
    const lks__ckpt_content content = {.iter = 10,
                                       .model = &tensor,
                                       .n_model = 1,
                                       .optimizer = &tensor,
                                       .n_optimizer = 1,
                                       .state = state};
    FUZZ_HOLDS(state != NULL);
    FUZZ_HOLDS(lks__sys_make_dirs(fuzz_path("out")) == LKS_OK);
    FUZZ_HOLDS(lks__ckpt_save(fuzz_path("out"), &content, 0, name, hash) == LKS_OK);
    json_decref(state);
    fuzz_seed_file(fuzz_path("out/ckpt-00000010/state.json"));
}

void fuzz_seeds(void)
{
    save("golf");
    save("gpt2");
}

static void use(const lks__ckpt *ckpt)
{
    static lks__settings s;
    lks__meta meta = {0};
    lks__table table;
    lks__settings_defaults(&s);
    if (lks__state_settings(ckpt, &s) == LKS_OK && s.vocab_size > 0) {
        lks__model_config config = lks__state_model_config(&s, (uint32_t)s.vocab_size);
        if (lks__model_table(&config, &table) == LKS_OK) {
            lks__state_check_params(ckpt->model, ckpt->path, &table);
            lks__table_free(&table);
        }
    }
    if (lks__state_meta(ckpt, &meta) == LKS_OK)
        lks__meta_free(&meta);
}

/* As a program that uses the library. */
static void use_as_program(const char *dir)
{
    static lks_comm *comm;
    float x[6];
    const lks_tensor wanted = {"a", LKS_FLOAT32, 2, {2, 3}, x};
    const lks_checkpoint_more more = {&wanted, 1, NULL};
    lks_tensor *list;
    size_t n;
    char *text;
    bool found;
    if (comm == NULL)
        FUZZ_HOLDS(lks__comm_open_threads(1, 30, &comm) == LKS_OK);
    if (lks_checkpoint_json(comm, dir, &text, NULL) == LKS_OK && text != NULL) {
        json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        FUZZ_HOLDS(value != NULL);
        json_decref(value);
        free(text);
    }
    if (lks_checkpoint_list(comm, dir, &list, &n, NULL) == LKS_OK) {
        FUZZ_HOLDS(n == 2 && list[1].n_dims == 2 && list[1].shape[1] == 3);
        free(list);
        FUZZ_HOLDS(lks_checkpoint_load(comm, dir, &wanted, 1, NULL, &found) == LKS_OK && found);
        FUZZ_HOLDS(x[5] == 6);
    }
    FUZZ_HOLDS(lks_checkpoint_load_more(comm, dir, NULL, 0, &more, NULL, &found) != LKS_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lks__ckpt ckpt;
    uint64_t hash;
    char *text = malloc(bytes + 1);
    FUZZ_HOLDS(text != NULL);
    memcpy(text, data, bytes);
    char *at = lks__state_hash(text, bytes, &hash);
    if (at != NULL && hash % 8 != 0)
        memcpy(at, lks__hex(hash), 16);
    fuzz_file("out/ckpt-00000010/state.json", text, bytes);
    free(text);
    if (lks__ckpt_open(fuzz_path("out"), 1, &ckpt) == LKS_OK) {
        FUZZ_HOLDS(ckpt.iter == 10 && json_is_object(ckpt.state));
        use(&ckpt);
        lks__ckpt_close(&ckpt);
    }
    use_as_program(fuzz_path("out"));
    if (lks__ckpt_open(fuzz_path("out/ckpt-00000010"), 0, &ckpt) == LKS_OK)
        lks__ckpt_close(&ckpt);
    return 0;
}
