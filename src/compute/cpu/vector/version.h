/* compute/cpu/vector/version.h - names of kernels that are built once for each level: VERSION(add)
 * is lks__add_plain, lks__add_avx2 or lks__add_avx512. LKS__LEVEL comes from CMakeLists.txt. */
#pragma once

#define LKS__PASTE_(name, level) lks__##name##_##level
#define LKS__PASTE(name, level)  LKS__PASTE_(name, level)
#define VERSION(name)            LKS__PASTE(name, LKS__LEVEL)
