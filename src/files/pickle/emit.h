/* files/pickle/emit.h - writes pickles with a fixed sequence of opcodes of protocol 2: equal calls
 * give equal bytes. The memo isn't used, so a repeated text is written twice. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero it first; free `at` at the end. */
typedef struct lks__emit {
    unsigned char *at;
    size_t n, room;
    bool failed; /* out of memory: all further calls do nothing */
} lks__emit;

void lks__emit_start(lks__emit *e); /* writes the protocol */
void lks__emit_stop(lks__emit *e);
void lks__emit_none(lks__emit *e);
void lks__emit_bool(lks__emit *e, bool truth);
void lks__emit_int(lks__emit *e, int64_t n);
void lks__emit_float(lks__emit *e, double x);
void lks__emit_text(lks__emit *e, const char *text); /* valid UTF-8 */
/* Write the values between the two calls; for a dict, alternate keys and values. */
void lks__emit_list(lks__emit *e);
void lks__emit_list_end(lks__emit *e);
void lks__emit_dict(lks__emit *e);
void lks__emit_dict_end(lks__emit *e);
void lks__emit_tuple(lks__emit *e);
void lks__emit_tuple_end(lks__emit *e);
/* A whole storage as a tensor, in C order. */
void lks__emit_tensor(lks__emit *e, const char *dtype, int n_dims, const uint64_t *shape,
                      unsigned storage);
