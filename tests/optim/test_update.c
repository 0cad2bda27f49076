/* The layers' updates of lists of pieces: every element of every piece once, for any threads, and
 * nothing beside them. */
#include "optim/level.h"

#include <math.h>
#include <stdlib.h>

#include "compute/cpu/device.h"

static lks__kernels kernels;

/* Lengths around the border of a task, single elements among them. */
static const size_t lengths[] = {16,     65536, 16, 65520, 32, 1, 65537, 3,
                                 200000, 65536, 48, 4096,  1,  1, 7,     131072};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0], GAP = 8, N_ARENAS = 4 };

static size_t total(void)
{
    size_t n = GAP;
    for (int i = 0; i < N_LENGTHS; i++)
        n += lengths[i] + GAP;
    return n;
}

static void open_arenas(float *arenas[N_ARENAS])
{
    for (int i = 0; i < N_ARENAS; i++) {
        arenas[i] = level_memory(total() * sizeof(float), 0);
        level_fill(arenas[i], total(), (uint64_t)i);
    }
    for (size_t i = 0; i < total(); i++)
        arenas[2][i] += 0.5f; /* a second moment is never negative */
}

static void close_arenas(float *arenas[N_ARENAS])
{
    for (int i = 0; i < N_ARENAS; i++)
        free(arenas[i]);
}

/* Is element i of the arenas in a piece? */
static bool is_in_piece(size_t i)
{
    size_t at = GAP;
    for (int p = 0; p < N_LENGTHS && i >= at; p++) {
        if (i < at + lengths[p])
            return true;
        at += lengths[p] + GAP;
    }
    return false;
}

static void blend(const lks__device *device, float *y, const float *x)
{
    lks__blend list = {.a = 0.75f, .b = -0.3f, .n_pieces = N_LENGTHS};
    size_t at = GAP;
    for (int p = 0; p < N_LENGTHS; p++) {
        list.piece[p].y = y + at;
        list.piece[p].x = x + at;
        list.piece[p].n = lengths[p];
        at += lengths[p] + GAP;
    }
    device->layers->update_blend(device->ex, &list);
}

static void adamw(const lks__device *device, float *arenas[N_ARENAS])
{
    lks__adamw_list list = {.lr = 0.01,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-3,
                            .weight_decay = 0.1,
                            .t = 2,
                            .clip = 0.5,
                            .n_pieces = N_LENGTHS};
    size_t at = GAP;
    for (int p = 0; p < N_LENGTHS; p++) {
        list.piece[p].params = arenas[0] + at;
        list.piece[p].exp_avg = arenas[1] + at;
        list.piece[p].exp_avg_sq = arenas[2] + at;
        list.piece[p].grads = arenas[3] + at;
        list.piece[p].n = lengths[p];
        at += lengths[p] + GAP;
    }
    device->layers->update_adamw(device->ex, &list);
}

TEST(test_blend)
{
    for (int threads = 1; threads <= 3; threads++) {
        float *is[N_ARENAS], *was[N_ARENAS];
        lks__exec ex = level_exec(&kernels, threads);
        lks__device device = lks__device_cpu(&ex);
        open_arenas(is);
        open_arenas(was);
        blend(&device, is[0], is[1]);
        for (size_t i = 0; i < total(); i++) {
            const float want = 0.75f * was[0][i] + -0.3f * was[1][i];
            assert_true(is[0][i] == (is_in_piece(i) ? want : was[0][i]));
        }
        assert_memory_equal(is[1], was[1], total() * sizeof(float));
        close_arenas(is);
        close_arenas(was);
        level_close(&ex);
    }
}

TEST(test_adamw)
{
    for (int threads = 1; threads <= 3; threads++) {
        float *is[N_ARENAS], *was[N_ARENAS];
        lks__exec ex = level_exec(&kernels, threads);
        lks__device device = lks__device_cpu(&ex);
        open_arenas(is);
        open_arenas(was);
        adamw(&device, is);
        for (size_t i = 0; i < total(); i++) {
            const double g = 0.5 * was[3][i], m = 0.9 * was[1][i] + 0.1 * g,
                         v = 0.95 * was[2][i] + 0.05 * g * g;
            const double step = (m / (1 - 0.81)) / (sqrt(v / (1 - 0.95 * 0.95)) + 1e-3);
            const bool in = is_in_piece(i);
            assert_near(is[1][i], in ? m : was[1][i], in ? 2e-7 : 0);
            assert_near(is[2][i], in ? v : was[2][i], in ? 2e-7 : 0);
            assert_near(is[0][i], in ? was[0][i] * (1 - 0.001) - 0.01 * step : was[0][i],
                        in ? 1e-6 : 0);
        }
        close_arenas(is);
        close_arenas(was);
        level_close(&ex);
    }
}

/* An empty list is no error. */
TEST(test_empty)
{
    lks__exec ex = level_exec(&kernels, 2);
    lks__device device = lks__device_cpu(&ex);
    device.layers->update_blend(device.ex, &(lks__blend){.a = 1.0f});
    device.layers->update_adamw(device.ex, &(lks__adamw_list){.t = 1});
    device.layers->update_muon(device.ex, &(lks__muon_list){.ns_steps = 5});
    level_close(&ex);
}

/* A list of all the pieces that fit. */
TEST(test_full)
{
    lks__exec ex = level_exec(&kernels, 2);
    lks__device device = lks__device_cpu(&ex);
    float *y = level_memory(LKS__UPDATE_PIECES * sizeof *y, 0);
    const float one = 1.0f;
    lks__blend list = {.a = 1.0f, .b = 2.0f, .n_pieces = LKS__UPDATE_PIECES};
    for (int i = 0; i < LKS__UPDATE_PIECES; i++) {
        list.piece[i].y = y + i;
        list.piece[i].x = i % 2 == 0 ? &one : NULL;
        y[i] = i % 2 == 0 ? 0.0f : NAN;
        list.piece[i].n = 1;
    }
    device.layers->update_blend(device.ex, &list);
    for (int i = 0; i < LKS__UPDATE_PIECES; i++)
        assert_true(y[i] == (i % 2 == 0 ? 2.0f : 0.0f));
    free(y);
    level_close(&ex);
}

int main(void)
{
    lks_test_need_level(&kernels);
    return lks_test_run_all(NULL, NULL);
}
