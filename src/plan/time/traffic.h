/* plan/time/traffic.h - the bytes and messages of a step between hosts, counted as comm/hier sends
 * them. */
#pragma once

#include "plan/bytes/needs.h"

/* One bucket of gradients. */
typedef struct lks__bucket_traffic {
    int last_group; /* the bucket is complete when backward has finished this group of tensors */
    double gradient_bytes; /* per rank */
    double bytes;          /* that the busiest host sends, in two parts: */
    double fetch_bytes;    /* its sums of the other hosts' shards */
    double gather_bytes;   /* the result of its own shard */
    double added_bytes;    /* of sums that a host adds to others */
    int delays;            /* one-way, one after the other */
} lks__bucket_traffic;

typedef struct lks__traffic {
    int n_buckets;
    lks__bucket_traffic *buckets; /* [n_buckets] */
    double ring_bytes;            /* 2 (n - 1) / n times the gradient */
    double bytes;                 /* per step, for the busiest host */
    double mean_bytes;            /* a host's mean */
    double messages;              /* of the busiest host */
    int delays;                   /* one-way delays of a step, one after the other */
    int late_delays;              /* of them, those after the buckets: losses, end of the update */
    double late_bytes;
    double heartbeat_rate; /* bytes/s that a host sends in addition to steps */
} lks__traffic;

/* Close it with lks__traffic_close(). ERR_NOMEM. */
lks_status lks__traffic_find(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                             lks__traffic *traffic);
void lks__traffic_close(lks__traffic *traffic);
