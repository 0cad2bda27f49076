/* Runs a target without libFuzzer. A child process does the work, so that its parent still has the
 * input if it dies. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"
#include "mutate.h"
#include "watch.h"

/* Seconds of CPU time for one input, and seconds to wait if it uses none. */
enum { CPU_SECONDS = 5, WALL_SECONDS = 60 };

static struct shared {
    volatile uint64_t i; /* the current input, or the number of inputs when all are done */
    volatile uint64_t kept;
    volatile size_t bytes;
    uint8_t data[FUZZ_MAX_INPUT];
} * shared;

static void one_input(void)
{
    const struct itimerval limit = {.it_value = {.tv_sec = CPU_SECONDS}};
    setitimer(ITIMER_PROF, &limit, NULL); /* SIGPROF kills the process */
    /* A copy of exactly its length, so that the sanitizer sees each byte read beyond it. */
    uint8_t *copy = malloc(shared->bytes + (shared->bytes == 0));
    FUZZ_HOLDS(copy != NULL);
    memcpy(copy, shared->data, shared->bytes);
    watch_begin(shared->bytes);
    LLVMFuzzerTestOneInput(copy, shared->bytes);
    if (watch_end()) {
        mutate_keep(copy, shared->bytes);
        shared->kept = mutate_count();
    }
    free(copy);
}

static void work(uint64_t n_inputs, uint64_t seed, int n_files, char **files)
{
    for (uint64_t i = 0; i < (n_files > 0 ? (uint64_t)n_files : n_inputs); i++) {
        shared->i = i;
        if (n_files > 0) {
            FILE *f = fopen(files[i], "rb");
            if (f == NULL) {
                perror(files[i]);
                exit(2);
            }
            shared->bytes = fread(shared->data, 1, sizeof shared->data, f);
            fclose(f);
        } else {
            shared->bytes = mutate_input(seed, i, shared->data);
        }
        one_input();
    }
    shared->i = n_inputs;
    exit(0); /* runs the sanitizer's search for leaks */
}

/* Wait for the child; kill it if it stands still. */
static int watch_child(pid_t pid)
{
    uint64_t at = UINT64_MAX;
    time_t since = time(NULL);
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (shared->i != at) {
            at = shared->i;
            since = time(NULL);
        } else if (time(NULL) - since > WALL_SECONDS) {
            kill(pid, SIGALRM);
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return status;
}

static int report(const char *name, int status, uint64_t seed, uint64_t n_inputs)
{
    char path[256];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && shared->i == n_inputs)
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == FUZZ_SKIPPED)
        return FUZZ_SKIPPED;
    snprintf(path, sizeof path, "%s-%llu-%llu.input", name, (unsigned long long)seed,
             (unsigned long long)shared->i);
    FILE *f = fopen(path, "wb");
    if (f != NULL) {
        fwrite(shared->data, 1, shared->bytes, f);
        fclose(f);
    }
    int signo = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    printf("%s: seed %llu, input %llu (%zu bytes, kept as %s): %s\n", name,
           (unsigned long long)seed, (unsigned long long)shared->i, shared->bytes, path,
           signo == SIGPROF || signo == SIGALRM ? "it hangs"
           : signo != 0                         ? strsignal(signo)
           : WEXITSTATUS(status) == 0           ? "it ends the process"
                                                : "the sanitizer ended it");
    return 1;
}

static void write_seeds(const char *dir)
{
    for (size_t i = 0; i < mutate_count(); i++) {
        char path[4096];
        size_t bytes;
        const uint8_t *data = mutate_get(i, &bytes);
        snprintf(path, sizeof path, "%s/%zu", dir, i);
        FILE *f = fopen(path, "wb");
        FUZZ_HOLDS(f != NULL && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
    }
}

int main(int argc, char **argv)
{
    unsigned long long n_inputs = 2000, seed = 1;
    const char *seeds = NULL, *slash = strrchr(argv[0], '/');
    const char *name = slash != NULL ? slash + 1 : argv[0];
    int first_file = 1;
    for (; first_file < argc && strncmp(argv[first_file], "--", 2) == 0; first_file++) {
        const char *arg = argv[first_file];
        if (strncmp(arg, "--seeds=", 8) == 0) {
            seeds = arg + 8;
        } else if (sscanf(arg, "--inputs=%llu", &n_inputs) != 1 &&
                   sscanf(arg, "--seed=%llu", &seed) != 1) {
            fprintf(stderr, "can't read the argument %s\n", arg);
            return 2;
        }
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FUZZ_HOLDS(shared != MAP_FAILED);
    fuzz_folder();
    fuzz_seeds();
    size_t n_seeds = mutate_count();
    if (seeds != NULL) {
        write_seeds(seeds);
        return 0;
    }
    fflush(NULL);
    pid_t pid = fork();
    FUZZ_HOLDS(pid >= 0);
    if (pid == 0)
        work(n_inputs, seed, argc - first_file, argv + first_file);
    int code = report(name, watch_child(pid), seed, n_inputs);
    if (code == 0)
        printf("%s: seed %llu, %llu inputs from %zu seeds, %llu kept for new code\n", name, seed,
               first_file < argc ? (unsigned long long)(argc - first_file) : n_inputs, n_seeds,
               (unsigned long long)(shared->kept > n_seeds ? shared->kept - n_seeds : 0));
    return code;
}
