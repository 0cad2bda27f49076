/* plan/gradients.h - how a run's settings sum and exchange gradients. */
#pragma once

#include "ddp/reducer.h"
#include "settings/settings.h"

/* The gradients' configuration of a run with these checked settings. */
lks__reducer_config lks__chosen_ddp(const lks__settings *s);

/* Whether devices may, or must, exchange gradients. */
bool lks__chosen_may_join(const lks__settings *s);
bool lks__chosen_must_join(const lks__settings *s);

/* Bytes of the message in which a rank sends votes, and losses and hashes of its virtual ranks, to
 * all ranks in each step (train/checks/votes.h). LKS__VOTE_BYTES are the votes. */
enum { LKS__VOTE_BYTES = 104 };
size_t lks__step_message_bytes(int V, int A, int W);
