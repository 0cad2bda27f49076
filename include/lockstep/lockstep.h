/* lockstep/lockstep.h - includes all of liblockstep: groups of ranks, data-parallel gradients,
 * optimizers, learning rates, sampling, checkpoints. Start with lockstep/ddp.h. Each header states
 * its rules for threads and for children of fork(). A thread that calls the library needs a stack
 * of at least 128 KB. In C++20, designated initializers must name members in the order of the
 * header. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include "lockstep/checkpoint.h"
#include "lockstep/comm.h"
#include "lockstep/ddp.h"
#include "lockstep/dtype.h"
#include "lockstep/optimizer.h"
#include "lockstep/reduce.h"
#include "lockstep/sampler.h"
#include "lockstep/schedule.h"
#include "lockstep/status.h"

#endif
