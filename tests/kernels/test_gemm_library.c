/* tests/kernels/test_gemm_library.c - errors of oneDNN. Runs with fake_dnnl.c in its place. */
#include "support.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compute/cpu/products/gemm_dnnl.h"

static int *fake(const char *name)
{
    static void *lib; /* kept open: its state must last */
    if (lib == NULL)
        lib = dlopen(LKS_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(lib);
    int *p = dlsym(lib, name);
    assert_non_null(p);
    return p;
}

TEST(test_cap)
{
    /* a library that can't be capped at the level is refused; the message says what to do */
    *fake("fake_isa") = 0x1;
    assert_fails(LKS_ERR_SUPPORT, lks__gemm_dnnl_open(LKS__CPU_AVX2),
                 "Debian 12: libdnnl2, Debian 13: libdnnl3.6", "LOCKSTEP_CPU=plain");

    *fake("fake_isa") = 0x7; /* AVX2, although more is requested */
    assert_int_equal(lks__gemm_dnnl_open(LKS__CPU_AVX512), LKS_ERR_SUPPORT);
    assert_int_equal(*fake("fake_cap"), 0x27);
    assert_int_equal(lks__gemm_dnnl_open(LKS__CPU_AVX512_BF16), LKS_ERR_SUPPORT);
    assert_int_equal(*fake("fake_cap"), 0x27); /* float32 is computed with AVX-512's instructions */

    *fake("fake_isa") = 0x7 | 0x400; /* AVX2 and more */
    assert_int_equal(lks__gemm_dnnl_open(LKS__CPU_AVX2), LKS_OK);
    assert_int_equal(lks__gemm_dnnl_open(LKS__CPU_AVX2), LKS_OK);
    assert_string_equal(lks__gemm_dnnl_version(), "oneDNN 2.99.7");
    assert_int_equal(*fake("fake_threads"), 1);
    assert_int_equal(*fake("fake_fpmath"), 0);
    assert_int_equal(lks__gemm_dnnl_open(LKS__CPU_AVX512), LKS_ERR_ARG);
}

/* Another status than that of too little memory; in a process of its own, since the first one is
 * kept. */
TEST(test_refused)
{
    float x[4] = {1, 2, 3, 4}, c[4];
    int status;
    const pid_t child = fork();
    if (child == 0) {
        *fake("fake_status") = 3;
        lks__gemm_dnnl('N', 'N', 2, 2, 2, 1, x, 2, x, 2, 0, c, 2);
        _exit(lks__kernels_check() == LKS_ERR_SUPPORT &&
                      strstr(lks_last_error(), "refused a matrix product (its status 3)") != NULL
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

TEST(test_failure)
{
    float x[4] = {1, 2, 3, 4}, c[6] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(lks__kernels_check(), LKS_OK);
    *fake("fake_status") = 1;
    lks__gemm_dnnl('N', 'N', 2, 2, 2, 1, x, 2, x, 2, 1, c, 3);
    /* no number that could be mistaken for a result, and no write beyond C */
    assert_true(isnan(c[0]) && isnan(c[1]) && isnan(c[3]) && isnan(c[4]));
    assert_true(c[2] == 3 && c[5] == 6);
    assert_int_equal(lks__kernels_check(), LKS_ERR_NOMEM);

    /* the first cause is kept, whether later products succeed or fail */
    *fake("fake_status") = 2;
    lks__gemm_dnnl('N', 'N', 2, 2, 2, 1, x, 2, x, 2, 1, c, 3);
    *fake("fake_status") = 0;
    lks__gemm_dnnl('N', 'N', 2, 2, 2, 1, x, 2, x, 2, 1, c, 3);
    assert_int_equal(lks__kernels_check(), LKS_ERR_NOMEM);
}

int main(void)
{
    void *lib = dlopen(LKS_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL || dlsym(lib, "fake_isa") == NULL) {
        printf("LD_LIBRARY_PATH doesn't lead to the fake library\n");
        return 1;
    }
    return lks_test_run_all(NULL, NULL);
}
