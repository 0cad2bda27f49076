/* Command lines, and golf's environment: the first byte chooses command and number of ranks, and
 * lines that begin with '$' are variables. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "settings/settings.h"

const char *const fuzz_words[] = {
    "\n--",
    "=",
    "--n_layer=",
    "--n_head=",
    "--n_embd=",
    "--virtual_ranks=",
    "--gradient_accumulation_steps=",
    "--help",
    "--bias",
    "--batch_size=",
    "--block_size=",
    "--learning_rate=",
    "1e308",
    "1e-320",
    "-0",
    "nan",
    "inf",
    "0x1p3",
    "--allow-uneven",
    "--sampler=stream",
    "--family=golf",
    "\n$ITERATIONS=",
    "\n$TRAIN_BATCH_TOKENS=",
    "\n$TIE_EMBEDDINGS=",
    "\n$MODEL_DIM=",
    "--dataset=",
    "x.conf",
    NULL,
};

void fuzz_seeds(void)
{
    fuzz_seed_text("a\n--n_layer=2\n--n-head=2\n--n_embd=16\n--bias\n--dropout=0.1\n--max_iters=9");
    fuzz_seed_text("b\n--virtual_ranks=8\n--gradient_accumulation_steps=40\n--allow_uneven=true\n"
                   "--learning_rate=1e-3\n--dataset=/tmp/x\n--init_from=resume\nword");
    fuzz_seed_text("a\n--family=golf\n$NUM_LAYERS=4\n$MODEL_DIM=128\n$NUM_HEADS=4\n"
                   "$TRAIN_SEQ_LEN=128\n$TRAIN_BATCH_TOKENS=8192\n$ITERATIONS=100\n$MATRIX_LR=.04");
    fuzz_seed_text("c\n--start=FILE:x\n--temperature=0.8\n--top_k=200\n--num_samples=3");
}

enum { MAX_LINES = 32 };

static const char *put_variables(char **lines, int n, bool on)
{
    for (int i = 0; i < n; i++) {
        char name[64];
        size_t length = strcspn(lines[i], "=");
        if (lines[i][0] != '$' || length < 2 || length >= sizeof name || lines[i][length] == '\0')
            continue;
        memcpy(name, lines[i] + 1, length - 1);
        name[length - 1] = '\0';
        /* Only the script's names, because the process needs its own environment. */
        if (strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") != length - 1 ||
            strncmp(name, "LOCKSTEP", 8) == 0 || strncmp(name, "LD_", 3) == 0 ||
            strcmp(name, "PATH") == 0 || strstr(name, "SAN") != NULL)
            continue;
        if (on)
            setenv(name, lines[i] + length + 1, 1);
        else
            unsetenv(name);
    }
    return NULL;
}

/* A checkpoint of these settings must give them back. */
static void round_trip(const lks__settings *s)
{
    static lks__settings back;
    json_t *json = lks__settings_to_json(s);
    FUZZ_HOLDS(json != NULL);
    lks__settings_defaults(&back);
    FUZZ_HOLDS(lks__settings_from_json(json, "x", &back) == LKS_OK);
    FUZZ_HOLDS(lks__settings_diff(s, &back, LKS__CMD_TRAIN, LKS__SETTING_CONFIG, NULL) == 0);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const unsigned commands[] = {LKS__CMD_PREP, LKS__CMD_TRAIN, LKS__CMD_EVAL,
                                        LKS__CMD_SAMPLE};
    static lks__settings s;
    static lks__args args;
    if (bytes < 2)
        return 0;
    char *text = malloc(bytes), *argv[MAX_LINES], *lines[MAX_LINES], *save = NULL;
    FUZZ_HOLDS(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    int n = 0, argc = 0;
    for (char *p = strtok_r(text, "\n", &save); p != NULL && n < MAX_LINES - 1;
         p = strtok_r(NULL, "\n", &save))
        lines[n++] = p;
    for (int i = 0; i < n; i++) {
        size_t length = strlen(lines[i]);
        /* Config files have a target of their own. */
        if (lines[i][0] != '$' && (lines[i][0] == '-' || length < 3))
            argv[argc++] = lines[i];
    }
    argv[argc] = NULL;
    unsigned command = commands[data[0] % 4];
    put_variables(lines, n, true);
    args = (lks__args){.n_notes = 0};
    lks__settings_defaults(&s);
    lks_status st = lks__settings_parse(&s, command, argc, argv, 2, &args);
    put_variables(lines, n, false);
    if (st == LKS_OK && !args.help) {
        round_trip(&s);
        if (command == LKS__CMD_TRAIN && lks__settings_complete(&s, 1 + data[0] / 4 % 9) == LKS_OK)
            FUZZ_HOLDS(s.virtual_ranks >= 1 &&
                       s.gradient_accumulation_steps % s.virtual_ranks == 0);
    }
    free(text);
    return 0;
}
