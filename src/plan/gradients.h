/* plan/gradients.h - what a run's settings choose of gradients and their exchange. */
#ifndef LKS_PLAN_GRADIENTS_H
#define LKS_PLAN_GRADIENTS_H

#include "ddp/ddp.h"
#include "settings/settings.h"

/* How a run with these checked settings adds up its gradients. */
lks__ddp_config lks__chosen_ddp(const lks__settings *s);

/* May, or must, devices exchange gradients? */
bool lks__chosen_may_join(const lks__settings *s);
bool lks__chosen_must_join(const lks__settings *s);

#endif
