/* data/text/meta_pickle.h - meta.pkl, in which nanoGPT's prepare.py stores the characters of its
 * ids. */
#ifndef LKS_DATA_TEXT_META_PICKLE_H
#define LKS_DATA_TEXT_META_PICKLE_H

#include "data/text/meta.h"

/* {"vocab_size": n, "stoi": {character: id}, "itos": {id: character}}: the last two together, or
 * neither. Single characters in ascending order, as from prepare.py, give the kind char. Anything
 * else has only a size, as train.py uses it: the kind ids. ERR_FORMAT names `path` and the
 * contradiction. */
lks_status lks__meta_from_pickle(const char *path, lks__meta *meta);

#endif
