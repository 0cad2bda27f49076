/* comm/hier/pieces.h - divides the blocks of a reduction into one shard per host, and each shard
 * into the same number of pieces. Pure arithmetic, the same on all hosts. */
#pragma once

#include <stddef.h>

enum { LKS__PIECES_AHEAD = 3 }; /* pieces that a host receives ahead of the piece that it adds */

typedef struct lks__pieces {
    const size_t *block_start; /* [n_blocks + 1], in elements */
    size_t n_blocks;
    int n_hosts;
    size_t n; /* pieces per shard: lks__pieces_cut() */
} lks__pieces;

/* Start of the share of host `host` in n_blocks; for n_hosts the end. */
size_t lks__share_start(size_t n_blocks, int n_hosts, int host);

void lks__pieces_cut(lks__pieces *p);

/* First block of a piece; piece n is the end of the shard. */
size_t lks__pieces_block(const lks__pieces *p, int host, size_t piece);
/* Start of a piece in elements, and its number of elements. */
size_t lks__pieces_start(const lks__pieces *p, int host, size_t piece);
size_t lks__pieces_size(const lks__pieces *p, int host, size_t piece);
/* Elements of the host's largest piece. */
size_t lks__pieces_room(const lks__pieces *p, int host);
