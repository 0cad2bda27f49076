/* train/audit/remedy.h - the command that makes two runs equal. */
#ifndef LKS_TRAIN_AUDIT_REMEDY_H
#define LKS_TRAIN_AUDIT_REMEDY_H

#include <jansson.h>

#include "report/diff/history.h"
#include "settings/settings.h"

/* If settings or data explain the difference between two runs, add to lks__diff()'s report
 *
 *     "remedy": {"run": "a" or "b", "resumed": the iteration from which this run continues as the
 *         other run, or null if it begins again in another folder, "command": [words]},
 *     or {"why_not": the data that a command needs aren't available}
 *
 * Call it after lks__place_diff(). ERR_NOMEM. */
lks_status lks__remedy_add(lks__history both[2], const lks__settings *asked, json_t *report);

#endif
