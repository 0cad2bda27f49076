/* data/prep/prep_bpe.h - `lockstep prep gpt2`: tokens of a byte-level BPE vocabulary. */
#ifndef LKS_DATA_PREP_PREP_BPE_H
#define LKS_DATA_PREP_PREP_BPE_H

#include "data/prep/prep_job.h"

/* A plain file is one document, byte for byte. In JSON lines, each line is a document.
 *
 * A single plain file: its first int(n * (1 - val_fraction)) characters are for training, as in
 * nanoGPT's prepare.py for shakespeare, and nothing is added. Otherwise <|endoftext|> follows each
 * document, and the first int(n * val_fraction) documents, at least one, are for validation.
 *
 * With `shuffles`, in the order of datasets' train_test_split(seed=2357, shuffle=True), as in
 * nanoGPT's prepare.py for openwebtext: documents are permuted; the first ceil(n * val_fraction)
 * are for validation, and the others, in that order, for training. Needs 12 bytes of memory per
 * document. A single plain file is one document.
 *
 * Also writes tokenizer.json. An empty input gives empty files. Memory doesn't grow with the text,
 * but with its longest run of characters without white space, and with its longest line of JSON. */
lks_status lks__prep_bpe(lks__prep_job *job);

#endif
