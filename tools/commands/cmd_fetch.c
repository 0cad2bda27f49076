/* lockstep fetch: downloads data and weights that people know. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../progress.h"
#include "../tool.h"
#include "base/text/shell.h"
#include "data/fetch/fetch.h"
#include "session/signals.h"
#include "weights/choice/known.h"

static const char usage[] =
    "Usage: lockstep fetch NAME [--out=DIR] [--from=URL|DIR] [--shards=N]\n"
    "\n"
    "Downloads data or weights with libcurl, checks them and prints the next command.\n"
    "Run it again to continue a download that broke off. No other command contacts a\n"
    "server.\n"
    "\n"
    "  shakespeare     tinyshakespeare as input.txt (1.1 MB)\n"
    "  fineweb-sp1024  parameter-golf's tokenizer, validation shard and first N\n"
    "                  training shards of 100,000,000 tokens (200 MB each)\n"
    "  gpt2-vocab      GPT-2's vocab.bpe and encoder.json, for lockstep prep\n"
    "  gpt2            GPT-2's weights and vocabulary, for --init_from=gpt2 (550 MB);\n"
    "                  also gpt2-medium, gpt2-large and gpt2-xl\n"
    "  openwebtext     openwebtext.jsonl, only with --from; without it, the command\n"
    "                  prints how to convert the published parquet files\n"
    "\n"
    "With --from, the files come from another server or a folder, which has the same\n"
    "names below it. The SHA-256 of each file is recorded in DIR/.sha256sums at the\n"
    "first download (unverified), and checked from then on.\n"
    "\n"
    "  lockstep fetch shakespeare && lockstep train data/shakespeare/input.txt\n";

static void show_progress(const char *name, const char *what, uint64_t done, uint64_t all)
{
    progress_text("%s: %s, %.0f of %.0f MB", name, what, (double)done / 1e6, (double)all / 1e6);
}

static void print_done(const char *sentence)
{
    progress_hide();
    printf("%s\n", sentence);
    (void)tool_flush(); /* before the next message; main() reports a failure */
}

static lks_status find_set(const lks__args *args, const lks__fetch_set **set_p)
{
    char names[300] = "";
    for (int i = 0; lks__fetch_set_name(i) != NULL; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? ", " : "",
                 lks__fetch_set_name(i));
    const char *name = args->n_positional > 0 ? args->positional[0] : NULL;
    if (name == NULL)
        return lks__fail(LKS_ERR_CONFIG, "name the data or weights to fetch: %s", names);
    *set_p = lks__fetch_set_of(name);
    if (*set_p == NULL)
        return lks__fail(LKS_ERR_CONFIG, "\"%s\" can't be fetched; the names are %s",
                         lks__shown(name, 80), names);
    return LKS_OK;
}

static lks_status fetch(const lks__settings *s, const lks__args *args, const lks__fetch_set **set_p,
                        char out[LKS__CKPT_PATH])
{
    LKS__TRY(find_set(args, set_p));
    const lks__fetch_set *set = *set_p;
    if (s->shards != 0 && !lks__fetch_has_shards(set))
        return lks__fail(LKS_ERR_CONFIG, "--shards doesn't apply to %s", set->name);
    if (s->shards > LKS__FETCH_SHARDS)
        return lks__fail(LKS_ERR_CONFIG, "--shards=%" PRId64 ": at most %d", s->shards,
                         LKS__FETCH_SHARDS);
    if (s->out[0] != '\0' || set->out != NULL)
        snprintf(out, LKS__CKPT_PATH, "%s", s->out[0] != '\0' ? s->out : set->out);
    else
        LKS__TRY(lks__known_folder(lks__known_find(set->name), out));
    const lks__fetch f = {.set = set,
                          .out = out,
                          .from = s->mirror,
                          .shards = s->shards != 0 ? (int)s->shards : 1,
                          .progress = show_progress,
                          .done = print_done};
    fprintf(stderr, "lockstep fetch: %s (licence: %s)\n", set->about, set->licence);
    return lks__fetch_all(&f);
}

/* Print the next command; `folder` stands for each %s. */
static void print_next(const char *command, const char *folder)
{
    printf("next: ");
    for (const char *c = command; *c != '\0'; c++) {
        if (c[0] == '%' && c[1] == 's') {
            fputs(folder, stdout);
            c++;
        } else {
            putchar(*c);
        }
    }
    putchar('\n');
}

int tool_fetch(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    const lks__fetch_set *set = NULL;
    char out[LKS__CKPT_PATH];
    int code;
    if (!tool_settings("fetch", LKS__CMD_FETCH, usage, argc, argv, 1, &s, &args, &code))
        return code;
    tool_print_notes("fetch", &args);
    tool_stoppable();
    progress_begin("lockstep fetch", "connecting");
    const lks_status st = fetch(&s, &args, &set, out);
    progress_end();
    if (st != LKS_OK && lks__stop_requested != 0)
        return tool_stopped("fetch", lks__stop_requested, "the same command continues");
    if (st != LKS_OK)
        return tool_fail("fetch", st);
    const bool by_name = s.out[0] == '\0' && set->out == NULL;
    print_next(set->next, by_name ? set->name : lks__quoted(out, 2 * LKS__CKPT_PATH));
    return TOOL_OK;
}
