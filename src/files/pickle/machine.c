/* files/pickle/machine.c - the stack machine of pickle.h. It is long because the opcodes share the
 * machine's checks, which no other file may bypass. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "files/pickle/opcodes.h"
#include "files/pickle/value.h"

/* Limit in bytes for the keys of all dicts, which are compared to sort them. */
enum { MAX_KEYS = 64 << 20 };

typedef struct list {
    lks__pickle_value **at;
    size_t n, room;
} list;

struct lks__pickle {
    char where[512];
    char *owned; /* the file's bytes, if lks__pickle_open() read them */
    lks__pickle_heap heap;
    const lks__pickle_value *root;
};

typedef struct machine {
    lks__pickle *pickle;
    const unsigned char *data;
    size_t bytes, at, op_at; /* op_at: offset of the current opcode */
    list stack, memo;
    size_t *marks; /* stack heights */
    size_t n_marks, room_marks;
    uint64_t key_bytes;
    lks__pickle_value *none, *yes, *no, *nothing; /* shared values */
    lks__pickle_has *has;
    void *ctx;
} machine;

/* ---- failures ---------------------------------------------------------------------------- */

static lks_status refuse_at(const machine *m, size_t at, const char *why)
{
    return lks__fail(LKS_ERR_FORMAT, "%s, offset %zu: %s", m->pickle->where, at, why);
}

/* `why` NULL: out of memory. */
static lks_status refuse(const machine *m, const char *why)
{
    if (!why)
        return lks__no_memory("for the values of %s", m->pickle->where);
    return refuse_at(m, m->op_at, why);
}

static const char *opcode_name(unsigned op)
{
    switch (op) {
#define LKS__X(name, byte)                                                                         \
    case byte:                                                                                     \
        return #name;
        LKS__PICKLE_OPCODES(LKS__X)
        LKS__PICKLE_REFUSED(LKS__X)
#undef LKS__X
    default:
        return "not an opcode of any protocol";
    }
}

static lks_status refuse_opcode(const machine *m, unsigned op)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s, offset %zu: opcode 0x%02x (%s) is refused: lockstep doesn't read the "
                     "kind of value that it makes",
                     m->pickle->where, m->op_at, op, opcode_name(op));
}

/* ---- the file ---------------------------------------------------------------------------- */

static lks_status take(machine *m, uint64_t bytes, const unsigned char **out)
{
    if (bytes > m->bytes - m->at)
        return refuse(m, "it ends in the middle of an opcode, or a length is wrong");
    *out = m->data + m->at;
    m->at += bytes;
    return LKS_OK;
}

/* A little-endian number of 1 to 8 bytes. */
static lks_status take_number(machine *m, unsigned bytes, uint64_t *n_p)
{
    const unsigned char *p = NULL;
    uint64_t n = 0;
    LKS__TRY(take(m, bytes, &p));
    for (unsigned i = 0; i < bytes; i++)
        n |= (uint64_t)p[i] << 8 * i;
    *n_p = n;
    return LKS_OK;
}

/* Read a line; the result excludes the line feed. */
static lks_status take_line(machine *m, const char **line_p, size_t *bytes_p)
{
    const unsigned char *start = m->data + m->at;
    const unsigned char *end = memchr(start, '\n', m->bytes - m->at);
    if (!end)
        return refuse(m, "a name has no end");
    *line_p = (const char *)start;
    *bytes_p = (size_t)(end - start);
    m->at += *bytes_p + 1;
    return LKS_OK;
}

/* ---- the stack --------------------------------------------------------------------------- */

static lks_status push_to(machine *m, list *l, lks__pickle_value *v)
{
    if (!lks__list_grow(&l->at, l->n, &l->room, sizeof *l->at))
        return refuse(m, NULL);
    l->at[l->n++] = v;
    return LKS_OK;
}

/* `v` NULL: out of memory. */
static lks_status push(machine *m, lks__pickle_value *v)
{
    return v ? push_to(m, &m->stack, v) : refuse(m, NULL);
}

/* Number of values above the last mark. */
static size_t height(const machine *m)
{
    return m->stack.n - (m->n_marks > 0 ? m->marks[m->n_marks - 1] : 0);
}

static lks_status pop(machine *m, lks__pickle_value **v_p)
{
    if (height(m) == 0)
        return refuse(m, "its stack is empty");
    *v_p = m->stack.at[--m->stack.n];
    return LKS_OK;
}

static lks_status mark(machine *m, unsigned size, lks__pickle_kind kind)
{
    if (!lks__list_grow(&m->marks, m->n_marks, &m->room_marks, sizeof *m->marks))
        return refuse(m, NULL);
    m->marks[m->n_marks++] = m->stack.n;
    return LKS_OK;
}

/* Remove the last mark and the values above it, which stay readable until the next push. */
static lks_status pop_mark(machine *m, lks__pickle_value ***values_p, size_t *n_p)
{
    if (m->n_marks == 0)
        return refuse(m, "it has no mark where one is needed");
    size_t start = m->marks[--m->n_marks];
    *n_p = m->stack.n - start;
    *values_p = m->stack.at + start;
    m->stack.n = start;
    return LKS_OK;
}

/* ---- scalars ----------------------------------------------------------------------------- */

static lks_status push_int(machine *m, int64_t n)
{
    lks__pickle_value *v = lks__pickle_new(&m->pickle->heap, LKS__PICKLE_INT);
    if (v)
        v->u.whole = n;
    return push(m, v);
}

static lks_status do_int(machine *m, unsigned size, lks__pickle_kind kind)
{
    uint64_t n = 0;
    LKS__TRY(take_number(m, size, &n));
    return push_int(m, size == 4 ? (int64_t)(int32_t)(uint32_t)n : (int64_t)n);
}

static lks_status do_long(machine *m, unsigned size, lks__pickle_kind kind)
{
    uint64_t bytes = 0, n = 0;
    LKS__TRY(take_number(m, size, &bytes));
    if (bytes > 8)
        return refuse(m, "a whole number has more than 64 bits");
    LKS__TRY(take_number(m, (unsigned)bytes, &n));
    if (bytes > 0 && bytes < 8 && n >> (8 * bytes - 1) != 0) /* negative */
        n |= UINT64_MAX << 8 * bytes;
    return push_int(m, (int64_t)n);
}

static lks_status do_float(machine *m, unsigned size, lks__pickle_kind kind)
{
    uint64_t bits = 0;
    LKS__TRY(take_number(m, 8, &bits));
    lks__pickle_value *v = lks__pickle_new(&m->pickle->heap, LKS__PICKLE_FLOAT);
    bits = __builtin_bswap64(bits); /* the one big-endian number */
    if (v)
        memcpy(&v->u.real, &bits, sizeof bits);
    return push(m, v);
}

static lks_status do_text(machine *m, unsigned size, lks__pickle_kind kind)
{
    const unsigned char *text = NULL;
    uint64_t bytes = 0;
    LKS__TRY(take_number(m, size, &bytes));
    LKS__TRY(take(m, bytes, &text));
    if (kind == LKS__PICKLE_TEXT && !lks__utf8_is_valid((const char *)text, bytes))
        return refuse(m, "a text is not valid UTF-8");
    lks__pickle_value *v = lks__pickle_new(&m->pickle->heap, kind);
    if (v) {
        v->u.text.at = (const char *)text;
        v->u.text.bytes = bytes;
    }
    return push(m, v);
}

/* ---- tuples, lists, dicts ---------------------------------------------------------------- */

static lks_status append(machine *m, lks__pickle_value *whole, lks__pickle_value *const *parts,
                         size_t n)
{
    const char *why;
    for (size_t i = 0; i < n; i++) {
        if (whole->kind == LKS__PICKLE_DICT && whole->u.items.n % 2 == 0 &&
            parts[i]->kind == LKS__PICKLE_TEXT)
            m->key_bytes += parts[i]->u.text.bytes;
        if (m->key_bytes > MAX_KEYS)
            return refuse(m, "keys of dicts have more than 64 MiB, counted each time they occur");
        if (!lks__pickle_append(whole, parts[i], &why))
            return refuse(m, why);
    }
    return LKS_OK;
}

static lks_status push_tuple(machine *m, lks__pickle_value *const *parts, size_t n)
{
    lks__pickle_value *v = lks__pickle_new(&m->pickle->heap, LKS__PICKLE_TUPLE);
    if (!v)
        return refuse(m, NULL);
    LKS__TRY(append(m, v, parts, n));
    return push(m, v);
}

static lks_status do_tuple(machine *m, unsigned size, lks__pickle_kind kind)
{
    if (height(m) < size)
        return refuse(m, "its stack is too short for a tuple");
    m->stack.n -= size;
    return push_tuple(m, m->stack.at + m->stack.n, size);
}

static lks_status do_tuple_marked(machine *m, unsigned size, lks__pickle_kind kind)
{
    lks__pickle_value **parts = NULL;
    size_t n = 0;
    LKS__TRY(pop_mark(m, &parts, &n));
    return push_tuple(m, parts, n);
}

/* The value below the popped ones: a list or dict to append to. */
static lks_status whole_of(const machine *m, lks__pickle_kind kind, lks__pickle_value **whole_p)
{
    if (height(m) == 0 || m->stack.at[m->stack.n - 1]->kind != kind)
        return refuse(m, kind == LKS__PICKLE_LIST
                             ? "items are added to a value that is not a list"
                             : "items are added to a value that is not a dict");
    *whole_p = m->stack.at[m->stack.n - 1];
    return LKS_OK;
}

/* APPEND (1 item) and SETITEM (2: a key and its value). */
static lks_status do_append(machine *m, unsigned size, lks__pickle_kind kind)
{
    lks__pickle_value *whole = NULL;
    if (height(m) <= size)
        return refuse(m, "its stack is too short");
    m->stack.n -= size;
    LKS__TRY(whole_of(m, kind, &whole));
    return append(m, whole, m->stack.at + m->stack.n, size);
}

static lks_status do_append_marked(machine *m, unsigned size, lks__pickle_kind kind)
{
    lks__pickle_value **parts = NULL, *whole = NULL;
    size_t n = 0;
    LKS__TRY(pop_mark(m, &parts, &n));
    LKS__TRY(whole_of(m, kind, &whole));
    if (kind == LKS__PICKLE_DICT && n % 2 != 0)
        return refuse(m, "a dict has a key without a value");
    return append(m, whole, parts, n);
}

/* ---- the memo ---------------------------------------------------------------------------- */

static lks_status put(machine *m, uint64_t place)
{
    if (height(m) == 0)
        return refuse(m, "its stack is empty");
    lks__pickle_value *v = m->stack.at[m->stack.n - 1];
    if (place > m->memo.n)
        return refuse(m, "its memo has gaps");
    if (place == m->memo.n)
        return push_to(m, &m->memo, v);
    m->memo.at[place] = v;
    return LKS_OK;
}

static lks_status do_memoize(machine *m, unsigned size, lks__pickle_kind kind)
{
    return put(m, m->memo.n);
}

static lks_status do_put(machine *m, unsigned size, lks__pickle_kind kind)
{
    uint64_t place = 0;
    LKS__TRY(take_number(m, size, &place));
    return put(m, place);
}

static lks_status do_get(machine *m, unsigned size, lks__pickle_kind kind)
{
    uint64_t place = 0;
    LKS__TRY(take_number(m, size, &place));
    if (place >= m->memo.n)
        return refuse(m, "it uses an empty place of its memo");
    return push(m, m->memo.at[place]);
}

/* ---- names ------------------------------------------------------------------------------- */

static lks_status push_global(machine *m, const char *module, size_t module_bytes, const char *name,
                              size_t name_bytes)
{
    char a[128], b[128];
    const lks__pickle_global *g = lks__pickle_global_find(module, module_bytes, name, name_bytes);
    if (!g)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s, offset %zu: it names %s.%s, which is refused: only tensors, "
                         "OrderedDict and plain values are read; save it again without that "
                         "(instead of NumPy's x for example int(x), float(x) or x.tolist())",
                         m->pickle->where, m->op_at, lks__escape(a, sizeof a, module, module_bytes),
                         lks__escape(b, sizeof b, name, name_bytes));
    lks__pickle_value *v = lks__pickle_new(&m->pickle->heap, LKS__PICKLE_GLOBAL);
    if (v)
        v->u.global = g;
    return push(m, v);
}

static lks_status do_global(machine *m, unsigned size, lks__pickle_kind kind)
{
    const char *module = NULL, *name = NULL;
    size_t module_bytes = 0, name_bytes = 0;
    LKS__TRY(take_line(m, &module, &module_bytes));
    LKS__TRY(take_line(m, &name, &name_bytes));
    return push_global(m, module, module_bytes, name, name_bytes);
}

static lks_status do_stack_global(machine *m, unsigned size, lks__pickle_kind kind)
{
    lks__pickle_value *module = NULL, *name = NULL;
    LKS__TRY(pop(m, &name));
    LKS__TRY(pop(m, &module));
    if (module->kind != LKS__PICKLE_TEXT || name->kind != LKS__PICKLE_TEXT)
        return refuse(m, "a name is not a text");
    return push_global(m, module->u.text.at, module->u.text.bytes, name->u.text.at,
                       name->u.text.bytes);
}

static lks_status do_reduce(machine *m, unsigned size, lks__pickle_kind kind)
{
    const char *why;
    lks__pickle_value *arguments = NULL, *global = NULL;
    LKS__TRY(pop(m, &arguments));
    LKS__TRY(pop(m, &global));
    if (global->kind != LKS__PICKLE_GLOBAL || arguments->kind != LKS__PICKLE_TUPLE)
        return refuse(m, "it calls a value that is not a name, or without a tuple of arguments");
    lks__pickle_value *v = lks__pickle_rebuild(&m->pickle->heap, global->u.global, arguments, &why);
    return v ? push(m, v) : refuse(m, why);
}

/* An OrderedDict's attributes, for example a state dict's _metadata, are ignored. */
static lks_status do_build(machine *m, unsigned size, lks__pickle_kind kind)
{
    lks__pickle_value *attributes = NULL, *dict;
    LKS__TRY(pop(m, &attributes));
    if (attributes->kind != LKS__PICKLE_DICT)
        return refuse(m, "a value's attributes are not a dict");
    return whole_of(m, LKS__PICKLE_DICT, &dict);
}

static lks_status do_storage(machine *m, unsigned size, lks__pickle_kind kind)
{
    const char *why;
    uint64_t bytes;
    lks__pickle_value *id = NULL;
    LKS__TRY(pop(m, &id));
    if (!m->has)
        return refuse(m, "it contains a tensor, which only files of torch.save can contain");
    lks__pickle_value *v = lks__pickle_storage_of(&m->pickle->heap, id, &why);
    if (!v)
        return refuse(m, why);
    const lks__pickle_storage *s = &v->u.storage;
    if (__builtin_mul_overflow(s->count, s->item_bytes, &bytes))
        return refuse(m, "a storage's size overflows");
    lks_status st = m->has(m->ctx, s, bytes);
    if (st != LKS_OK)
        return lks__fail_in(st, "%s, offset %zu", m->pickle->where, m->op_at);
    return push(m, v);
}

/* ---- the loop ---------------------------------------------------------------------------- */

static lks_status do_proto(machine *m, unsigned size, lks__pickle_kind kind)
{
    uint64_t protocol = 0;
    LKS__TRY(take_number(m, 1, &protocol));
    return m->op_at == 0 && protocol >= 2 && protocol <= 5
               ? LKS_OK
               : refuse(m, "its protocol is not 2, 3, 4 or 5, or is given twice");
}

static lks_status do_frame(machine *m, unsigned size, lks__pickle_kind kind)
{
    uint64_t bytes = 0;
    LKS__TRY(take_number(m, 8, &bytes));
    return bytes <= m->bytes - m->at ? LKS_OK : refuse(m, "a frame is longer than the file");
}

static lks_status do_pop(machine *m, unsigned size, lks__pickle_kind kind)
{
    return pop(m, &(lks__pickle_value *){NULL});
}

static lks_status do_pop_mark(machine *m, unsigned size, lks__pickle_kind kind)
{
    lks__pickle_value **values;
    size_t n_values;
    return pop_mark(m, &values, &n_values);
}

/* None, True, False and (). */
static lks_status push_shared(machine *m, unsigned size, lks__pickle_kind kind)
{
    return push(m, kind == LKS__PICKLE_NONE    ? m->none
                   : kind == LKS__PICKLE_TUPLE ? m->nothing
                   : size == 1                 ? m->yes
                                               : m->no);
}

static lks_status push_new(machine *m, unsigned size, lks__pickle_kind kind)
{
    return push(m, lks__pickle_new(&m->pickle->heap, kind));
}

/* Functions of opcodes; `size`: bytes of the opcode's number, or the number of values. */
static const struct {
    lks_status (*run)(machine *m, unsigned size, lks__pickle_kind kind);
    unsigned size;
    lks__pickle_kind kind;
} operations[256] = {
    [LKS__OP_PROTO] = {do_proto, 0, 0},
    [LKS__OP_FRAME] = {do_frame, 0, 0},
    [LKS__OP_MARK] = {mark, 0, 0},
    [LKS__OP_POP] = {do_pop, 0, 0},
    [LKS__OP_POP_MARK] = {do_pop_mark, 0, 0},
    [LKS__OP_NONE] = {push_shared, 0, LKS__PICKLE_NONE},
    [LKS__OP_NEWTRUE] = {push_shared, 1, LKS__PICKLE_BOOL},
    [LKS__OP_NEWFALSE] = {push_shared, 0, LKS__PICKLE_BOOL},
    [LKS__OP_BININT] = {do_int, 4, 0},
    [LKS__OP_BININT1] = {do_int, 1, 0},
    [LKS__OP_BININT2] = {do_int, 2, 0},
    [LKS__OP_LONG1] = {do_long, 1, 0},
    [LKS__OP_LONG4] = {do_long, 4, 0},
    [LKS__OP_BINFLOAT] = {do_float, 0, 0},
    [LKS__OP_BINUNICODE] = {do_text, 4, LKS__PICKLE_TEXT},
    [LKS__OP_SHORT_BINUNICODE] = {do_text, 1, LKS__PICKLE_TEXT},
    [LKS__OP_BINUNICODE8] = {do_text, 8, LKS__PICKLE_TEXT},
    [LKS__OP_BINBYTES] = {do_text, 4, LKS__PICKLE_BYTES},
    [LKS__OP_SHORT_BINBYTES] = {do_text, 1, LKS__PICKLE_BYTES},
    [LKS__OP_BINBYTES8] = {do_text, 8, LKS__PICKLE_BYTES},
    [LKS__OP_EMPTY_TUPLE] = {push_shared, 0, LKS__PICKLE_TUPLE},
    [LKS__OP_TUPLE1] = {do_tuple, 1, 0},
    [LKS__OP_TUPLE2] = {do_tuple, 2, 0},
    [LKS__OP_TUPLE3] = {do_tuple, 3, 0},
    [LKS__OP_TUPLE] = {do_tuple_marked, 0, 0},
    [LKS__OP_EMPTY_LIST] = {push_new, 0, LKS__PICKLE_LIST},
    [LKS__OP_APPEND] = {do_append, 1, LKS__PICKLE_LIST},
    [LKS__OP_APPENDS] = {do_append_marked, 0, LKS__PICKLE_LIST},
    [LKS__OP_EMPTY_DICT] = {push_new, 0, LKS__PICKLE_DICT},
    [LKS__OP_SETITEM] = {do_append, 2, LKS__PICKLE_DICT},
    [LKS__OP_SETITEMS] = {do_append_marked, 0, LKS__PICKLE_DICT},
    [LKS__OP_BINPUT] = {do_put, 1, 0},
    [LKS__OP_LONG_BINPUT] = {do_put, 4, 0},
    [LKS__OP_MEMOIZE] = {do_memoize, 0, 0},
    [LKS__OP_BINGET] = {do_get, 1, 0},
    [LKS__OP_LONG_BINGET] = {do_get, 4, 0},
    [LKS__OP_GLOBAL] = {do_global, 0, 0},
    [LKS__OP_STACK_GLOBAL] = {do_stack_global, 0, 0},
    [LKS__OP_REDUCE] = {do_reduce, 0, 0},
    [LKS__OP_BUILD] = {do_build, 0, 0},
    [LKS__OP_BINPERSID] = {do_storage, 0, 0},
};

/* Return the result: exactly one value at the end of the pickle. */
static lks_status finish(machine *m)
{
    const char *why;
    lks__pickle_value *root = NULL;
    LKS__TRY(pop(m, &root));
    if (m->n_marks > 0 || m->stack.n > 0)
        return refuse(m, "it ends with more than one value");
    if (m->at != m->bytes)
        return refuse(m, "bytes follow its end");
    if (root->kind == LKS__PICKLE_GLOBAL || root->kind == LKS__PICKLE_STORAGE)
        return refuse(m, "its value is a name");
    if (!lks__pickle_seal(root, &why))
        return refuse(m, why);
    m->pickle->root = root;
    return LKS_OK;
}

static lks_status prepare(machine *m)
{
    const char *why;
    lks__pickle_heap *heap = &m->pickle->heap;
    m->none = lks__pickle_new(heap, LKS__PICKLE_NONE);
    m->yes = lks__pickle_new(heap, LKS__PICKLE_BOOL);
    m->no = lks__pickle_new(heap, LKS__PICKLE_BOOL);
    m->nothing = lks__pickle_new(heap, LKS__PICKLE_TUPLE);
    if (!m->none || !m->yes || !m->no || !m->nothing)
        return refuse(m, NULL);
    m->yes->u.truth = true;
    lks__pickle_seal(m->nothing, &why);
    return LKS_OK;
}

static lks_status run(machine *m)
{
    LKS__TRY(prepare(m));
    if (m->bytes == 0 || m->data[0] != LKS__OP_PROTO)
        return refuse(m, "it is not a pickle of protocol 2, 3, 4 or 5");
    while (m->at < m->bytes) {
        m->op_at = m->at;
        unsigned op = m->data[m->at++];
        if (op == LKS__OP_STOP)
            return finish(m);
        LKS__TRY(operations[op].run == NULL
                     ? refuse_opcode(m, op)
                     : operations[op].run(m, operations[op].size, operations[op].kind));
    }
    return refuse_at(m, m->bytes, "it ends without STOP: it was cut");
}

static lks_status parse(const char *where, char *owned, const void *data, size_t bytes,
                        lks__pickle_has *has, void *ctx, lks__pickle **pickle_p)
{
    lks__pickle *p = calloc(1, sizeof *p);
    if (!p) {
        free(owned);
        return lks__no_memory("to read %s", where);
    }
    snprintf(p->where, sizeof p->where, "%s", where);
    p->owned = owned;
    machine m = {.pickle = p, .data = data, .bytes = bytes, .has = has, .ctx = ctx};
    lks_status st = bytes > LKS__PICKLE_MAX_BYTES ? refuse(&m, "it is longer than 8 MiB") : run(&m);
    free(m.stack.at);
    free(m.memo.at);
    free(m.marks);
    if (st == LKS_OK)
        *pickle_p = p;
    else
        lks__pickle_close(p);
    return st;
}

lks_status lks__pickle_parse(const char *where, const void *data, size_t bytes,
                             lks__pickle_has *has, void *ctx, lks__pickle **pickle_p)
{
    return parse(where, NULL, data, bytes, has, ctx, pickle_p);
}

lks_status lks__pickle_open(const char *path, lks__pickle **pickle_p)
{
    char *data;
    size_t bytes;
    LKS__TRY(lks__sys_read_file(path, LKS__PICKLE_MAX_BYTES, &data, &bytes));
    return parse(lks__shown(path, 512), data, data, bytes, NULL, NULL, pickle_p);
}

void lks__pickle_close(lks__pickle *p)
{
    if (!p)
        return;
    lks__pickle_heap_free(&p->heap);
    free(p->owned);
    free(p);
}

const lks__pickle_value *lks__pickle_root(const lks__pickle *p)
{
    return p->root;
}
