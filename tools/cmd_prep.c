/* lockstep prep: text to token files. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data/prep.h"
#include "tool.h"

static const char usage[] =
    "Usage: lockstep prep char --input=TEXT --out=DIR [--val_fraction=0.1]\n"
    "\n"
    "Turns a text into tokens: DIR/train.bin, DIR/val.bin and DIR/meta.json.\n"
    "  char    every different character (Unicode code point) is a token\n";

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
    if (strcmp(args.positional[0], "char") != 0) {
        char shown[80];
        lks__escape(shown, sizeof shown, args.positional[0], strlen(args.positional[0]));
        return tool_fail("prep", lks__fail(LKS_ERR_CONFIG,
                                           "there is no kind of tokens \"%s\": this build makes "
                                           "char (lockstep prep char)",
                                           shown));
    }
    if (!s.input[0] || !s.out[0])
        return tool_fail("prep",
                         lks__fail(LKS_ERR_CONFIG, "--%s=%s is missing",
                                   s.input[0] ? "out" : "input", s.input[0] ? "DIR" : "TEXT"));
    lks_status st = lks__prep_char(s.input, s.out, s.val_fraction, &result);
    if (st != LKS_OK)
        return tool_fail("prep", st);
    printf("vocab size: %" PRIu32 "\n", result.vocab_size);
    printf("train has %" PRIu64 " tokens\n", result.n_train);
    printf("val has %" PRIu64 " tokens\n", result.n_val);
    return TOOL_OK;
}
