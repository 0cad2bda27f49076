#include <stdio.h>

#include "lockstep/status.h"

int main(void)
{
    printf("lockstep %s\n", LKS_VERSION);
    return 0;
}
