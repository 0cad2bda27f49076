/* data/text/meta_pickle.h - meta.pkl, in which nanoGPT's prepare.py writes what its characters
 * mean. */
#ifndef LKS_DATA_TEXT_META_PICKLE_H
#define LKS_DATA_TEXT_META_PICKLE_H

#include "data/text/meta.h"

/* {"vocab_size": n, "stoi": {character: id}, "itos": {id: character}}: the last two together, or
 * neither. Single characters in ascending order give the kind char, as prepare.py makes them;
 * anything else has a size only, as train.py uses it: the kind ids. ERR_FORMAT names `path` and
 * what contradicts itself. */
lks_status lks__meta_from_pickle(const char *path, lks__meta *meta);

#endif
