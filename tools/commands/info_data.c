/* lockstep info DATA: describes a folder of tokens in a few lines. */
#include "info.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../tool.h"
#include "base/system/sys.h"
#include "data/read/sampler.h"
#include "data/read/shards.h"
#include "data/text/meta.h"

bool info_is_data(const char *folder)
{
    return lks__sys_is_folder(folder) && !lks__sys_has(folder, "metrics.jsonl") &&
           (lks__split_exists(folder, LKS__SPLIT_TRAIN) ||
            lks__split_exists(folder, LKS__SPLIT_VAL));
}

static const char *kind_of(const lks__meta *m)
{
    return m->chars != NULL      ? "characters"
           : m->is_bytes         ? "single bytes"
           : m->is_bpe           ? "GPT-2's tokens"
           : m->is_sentencepiece ? "pieces of a SentencePiece model"
                                 : "ids without a tokenizer";
}

static lks_status print_split(const char *folder, int split, uint32_t vocab_size)
{
    lks__shards *s;
    if (!lks__split_exists(folder, split))
        return LKS_OK;
    LKS__TRY(lks__split_open(folder, split, false, vocab_size, &s));
    const int n = lks__shards_n_files(s);
    printf("%-13s%" PRIu64 " tokens in %s", split == LKS__SPLIT_VAL ? "val" : "train",
           lks__shards_count(s), lks__shards_split_name(s));
    if (n > 1)
        printf(" (%d files)", n);
    putchar('\n');
    lks__shards_close(s);
    return LKS_OK;
}

int info_data(const char *folder)
{
    lks__meta meta = {0};
    bool found;
    lks_status st = lks__meta_load(folder, &found, &meta);
    if (st == LKS_OK) {
        printf("%-13s%s\n", "data", lks__shown(folder, 4096));
        printf("%-13s%s\n", "kind", kind_of(&meta));
    }
    if (st == LKS_OK && found)
        printf("%-13s%" PRIu32 "\n", "vocab_size", meta.vocab_size);
    const uint32_t most = meta.vocab_size > 0 ? meta.vocab_size : LKS__META_MAX_IDS;
    LKS__THEN(st, print_split(folder, LKS__SPLIT_TRAIN, most));
    LKS__THEN(st, print_split(folder, LKS__SPLIT_VAL, most));
    lks__meta_free(&meta);
    LKS__THEN(st, tool_flush());
    return st == LKS_OK ? TOOL_OK : tool_fail("info", st);
}
