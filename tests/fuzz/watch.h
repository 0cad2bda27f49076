/* watch.h - what an input does besides what it returns: new code, and memory. */
#ifndef LKS_TESTS_FUZZ_WATCH_H
#define LKS_TESTS_FUZZ_WATCH_H

#include <stdbool.h>
#include <stddef.h>

/* Before an input of that length: no more than twice its length and 64 MB may be taken for it. */
void watch_begin(size_t bytes);

/* After it: did it reach code that none before has reached? Always false where the build doesn't
 * tell (CMakeLists.txt). Ends the process where it took too much memory. */
bool watch_end(void);

#endif
