#include "calls.h"

#include <stdlib.h>
#include <string.h>

#include "support.h"

void calls_assert_listed(const char *path, int least)
{
    const char *list = lks_test_read(LKS_TEST_SOURCE_DIR "/tests/cuda/device/calls.txt", NULL);
    char *used = strdup(lks_test_read(path, NULL)), *rest;
    bool all = true;
    int n = 0;
    for (char *line = strtok_r(used, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        n++;
        if (strstr(list, lks_test_text("\n%s\n", line)) == NULL) {
            print_error("tests/cuda/device/calls.txt lacks: %s\n", line);
            all = false;
        }
    }
    free(used);
    print_message("%d calls and kernels\n", n);
    assert_true(all && n >= least);
}
