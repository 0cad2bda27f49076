/* plan/gradients.h - how a run's settings sum and exchange gradients. */
#ifndef LKS_PLAN_GRADIENTS_H
#define LKS_PLAN_GRADIENTS_H

#include "ddp/ddp.h"
#include "settings/settings.h"

/* The gradients' configuration of a run with these checked settings. */
lks__ddp_config lks__chosen_ddp(const lks__settings *s);

/* Whether devices may, or must, exchange gradients. */
bool lks__chosen_may_join(const lks__settings *s);
bool lks__chosen_must_join(const lks__settings *s);

#endif
