#include "train/replica.h"

#include <stdio.h>
#include <string.h>

#include "train/state.h"

static lks_status load(lks__ckpt *c, int batch, lks__session *session, lks__replica *r)
{
    snprintf(r->path, sizeof r->path, "%s", c->path);
    snprintf(r->name, sizeof r->name, "%s", c->name);
    r->iter = c->iter;
    lks__settings_defaults(&r->run);
    LKS__TRY(lks__state_settings(c, &r->run));
    LKS__TRY(lks__state_meta(c, &r->meta));
    r->config = lks__state_model_config(&r->run, (uint32_t)r->run.vocab_size);
    LKS__TRY(lks__model_table(&r->config, &r->table));
    LKS__TRY(lks__model_open(&r->config, &r->table, batch, &session->ex, &r->model));
    LKS__TRY(lks_comm_alloc(session->comm, LKS_MEM_OWN, r->table.count * sizeof(float),
                            (void **)&r->params));
    return lks__state_read_arena(c->model, c->path, &r->table, LKS__ARENA_PARAMS, r->params);
}

lks_status lks__replica_open(const char *out_dir, int batch, lks__session *session, lks__replica *r)
{
    lks__ckpt ckpt;
    memset(r, 0, sizeof *r);
    LKS__TRY(lks__ckpt_open(out_dir, 0, &ckpt));
    lks_status st = load(&ckpt, batch, session, r);
    lks__ckpt_close(&ckpt);
    if (st != LKS_OK)
        lks__replica_close(r);
    return st;
}

void lks__replica_close(lks__replica *r)
{
    lks__model_close(r->model);
    lks__table_free(&r->table);
    lks__meta_free(&r->meta);
    memset(r, 0, sizeof *r);
}
