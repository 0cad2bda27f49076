#include "train/setup/dryrun.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/number/units.h"
#include "base/system/memory.h"
#include "data/read/sampler.h"
#include "data/text/meta.h"
#include "model/table/freeze.h"
#include "plan/bytes/advice.h"
#include "plan/bytes/process.h"
#include "plan/gradients.h"
#include "session/session.h"
#include "train/checkpoint.h"
#include "train/procedure/procedure.h"
#include "train/setup/fit.h"

static lks_status read_data(const lks__settings *s, const char *dir, uint32_t vocab,
                            uint64_t n_tokens[2])
{
    const uint64_t least = (uint64_t)s->block_size + 1;
    for (int split = 0; split < 2; split++) {
        lks__shards *data;
        LKS__TRY(lks__procedure_open_split(s, dir, split, vocab, &data));
        n_tokens[split] = data != NULL ? lks__shards_count(data) : 0;
        lks__shards_close(data);
        if (data != NULL && n_tokens[split] < least)
            return lks__fail(LKS_ERR_CONFIG,
                             "%s: the tokens for %s are %" PRIu64
                             ": too few for one window of block_size + 1 = %" PRIu64,
                             lks__shown(dir, LKS__SETTING_STR),
                             split == LKS__SPLIT_TRAIN ? "training" : "validation", n_tokens[split],
                             least);
    }
    return LKS_OK;
}

/* n_tokens: for training; 0: not known. */
static lks_status find(const lks__settings *s, uint32_t vocab, int W, uint64_t n_tokens,
                       lks__needs *needs)
{
    const lks__place here = {1, W};
    lks__process process;
    LKS__TRY(lks__process_measure(s, &here, &process));
    if (s->sampler == LKS__sampler_epoch)
        process.own += (double)lks__batch_sampler_order_bytes(n_tokens, (int)s->block_size);
    return lks__needs_find(s, vocab, &here, &process, needs);
}

lks_status lks__plan_bytes(const lks__settings *s, int W, double *bytes_p)
{
    lks__needs needs;
    const uint32_t vocab =
        s->vocab_size != 0 ? (uint32_t)s->vocab_size : lks__procedure_of(s)->vocab_size;
    LKS__TRY(find(s, vocab, W, 0, &needs));
    *bytes_p = needs.host_bytes;
    return LKS_OK;
}

/* Measuring the process takes a moment, so do it only in doubt. */
static lks_status check_room(const lks__settings *s, uint32_t vocab, int W)
{
    const lks__place here = {1, W};
    const double room = (double)lks__memory_available();
    lks__device device;
    lks__process process = {0};
    lks__needs needs;
    LKS__TRY(lks__session_describe(s->device, &device));
    LKS__TRY(lks__needs_on(&device, s, vocab, &here, &process, &needs));
    if (needs.host_bytes < 0.5 * room)
        return LKS_OK;
    LKS__TRY(lks__process_measure(s, &here, &process));
    return lks__advice_check(&(lks__room){&device, room, 0}, s, vocab, &here, &process);
}

lks_status lks__plan_fits(const lks__settings *s, int W)
{
    char dir[LKS__SETTING_STR + 8];
    lks__meta meta = {0};
    bool found;
    if (s->skip_fit_check || s->auto_batch != 0 || lks__settings_data_dir(s, dir) != LKS_OK ||
        lks__procedure_meta(s, dir, false, &found, &meta) != LKS_OK)
        return LKS_OK;
    const uint32_t vocab = meta.vocab_size;
    lks__meta_free(&meta);
    return check_room(s, vocab, W);
}

static lks_status print_frozen(const lks__settings *s, uint32_t vocab)
{
    const lks__model_config config = lks__state_model_config(s, vocab);
    lks__table table;
    char text[LKS__FROZEN_TEXT];
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__table_freeze(&table, s->freeze);
    if (st == LKS_OK && table.trained_params < table.n_params)
        printf("trained:           %zu parameters\n", table.trained_params);
    for (size_t next = 0; st == LKS_OK && lks__frozen_next(&table, &next, text);)
        printf("frozen:            %s\n", text);
    lks__table_free(&table);
    return st;
}

lks_status lks__plan_choose_batch(lks__settings *s, uint32_t vocab, int W, double host_bytes)
{
    const lks__place here = {1, W};
    lks__process process;
    lks__device device;
    uint64_t limit = 0;
    int64_t batch;
    LKS__TRY(lks__session_describe(s->device, &device));
    LKS__TRY(lks__process_measure(s, &here, &process));
    LKS__TRY(lks__settings_memory(s, &limit));
    lks__fit fit = {
        .W = W,
        .local = W,
        .vocab_size = vocab,
        .process = process.own + process.libraries / W,
    };
    fit.n_rooms = lks__rooms_find(&device, host_bytes, limit, fit.rooms);
    if (fit.n_rooms == 2 && limit == 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "batch_size=auto: --device=%s isn't used for planning, so give the size "
                         "of its memory, for example --memory=16G",
                         s->device);
    LKS__TRY(lks__fit_choose(s, &fit, &batch));
    LKS__TRY(lks__fit_set_batch(s, W, batch));
    if (!s->json)
        printf("batch_size=auto:   %" PRId64 ", for at most %s%s\n", batch,
               lks__units_memory(fit.rooms[fit.n_rooms - 1].bytes),
               fit.n_rooms == 2 ? " of each device" : "");
    return LKS_OK;
}

lks_status lks__plan_dry_run(const lks__settings *given, int W)
{
    lks__settings chosen = *given;
    const lks__settings *s = &chosen;
    char dir[LKS__SETTING_STR + 8];
    uint64_t n_tokens[2];
    lks__meta meta = {0};
    bool found;
    lks__needs needs;
    LKS__TRY(lks__settings_data_dir(s, dir));
    const bool from_weights = lks__settings_init(s) == LKS__INIT_WEIGHTS;
    LKS__TRY(lks__procedure_meta(s, dir, from_weights, &found, &meta));
    const uint32_t vocab = from_weights ? (uint32_t)s->vocab_size : meta.vocab_size;
    lks__meta_free(&meta);
    LKS__TRY(read_data(s, dir, vocab, n_tokens));
    if (s->auto_batch != 0)
        LKS__TRY(lks__plan_choose_batch(&chosen, vocab, W, (double)lks__memory_available()));
    LKS__TRY(find(s, vocab, W, n_tokens[0], &needs));
    const int64_t N = s->gradient_accumulation_steps;
    const int V = lks__chosen_ddp(s).V;
    printf("data:              %s: %" PRIu64 " tokens for training, %" PRIu64 " for validation\n",
           lks__shown(dir, LKS__SETTING_STR), n_tokens[0], n_tokens[1]);
    printf("parameters:        %zu in %zu tensors, vocabulary %" PRIu32 "\n", needs.n_params,
           needs.n_tensors, vocab);
    LKS__TRY(print_frozen(s, vocab));
    printf("step:              %" PRId64 " micro-batch%s of %" PRId64 " x %" PRId64
           " tokens on %d virtual rank%s\n",
           N, N == 1 ? "" : "es", s->batch_size, s->block_size, V, V == 1 ? "" : "s");
    lks__needs_print(&needs);
    return LKS_OK;
}
