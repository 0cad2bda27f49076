#include "lockstep/dtype.h"

size_t lks_dtype_bytes(lks_dtype dtype)
{
    switch (dtype) {
#define X(name, value, bytes, text)                                                                \
    case LKS_##name:                                                                               \
        return bytes;
        LKS_DTYPE_MAP(X)
#undef X
    }
    return 0;
}

const char *lks_dtype_name(lks_dtype dtype)
{
    switch (dtype) {
#define X(name, value, bytes, text)                                                                \
    case LKS_##name:                                                                               \
        return text;
        LKS_DTYPE_MAP(X)
#undef X
    }
    return "no type";
}
