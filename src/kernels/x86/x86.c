/* kernels/x86/x86.c - which x86 version of each kernel a level uses. */
#include "kernels/x86/x86.h"

void lks__kernels_x86(lks__cpu_level level, lks__kernels *k)
{
}
