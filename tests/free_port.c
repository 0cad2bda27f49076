/* Prints a port of 127.0.0.1 for shell tests. It is reserved until this program ends. */
#include "support.h"

#include <stdio.h>

int main(void)
{
    printf("%d\n", lks_test_free_port());
    return 0;
}
