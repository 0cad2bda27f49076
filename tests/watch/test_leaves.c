/* OUT/leaves.bin: written, cut and read, with damaged files. */
#include "support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "report/record/leaves.h"

static const char *file_in(const char *out)
{
    return lks_test_text("%s/" LKS__LEAVES_FILE, out);
}

static size_t size_of(const char *out)
{
    size_t bytes;
    lks_test_read(file_in(out), &bytes);
    return bytes;
}

static uint64_t hash_of(uint64_t iter, int v)
{
    return iter * 1000 + (uint64_t)v;
}

static void add(lks__leaves *l, uint64_t from, uint64_t end, int V, int A)
{
    for (uint64_t iter = from; iter < end; iter++) {
        uint64_t *hashes = lks__leaves_begin(l, iter, V, A);
        for (int v = 0; v < V; v++)
            hashes[v] = hash_of(iter, v);
        assert_ok(lks__leaves_end(l));
    }
}

/* Continue a run at `from` up to `end`. */
static void go_on(const char *out, uint64_t from, uint64_t end, int V, int A)
{
    lks__leaves l;
    assert_ok(lks__leaves_resume(out, from, true, &l));
    add(&l, from, end, V, A);
    assert_ok(lks__leaves_sync(&l));
    assert_ok(lks__leaves_close(&l));
}

/* The records' iterations, as text ("0 1 2"), all with the right hashes; or "damaged". */
static const char *read_all(const char *out)
{
    lks__leaves l;
    const char *text = "";
    lks_status st = lks__leaves_open(out, &l);
    bool any = st == LKS_OK;
    while (st == LKS_OK && any) {
        st = lks__leaves_next(&l, &any);
        if (st != LKS_OK || !any)
            break;
        for (int v = 0; v < (int)l.last.V; v++)
            assert_int_equal(l.record[1 + v], hash_of(l.last.iter, v));
        text = lks_test_text("%s%s%d", text, *text != '\0' ? " " : "", (int)l.last.iter);
    }
    lks__leaves_close(&l);
    if (st != LKS_OK)
        assert_contains(lks_last_error(), "so the file is damaged");
    return st == LKS_OK ? text : "damaged";
}

TEST(test_written)
{
    const char *out = lks_test_folder(), *once = lks_test_folder();
    assert_string_equal(read_all(out), "");
    go_on(out, 0, 5, 8, 1);
    assert_string_equal(read_all(out), "0 1 2 3 4");
    assert_int_equal(size_of(out), 32 + 5 * lks__leaves_step_bytes(8));
    go_on(out, 3, 6, 8, 1); /* a resume from checkpoint 3 */
    assert_string_equal(read_all(out), "0 1 2 3 4 5");
    go_on(once, 0, 6, 8, 1);
    size_t n, m;
    const char *a = lks_test_read(file_in(out), &n), *b = lks_test_read(file_in(once), &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n); /* a resume leaves no trace */
}

/* A resume with another number of micro-batches, or of virtual ranks, begins a segment. */
TEST(test_segments)
{
    const char *out = lks_test_folder();
    go_on(out, 0, 3, 8, 1);
    go_on(out, 3, 5, 8, 2);
    go_on(out, 5, 7, 1, 16);
    go_on(out, 9, 10, 1024, 1);
    assert_string_equal(read_all(out), "0 1 2 3 4 5 6 9");
    go_on(out, 5, 6, 8, 2); /* continues the second segment */
    assert_string_equal(read_all(out), "0 1 2 3 4 5");
    assert_int_equal(size_of(out), 2 * 32 + 6 * lks__leaves_step_bytes(8));
    go_on(out, 0, 0, 8, 1);
    assert_int_equal(size_of(out), 0);
}

TEST(test_rollback)
{
    const char *out = lks_test_folder();
    lks__leaves l;
    assert_ok(lks__leaves_resume(out, 0, true, &l));
    add(&l, 0, 6, 4, 1);
    assert_ok(lks__leaves_back(&l, 2));
    assert_string_equal(read_all(out), "0 1");
    add(&l, 2, 4, 4, 1);
    assert_ok(lks__leaves_close(&l));
    assert_string_equal(read_all(out), "0 1 2 3");
    memset(&l, 0, sizeof l); /* a run without hashes */
    assert_ok(lks__leaves_back(&l, 2));
    assert_ok(lks__leaves_sync(&l));
    assert_ok(lks__leaves_close(&l));
    assert_ok(lks__leaves_resume(lks_test_folder(), 2, false, &l));
    assert_int_equal(l.fd, -1);
    assert_ok(lks__leaves_close(&l));
}

/* A record that is being written isn't read. Damage is named, and a resume cuts it off. */
TEST(test_damaged)
{
    static const struct {
        size_t word;
        uint64_t value;
    } damages[] = {
        {0, 0},    {1, 1}, {2, 0},  {2, UINT64_C(1) << 32}, {2, 8}, {2, UINT64_C(1) << 32 | 1025},
        {3, 4095}, {4, 1}, {13, 0}, {13, UINT64_MAX}};
    const char *out = lks_test_folder();
    size_t bytes;
    go_on(out, 0, 3, 8, 1);
    uint64_t *words = (uint64_t *)lks_test_read(file_in(out), &bytes);
    for (size_t n = 0; n < bytes; n += 5) {
        lks_test_write(file_in(out), words, n);
        assert_string_equal(read_all(out), n < 104 ? "" : n < 176 ? "0" : "0 1");
    }
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const uint64_t kept = words[damages[i].word];
        words[damages[i].word] = damages[i].value;
        lks_test_write(file_in(out), words, bytes);
        assert_string_equal(read_all(out), "damaged");
        words[damages[i].word] = kept;
        go_on(out, 3, 4, 8, 1);
        assert_string_equal(read_all(out), damages[i].word == 13 ? "0 3" : "3");
    }
    const char *link = lks_test_folder(); /* a link isn't followed, a folder isn't read */
    assert_int_equal(symlink(file_in(out), file_in(link)), 0);
    lks__leaves l;
    assert_int_equal(lks__leaves_open(link, &l), LKS_ERR_IO);
    assert_int_equal(lks__leaves_resume(link, 0, true, &l), LKS_ERR_IO);
    assert_int_equal(unlink(file_in(link)), 0);
    assert_ok(lks__sys_make_dirs(file_in(link)));
    assert_int_equal(lks__leaves_open(link, &l), LKS_ERR_IO);
}
