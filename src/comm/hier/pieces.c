#include "comm/hier/pieces.h"

/* Maximal bytes of a piece of each host's shard. */
enum { PIECE_BYTES = 1 << 20 };

size_t lks__share_start(size_t n_blocks, int n_hosts, int host)
{
    return n_blocks * (size_t)host / (size_t)n_hosts;
}

size_t lks__pieces_block(const lks__pieces *p, int host, size_t piece)
{
    size_t start = lks__share_start(p->n_blocks, p->n_hosts, host);
    size_t some = lks__share_start(p->n_blocks, p->n_hosts, host + 1) - start;
    return start + some * piece / p->n;
}

size_t lks__pieces_start(const lks__pieces *p, int host, size_t piece)
{
    return p->block_start[lks__pieces_block(p, host, piece)];
}

size_t lks__pieces_size(const lks__pieces *p, int host, size_t piece)
{
    return lks__pieces_start(p, host, piece + 1) - lks__pieces_start(p, host, piece);
}

void lks__pieces_cut(lks__pieces *p)
{
    size_t most = 1;
    p->n = 1;
    for (int i = 0; i < p->n_hosts; i++)
        most = lks__pieces_size(p, i, 0) > most ? lks__pieces_size(p, i, 0) : most;
    p->n = (most * sizeof(float) + PIECE_BYTES - 1) / PIECE_BYTES;
}

size_t lks__pieces_room(const lks__pieces *p, int host)
{
    size_t room = 0;
    for (size_t i = 0; i < p->n; i++)
        room = lks__pieces_size(p, host, i) > room ? lks__pieces_size(p, host, i) : room;
    return room;
}
