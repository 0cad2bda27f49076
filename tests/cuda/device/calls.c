#include "calls.h"

#include <stdlib.h>
#include <string.h>

#include "support.h"

void calls_assert_listed(const char *path, int least)
{
    const char *page =
        lks_test_read(lks_test_text("%s/docs/inside/cuda.md", LKS_TEST_SOURCE_DIR), NULL);
    const char *begin = strstr(page, "\n```calls\n");
    assert_non_null(begin);
    char *used = strdup(lks_test_read(path, NULL)), *rest;
    bool all = true;
    int n = 0;
    for (char *line = strtok_r(used, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        n++;
        if (strstr(begin, lks_test_text("\n%s\n", line)) == NULL) {
            print_error("docs/inside/cuda.md lacks: %s\n", line);
            all = false;
        }
    }
    free(used);
    print_message("%d calls and kernels\n", n);
    assert_true(all && n >= least);
}
