/* files/pickle/emit.h - writes pickles by a fixed sequence of opcodes of protocol 2: equal calls
 * give equal bytes. Nothing is kept in the memo, so a text that occurs twice stands there twice. */
#ifndef LKS_FILES_PICKLE_EMIT_H
#define LKS_FILES_PICKLE_EMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero it; free `at` in the end. */
typedef struct lks__emit {
    unsigned char *at;
    size_t n, room;
    bool failed; /* no memory: all further calls do nothing */
} lks__emit;

void lks__emit_start(lks__emit *e); /* the protocol */
void lks__emit_stop(lks__emit *e);
void lks__emit_none(lks__emit *e);
void lks__emit_bool(lks__emit *e, bool truth);
void lks__emit_int(lks__emit *e, int64_t n);
void lks__emit_float(lks__emit *e, double x);
void lks__emit_text(lks__emit *e, const char *text); /* valid UTF-8 */
/* Values between the two calls; in a dict keys and values in turn. */
void lks__emit_list(lks__emit *e);
void lks__emit_list_end(lks__emit *e);
void lks__emit_dict(lks__emit *e);
void lks__emit_dict_end(lks__emit *e);
void lks__emit_tuple(lks__emit *e);
void lks__emit_tuple_end(lks__emit *e);
/* A whole storage as a tensor, in C's order. */
void lks__emit_tensor(lks__emit *e, const char *dtype, int n_dims, const uint64_t *shape,
                      unsigned storage);

#endif
