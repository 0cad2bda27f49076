/* tests/kernels/fake_dnnl.c - a libdnnl whose results the test sets. LD_LIBRARY_PATH makes the
 * loader find it before the real one. */
#include <stdint.h>

#define API __attribute__((visibility("default")))

API int fake_isa = 0;    /* the instructions that the library can be capped at */
API int fake_status = 0; /* what a matrix product returns */
API int fake_cap = -1;   /* the instructions that it was told to be capped at */
API int fake_threads = 0;
API int fake_fpmath = -1;

API const int *dnnl_version(void)
{
    static const int version[3] = {2, 99, 7};
    return version;
}

API int dnnl_set_max_cpu_isa(int isa)
{
    fake_cap = isa;
    return 0;
}

API int dnnl_get_effective_cpu_isa(void)
{
    return fake_cap & fake_isa;
}

API int dnnl_set_default_fpmath_mode(int mode)
{
    fake_fpmath = mode;
    return 0;
}

API void omp_set_num_threads(int n)
{
    fake_threads = n;
}

API int dnnl_sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    return fake_status;
}
