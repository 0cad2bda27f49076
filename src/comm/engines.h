/* comm/engines.h - the engines between hosts, one row each. An engine is a module in the program's
 * folder with the calls of comm/hier/link/engine.h; src/comm/CMakeLists.txt builds it, and names it
 * to the tests. */
#pragma once

/* X(name of --backend, fields of struct lks__engine_module), in the order in which "auto" tries
 * them, after shm. */
#define LKS__ENGINES(X)                                                                            \
    X(mpi, .file = "lockstep_mpi.so", .package = "libopenmpi-dev", .launcher = "mpirun",           \
      .other = {by_mpich, "lockstep_mpich.so", "libmpich-dev"})                                    \
    X(gloo, .file = "lockstep_gloo.so", .package = "libgloo-dev")

/* The values of --backend. */
#define LKS__ENGINE_CHOICE(name, ...) "|" #name
#define LKS__BACKEND_CHOICES          "auto|shm" LKS__ENGINES(LKS__ENGINE_CHOICE)
