/* Checkpoints with tensors of each rank, a program's JSON text, and many dimensions. Ranks are
 * threads. */
#include "support.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number/units.h"
#include "base/status.h"
#include "comm/ranks.h"
#include "files/checkpoint/folder.h"
#include "lockstep/lockstep.h"

enum { MAX_RANKS = 4, COMMON = 100, MOST = 70000 };

struct rank {
    lks_comm *comm;
    void (*run)(struct rank *r);
    const char *dir, *json;
    int r, W, odd;
    int32_t common[COMMON], mine[MOST];
    int64_t one;
    char *text; /* from lks_checkpoint_json() */
    uint64_t step;
    bool found;
    lks_status status;
    char said[2048];
};

static struct rank ranks[MAX_RANKS];

static int32_t value_of(int rank, size_t i)
{
    return (int32_t)((size_t)rank * 1000003 + i * 7);
}

/* Rank 1 has none, rank 2 more than is sent at once. */
static size_t count_of(int rank)
{
    static const size_t counts[MAX_RANKS] = {5, 0, MOST, 3};
    return counts[rank];
}

static void fill(struct rank *r, bool saved)
{
    for (size_t i = 0; i < COMMON; i++)
        r->common[i] = saved ? value_of(9, i) + r->r : -1; /* rank 0's is saved */
    for (size_t i = 0; i < MOST; i++)
        r->mine[i] = saved && i < count_of(r->r) ? value_of(r->r, i) : -1;
    r->one = saved ? -r->r : 77;
}

static bool has_loaded(const struct rank *r)
{
    bool same = r->one == -r->r && r->found && r->step == 3;
    for (size_t i = 0; i < COMMON; i++)
        same &= r->common[i] == value_of(9, i);
    for (size_t i = 0; i < MOST; i++)
        same &= r->mine[i] == (i < count_of(r->r) ? value_of(r->r, i) : -1);
    return same;
}

static bool is_untouched(const struct rank *r)
{
    return r->common[0] == -1 && r->mine[0] == -1 && r->one == 77 && !r->found && r->step == 0;
}

static void rank_main(lks_comm *comm, void *arg)
{
    struct rank *r = arg;
    r->comm = comm;
    r->found = false;
    r->step = 0;
    r->text = NULL;
    r->run(r);
    snprintf(r->said, sizeof r->said, "%s", r->status != LKS_OK ? lks_last_error() : "");
    int32_t one = 1; /* in any case the group stays usable */
    if (lks_comm_all_reduce(r->comm, &one, 1, LKS_INT32, LKS_SUM) != LKS_OK || one != r->W)
        r->status = LKS_ERR_PEER;
}

/* All ranks make the same call and get the same result. */
static lks_status on_ranks(int W, const char *dir, const char *json, int odd,
                           void (*run)(struct rank *r))
{
    for (int i = 0; i < W; i++)
        ranks[i] = (struct rank){.run = run, .dir = dir, .json = json, .r = i, .W = W, .odd = odd};
    ranks_as_threads(W, 30, rank_main, ranks, sizeof *ranks);
    for (int i = 0; i < W; i++) {
        assert_int_equal(ranks[i].status, ranks[0].status);
        assert_string_equal(ranks[i].said, ranks[0].said);
    }
    return ranks[0].status;
}

#define CALL_OK(call)                                                                              \
    do {                                                                                           \
        if ((call) != LKS_OK)                                                                      \
            fail_msg("line %d: %s", __LINE__, ranks[0].said);                                      \
    } while (0)

static void run_save(struct rank *r)
{
    fill(r, true);
    const lks_tensor common = {"common", LKS_INT32, 1, {COMMON}, r->common};
    lks_tensor own[2] = {{"mine", LKS_INT32, 2, {count_of(r->r), 1}, r->mine},
                         {"one", LKS_INT64, 0, {0}, &r->one}};
    if (r->odd == 1)
        own[0].name = "common";
    if (r->odd == 2 && r->r == 1)
        own[1].name = "tw\033o";
    const lks_checkpoint_more more = {own, 2, r->json};
    r->status = lks_checkpoint_save_more(r->comm, r->dir, 3, &common, 1, &more, 0);
}

static void run_load(struct rank *r)
{
    fill(r, false);
    const lks_tensor common = {"common", LKS_INT32, 1, {COMMON}, r->common};
    const lks_tensor own[2] = {{"mine",
                                r->odd == 1 && r->r == 1 ? LKS_FLOAT32 : LKS_INT32,
                                2,
                                {count_of(r->r), 1},
                                r->mine},
                               {"one", LKS_INT64, 0, {0}, &r->one}};
    const lks_checkpoint_more more = {own, 2, NULL};
    r->status = lks_checkpoint_load_more(r->comm, r->dir, &common, 1, &more, &r->step, &r->found);
}

TEST(test_per_rank)
{
    for (int W = 1; W <= MAX_RANKS; W++) {
        const char *dir = lks_test_folder();
        CALL_OK(on_ranks(W, dir, NULL, 0, run_load));
        for (int r = 0; r < W; r++)
            assert_true(is_untouched(&ranks[r]));
        CALL_OK(on_ranks(W, dir, NULL, 0, run_save));
        CALL_OK(on_ranks(W, dir, NULL, 0, run_load));
        for (int r = 0; r < W; r++)
            assert_true(has_loaded(&ranks[r]));
    }
}

/* Two ranks load what rank 2 had, by its full name, and nothing that is common. */
static void run_load_third(struct rank *r)
{
    const lks_tensor third = {"mine@2", LKS_INT32, 2, {MOST, 1}, r->mine};
    r->status = lks_checkpoint_load(r->comm, r->dir, &third, 1, &r->step, &r->found);
}

static void run_list(struct rank *r)
{
    static const char *const names[] = {"common", "mine@0", "one@0", "mine@1",
                                        "one@1",  "mine@2", "one@2"};
    lks_tensor *list;
    size_t n;
    r->status = lks_checkpoint_list(r->comm, r->dir, &list, &n, &r->step);
    r->found = r->status == LKS_OK && n == 7;
    for (size_t i = 0; i < 7 && r->found; i++)
        r->found = strcmp(list[i].name, names[i]) == 0;
    r->found = r->found && list[5].n_dims == 2 && list[5].shape[0] == MOST;
    if (r->status == LKS_OK)
        free(list);
}

TEST(test_other_ranks)
{
    const char *dir = lks_test_folder();
    CALL_OK(on_ranks(3, dir, NULL, 0, run_save));
    for (int W = 2; W <= 4; W += 2) {
        assert_int_equal(on_ranks(W, dir, NULL, 0, run_load), LKS_ERR_CONFIG);
        assert_contains(ranks[1].said,
                        lks_test_text("/ckpt-00000003 has mine of 3 ranks, and this "
                                      "group has %d: load those",
                                      W),
                        "from mine@0 to mine@2");
        assert_true(is_untouched(&ranks[0]) && is_untouched(&ranks[1]));
    }
    CALL_OK(on_ranks(2, dir, NULL, 0, run_load_third));
    for (int r = 0; r < 2; r++)
        assert_true(ranks[r].found && ranks[r].mine[MOST - 1] == value_of(2, MOST - 1));
    CALL_OK(on_ranks(2, dir, NULL, 0, run_list));
    assert_true(ranks[0].found && ranks[1].found);
}

static void run_save_common(struct rank *r)
{
    const lks_tensor common[] = {{"one@1", LKS_INT32, 1, {COMMON}, r->common},
                                 {"mine", LKS_INT32, 1, {COMMON}, r->common + 1}};
    const lks_tensor own = {"one", LKS_INT64, 0, {0}, &r->one};
    const lks_checkpoint_more more = {&own, 1, r->json};
    r->status = lks_checkpoint_save_more(r->comm, r->dir, 3, common, r->odd == 0 ? 2 : 0, &more, 0);
}

/* With odd = 0 tensors share memory. With odd = 1 rank 1's "mine" is empty, inside "common". */
static void run_load_overlap(struct rank *r)
{
    fill(r, false);
    const lks_tensor common = {"common", LKS_INT32, 1, {COMMON}, r->mine + (r->odd == 0 ? 4 : 5)};
    const lks_tensor own[2] = {{"mine", LKS_INT32, 2, {count_of(r->r), 1}, r->mine + 6 * r->r},
                               {"one", LKS_INT64, 0, {0}, &r->one}};
    const lks_checkpoint_more more = {own, 2, NULL};
    r->status = lks_checkpoint_load_more(r->comm, r->dir, &common, 1, &more, &r->step, &r->found);
}

TEST(test_wrong_tensors)
{
    const char *dir = lks_test_folder();
    assert_int_equal(on_ranks(2, dir, NULL, 2, run_save), LKS_ERR_DIVERGED);
    assert_contains(ranks[0].said,
                    "other names in per_rank: number 1 is tw\\x1bo on rank 1, and one on rank 0");
    assert_int_equal(on_ranks(2, dir, NULL, 0, run_save_common), LKS_ERR_ARG);
    assert_contains(ranks[1].said, "one@1 is the name of a rank's tensor in per_rank: rename");
    assert_int_equal(lks_test_count_files(dir), 0);
    CALL_OK(on_ranks(2, dir, NULL, 1, run_save_common)); /* only tensors of each rank */
    assert_int_equal(on_ranks(2, dir, NULL, 0, run_load), LKS_ERR_CONFIG);
    assert_contains(ranks[1].said, "has no tensor common int32 [100]");
    dir = lks_test_folder();
    CALL_OK(on_ranks(2, dir, NULL, 1, run_save)); /* "common" and "common@0" are two names */
    assert_int_equal(on_ranks(2, dir, NULL, 0, run_load), LKS_ERR_CONFIG);
    assert_contains(ranks[0].said, "has no tensor mine@0 int32 [5, 1]");
    dir = lks_test_folder();
    CALL_OK(on_ranks(2, dir, NULL, 0, run_save));
    CALL_OK(on_ranks(2, dir, NULL, 1, run_load_overlap));
    assert_int_equal(on_ranks(2, dir, NULL, 1, run_load), LKS_ERR_CONFIG);
    assert_contains(ranks[0].said, "the program asks for mine@1 float32 [0, 1], and");
    assert_true(is_untouched(&ranks[0]) && is_untouched(&ranks[1]));
    dir = lks_test_folder();
    CALL_OK(on_ranks(1, dir, NULL, 0, run_save));
    assert_int_equal(on_ranks(1, dir, NULL, 0, run_load_overlap), LKS_ERR_ARG);
    assert_contains(ranks[0].said, "load_more: memory of tensor 0 overlaps memory of tensor 1: ");
    assert_true(is_untouched(&ranks[0]));
}

static void run_json(struct rank *r)
{
    r->status = lks_checkpoint_json(r->comm, r->r == 0 ? r->dir : "nowhere", &r->text, &r->step);
}

static void check_text(const char *dir, int W, const char *want)
{
    CALL_OK(on_ranks(W, dir, NULL, 0, run_json));
    for (int r = 0; r < W; r++) {
        assert_true((ranks[r].text == NULL) == (want == NULL));
        if (want != NULL)
            assert_string_equal(ranks[r].text, want);
        free(ranks[r].text);
    }
}

static char *nested(size_t depth)
{
    char *text = lks_test_calloc(2 * depth + 1, 1);
    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    return text;
}

TEST(test_json)
{
    /* Names that lockstep's own states have are only the program's here. */
    static const char *const texts[][2] = {
        {" {\"b\": [1, 2.5], \"a\": \"\\u00e4\\n\"} ", "{\"a\":\"\xc3\xa4\\n\",\"b\":[1,2.5]}"},
        {"{\"settings\": {}, \"asked\": \"end\", \"state_hash\": \"\\n  \\\"state_hash\\\": "
         "\\\"\"}",
         "{\"asked\":\"end\",\"settings\":{},\"state_hash\":\"\\n  \\\"state_hash\\\": \\\"\"}"},
        {"null", "null"},
        {"\"a\\u0000b\"", "\"a\\u0000b\""},
        {"-0.1", "-0.10000000000000001"},
    };
    const char *dir = lks_test_folder();
    check_text(dir, 2, NULL); /* no checkpoint */
    CALL_OK(on_ranks(2, dir, NULL, 0, run_save));
    check_text(dir, 3, NULL); /* a checkpoint without a text */
    assert_int_equal(ranks[2].step, 3);
    fesetround(FE_UPWARD); /* also in the ranks' threads; the numbers don't change */
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        CALL_OK(on_ranks(2, dir, texts[i][0], 0, run_save));
        check_text(dir, 3, texts[i][1]);
        lks_test_result r = lks_test_tool("info", dir);
        assert_contains(r.out, "checkpoint of a program that uses liblockstep");
    }
    fesetround(FE_TONEAREST);
    char *deep = nested(2047);
    CALL_OK(on_ranks(1, dir, deep, 0, run_save));
    check_text(dir, 2, deep);
    free(deep);
}

TEST(test_wrong_json)
{
    char *deep = nested(2048), *too_deep = nested(100000);
    const char *const texts[] = {
        "",         "{",       "{\"a\":1,\"a\":2}",     "1,\"asked\":2", "1 2",
        "\"\xff\"", "[1e999]", "123456789012345678901", "{a: 1}",        deep,
        too_deep};
    const char *dir = lks_test_folder();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(on_ranks(2, dir, texts[i], 0, run_save), LKS_ERR_ARG);
        assert_contains(
            ranks[1].said,
            "lks_checkpoint_save_more: rank 0: the program's own text is not valid JSON at "
            "line 1, column ");
        assert_int_equal(lks_test_count_files(dir), 0);
    }
    lks_test_free(deep, too_deep);
    /* One changed byte. */
    CALL_OK(on_ranks(2, dir, "[12345]", 0, run_save));
    const char *file = lks_test_text("%s/ckpt-00000003/state.json", dir);
    size_t bytes;
    const char *was = lks_test_read(file, &bytes);
    char *now = strdup(was);
    *strstr(now, "12345") = '9';
    lks_test_write(file, now, bytes);
    free(now);
    assert_int_equal(on_ranks(2, dir, NULL, 0, run_json), LKS_ERR_FORMAT);
    assert_contains(ranks[1].said, "lks_checkpoint_json: rank 0: ", "does not match its own hash");
}

/* 64 dimensions, of which two aren't 1. */
static void run_dimensions(struct rank *r)
{
    lks_tensor t = {"deep", LKS_INT32, 64, {0}, r->mine}, *list;
    size_t n;
    for (int d = 0; d < 64; d++)
        t.shape[d] = d == 1 ? 3 : d == 63 ? 4 : 1;
    for (size_t i = 0; i < 12; i++)
        r->mine[i] = value_of(0, i);
    r->status = lks_checkpoint_save(r->comm, r->dir, 3, &t, 1, 0);
    if (r->status == LKS_OK)
        r->status = lks_checkpoint_list(r->comm, r->dir, &list, &n, NULL);
    if (r->status != LKS_OK)
        return;
    r->found =
        n == 1 && list[0].n_dims == 64 && memcmp(list[0].shape, t.shape, sizeof t.shape) == 0;
    memset(r->mine, 0, sizeof r->mine);
    list[0].data = r->mine;
    r->status = lks_checkpoint_load(r->comm, r->dir, list, n, &r->step, NULL);
    r->found &= r->mine[11] == value_of(0, 11) && r->mine[12] == 0;
    free(list);
}

TEST(test_dimensions)
{
    CALL_OK(on_ranks(3, lks_test_folder(), NULL, 0, run_dimensions));
    for (int r = 0; r < 3; r++)
        assert_true(ranks[r].found && ranks[r].step == 3);
}

static void run_forged(struct rank *r)
{
    run_json(r);
    free(r->text);
    if (r->status == LKS_OK)
        run_load(r);
}

/* Files that no program has saved: whole checkpoints with other contents. */
TEST(test_forged)
{
    static const int32_t data[8];
    static const char *const states[] = {"{}", "{\"program\":{\"program\":[]}}",
                                         "{\"program\":false}"};
    const lks__st_tensor sets[][3] = {
        {{"mine@0", "I32", 1, {5}, data, 20}}, /* no dimension of 1 */
        {{"mine@0", "I32", 2, {5, 1}, data, 20}, {"mine@2", "I32", 1, {0}, data, 0}},
        {{"mine@0", "F8_E4M3", 2, {5, 1}, data, 5}, {"mine@1", "I32", 2, {0, 1}, data, 0}},
        {{"mine@0", "I32", 2, {5, 1}, data, 20}, {"mine@1", "I32", 2, {0, 1}, data, 0}}};
    for (size_t i = 0; i < 12; i++) {
        const char *dir = lks_test_folder();
        char name[32], hash[17];
        lks__st_tensor list[3];
        memcpy(list, sets[i / 3], sizeof list);
        const size_t n = list[1].name == NULL ? 1 : 2;
        list[n] = (lks__st_tensor){"common", "I32", 1, {8}, data, 32};
        lks__ckpt_content content = {.iter = 3, .model = list, .n_model = n + 1};
        content.state = json_loads(states[i % 3], 0, NULL);
        assert_ok(lks__ckpt_save(dir, &content, 0, name, hash));
        json_decref(content.state);
        assert_int_equal(on_ranks(2, dir, NULL, 0, run_forged), LKS_ERR_CONFIG);
        assert_true(is_untouched(&ranks[1]) || ranks[1].step == 3);
    }
}

/* Empty tensors named by numbers; the names follow the list. */
static lks__st_tensor *many(size_t n)
{
    enum { NAME = 17 };
    lks__st_tensor *list = lks_test_calloc(n, sizeof *list + NAME);
    char *name = (char *)(list + n);
    for (size_t i = 0; i < n; i++, name += NAME) {
        snprintf(name, NAME, "%zx", i);
        list[i] = (lks__st_tensor){.name = name, .dtype = "I8", .n_dims = 1};
    }
    return list;
}

static lks_status save_many(const char *dir, size_t n)
{
    char name[32], hash[17];
    lks__st_tensor *list = many(n);
    lks__ckpt_content content = {.iter = 3, .model = list, .n_model = n};
    const lks_status st = lks__ckpt_save(dir, &content, 0, name, hash);
    free(list);
    return st;
}

/* Give the checkpoint in `dir` a longer header, with all hashes that belong to it. */
static void forge_many(const char *dir, size_t n)
{
    static const char key[] = "\"model.safetensors\": \"";
    const char *model = lks_test_text("%s/ckpt-00000003/model.safetensors", dir);
    const char *file = lks_test_text("%s/ckpt-00000003/state.json", dir);
    lks__st_tensor *list = many(n);
    lks__st_file *st;
    size_t bytes;
    uint64_t hash;
    assert_int_equal(unlink(model), 0);
    assert_ok(lks__st_write(model, list, n, NULL));
    free(list);
    assert_ok(lks__st_open(model, &st));
    char *state = strdup(lks_test_read(file, &bytes));
    memcpy(strstr(state, key) + sizeof key - 1, lks__hex(lks__st_header_hash(st)), 16);
    lks__st_close(st);
    char *own = lks__state_hash(state, bytes, &hash);
    memcpy(own, lks__hex(hash), 16);
    lks_test_write(file, state, bytes);
    free(state);
}

static void run_list_many(struct rank *r)
{
    lks_tensor *list;
    size_t n;
    r->status = lks_checkpoint_list(r->comm, r->dir, &list, &n, &r->step);
    if (r->status != LKS_OK)
        return;
    r->odd = (int)n;
    free(list);
}

/* The number of tensors in 1000, or its negative status. */
static int list_many(const char *dir)
{
    const lks_status st = on_ranks(1, dir, NULL, 0, run_list_many);
    fprintf(stderr, "%s\n", ranks[0].said);
    return st == LKS_OK ? ranks[0].odd / 1000 : -st;
}

TEST(test_bounded)
{
    enum { MANY = 100000, TOO_MANY = 130000 };
    const char *dir = lks_test_folder();
    assert_fails(LKS_ERR_FORMAT, save_many(dir, TOO_MANY), "its header of ", "over the limit of ");
    assert_int_equal(lks_test_count_files(dir), 1); /* `.lock` */
    assert_ok(save_many(dir, MANY));
    assert_int_equal(lks_test_in_little_memory(list_many, dir, 300 << 20), MANY / 1000);
    forge_many(dir, TOO_MANY);
    assert_int_equal(lks_test_in_little_memory(list_many, dir, 300 << 20), -LKS_ERR_FORMAT);
}
