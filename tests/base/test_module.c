/* What a message advises about a missing module: this file is built with base/module.c as it is
 * built for Debian packages. */
#include "support.h"

#include "base/module.h"

static void test_advice(void **state)
{
    char advice[LKS__MODULE_ADVICE];
    assert_string_equal(lks__module_advice("lockstep_gloo.so", "libgloo-dev", advice),
                        "install the package lockstep-gloo");
    assert_string_equal(lks__module_advice("lockstep_sentencepiece.so", "x", advice),
                        "install the package lockstep-sentencepiece");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advice),
    };
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
