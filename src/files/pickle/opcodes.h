/* files/pickle/opcodes.h - the opcodes of Python's pickles, with pickletools' names. */
#pragma once

/* clang-format off */
/* X(name, byte): opcodes of protocols 2 to 5 for the supported kinds of values. */
#define LKS__PICKLE_OPCODES(X)                                                                     \
    X(PROTO, 0x80) X(FRAME, 0x95) X(STOP, '.') X(MARK, '(') X(POP, '0') X(POP_MARK, '1')           \
    X(NONE, 'N') X(NEWTRUE, 0x88) X(NEWFALSE, 0x89)                                                \
    X(BININT, 'J') X(BININT1, 'K') X(BININT2, 'M') X(LONG1, 0x8a) X(LONG4, 0x8b) X(BINFLOAT, 'G')   \
    X(BINUNICODE, 'X') X(SHORT_BINUNICODE, 0x8c) X(BINUNICODE8, 0x8d)                              \
    X(BINBYTES, 'B') X(SHORT_BINBYTES, 'C') X(BINBYTES8, 0x8e)                                     \
    X(EMPTY_TUPLE, ')') X(TUPLE1, 0x85) X(TUPLE2, 0x86) X(TUPLE3, 0x87) X(TUPLE, 't')              \
    X(EMPTY_LIST, ']') X(APPEND, 'a') X(APPENDS, 'e')                                              \
    X(EMPTY_DICT, '}') X(SETITEM, 's') X(SETITEMS, 'u')                                            \
    X(BINPUT, 'q') X(LONG_BINPUT, 'r') X(MEMOIZE, 0x94) X(BINGET, 'h') X(LONG_BINGET, 'j')          \
    X(GLOBAL, 'c') X(STACK_GLOBAL, 0x93) X(REDUCE, 'R') X(BUILD, 'b') X(BINPERSID, 'Q')

/* Unsupported opcodes, for messages. */
#define LKS__PICKLE_REFUSED(X)                                                                     \
    X(DUP, '2') X(INT, 'I') X(LONG, 'L') X(FLOAT, 'F') X(STRING, 'S') X(UNICODE, 'V')              \
    X(BINSTRING, 'T') X(SHORT_BINSTRING, 'U') X(LIST, 'l') X(DICT, 'd') X(PUT, 'p') X(GET, 'g')     \
    X(PERSID, 'P') X(INST, 'i') X(OBJ, 'o') X(NEWOBJ, 0x81) X(NEWOBJ_EX, 0x92)                      \
    X(EXT1, 0x82) X(EXT2, 0x83) X(EXT4, 0x84) X(BYTEARRAY8, 0x96) X(EMPTY_SET, 0x8f)               \
    X(ADDITEMS, 0x90) X(FROZENSET, 0x91) X(NEXT_BUFFER, 0x97) X(READONLY_BUFFER, 0x98)
/* clang-format on */

enum {
#define LKS__X(name, byte) LKS__OP_##name = byte,
    LKS__PICKLE_OPCODES(LKS__X)
#undef LKS__X
};
