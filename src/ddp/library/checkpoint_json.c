/* A program's own JSON text in a checkpoint's state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"
#include "base/status.h"
#include "base/text/jsontext.h"
#include "comm/backend.h"
#include "ddp/library/checkpoint_files.h"

static lks_status parse(const char *text, json_t **value_p)
{
    lks_status st = lks__json_parse(text, strlen(text),
                                    JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY,
                                    "the program's own text", value_p);
    return st == LKS_ERR_FORMAT ? lks__fail(LKS_ERR_ARG, "%s", lks_last_error()) : st;
}

/* In a checkpoint's state the value is nested once more, and jansson limits the depth. */
static lks_status check_depth(const char *text)
{
    char *nested;
    json_t *value = NULL;
    if (asprintf(&nested, "[%s]", text) < 0)
        return lks__no_memory("for the program's own text");
    lks_status st = parse(nested, &value);
    json_decref(value);
    free(nested);
    return st;
}

lks_status lks__program_state(const char *text, json_t **state_p)
{
    json_t *value;
    *state_p = NULL;
    if (text == NULL)
        return LKS_OK;
    LKS__TRY(parse(text, &value));
    lks_status st = check_depth(text);
    json_t *state = json_object();
    if (json_object_set_new(state, LKS__PROGRAM_STATE, value) < 0 && st == LKS_OK)
        st = lks__no_memory("for the program's own text");
    if (st == LKS_OK)
        *state_p = state;
    else
        json_decref(state);
    return st;
}

static lks_status pack(const lks__ckpt *ckpt, char **text_p, struct lks__outcome *o)
{
    const json_t *value = json_object_get(ckpt->state, LKS__PROGRAM_STATE);
    if (value == NULL)
        return LKS_OK;
    *text_p = lks__json_dump(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY |
                                        JSON_REAL_PRECISION(17));
    LKS__MEMORY(*text_p, "for the program's own text");
    o->bytes = strlen(*text_p) + 1;
    return LKS_OK;
}

lks_status lks_checkpoint_json(lks_comm *comm, const char *dir, char **json_p, uint64_t *step_p)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(CHECKPOINT_JSON);
    struct lks__outcome o = {0};
    LKS__NEED("lks_checkpoint_json", json_p);
    *json_p = NULL;
    LKS__TRY(lks__read_block(comm, "lks_checkpoint_json", dir, "the program's own text", pack,
                             json_p, &o));
    if (o.found && step_p != NULL)
        *step_p = o.step;
    return LKS_OK;
}
