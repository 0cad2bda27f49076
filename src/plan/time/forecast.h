/* plan/time/forecast.h - the time of a step. Layers finish at measured times, and buckets queue.
 * Each bucket costs delays and its bytes over the bandwidth; the time that remains after backward
 * is exposed. */
#pragma once

#include "model/model.h"
#include "plan/time/machine.h"
#include "plan/time/traffic.h"

/* Seconds of a step. */
typedef struct lks__step_time {
    double compute, exposed, update, step;
} lks__step_time;

typedef struct lks__forecast {
    lks__step_time at;          /* for the figures' values */
    double low, high;           /* the step, for their lowest and highest values */
    double tokens;              /* per step */
    bool model, ranks, network; /* extrapolated: measured with another one */
} lks__forecast;

/* `s` has been checked. On several hosts the machine must have a link: ERR_CONFIG. */
lks_status lks__forecast_step(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                              const lks__machine *machine, const lks__traffic *traffic,
                              lks__forecast *forecast);

/* The arithmetic of a layer per token, in FLOP. */
lks_status lks__forecast_layer_flops(const lks__model_config *config, double *flops_p);

/* Seconds between checkpoints that minimize the loss if a host fails every mtbf_s (Young). */
double lks__forecast_checkpoint_every(double write_s, double mtbf_s);
