/* Checkpoints of a program's tensors: what some ranks save, others load, byte for byte; files are
 * readable for other programs; and every failure reaches all ranks. */
#include "support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/ranks.h"
#include "comm/shm/host.h"
#include "comm/shm/segment/segment_layout.h"
#include "comm/shm/segment/status.h"
#include "lockstep/lockstep.h"

enum { MAX_RANKS = 4, N_TENSORS = 9, BYTES = 4096 };

/* --- a model ------------------------------------------------------------------------------ */

/* One tensor of each type; scalars, no elements, four dimensions. */
static const lks_tensor shapes[N_TENSORS] = {{"weight", LKS_FLOAT32, 2, {30, 20}, NULL},
                                             {"bias", LKS_FLOAT64, 1, {17}, NULL},
                                             {"counts", LKS_INT32, 4, {2, 3, 4, 5}, NULL},
                                             {"epoch", LKS_INT64, 0, {0}, NULL},
                                             {"random state", LKS_UINT8, 1, {333}, NULL},
                                             {"h", LKS_FLOAT16, 3, {5, 1, 7}, NULL},
                                             {"b.f/16 \xc3\xa4", LKS_BFLOAT16, 1, {9}, NULL},
                                             {"empty", LKS_FLOAT32, 2, {0, 7}, NULL},
                                             {"one", LKS_FLOAT32, 1, {1}, NULL}};
static const size_t bytes_of[N_TENSORS] = {2400, 136, 480, 8, 333, 70, 18, 0, 4};

struct model {
    lks_tensor tensors[N_TENSORS];
    unsigned char mem[N_TENSORS][BYTES]; /* aligned for any type, with room after it */
};

static unsigned char byte_of(int seed, int tensor, size_t i)
{
    return (unsigned char)(seed * 89 + tensor * 31 + (int)(i * 7 % 253));
}

static void fill(struct model *m, int seed)
{
    for (int t = 0; t < N_TENSORS; t++) {
        m->tensors[t] = shapes[t];
        m->tensors[t].data = bytes_of[t] > 0 ? m->mem[t] : NULL;
        for (size_t i = 0; i < BYTES; i++)
            m->mem[t][i] = i < bytes_of[t] ? byte_of(seed, t, i) : 0xee;
    }
}

static bool has(const struct model *m, int seed)
{
    for (int t = 0; t < N_TENSORS; t++)
        for (size_t i = 0; i < BYTES; i++)
            if (m->mem[t][i] != (i < bytes_of[t] ? byte_of(seed, t, i) : 0xee))
                return false;
    return true;
}

/* --- ranks as threads --------------------------------------------------------------------- */

struct rank {
    lks_comm *comm;
    void (*run)(struct rank *r);
    const char *dir;
    int r, odd;
    struct model model;
    uint64_t step;
    bool found;
    lks_status status;
    char said[2048];
};

static struct rank ranks[MAX_RANKS];

static void rank_main(lks_comm *comm, void *arg)
{
    struct rank *r = arg;
    r->comm = comm;
    fill(&r->model, 50 + r->r);
    r->step = 777;
    r->found = false;
    r->run(r);
    snprintf(r->said, sizeof r->said, "%s", r->status != LKS_OK ? lks_last_error() : "");
    /* In any case the group stays usable. */
    int32_t one = 1;
    if (lks_comm_all_reduce(r->comm, &one, 1, LKS_INT32, LKS_SUM) != LKS_OK ||
        one != lks_comm_world_size(r->comm))
        r->status = LKS_ERR_PEER;
}

/* All ranks make the same call and get the same result. */
static lks_status on_ranks(int W, const char *dir, int odd, void (*run)(struct rank *r))
{
    for (int i = 0; i < W; i++) {
        ranks[i].run = run;
        ranks[i].dir = dir;
        ranks[i].r = i;
        ranks[i].odd = odd;
    }
    ranks_as_threads(W, 30, rank_main, ranks, sizeof *ranks);
    for (int i = 0; i < W; i++) {
        assert_int_equal(ranks[i].status, ranks[0].status);
        assert_string_equal(ranks[i].said, ranks[0].said);
    }
    return ranks[0].status;
}

static void run_save(struct rank *r)
{
    fill(&r->model, r->odd + r->r); /* rank 0's counts */
    r->status =
        lks_checkpoint_save(r->comm, r->dir, (uint64_t)r->odd, r->model.tensors, N_TENSORS, 2);
}

static void run_load(struct rank *r)
{
    r->status = lks_checkpoint_load(r->comm, r->r == 0 ? r->dir : "nowhere", r->model.tensors,
                                    N_TENSORS, &r->step, &r->found);
}

static void save(int W, const char *dir, int step)
{
    if (on_ranks(W, dir, step, run_save) != LKS_OK)
        fail_msg("%s", ranks[0].said);
}

static void check_loaded(int W, const char *dir, int step)
{
    if (on_ranks(W, dir, 0, run_load) != LKS_OK)
        fail_msg("%s", ranks[0].said);
    for (int i = 0; i < W; i++)
        assert_true(ranks[i].found && ranks[i].step == (uint64_t)step &&
                    has(&ranks[i].model, step));
}

/* No rank's memory has changed. */
static void check_untouched(int W)
{
    for (int i = 0; i < W; i++)
        assert_true(has(&ranks[i].model, 50 + i) && ranks[i].step == 777 && !ranks[i].found);
}

/* --- tests -------------------------------------------------------------------------------- */

TEST(test_any_ranks)
{
    const char *dir = lks_test_text("%s/new/folder", lks_test_folder());
    for (int W = 1; W <= MAX_RANKS; W++) {
        save(W, dir, 6 + W);
        for (int w = 1; w <= MAX_RANKS; w++)
            check_loaded(w, dir, 6 + W);
    }
    save(2, dir, 10); /* the same step again */
    check_loaded(3, dir, 10);
    check_loaded(1, lks_test_text("%s/ckpt-00000009", dir), 9); /* one of the two, by its folder */
}

/* The file as the format's own page describes it: 8 bytes, a JSON header, bytes. */
TEST(test_format)
{
    const char *dir = lks_test_folder();
    size_t bytes;
    uint64_t header;
    save(2, dir, 3);
    const char *file =
        lks_test_read(lks_test_text("%s/ckpt-00000003/model.safetensors", dir), &bytes);
    memcpy(&header, file, 8);
    assert_true(8 + header < bytes);
    json_t *json = json_loadb(file + 8, header, 0, NULL);
    assert_int_equal(json_object_size(json), N_TENSORS + 1);
    static const char *const dtypes[N_TENSORS] = {"F32", "F64",  "I32", "I64", "U8",
                                                  "F16", "BF16", "F32", "F32"};
    for (int t = 0; t < N_TENSORS; t++) {
        const json_t *entry = json_object_get(json, shapes[t].name);
        assert_string_equal(lks_test_string(entry, "dtype"), dtypes[t]);
        const json_t *shape = json_object_get(entry, "shape");
        const json_t *offsets = json_object_get(entry, "data_offsets");
        assert_int_equal(json_array_size(shape), shapes[t].n_dims);
        for (int d = 0; d < shapes[t].n_dims; d++)
            assert_int_equal(json_integer_value(json_array_get(shape, (size_t)d)),
                             shapes[t].shape[d]);
        size_t from = (size_t)json_integer_value(json_array_get(offsets, 0));
        assert_int_equal(json_integer_value(json_array_get(offsets, 1)) - (json_int_t)from,
                         bytes_of[t]);
        for (size_t i = 0; i < bytes_of[t]; i++)
            assert_int_equal((unsigned char)file[8 + header + from + i], byte_of(3, t, i));
    }
    json_decref(json);
}

TEST(test_keep)
{
    const char *dir = lks_test_folder();
    for (int step = 1; step <= 5; step++)
        save(1, dir, step);
    assert_int_equal(lks_test_count_files(dir), 4); /* two of them, `latest`, and `.lock` */
    assert_true(lks_test_exists(lks_test_text("%s/ckpt-00000004", dir)));
    check_loaded(2, dir, 5);
}

static void run_limited(struct rank *r)
{
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, 100});
    run_save(r);
}

/* A file over the user's limit of file sizes fails the save, and doesn't end the program. */
TEST(test_file_limit)
{
    const char *dir = lks_test_folder();
    int status;
    const pid_t pid = fork();
    if (pid == 0)
        _exit(on_ranks(1, dir, 1, run_limited) == LKS_ERR_IO &&
                      strstr(ranks[0].said, "File too large") != NULL
                  ? 0
                  : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A save into a checkpoint itself would nest there, unseen by the next load of the folder. */
TEST(test_into_itself)
{
    const char *dir = lks_test_folder();
    save(1, dir, 1);
    const char *const names[] = {"ckpt-00000001", "ckpt-00000001/", "latest"};
    for (size_t i = 0; i < 3; i++) {
        const char *into = lks_test_text("%s/%s", dir, names[i]);
        check_loaded(2, into, 1);
        assert_int_equal(on_ranks(2, into, 2, run_save), LKS_ERR_ARG);
        assert_contains(ranks[1].said, " is a checkpoint itself",
                        lks_test_text("the folder around it, %s", dir));
    }
    assert_int_equal(lks_test_count_files(lks_test_text("%s/ckpt-00000001", dir)), 3);
    lks_test_write_text(lks_test_text("%s/model.safetensors", dir), "the program's own file");
    save(2, dir, 2);
    check_loaded(1, dir, 2);
}

static void run_load_needed(struct rank *r)
{
    r->status = lks_checkpoint_load(r->comm, r->dir, r->model.tensors, N_TENSORS, NULL, NULL);
}

/* Nothing is found although the program's variable says so. */
static void run_load_again(struct rank *r)
{
    r->found = true;
    run_load(r);
}

TEST(test_none)
{
    const char *dir = lks_test_folder(), *absent = lks_test_text("%s/absent", dir);
    assert_ok(on_ranks(3, dir, 0, run_load));
    check_untouched(3);
    assert_ok(on_ranks(2, absent, 0, run_load));
    check_untouched(2);
    assert_ok(on_ranks(2, absent, 0, run_load_again));
    check_untouched(2);
    assert_false(lks_test_exists(absent));
    assert_int_equal(on_ranks(2, absent, 0, run_load_needed), LKS_ERR_IO);
    assert_contains(ranks[1].said, "lks_checkpoint_load: rank 0: there is no checkpoint");
    check_untouched(2);
    /* A save that was cut off is no checkpoint. */
    assert_int_equal(mkdir(lks_test_text("%s/ckpt-00000009.tmp", dir), 0700), 0);
    assert_ok(on_ranks(2, dir, 0, run_load));
    check_untouched(2);
    /* A link to nothing isn't a new start. */
    assert_int_equal(symlink("ckpt-00000012", lks_test_text("%s/latest", dir)), 0);
    assert_int_equal(on_ranks(2, dir, 0, run_load), LKS_ERR_IO);
    assert_contains(ranks[1].said, lks_test_text("delete %s/latest to begin without one", dir));
    check_untouched(2);
    /* Nor is a checkpoint that nothing names: it is loaded. */
    dir = lks_test_folder();
    save(2, dir, 3);
    assert_int_equal(unlink(lks_test_text("%s/latest", dir)), 0);
    check_loaded(2, dir, 3);
}

static void run_list(struct rank *r)
{
    lks_tensor *list = NULL;
    size_t n = 99;
    r->step = 0;
    r->status = lks_checkpoint_list(r->comm, r->r == 0 ? r->dir : "nowhere", &list, &n, &r->step);
    if (r->status == LKS_OK && n == 0) {
        r->found = false;
        assert_null(list);
        return;
    }
    r->found = r->status == LKS_OK && n == N_TENSORS;
    for (size_t i = 0; i < n && r->found; i++) {
        const lks_tensor *want = &shapes[i];
        r->found =
            strcmp(list[i].name, want->name) == 0 && list[i].dtype == want->dtype &&
            list[i].n_dims == want->n_dims && list[i].data == NULL &&
            memcmp(list[i].shape, want->shape, (size_t)want->n_dims * sizeof *want->shape) == 0;
    }
    free(list);
}

/* The tensors of a checkpoint, on every rank; then none, and a damaged one. */
TEST(test_list)
{
    const char *dir = lks_test_folder();
    assert_ok(on_ranks(2, dir, 0, run_list));
    assert_true(!ranks[0].found && !ranks[1].found && ranks[1].step == 0);
    save(2, dir, 3);
    assert_ok(on_ranks(3, dir, 0, run_list));
    for (int r = 0; r < 3; r++)
        assert_true(ranks[r].found && ranks[r].step == 3);
    size_t bytes;
    const char *model = lks_test_text("%s/ckpt-00000003/model.safetensors", dir);
    const char *was = lks_test_read(model, &bytes);
    lks_test_write(model, was, bytes - 1);
    assert_int_equal(on_ranks(2, dir, 0, run_list), LKS_ERR_FORMAT);
    assert_contains(ranks[1].said, "lks_checkpoint_list: rank 0: ");
}

TEST(test_altered)
{
    const char *dir = lks_test_folder();
    const char *damaged = lks_test_text("%s/ckpt-00000002", dir);
    const char *model = lks_test_text("%s/model.safetensors", damaged);
    const char *away = lks_test_text("%s/away", lks_test_folder());
    size_t bytes;
    save(2, dir, 1);
    save(2, dir, 2);
    const char *was = lks_test_read(model, &bytes);
    char *now = malloc(bytes);
    for (int kind = 0; kind < 3; kind++) { /* the last byte, the header, the length */
        memcpy(now, was, bytes);
        now[kind == 0 ? bytes - 1 : 100] ^= kind < 2;
        lks_test_write(model, now, kind == 2 ? bytes - 1 : bytes);
        assert_int_equal(on_ranks(3, dir, 0, run_load), LKS_ERR_FORMAT);
        assert_contains(ranks[2].said, "ckpt-00000002/model.safetensors",
                        "the newest good checkpoint is ckpt-00000001",
                        lks_test_text("move newer ones out of %s, and the next load "
                                      "takes ckpt-00000001",
                                      dir));
        check_untouched(3);
        check_loaded(2, lks_test_text("%s/ckpt-00000001", dir), 1);
        assert_int_equal(on_ranks(2, damaged, 0, run_load), LKS_ERR_FORMAT);
        assert_contains(ranks[1].said, lks_test_text("pass dir = \"%s/ckpt-00000001\"", dir));
        assert_int_equal(rename(damaged, away), 0);
        check_loaded(2, dir, 1);
        assert_int_equal(rename(away, damaged), 0);
    }
    free(now);
    lks_test_write(model, was, bytes);
    check_loaded(2, dir, 2);

    const char *latest = lks_test_text("%s/latest", dir);
    assert_int_equal(unlink(latest), 0);
    lks_test_write(latest, "rubbish", 7);
    assert_int_equal(on_ranks(2, dir, 0, run_load), LKS_ERR_FORMAT);
    assert_contains(ranks[1].said,
                    lks_test_text("delete %s, and the next load takes ckpt-00000002", latest));
    assert_int_equal(unlink(latest), 0);
    check_loaded(2, dir, 2);
}

/* Tensors that the program asks for and the checkpoint doesn't have. */
static void run_load_other(struct rank *r)
{
    lks_tensor *t = r->model.tensors;
    if (r->odd == 0)
        t[1].name = "w\033s";
    if (r->odd == 1)
        t[8].dtype = LKS_INT32; /* the same number of bytes */
    if (r->odd == 2)
        t[0].shape[0] = 20, t[0].shape[1] = 30;
    if (r->odd == 3)
        t[3].n_dims = 1, t[3].shape[0] = 1;
    if (r->odd == 4)
        t[0].n_dims = 1; /* all that is left is right */
    run_load(r);
}

static void run_load_some(struct rank *r)
{
    r->status = lks_checkpoint_load(r->comm, r->dir, r->model.tensors + 2, 3, &r->step, &r->found);
}

TEST(test_other_tensors)
{
    static const char *const texts[] = {
        "has no tensor w\\x1bs float64 [17]",
        "the program asks for one int32 [1], and",
        "the program asks for weight float32 [20, 30], and",
        "the program asks for epoch int64 [1], and",
        "the program asks for weight float32 [30], and",
    };
    const char *dir = lks_test_folder();
    save(1, dir, 4);
    for (int odd = 0; odd < 5; odd++) {
        assert_int_equal(on_ranks(3, dir, odd, run_load_other), LKS_ERR_CONFIG);
        assert_contains(ranks[2].said, texts[odd]);
        check_untouched(3);
    }
    assert_ok(on_ranks(3, dir, 0, run_load_some)); /* fewer than the checkpoint has */
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < N_TENSORS; t++)
            assert_int_equal(ranks[i].model.mem[t][0],
                             t == 7 ? 0xee : byte_of(t >= 2 && t < 5 ? 4 : 50 + i, t, 0));
}

/* Rank 1 passes something else. */
static void run_differ(struct rank *r)
{
    lks_tensor *t = r->model.tensors;
    size_t n = N_TENSORS;
    uint64_t step = 5;
    int keep = 1;
    if (r->r == 1) {
        if (r->odd == 0)
            t[3].name = "epo\033ch";
        if (r->odd == 1)
            t[0].dtype = LKS_INT32;
        if (r->odd == 2)
            t[2].shape[3] = 6;
        if (r->odd == 3)
            n--;
        if (r->odd == 4)
            step = 6;
        if (r->odd == 5)
            keep = 0;
    }
    r->status = lks_checkpoint_save(r->comm, r->dir, step, t, n, keep);
}

TEST(test_ranks_differ)
{
    static const char *const texts[] = {
        ("different tensors for a checkpoint: number 3 is epo\\x1bch int64 [] on rank 1, and epoch "
         "int64 [] on rank 0"),
        "number 0 is weight int32 [30, 20] on rank 1, and weight float32 [30, 20] on rank 0",
        "number 2 is counts int32 [2, 3, 4, 6] on rank 1, and counts int32 [2, 3, 4, 5] on rank 0",
        "number 8 is none on rank 1, and one float32 [1] on rank 0",
        ("lks_checkpoint_save of step 6 with keep = 1 on rank 1, and lks_checkpoint_save of step 5 "
         "with keep = 1 on rank 0"),
        "lks_checkpoint_save of step 5 with keep = 0 on rank 1, and",
    };
    const char *dir = lks_test_folder();
    for (int odd = 0; odd < 6; odd++) {
        assert_int_equal(on_ranks(3, dir, odd, run_differ), LKS_ERR_DIVERGED);
        assert_contains(ranks[0].said, texts[odd]);
        assert_int_equal(lks_test_count_files(dir), 0);
    }
}

/* Rank 0 can't write: all ranks get the error, and the old files are unchanged. */
TEST(test_disk)
{
    const char *dir = lks_test_folder();
    save(1, dir, 1);
    const char *temporary = lks_test_text("%s/ckpt-00000002.tmp", dir);
    assert_int_equal(mkdir(temporary, 0700), 0); /* in the way, and not ours to remove */
    lks_test_write(lks_test_text("%s/thesis.tex", temporary), "x", 1);
    assert_int_equal(on_ranks(3, dir, 2, run_save), LKS_ERR_IO);
    assert_contains(ranks[2].said,
                    "lks_checkpoint_save: rank 0: checkpoint ckpt-00000002 is not saved");
    check_loaded(2, dir, 1);
    const char *file = lks_test_text("%s/file", dir);
    lks_test_write(file, "x", 1);
    assert_int_equal(on_ranks(2, file, 1, run_save), LKS_ERR_IO);
    assert_int_equal(on_ranks(2, file, 1, run_load), LKS_ERR_IO);
    check_untouched(2);
}

/* A rank of a program whose save fails. Rank 1 ends the group, if the program does that at all. */
static int be_rank(const char *dir, bool aborts)
{
    lks_comm *comm;
    float x = 1;
    const lks_tensor t = {"x", LKS_FLOAT32, 0, {0}, &x};
    if (lks_comm_init(&comm) != LKS_OK)
        return 2;
    const lks_status st = lks_checkpoint_save(comm, dir, 1, &t, 1, 0);
    fprintf(stderr, "%s\n", lks_last_error());
    if (aborts && lks_comm_rank(comm) == 1)
        lks_comm_abort(comm, lks_last_error());
    (void)lks_comm_barrier(comm);
    lks_comm_close(comm);
    return st == LKS_ERR_IO ? 1 : 2;
}

/* The launcher doesn't restart a program that has told it of a full disk. */
TEST(test_full_disk)
{
    static const char not_restarted[] =
        "; not restarted, as it would fail again: put that right, then start it again";
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    for (int i = 0; i < 3; i++) {
        const char *const env[] = {i < 2 ? "LOCKSTEP_FAULT=fsync:1:ENOSPC"
                                         : "LOCKSTEP_FAULT=fsync:1:EIO",
                                   "LOCKSTEP_FAULT_RANK=0", NULL};
        const char *const argv[] = {"lockstep",         "run", "--nproc-per-node=2",
                                    "--max-restarts=1", self,  i == 1 ? "--ends" : "--aborts",
                                    lks_test_folder(),  NULL};
        lks_test_result r = assert_exits(1, lks_test_run(argv, env, 60));
        assert_int_equal(strstr(r.err, not_restarted) != NULL, i == 0);
        assert_int_equal(strstr(r.err, "restart 1 of 1") != NULL, i > 0);
        assert_null(strstr(r.err, "--init_from")); /* an option of `train` */
    }
}

/* The linker's --wrap redirects calls of this function to here: a save's syncs look at rank 0's
 * line. */
static struct lks__rank_line *watched;
static int n_syncs, n_beats;

__typeof__(lks__sys_fsync) __real_lks__sys_fsync, __wrap_lks__sys_fsync;
int __wrap_lks__sys_fsync(int fd)
{
    static unsigned long long beat;
    if (watched != NULL && watched->saving != 0) {
        n_syncs++;
        n_beats += watched->beat_us != beat;
        beat = watched->beat_us;
    }
    return __real_lks__sys_fsync(fd);
}

/* While rank 0 saves, the launcher sees that, and heartbeats. */
TEST(test_while_saving)
{
    struct model *m = calloc(1, sizeof *m);
    lks_comm *comm;
    assert_non_null(m);
    assert_ok(lks__comm_open_threads(1, 30, &comm));
    lks__segment *segment = lks__shm_segment(comm);
    fill(m, 1);
    watched = lks__segment_line(segment, 0);
    assert_ok(lks_checkpoint_save(comm, lks_test_folder(), 1, m->tensors, N_TENSORS, 1));
    watched = NULL;
    assert_in_range(n_beats, 3, n_syncs);              /* of its files */
    assert_false(lks__segment_saving(segment, false)); /* it is done */
    lks_comm_close(comm);
    free(m);
}

/* `lockstep` doesn't take such a folder for one of its runs. */
TEST(test_no_run)
{
    const char *dir = lks_test_folder();
    save(1, dir, 1);
    assert_exits(1, lks_test_tool("sample", lks_test_text("--out_dir=%s", dir)),
                 "ckpt-00000001 is a checkpoint of a program that uses liblockstep");
    lks_test_result r = assert_exits(0, lks_test_tool("info", dir));
    assert_contains(r.out, "checkpoint of a program that uses liblockstep", "/ckpt-00000001\n",
                    "step         1\n", "tensors      9 in model.safetensors, 3449 bytes\n");
    assert_int_equal(unlink(lks_test_text("%s/ckpt-00000001/optimizer.safetensors", dir)), 0);
    assert_exits(1, lks_test_tool("info", dir),
                 "/ckpt-00000001 is torn: it has no optimizer.safetensors");
    assert_int_equal(truncate(lks_test_text("%s/latest/state.json", dir), 100), 0);
    assert_exits(1, lks_test_tool("info", dir),
                 "/ckpt-00000001/state.json is not a sound checkpoint state: ");
}

/* --- the stack ---------------------------------------------------------------------------- */

/* Each kind of call that needs much stack; V isn't a power of two. Returns the first failure. */
static lks_status train_and_save(lks_comm *comm, const char *dir)
{
    static float w[1000], g[1000];
    const lks_param param = {"w", w, g, 1000};
    const lks_optimizer_param updated = {"w", w, g, LKS_PARAM_MATRIX, 20, 50};
    const lks_tensor tensor = {"w", LKS_FLOAT32, 1, {1000}, w};
    const lks_ddp_options options = {.virtual_ranks = 13};
    const lks_rates rates = {.matrix_rate = 0.1, .matrix_steps = 5};
    const lks_checkpoint_more more = {NULL, 0, "{\"a\": [1, 2]}"};
    lks_comm *part;
    lks_ddp *ddp;
    lks_optimizer *optimizer;
    uint64_t step;
    bool found;
    char *text;
    LKS__TRY(lks_comm_split(comm, 0, 0, &part));
    LKS__TRY(lks_comm_all_reduce(part, w, 1000, LKS_FLOAT32, LKS_MAX));
    LKS__TRY(lks_ddp_open(part, &param, 1, &options, &ddp));
    for (int v = 0; v < 13; v++) {
        LKS__TRY(lks_ddp_begin(ddp, v));
        LKS__TRY(lks_ddp_accumulate(ddp, 1));
    }
    LKS__TRY(lks_ddp_step(ddp, NULL));
    LKS__TRY(lks_optimizer_open(part, LKS_MUON, &updated, 1, &optimizer));
    LKS__TRY(lks_optimizer_step(optimizer, &rates));
    LKS__TRY(lks_checkpoint_save_more(part, dir, 1, &tensor, 1, &more, 1));
    LKS__TRY(lks_checkpoint_load(part, dir, &tensor, 1, &step, &found));
    LKS__TRY(lks_checkpoint_json(part, dir, &text, NULL));
    free(text);
    lks_optimizer_close(optimizer);
    lks_ddp_close(ddp);
    lks_comm_close(part);
    return LKS_OK;
}

static void *small_main(void *dir)
{
    const lks_world alone = {0, 1, 0, 1};
    const lks_comm_options options = {"shm", 60};
    lks_comm *comm = NULL;
    lks_status st = lks_comm_open(&alone, &options, &comm);
    LKS__THEN(st, train_and_save(comm, dir));
    lks_comm_close(comm);
    return (void *)(intptr_t)st;
}

/* The size that lockstep.h names. Sanitizers need more. */
TEST(test_small_stack)
{
    pthread_attr_t attr;
    pthread_t thread;
    void *st;
    assert_int_equal(pthread_attr_init(&attr), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_int_equal(pthread_attr_setstacksize(&attr, 128 << 10), 0);
#endif
    assert_int_equal(pthread_create(&thread, &attr, small_main, (void *)lks_test_folder()), 0);
    assert_int_equal(pthread_join(thread, &st), 0);
    assert_int_equal((intptr_t)st, LKS_OK);
    pthread_attr_destroy(&attr);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return be_rank(argv[2], strcmp(argv[1], "--aborts") == 0);
    return lks_test_run_all(NULL, NULL);
}
