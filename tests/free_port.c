/* Prints a free port of 127.0.0.1, for shell tests. */
#include "support.h"

#include <stdio.h>

int main(void)
{
    printf("%d\n", lks_test_free_port());
    return 0;
}
