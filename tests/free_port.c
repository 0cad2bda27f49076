/* Prints a free port of 127.0.0.1, for shell tests. Others may get it once this program has ended.
 */
#include "support.h"

#include <stdio.h>

int main(void)
{
    printf("%d\n", lks_test_free_port());
    return 0;
}
