/* struck.h - the signals that struck.c understands. */
#ifndef LKS_TESTS_STRUCK_H
#define LKS_TESTS_STRUCK_H

#define LKS_STRIKE_EXIT   (SIGRTMIN + 4)
#define LKS_STRIKE_MEMORY (SIGRTMIN + 5)
#define LKS_STRIKE_CLOCK  (SIGRTMIN + 6)

#endif
