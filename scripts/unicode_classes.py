#!/usr/bin/env python3
"""Writes src/data/text/bpe/unicode_classes.c: which code points are letters, numbers and white space.

    pip install unicodedata2==16.0.0
    scripts/unicode_classes.py > src/data/text/bpe/unicode_classes.c

Unicode 16.0 is what tiktoken 0.14 has: its \\p{L}, \\p{N} and \\s agree with this on every code point.
"""
import unicodedata2 as unicodedata

if unicodedata.unidata_version != "16.0.0":
    raise SystemExit(f"unicodedata2 has Unicode {unicodedata.unidata_version}; the table is made of 16.0.0")

# White_Space of PropList.txt; the unicodedata module doesn't have that property.
SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def ranges(of):
    """[first, last] of the code points for which of() holds."""
    found, first = [], None
    for cp in range(0x110001):
        inside = cp < 0x110000 and of(cp)
        if inside and first is None:
            first = cp
        elif not inside and first is not None:
            found.append((first, cp - 1))
            first = None
    return found


def write(name, found):
    print(f"\nconst lks__code_points lks__unicode_{name}[] = {{")
    line = "   "
    for first, last in found:
        cell = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line + cell) > 100:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("};")
    print(f"const size_t lks__unicode_n_{name} = sizeof lks__unicode_{name} / sizeof lks__unicode_{name}[0];")


print("/* Made by scripts/unicode_classes.py of Unicode 16.0; don't edit. */")
print('#include "data/text/bpe/unicode_classes.h"')
print("\n/* clang-format off */")
write("letters", ranges(lambda cp: unicodedata.category(chr(cp))[0] == "L"))
write("numbers", ranges(lambda cp: unicodedata.category(chr(cp))[0] == "N"))
write("spaces", ranges(lambda cp: cp in SPACE))
