# Read by CTest in builds with LKS_SANITIZE: settings of the sanitizers for other programs' code.
#
# allocator_may_return_null=1: as without a sanitizer, for tests without memory.
# exitcode=66: the thread sanitizer's default, for all sanitizers; lockstep's programs don't use it.
# intercept_tls_get_addr=0: gcc 12 guesses where the thread-local memory of a library that is loaded late
# begins. For SentencePiece the guess is wrong, and the search for leaks crashes.
# history_size=7, the largest: a suppression needs the stack of the earlier access, and a thread that waits long
# in Open MPI makes the sanitizer forget it.
set(ENV{ASAN_OPTIONS} exitcode=66:intercept_tls_get_addr=0:allocator_may_return_null=1:$ENV{ASAN_OPTIONS})
set(ENV{LSAN_OPTIONS} suppressions=${CMAKE_CURRENT_LIST_DIR}/lsan.supp:print_suppressions=0:$ENV{LSAN_OPTIONS})
set(ENV{UBSAN_OPTIONS} exitcode=66:$ENV{UBSAN_OPTIONS})
set(ENV{TSAN_OPTIONS} allocator_may_return_null=1:history_size=7:$ENV{TSAN_OPTIONS})
set(ENV{TSAN_OPTIONS} suppressions=${CMAKE_CURRENT_LIST_DIR}/tsan.supp:print_suppressions=0:$ENV{TSAN_OPTIONS})
# UCX, under MPICH, replaces madvise(): there it takes a lock when the C library ends a thread. The thread
# sanitizer has already forgotten that thread, and crashes.
set(ENV{UCX_MEM_EVENTS} no)
