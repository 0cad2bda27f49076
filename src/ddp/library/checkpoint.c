/* lockstep/checkpoint.h: a program's tensors in lockstep's form of a checkpoint. Rank 0 reads and
 * writes; it broadcasts what it reads, so hosts need no common file system. */
#include "lockstep/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/number/checked.h"
#include "base/number/cpu.h"
#include "base/status.h"
#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "comm/samelist.h"
#include "ddp/library/checkpoint_files.h"
#include "ddp/library/checkpoint_ranks.h"
#include "ddp/library/params_check.h"
#include "files/checkpoint/name.h"

/* lockstep's name of a safetensors type, or that type's name if lockstep has none. */
static const char *name_of(const char *dtype)
{
    const lks_dtype ours = lks__st_dtype_of(dtype);
    return lks_dtype_bytes(ours) > 0 ? lks_dtype_name(ours) : dtype;
}

/* --- the list --------------------------------------------------------------------------------- */

/* The arguments of a call; ranks compare them. */
struct call {
    const char *name;
    bool saves;
    uint64_t step;
    int keep;
    const lks_tensor *tensors;
    size_t n;
    lks_checkpoint_more more;
};

/* The error in one tensor; NULL if it is valid. */
static const char *fault_of(const lks_tensor *t)
{
    uint64_t bytes = lks_dtype_bytes(t->dtype), empty = 0;
    if (t->name == NULL || t->name[0] == '\0')
        return "it has no name";
    if (!lks__utf8_is_valid(t->name, strlen(t->name)))
        return "its name is not UTF-8";
    if (bytes == 0)
        return "there is no such data type";
    if (t->n_dims < 0 || t->n_dims > LKS_MAX_DIMS)
        return "it has fewer than 0 or more than 64 dimensions";
    for (int d = 0; d < t->n_dims; d++) {
        empty |= t->shape[d] == 0;
        if (t->shape[d] > INT64_MAX || !lks__mul(bytes, t->shape[d], &bytes) || bytes > INT64_MAX)
            return "its shape is more than memory can address";
    }
    return t->data == NULL && !empty ? "its data are NULL" : NULL;
}

static lks_status check_names(const char *call, const lks_tensor *tensors, size_t n)
{
    const char **names = malloc(n * sizeof *names);
    if (names == NULL)
        return lks__fail(LKS_ERR_NOMEM, "%s: no memory for the names of %zu tensors", call, n);
    for (size_t i = 0; i < n; i++)
        names[i] = tensors[i].name;
    lks_status st = lks__check_unique(call, names, n);
    free(names);
    return st;
}

static lks_status check_tensors(const char *call, const lks_tensor *tensors, size_t n)
{
    if (tensors == NULL || n == 0 || n > INT32_MAX)
        return lks__fail(LKS_ERR_ARG, "%s: %zu tensors%s: 1 to %d are possible", call, n,
                         tensors == NULL ? " at NULL" : "", INT32_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *name = tensors[i].name, *why = fault_of(&tensors[i]);
        if (why != NULL)
            return lks__fail(LKS_ERR_ARG, "%s: tensor %zu (%s): %s", call, i,
                             name != NULL ? lks__shown(name, 128) : "NULL", why);
    }
    return check_names(call, tensors, n);
}

/* A list may be empty if the other one isn't. */
static lks_status check_lists(const struct call *c)
{
    if (c->n > 0 || c->more.n_per_rank == 0)
        LKS__TRY(check_tensors(c->name, c->tensors, c->n));
    if (c->more.n_per_rank > 0)
        LKS__TRY(check_tensors(c->name, c->more.per_rank, c->more.n_per_rank));
    return LKS_OK;
}

/* In a save: a common tensor "rng@2" would pass for rank 2's "rng". */
static lks_status check_rank_names(const struct call *c)
{
    for (size_t i = 0; i < c->n; i++) {
        const char *name = c->tensors[i].name, *at = strrchr(name, '@');
        if (at == NULL || at[1] == '\0' || at[1 + strspn(at + 1, "0123456789")] != '\0')
            continue;
        const size_t n = (size_t)(at - name);
        for (size_t k = 0; k < c->more.n_per_rank; k++)
            if (strncmp(c->more.per_rank[k].name, name, n) == 0 &&
                c->more.per_rank[k].name[n] == '\0')
                return lks__fail(LKS_ERR_ARG,
                                 "%s: %s is the name of a rank's tensor in per_rank: rename the "
                                 "tensor of all ranks",
                                 c->name, lks__shown(name, 128));
    }
    return LKS_OK;
}

/* In a save, of rank 0's tensors, which are written: an optimizer's list must be that of its last
 * step. */
static lks_status check_moments(const struct call *c)
{
    for (size_t i = 0; i < c->n; i++) {
        const lks_tensor *t = &c->tensors[i];
        uint64_t steps = 0;
        if (t->dtype == LKS_INT64 && t->n_dims == 0)
            memcpy(&steps, t->data, sizeof steps);
        if (steps >> 40 == LKS__STALE_STEPS)
            return lks__fail(LKS_ERR_ARG,
                             "the optimizer has made a step since it listed its moments: call "
                             "lks_optimizer_state() before each save");
    }
    return LKS_OK;
}

/* In a load: tensors that share memory would get each other's values. */
static lks_status check_apart(const struct call *c)
{
    const size_t n = c->n + c->more.n_per_rank;
    size_t n_ranges = 0;
    struct lks__range *ranges = calloc(n + 1, sizeof *ranges);
    LKS__MEMORY(ranges, "to compare %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const lks_tensor *t = i < c->n ? &c->tensors[i] : &c->more.per_rank[i - c->n];
        const uint64_t bytes = lks__tensor_bytes(t);
        if (bytes > 0)
            ranges[n_ranges++] = (struct lks__range){t->data, (char *)t->data + bytes, i};
    }
    lks_status st = lks__check_apart(c->name, "tensor", "load a tied tensor under one of its names",
                                     ranges, n_ranges);
    free(ranges);
    return st;
}

/* --- the same on all ranks -------------------------------------------------------------------- */

static uint64_t hash_tensor(const void *ctx, uint64_t i)
{
    const lks_tensor *t = &((const struct call *)ctx)->tensors[i];
    uint64_t parts[3 + LKS_MAX_DIMS] = {XXH3_64bits(t->name, strlen(t->name)), t->dtype,
                                        (uint64_t)t->n_dims};
    for (int d = 0; d < t->n_dims; d++)
        parts[3 + d] = t->shape[d];
    return XXH3_64bits(parts, sizeof parts);
}

/* "w float32 [3, 4]" */
static void show(const char *name, const char *dtype, int n_dims, const uint64_t *shape, char *out,
                 size_t bytes)
{
    const char *shown = lks__shown(name, 64);
    snprintf(out, bytes, "%s %s [", shown, dtype);
    for (int d = 0; d < n_dims; d++)
        lks__append(out, bytes, d > 0 ? ", " : "", "%llu", (unsigned long long)shape[d]);
    lks__append(out, bytes, "", "]");
}

static void show_tensor(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT])
{
    const lks_tensor *t = &((const struct call *)ctx)->tensors[i];
    show(t->name, lks_dtype_name(t->dtype), t->n_dims, t->shape, out, LKS__LIST_TEXT);
}

/* Only names: each rank has its own shapes. */
static uint64_t hash_name(const void *ctx, uint64_t i)
{
    const char *name = ((const struct call *)ctx)->more.per_rank[i].name;
    return XXH3_64bits(name, strlen(name));
}

static void show_name(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT])
{
    const char *name = ((const struct call *)ctx)->more.per_rank[i].name;
    lks__escape(out, LKS__LIST_TEXT, name, strlen(name));
}

static uint64_t hash_call(const void *ctx, uint64_t i)
{
    const struct call *c = ctx;
    uint64_t parts[2] = {c->step, (uint64_t)c->keep};
    return XXH3_64bits(parts, sizeof parts);
}

static void show_call(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT])
{
    const struct call *c = ctx;
    snprintf(out, LKS__LIST_TEXT, "%s of step %llu with keep = %d", c->name,
             (unsigned long long)c->step, c->keep);
}

static lks_status compare(lks_comm *comm, const struct call *c)
{
    const lks__list calls = {c, 1, hash_call, show_call};
    const lks__list tensors = {c, c->n, hash_tensor, show_tensor};
    const lks__list names = {c, c->more.n_per_rank, hash_name, show_name};
    if (c->saves)
        LKS__TRY(lks__list_compare(comm, "ranks disagree on a checkpoint", &calls, true));
    LKS__TRY(lks__list_compare(comm, "ranks were given different tensors for a checkpoint",
                               &tensors, false));
    return lks__list_compare(comm, "ranks were given other names in per_rank", &names, false);
}

/* --- saving ----------------------------------------------------------------------------------- */

static lks_status write_files(const char *dir, const struct call *c, const lks__all_tensors *all)
{
    char name[LKS__CKPT_NAME], hash[17];
    json_t *state;
    LKS__TRY(lks__program_state(c->more.json, &state));
    lks__st_tensor *list = calloc(all->n, sizeof *list);
    if (list == NULL) {
        json_decref(state);
        return lks__no_memory("for a list of %zu tensors", all->n);
    }
    for (size_t i = 0; i < all->n; i++) {
        const lks_tensor *t = &all->list[i];
        list[i] = (lks__st_tensor){.name = t->name,
                                   .dtype = lks__st_dtype_name(t->dtype),
                                   .n_dims = t->n_dims,
                                   .data = t->data,
                                   .bytes = lks__tensor_bytes(t)};
        memcpy(list[i].shape, t->shape, sizeof t->shape);
    }
    lks__ckpt_content content = {.iter = c->step, .model = list, .n_model = all->n, .state = state};
    lks_status st = lks__sys_make_dirs(dir);
    lks__entry_name(name, LKS__ENTRY_CKPT, c->step);
    if (st != LKS_OK)
        lks__fail_in(st, "checkpoint %s is not saved", name);
    else
        st = lks__ckpt_save(dir, &content, c->keep, name, hash);
    json_decref(state);
    free(list);
    return st;
}

static bool is_file_in(const char *dir, const char *name)
{
    struct stat info;
    char path[LKS__CKPT_PATH];
    return lks__ckpt_join(path, dir, name) == LKS_OK && stat(path, &info) == 0 &&
           S_ISREG(info.st_mode);
}

/* Refuse `dir` if it is a checkpoint itself: a save would nest there. A link such as OUT/latest is
 * followed. */
static lks_status check_folder(const char *dir)
{
    char shown[512], around[512], *real = realpath(dir, NULL), *slash;
    lks_status st = LKS_OK;
    if (real == NULL) /* missing, or unusable, which the save will report */
        return LKS_OK;
    if (is_file_in(real, LKS__CKPT_STATE) && is_file_in(real, LKS__CKPT_MODEL) &&
        (slash = strrchr(real, '/')) != NULL) {
        lks__escape(shown, sizeof shown, dir, strlen(dir));
        slash[slash == real] = '\0';
        lks__escape(around, sizeof around, real, strlen(real));
        st = lks__fail(LKS_ERR_ARG, "%s is a checkpoint itself: save into the folder around it, %s",
                       shown, around);
    }
    free(real);
    return st;
}

/* On every rank: the tensors of all ranks are on rank 0. */
static lks_status collect(lks_comm *comm, const struct call *c, lks__all_tensors *all)
{
    struct lks__outcome o = {0};
    lks_status st = lks__all_tensors_open(comm, c->name, c->tensors, c->n, &c->more, all);
    if (c->more.n_per_rank == 0)
        return st;
    LKS__TRY(lks__share_outcome(comm, c->name, st, &o));
    return lks__all_tensors_move(comm, all, true);
}

static lks_status write_on_first(lks_comm *comm, const char *dir, const struct call *c,
                                 const lks__all_tensors *all)
{
    struct lks__outcome o = {0};
    lks_status st = LKS_OK;
    if (lks_comm_rank(comm) == 0) {
        sigset_t before;
        lks__begin_files(comm, true, &before);
        st = check_folder(dir);
        LKS__THEN(st, check_moments(c));
        LKS__THEN(st, write_files(dir, c, all));
        lks__end_files(comm, &before);
    }
    return lks__share_outcome(comm, c->name, st, &o);
}

static lks_status save(lks_comm *comm, const char *dir, const struct call *c)
{
    LKS__FLOAT_MODE();
    LKS__TRY(lks__checkpoint_check_dir(c->name, comm, dir));
    if (c->step > INT64_MAX || c->keep < 0)
        return lks__fail(LKS_ERR_ARG,
                         "%s: step %llu, keep %d: a step is below 2^63, and keep is at "
                         "least 0",
                         c->name, (unsigned long long)c->step, c->keep);
    LKS__TRY(lks__comm_check_open(comm, c->name));
    LKS__TRY(lks__comm_fail_alone(comm, check_lists(c)));
    LKS__TRY(check_rank_names(c));
    LKS__TRY(compare(comm, c));
    lks__all_tensors all = {0};
    lks_status st = collect(comm, c, &all);
    LKS__THEN(st, write_on_first(comm, dir, c, &all));
    lks__all_tensors_close(&all);
    return st;
}

lks_status lks_checkpoint_save(lks_comm *comm, const char *dir, uint64_t step,
                               const lks_tensor *tensors, size_t n, int keep)
{
    LKS__CALLED_BY(CHECKPOINT_SAVE);
    return save(comm, dir,
                &(struct call){"lks_checkpoint_save", true, step, keep, tensors, n, {0}});
}

lks_status lks_checkpoint_save_more(lks_comm *comm, const char *dir, uint64_t step,
                                    const lks_tensor *tensors, size_t n,
                                    const lks_checkpoint_more *more, int keep)
{
    LKS__CALLED_BY(CHECKPOINT_SAVE_MORE);
    struct call c = {"lks_checkpoint_save_more", true, step, keep, tensors, n, {0}};
    if (more != NULL)
        c.more = *more;
    return save(comm, dir, &c);
}

/* --- loading ---------------------------------------------------------------------------------- */

static const lks__st_tensor *find(const lks__ckpt *ckpt, const char *name, lks__st_file **file_p)
{
    const lks__st_tensor *t = lks__st_find(*file_p = ckpt->model, name);
    return t != NULL ? t : lks__st_find(*file_p = ckpt->optimizer, name);
}

static lks_status check_tensor(const lks__ckpt *ckpt, const lks_tensor *t)
{
    char want[LKS__LIST_TEXT], has[LKS__LIST_TEXT];
    lks__st_file *file;
    const lks__st_tensor *stored = find(ckpt, t->name, &file);
    show(t->name, lks_dtype_name(t->dtype), t->n_dims, t->shape, want, sizeof want);
    const char *shown = lks__shown(ckpt->path, 512);
    if (stored == NULL)
        return lks__fail(LKS_ERR_CONFIG, "%s has no tensor %s", shown, want);
    if (lks__st_has_form(stored, lks__st_dtype_name(t->dtype), t->n_dims, t->shape))
        return LKS_OK;
    show(t->name, name_of(stored->dtype), stored->n_dims, stored->shape, has, sizeof has);
    return lks__fail(LKS_ERR_CONFIG, "the program asks for %s, and %s has %s", want, shown, has);
}

static lks_status read_tensors(lks__ckpt *ckpt, const lks__all_tensors *all)
{
    for (size_t i = 0; i < all->n; i++)
        LKS__TRY(check_tensor(ckpt, &all->list[i]));
    for (size_t i = 0; i < all->n; i++) {
        lks__st_file *file;
        const lks__st_tensor *stored = find(ckpt, all->list[i].name, &file);
        LKS__TRY(lks__st_read(file, stored, all->list[i].data));
    }
    return LKS_OK;
}

static lks_status read_files(const char *dir, const struct call *c, const lks__all_tensors *all,
                             int W, bool needed, struct lks__outcome *o)
{
    lks__ckpt ckpt = {0};
    LKS__TRY(lks__find_checkpoint(dir, needed, &ckpt, o));
    if (!o->found)
        return LKS_OK;
    lks_status st = lks__check_rank_count(&ckpt, &c->more, W);
    LKS__THEN(st, read_tensors(&ckpt, all));
    lks__ckpt_close(&ckpt);
    return st;
}

/* Rank 0 reads, and all ranks get the common tensors and their own. */
static lks_status read_on_first(lks_comm *comm, const char *dir, const struct call *c,
                                const lks__all_tensors *all, lks_status st, bool needed,
                                struct lks__outcome *o)
{
    if (st == LKS_OK && lks_comm_rank(comm) == 0) {
        sigset_t before;
        lks__begin_files(comm, false, &before);
        st = read_files(dir, c, all, lks_comm_world_size(comm), needed, o);
        lks__end_files(comm, &before);
    }
    LKS__TRY(lks__share_outcome(comm, c->name, st, o));
    if (!o->found)
        return LKS_OK;
    for (size_t i = 0; i < c->n; i++) {
        const lks_tensor *t = &c->tensors[i];
        const uint64_t n = lks__tensor_bytes(t) / lks_dtype_bytes(t->dtype);
        LKS__TRY(lks_comm_broadcast(comm, t->data, n, t->dtype, 0));
    }
    return lks__all_tensors_move(comm, all, false);
}

static lks_status load(lks_comm *comm, const char *dir, const struct call *c, uint64_t *step_p,
                       bool *found_p)
{
    LKS__FLOAT_MODE();
    struct lks__outcome o = {0};
    int32_t needed = found_p == NULL;
    LKS__TRY(lks__checkpoint_check_dir(c->name, comm, dir));
    LKS__TRY(lks__comm_check_open(comm, c->name));
    LKS__TRY(lks__comm_fail_alone(comm, check_lists(c)));
    LKS__TRY(lks__comm_fail_alone(comm, check_apart(c)));
    LKS__TRY(compare(comm, c));
    LKS__TRY(lks_comm_all_reduce(comm, &needed, 1, LKS_INT32, LKS_MAX));
    lks__all_tensors all = {0};
    lks_status st = lks__all_tensors_open(comm, c->name, c->tensors, c->n, &c->more, &all);
    st = read_on_first(comm, dir, c, &all, st, needed != 0, &o);
    lks__all_tensors_close(&all);
    LKS__TRY(st);
    if (found_p != NULL)
        *found_p = o.found != 0;
    if (o.found && step_p != NULL)
        *step_p = o.step;
    return LKS_OK;
}

lks_status lks_checkpoint_load(lks_comm *comm, const char *dir, const lks_tensor *tensors, size_t n,
                               uint64_t *step_p, bool *found_p)
{
    LKS__CALLED_BY(CHECKPOINT_LOAD);
    return load(comm, dir, &(struct call){"lks_checkpoint_load", false, 0, 0, tensors, n, {0}},
                step_p, found_p);
}

lks_status lks_checkpoint_load_more(lks_comm *comm, const char *dir, const lks_tensor *tensors,
                                    size_t n, const lks_checkpoint_more *more, uint64_t *step_p,
                                    bool *found_p)
{
    LKS__CALLED_BY(CHECKPOINT_LOAD_MORE);
    struct call c = {"lks_checkpoint_load_more", false, 0, 0, tensors, n, {0}};
    if (more != NULL)
        c.more = *more;
    return load(comm, dir, &c, step_p, found_p);
}
