#include "files/pickle/emit.h"

#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "files/pickle/globals.h"
#include "files/pickle/opcodes.h"

static void put(lks__emit *e, const void *data, size_t bytes)
{
    e->failed = e->failed || !lks__list_room(&e->at, e->n + bytes, &e->room, 1);
    if (e->failed)
        return;
    if (bytes > 0)
        memcpy(e->at + e->n, data, bytes);
    e->n += bytes;
}

static void put_op(lks__emit *e, unsigned op)
{
    put(e, &(unsigned char){(unsigned char)op}, 1);
}

/* Write an opcode and a little-endian number. */
static void put_number(lks__emit *e, unsigned op, uint64_t n, unsigned bytes)
{
    unsigned char number[8];
    for (unsigned i = 0; i < bytes; i++)
        number[i] = (unsigned char)(n >> 8 * i);
    put_op(e, op);
    put(e, number, bytes);
}

void lks__emit_start(lks__emit *e)
{
    put_number(e, LKS__OP_PROTO, 2, 1);
}

void lks__emit_bool(lks__emit *e, bool truth)
{
    put_op(e, truth ? LKS__OP_NEWTRUE : LKS__OP_NEWFALSE);
}

void lks__emit_int(lks__emit *e, int64_t n)
{
    if (n >= INT32_MIN && n <= INT32_MAX) {
        put_number(e, LKS__OP_BININT, (uint64_t)n, 4);
        return;
    }
    put_number(e, LKS__OP_LONG1, 8, 1);
    for (unsigned i = 0; i < 8; i++)
        put_op(e, (unsigned)((uint64_t)n >> 8 * i) & 255);
}

void lks__emit_float(lks__emit *e, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_number(e, LKS__OP_BINFLOAT, __builtin_bswap64(bits), 8);
}

void lks__emit_text(lks__emit *e, const char *text)
{
    size_t bytes = strlen(text);
    put_number(e, LKS__OP_BINUNICODE, bytes, 4);
    put(e, text, bytes);
}

#define EMIT(name, ...)                                                                            \
    void lks__emit_##name(lks__emit *e)                                                            \
    {                                                                                              \
        static const unsigned char ops[] = {__VA_ARGS__};                                          \
        put(e, ops, sizeof ops);                                                                   \
    }
EMIT(stop, LKS__OP_STOP)
EMIT(none, LKS__OP_NONE)
EMIT(list, LKS__OP_EMPTY_LIST, LKS__OP_MARK)
EMIT(list_end, LKS__OP_APPENDS)
EMIT(dict, LKS__OP_EMPTY_DICT, LKS__OP_MARK)
EMIT(dict_end, LKS__OP_SETITEMS)
EMIT(tuple, LKS__OP_MARK)
EMIT(tuple_end, LKS__OP_TUPLE)

static void global(lks__emit *e, const char *module, const char *name)
{
    put_op(e, LKS__OP_GLOBAL);
    put(e, module, strlen(module));
    put(e, "\n", 1);
    put(e, name, strlen(name));
    put(e, "\n", 1);
}

/* ('storage', type, key, 'cpu', count) */
static void storage_of(lks__emit *e, const char *dtype, unsigned storage, uint64_t count)
{
    const lks__pickle_global *type = lks__pickle_global_of(dtype);
    char key[16];
    snprintf(key, sizeof key, "%u", storage);
    lks__emit_tuple(e);
    lks__emit_text(e, "storage");
    global(e, type->module, type->name);
    lks__emit_text(e, key);
    lks__emit_text(e, "cpu");
    lks__emit_int(e, (int64_t)count);
    lks__emit_tuple_end(e);
    put_op(e, LKS__OP_BINPERSID);
}

void lks__emit_tensor(lks__emit *e, const char *dtype, int n_dims, const uint64_t *shape,
                      unsigned storage)
{
    uint64_t count = 1;
    for (int d = 0; d < n_dims; d++)
        count *= shape[d];
    global(e, "torch._utils", "_rebuild_tensor_v2");
    lks__emit_tuple(e);
    storage_of(e, dtype, storage, count);
    lks__emit_int(e, 0);
    lks__emit_tuple(e);
    for (int d = 0; d < n_dims; d++)
        lks__emit_int(e, (int64_t)shape[d]);
    lks__emit_tuple_end(e);
    lks__emit_tuple(e);
    for (int d = 0; d < n_dims; d++) {
        uint64_t stride = 1;
        for (int i = d + 1; i < n_dims; i++)
            stride *= shape[i];
        lks__emit_int(e, (int64_t)stride);
    }
    lks__emit_tuple_end(e);
    lks__emit_bool(e, false);
    global(e, "collections", "OrderedDict");
    put_op(e, LKS__OP_EMPTY_TUPLE);
    put_op(e, LKS__OP_REDUCE);
    lks__emit_tuple_end(e);
    put_op(e, LKS__OP_REDUCE);
}
