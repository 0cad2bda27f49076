/* struck.h - the signals that struck.c understands. */
#pragma once

#define LKS_STRIKE_EXIT   (SIGRTMIN + 4)
#define LKS_STRIKE_MEMORY (SIGRTMIN + 5)
#define LKS_STRIKE_CLOCK  (SIGRTMIN + 6)
