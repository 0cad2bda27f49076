/* watch.h - side effects of an input: new code reached, and memory used. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Before an input of that length, which may use at most twice its length and 64 MB. */
void watch_begin(size_t bytes);

/* After it: did it reach code that no earlier input has reached? Always false if the build can't
 * tell (CMakeLists.txt). Ends the process if it used too much memory. */
bool watch_end(void);
