# Read by CTest in builds with LKS_SANITIZE: what the sanitizers have to know about what isn't ours.
#
# exitcode=66: the thread sanitizer's own, for all; no program of ours ends with it.
# intercept_tls_get_addr=0: gcc 12's guess where the thread-local memory of a library that was
# loaded late begins goes wrong for SentencePiece's, and the search for leaks dies of it.
set(ENV{ASAN_OPTIONS} exitcode=66:intercept_tls_get_addr=0:$ENV{ASAN_OPTIONS})
set(ENV{LSAN_OPTIONS} print_suppressions=0:$ENV{LSAN_OPTIONS})
set(ENV{UBSAN_OPTIONS} exitcode=66:$ENV{UBSAN_OPTIONS})
set(ENV{TSAN_OPTIONS}
    suppressions=${CMAKE_CURRENT_LIST_DIR}/tsan.supp:print_suppressions=0:$ENV{TSAN_OPTIONS})
# UCX, under MPICH, puts itself before madvise(): there it takes a lock when the C library ends a
# thread that the thread sanitizer has already forgotten, which then crashes.
set(ENV{UCX_MEM_EVENTS} no)
