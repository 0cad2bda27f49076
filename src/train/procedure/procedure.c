#include "train/procedure/procedure.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/system/sys.h"
#include "data/read/hashes.h"
#include "data/read/sampler.h"
#include "settings/family.h"
#include "weights/choice/given.h"

const struct lks__procedure *lks__procedure_of(const lks__settings *s)
{
    return lks__family_of(s)->procedure;
}

/* See lks__procedure_meta(). */
static lks_status check_vocabulary(const lks__settings *s, int64_t data, bool from_weights,
                                   const char *dir)
{
    const int64_t model = s->vocab_size;
    const char *shown = lks__shown(dir, LKS__SETTING_STR);
    if (from_weights && data > model)
        return lks__fail(LKS_ERR_CONFIG,
                         "the meta.json or meta.pkl in %s has vocab_size = %" PRId64
                         ", but the weights are for %" PRId64 " tokens: --vocab_size=%" PRId64
                         " adds rows that are drawn",
                         shown, data, model, data);
    if (!from_weights && model != 0 && model != data &&
        s->from[LKS__SETTING_vocab_size] == LKS__FROM_CHECKPOINT)
        return lks__fail(LKS_ERR_CONFIG,
                         "the data in %s is not the data that the run was trained on (vocab_size = "
                         "%" PRId64 ", not %" PRId64 "): give the same --dataset, or start a new "
                         "run",
                         shown, data, model);
    if (!from_weights && model != 0 && model != data)
        return lks__fail(LKS_ERR_CONFIG,
                         "vocab_size = %" PRId64
                         ", but the meta.json or meta.pkl in %s has %" PRId64
                         ": give --vocab_size=0, which uses the data's, or other data",
                         model, shown, data);
    return LKS_OK;
}

lks_status lks__procedure_meta(const lks__settings *s, const char *dir, bool from_weights,
                               bool *found_p, lks__meta *meta)
{
    LKS__TRY(lks__meta_load(dir, found_p, meta));
    lks_status st = LKS_OK;
    if (*found_p)
        st = check_vocabulary(s, meta->vocab_size, from_weights, dir);
    else
        meta->vocab_size =
            s->vocab_size != 0 ? (uint32_t)s->vocab_size : lks__procedure_of(s)->vocab_size;
    if (st != LKS_OK)
        lks__meta_free(meta);
    return st;
}

lks_status lks__procedure_open_split(const lks__settings *s, const char *dir, int split,
                                     uint32_t vocab_size, lks__shards **shards_p)
{
    const bool is_shards = lks__procedure_of(s)->data->is_shards;
    *shards_p = NULL;
    if (split != LKS__SPLIT_VAL || is_shards || lks__split_exists(dir, split))
        return lks__split_open(dir, split, is_shards, vocab_size, shards_p);
    if (s->eval_interval == 0 && !s->eval_only)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "there is no token file %s/%s to evaluate on: `lockstep prep` makes one "
                     "(--val_fraction=0.1), and --eval_interval=off trains without evaluations",
                     lks__shown(dir, 256), LKS__VAL_FILE);
}

lks_status lks__procedure_digest(lks__shards *const data[2], uint64_t *digest_p)
{
    uint64_t digest[2] = {0};
    for (int split = 0; split < 2; split++)
        if (data[split] != NULL)
            LKS__TRY(lks__shards_digest(data[split], &digest[split]));
    *digest_p = XXH3_64bits(digest, sizeof digest);
    return LKS_OK;
}

lks_status lks__procedure_open_data(lks__run *run, uint32_t vocab_size)
{
    for (int split = 0; split < 2; split++)
        LKS__TRY(lks__procedure_open_split(&run->s, run->data_dir, split, vocab_size,
                                           &run->data[split]));
    LKS__TRY(lks__procedure_digest(run->data, &run->data_digest));
    return lks__hashes_recorded(run->data_dir, run->data, run->data_hash);
}

void lks__procedure_close_data(const lks__run *run)
{
    lks__shards_close(run->data[LKS__SPLIT_TRAIN]);
    lks__shards_close(run->data[LKS__SPLIT_VAL]);
}

/* Data and weights must use the same tokenizer. */
static lks_status check_tokenizer(const lks__run *run)
{
    lks__meta theirs;
    LKS__TRY(lks__weights_meta(run->weights, &theirs));
    lks_status st =
        lks__given_same_meaning(&run->meta, run->data_dir, &theirs, run->weights->shown);
    lks__meta_free(&theirs);
    return st;
}

bool lks__procedure_has_run(const lks__settings *s)
{
    return lks__sys_has(s->out_dir, "metrics.jsonl");
}

lks_status lks__procedure_find_data(lks__run *run)
{
    const lks__settings *s = &run->s;
    const lks_status st = lks__settings_data_dir(s, run->data_dir);
    if (st != LKS_OK && s->from[LKS__SETTING_dataset] == LKS__FROM_ENV && s->family == 0)
        return lks__fail(st, "%s. For parameter-golf's model: " LKS__GOLF_WAYS, lks_last_error());
    if (st == LKS_OK || s->from[LKS__SETTING_dataset] != LKS__FROM_DEFAULT ||
        lks__settings_init(s) != LKS__INIT_SCRATCH)
        return st;
    if (lks__procedure_has_run(s)) /* a user who gives no data may want to continue it */
        return lks__fail(st, "%s. There is a run in %s: --init_from=resume continues it",
                         lks_last_error(), lks__shown(s->out_dir, LKS__SETTING_STR));
    if (s->family != 0) /* golf's data can't be a text */
        return st;
    return lks__fail(st,
                     "no text was given: `lockstep train my.txt` prepares a text and trains on it. "
                     "For tokens that `lockstep prep` has made, give --dataset=DIR and perhaps a "
                     "recipe: `lockstep train quickstart --dataset=data/my` (the default, "
                     "data/%s, doesn't exist)",
                     s->dataset);
}

lks_status lks__procedure_open_meta(lks__run *run)
{
    const bool from_weights = run->weights != NULL || run->init_hash[0] != '\0';
    bool found;
    LKS__TRY(lks__procedure_meta(&run->s, run->data_dir, from_weights, &found, &run->meta));
    run->meta_file = found ? lks__meta_file(run->data_dir) : NULL;
    snprintf(run->vocabulary, sizeof run->vocabulary, "%s", run->data_dir);
    if (!from_weights)
        run->s.vocab_size = run->meta.vocab_size;
    if (run->weights == NULL)
        return LKS_OK;
    if (found)
        return check_tokenizer(run);
    lks__meta_free(&run->meta);
    snprintf(run->vocabulary, sizeof run->vocabulary, "%s", run->weights->vocabulary);
    return lks__weights_meta(run->weights, &run->meta);
}
