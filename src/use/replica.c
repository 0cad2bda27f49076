#include "use/replica.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "artifact/artifact.h"
#include "ckpt/folder.h"
#include "lockstep/reduce.h"
#include "train/agree.h"
#include "train/state.h"
#include "weights/which.h"

/* r->run and r->meta hold `settings` and `tokenizer`: make table, model and the parameters'
 * arena. */
static lks_status open_model(const lks__settings *s, int batch, lks__session *session,
                             lks__replica *r)
{
    if (s->from[LKS__SETTING_dtype] >= LKS__FROM_FILE)
        r->run.dtype = s->dtype;
    r->config = lks__state_model_config(&r->run, (uint32_t)r->run.vocab_size);
    LKS__TRY(lks__model_table(&r->config, &r->table));
    if (batch > 0)
        LKS__TRY(lks__model_open(&r->config, &r->table, batch, session->device, &r->model));
    void *host;
    const size_t bytes = r->table.count * sizeof(float);
    LKS__TRY(lks_comm_alloc(session->comm, LKS_MEM_OWN, bytes, &host));
    return lks__mirror_wrap(session->device, host, bytes, &r->params);
}

/* OUT of OUT/ckpt-…; "" for a checkpoint folder with another name. */
static void find_run(const lks__ckpt *c, char run_dir[4096])
{
    lks__entry e = lks__entry_parse(c->name);
    const char *slash = strrchr(c->path, '/');
    if (e.kind != LKS__ENTRY_CKPT && e.kind != LKS__ENTRY_OLD)
        run_dir[0] = '\0';
    else if (slash == NULL)
        strcpy(run_dir, ".");
    else
        snprintf(run_dir, 4096, "%.*s", slash == c->path ? 1 : (int)(slash - c->path), c->path);
}

static lks_status load(lks__ckpt *c, const lks__settings *s, int batch, lks__session *session,
                       lks__replica *r)
{
    snprintf(r->path, sizeof r->path, "%s", c->path);
    const char *hash = json_string_value(json_object_get(c->state, "params_hash"));
    snprintf(r->params_hash, sizeof r->params_hash, "%s", hash == NULL ? "" : hash);
    find_run(c, r->run_dir);
    r->iter = c->iter;
    lks__settings_defaults(&r->run);
    LKS__TRY(lks__state_settings(c, &r->run));
    LKS__TRY(lks__state_meta(c, &r->meta));
    lks__model_config config = lks__state_model_config(&r->run, (uint32_t)r->run.vocab_size);
    lks__table table; /* what the file must contain, known before memory is allocated for it */
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__state_check_params(c->model, c->path, &table);
    lks__table_free(&table);
    LKS__TRY(st);
    LKS__TRY(open_model(s, batch, session, r));
    return lks__state_read_params(c->model, c->path, &r->table, r->params.host);
}

static lks_status load_artifact(lks__artifact *a, const lks__settings *s, int batch,
                                lks__session *session, lks__replica *r)
{
    lks__settings_defaults(&r->run);
    LKS__TRY(lks__settings_from_json(a->settings, LKS__CMD_TRAIN, LKS__SETTING_CONFIG, r->path,
                                     &r->run));
    if (a->tokenizer != NULL)
        LKS__TRY(lks__meta_from_json(a->tokenizer, r->path, &r->meta));
    r->iter = a->iter;
    r->config = lks__state_model_config(&r->run, (uint32_t)r->run.vocab_size);
    lks__table table; /* what the file must be able to fill, before memory is taken for it */
    LKS__TRY(lks__model_table(&r->config, &table));
    lks_status st = lks__artifact_check(a, &table);
    lks__table_free(&table);
    if (st == LKS_OK)
        st = open_model(s, batch, session, r);
    return st == LKS_OK ? lks__artifact_read(a, &r->table, r->params.host) : st;
}

/* Hosts may have different files under the same path. */
static lks_status same_weights(lks__session *session, const lks__replica *r)
{
    if (session->world.world_size == 1)
        return LKS_OK;
    char shown[512], what[600];
    snprintf(what, sizeof what, "the hash of the weights in %s",
             lks__escape(shown, sizeof shown, r->path, strlen(r->path)));
    return lks__session_same(session, what, XXH3_64bits(r->params.host, r->params.bytes));
}

/* The weights are the same on all ranks: they go to the device, which computes in their dtype. */
static lks_status make_ready(lks__session *session, const lks__replica *r)
{
    lks__mirror_to_device(&r->params, LKS__QUEUE_COMPUTE, 0, r->params.bytes);
    if (r->config.bf16 == session->ex.bf16)
        return LKS_OK;
    return lks__session_products(session, r->config.bf16);
}

lks_status lks__replica_open_artifact(const char *path, const lks__settings *s, int batch,
                                      lks__session *session, lks__replica *r)
{
    lks__artifact artifact;
    memset(r, 0, sizeof *r);
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->took, sizeof r->took, "artifact");
    LKS__TRY(lks__session_agree(session, lks__artifact_open(path, &artifact)));
    lks_status st = load_artifact(&artifact, s, batch, session, r);
    lks__artifact_close(&artifact);
    st = lks__session_agree(session, st);
    if (st == LKS_OK)
        st = same_weights(session, r);
    if (st == LKS_OK)
        st = make_ready(session, r);
    if (st != LKS_OK)
        lks__replica_close(r);
    return st;
}

lks_status lks__replica_open(const char *out_dir, const lks__settings *s, int batch,
                             lks__session *session, lks__replica *r)
{
    lks__ckpt ckpt;
    memset(r, 0, sizeof *r);
    memset(&ckpt, 0, sizeof ckpt);
    lks_status st = lks__which_open(out_dir, s->which, &ckpt, r->took);
    st = lks__agree_checkpoint(session, st, st == LKS_OK ? &ckpt : NULL, out_dir);
    if (st == LKS_OK)
        st = load(&ckpt, s, batch, session, r);
    lks__ckpt_close(&ckpt);
    st = lks__session_agree(session, st);
    if (st == LKS_OK)
        st = make_ready(session, r);
    if (st != LKS_OK)
        lks__replica_close(r);
    return st;
}

void lks__replica_close(lks__replica *r)
{
    lks__model_close(r->model);
    lks__mirror_close(&r->params);
    lks__table_free(&r->table);
    lks__meta_free(&r->meta);
    memset(r, 0, sizeof *r);
}
