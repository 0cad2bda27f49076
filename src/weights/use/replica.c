#include "weights/use/replica.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/units.h"
#include "base/text/jsontext.h"
#include "lockstep/reduce.h"
#include "weights/artifact/artifact.h"
#include "weights/choice/given.h"
#include "weights/choice/same_checkpoint.h"
#include "weights/forms/saved.h"

/* Make table, model and the parameters' arena from r->run and r->meta, which contain `settings` and
 * `tokenizer`. */
static lks_status open_model(const lks__settings *s, lks__session *session, lks__replica *r)
{
    if (s->from[LKS__SETTING_dtype] >= LKS__FROM_FILE && s->dtype != LKS__dtype_auto)
        r->run.dtype = s->dtype;
    lks__state_choose_dtype(&r->run, session->device);
    const bool gelu = s->from[LKS__SETTING_gelu] == LKS__FROM_ARG && s->gelu != LKS__gelu_auto;
    const bool trained = !lks__settings_uses_weights(s) && s->artifact[0] == '\0';
    if (gelu && trained && r->run.gelu != LKS__gelu_auto && r->run.gelu != s->gelu)
        return lks__fail(
            LKS_ERR_CONFIG, "gelu=%s was given, but the run has gelu=%s: leave the setting out",
            lks__setting_word(s, LKS__SETTING_gelu), lks__setting_word(&r->run, LKS__SETTING_gelu));
    if (gelu)
        r->run.gelu = s->gelu;
    r->config = lks__state_model_config(&r->run, (uint32_t)r->run.vocab_size);
    LKS__TRY(lks__model_table(&r->config, &r->table));
    void *host;
    const size_t bytes = r->table.count * sizeof(float);
    LKS__TRY(lks_comm_alloc(session->comm, LKS_MEM_OWN, bytes, &host));
    return lks__mirror_wrap(session->device, host, bytes, &r->params);
}

static lks_status load(lks__weights *w, const lks__settings *s, lks__session *session,
                       lks__replica *r)
{
    snprintf(r->path, sizeof r->path, "%s", w->path);
    snprintf(r->origin, sizeof r->origin, "%s", w->origin);
    snprintf(r->params_hash, sizeof r->params_hash, "%s", w->params_hash);
    snprintf(r->run_dir, sizeof r->run_dir, "%s", w->run_dir);
    snprintf(r->vocabulary, sizeof r->vocabulary, "%s", w->vocabulary);
    const lks__ckpt *ckpt = lks__weights_checkpoint(w);
    uint64_t digest;
    if (ckpt != NULL && lks__json_hash(ckpt->state, "data_digest", &digest))
        lks__hex_to(r->data_digest, digest);
    r->iter = w->iter;
    r->run = w->model;
    r->meta = w->meta;
    w->meta = (lks__meta){0}; /* the replica owns it now */
    if (r->meta.vocab_size == 0)
        r->meta.vocab_size = (uint32_t)r->run.vocab_size;
    LKS__TRY(open_model(s, session, r));
    return lks__weights_read(w, &r->config, &r->table, 0, r->params.host);
}

static lks_status load_artifact(lks__artifact *a, const lks__settings *s, lks__session *session,
                                lks__replica *r)
{
    const char *shown = lks__shown(r->path, 512);
    if (a->settings == NULL)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s was written by train_gpt.py, not by lockstep: it has no settings; use "
                         "its weights with --init_from",
                         shown);
    lks__settings_defaults(&r->run);
    LKS__TRY(lks__settings_from_json(a->settings, shown, &r->run));
    LKS__TRY(lks__given_heads(s, &r->run));
    LKS__TRY(lks__given_golf(s, &r->run));
    if (a->tokenizer != NULL)
        LKS__TRY(lks__meta_from_json(a->tokenizer, shown, &r->meta));
    r->iter = a->iter;
    r->config = lks__state_model_config(&r->run, (uint32_t)r->run.vocab_size);
    lks__table table; /* check the file against it before allocating memory */
    LKS__TRY(lks__model_table(&r->config, &table));
    lks_status st = lks__artifact_check(a, &table);
    lks__table_free(&table);
    LKS__THEN(st, open_model(s, session, r));
    return st == LKS_OK ? lks__artifact_read(a, &r->table, r->params.host) : st;
}

/* Hosts may have different files under the same path. */
static lks_status same_weights(lks__session *session, const lks__replica *r)
{
    if (session->world.world_size == 1)
        return LKS_OK;
    char what[600];
    snprintf(what, sizeof what, "the hash of the weights in %s", lks__shown(r->path, 512));
    return lks__session_same(session, what, XXH3_64bits(r->params.host, r->params.bytes));
}

/* After loading (`st`): copy the weights to the device, which computes in their dtype. `compare`:
 * first check that they are equal on all ranks. Closes the replica on failure. */
static lks_status make_ready(lks__session *session, lks_status st, bool compare, lks__replica *r)
{
    if (st == LKS_OK && compare)
        st = same_weights(session, r);
    if (st == LKS_OK) {
        lks__mirror_to_device(&r->params, LKS__QUEUE_COMPUTE, 0, r->params.bytes);
        if (r->config.bf16 != session->ex.bf16)
            st = lks__session_products(session, r->config.bf16);
    }
    if (st != LKS_OK)
        lks__replica_close(r);
    return st;
}

lks_status lks__replica_open_artifact(const char *path, const lks__settings *s,
                                      lks__session *session, lks__replica *r)
{
    lks__artifact artifact = {0};
    memset(r, 0, sizeof *r);
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->origin, sizeof r->origin, "artifact");
    LKS__TRY(lks__given_alone(s, LKS__SETTING_artifact));
    lks_status st = lks__session_agree(session, lks__artifact_open(path, &artifact));
    LKS__THEN(st, lks__session_agree(session, load_artifact(&artifact, s, session, r)));
    lks__artifact_close(&artifact);
    return make_ready(session, st, true, r);
}

/* Open the weights that `s` names, on this rank. If they are in out_dir's run, all ranks open one
 * checkpoint. */
static lks_status open_weights(const char *out_dir, const lks__settings *s, lks__session *session,
                               lks__weights **w_p)
{
    lks_status st = lks__given_weights(out_dir, s, w_p);
    if (lks__settings_uses_weights(s))
        return lks__session_agree(session, st);
    return lks__same_checkpoint(session, st, st == LKS_OK ? lks__weights_checkpoint(*w_p) : NULL,
                                out_dir);
}

lks_status lks__replica_open(const char *out_dir, const lks__settings *s, lks__session *session,
                             lks__replica *r)
{
    lks__weights *w = NULL;
    memset(r, 0, sizeof *r);
    lks_status st = open_weights(out_dir, s, session, &w);
    LKS__THEN(st, lks__session_agree(session, load(w, s, session, r)));
    lks__weights_close(w);
    return make_ready(session, st, lks__settings_uses_weights(s), r);
}

void lks__replica_close(lks__replica *r)
{
    lks__model_close(r->model);
    lks__mirror_close(&r->params);
    lks__table_free(&r->table);
    lks__meta_free(&r->meta);
    memset(r, 0, sizeof *r);
}
