# Read by CTest in builds with LKS_SANITIZE: what the sanitizers have to know about what isn't ours.
#
# intercept_tls_get_addr=0: gcc 12's guess where the thread-local memory of a library that was
# loaded late begins goes wrong for SentencePiece's, and the search for leaks dies of it.
set(ENV{ASAN_OPTIONS} intercept_tls_get_addr=0:$ENV{ASAN_OPTIONS})
set(ENV{LSAN_OPTIONS} print_suppressions=0:$ENV{LSAN_OPTIONS})
