/* A program's own JSON text in a checkpoint's state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"
#include "base/status.h"
#include "base/text/jsontext.h"
#include "comm/backend.h"
#include "ddp/library/checkpoint_files.h"

static const char call[] = "lks_checkpoint_json";

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

static lks_status read_text(lks_comm *comm, const char *dir, char **text_p, struct lks__outcome *o)
{
    lks__ckpt ckpt = {0};
    sigset_t before;
    lks__begin_files(comm, false, &before);
    lks_status st = lks__find_checkpoint(dir, false, &ckpt, o);
    const json_t *value = json_object_get(ckpt.state, LKS__PROGRAM_STATE);
    if (st == LKS_OK && value != NULL) {
        *text_p = lks__json_dump(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY |
                                            JSON_REAL_PRECISION(17));
        if (*text_p == NULL)
            st = lks__no_memory("for the program's own text");
        else
            o->bytes = strlen(*text_p) + 1;
    }
    lks__ckpt_close(&ckpt);
    lks__end_files(comm, &before);
    return st;
}

lks_status lks_checkpoint_json(lks_comm *comm, const char *dir, char **json_p, uint64_t *step_p)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(CHECKPOINT_JSON);
    struct lks__outcome o = {0};
    char *text = NULL;
    LKS__NEED(call, json_p);
    *json_p = NULL;
    LKS__TRY(lks__checkpoint_check_dir(call, comm, dir));
    LKS__TRY(lks__comm_check_open(comm, call));
    lks_status st = LKS_OK;
    if (lks_comm_rank(comm) == 0)
        st = read_text(comm, dir, &text, &o);
    st = lks__share_outcome(comm, call, st, &o);
    if (st == LKS_OK && o.bytes > 0)
        st = lks__share_block(comm, call, "the program's own text", &text, o.bytes);
    if (st != LKS_OK) {
        free(text);
        return st;
    }
    *json_p = text;
    if (o.found && step_p != NULL)
        *step_p = o.step;
    return LKS_OK;
}
