/* What a launcher passes to a rank: variables (lines), and after a 0 byte the head of the shared
 * segment. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/shm/segment/segment_layout.h"
#include "comm/shm/segment/status.h"
#include "fuzz.h"
#include "lockstep/comm.h"

const char *const fuzz_words[] = {
    "RANK=",
    "LOCAL_RANK=",
    "WORLD_SIZE=",
    "LOCAL_WORLD_SIZE=",
    "LOCKSTEP_SEGMENT=",
    "\n",
    "-1",
    "0x1",
    " 1",
    "+1",
    "2147483648",
    "1025",
    "$:0123456789abcdef",
    "SLURM_NODEID=",
    "2(x3),",
    NULL,
};

static const char *const names[] = {"RANK",           "LOCAL_RANK",
                                    "WORLD_SIZE",     "LOCAL_WORLD_SIZE",
                                    LKS__SEGMENT_ENV, "SLURM_PROCID",
                                    "SLURM_LOCALID",  "SLURM_STEP_NUM_TASKS",
                                    "SLURM_NODEID",   "SLURM_STEP_TASKS_PER_NODE"};
enum { N_NAMES = sizeof names / sizeof names[0], SEGMENT_BYTES = 8 << 20 };

void fuzz_seeds(void)
{
    static uint8_t data[256 + 65536];
    lks__segment *segment = NULL;
    char text[LKS__SEGMENT_ENV_BYTES];
    FUZZ_HOLDS(lks__segment_create(2, &segment) == LKS_OK);
    lks__segment_env(segment, text);
    /* '$' stands for the number of the descriptor. */
    int n =
        snprintf((char *)data, 256,
                 "RANK=1\nLOCAL_RANK=1\nWORLD_SIZE=2\nLOCAL_WORLD_SIZE=2\n" LKS__SEGMENT_ENV "=$%s",
                 strchr(text, ':')) +
        1;
    size_t head = sizeof(struct lks__segment_header) + 2 * sizeof(struct lks__rank_line);
    memcpy(data + n, lks__segment_header(segment), head);
    fuzz_seed(data, (size_t)n + head);
    /* And one whose group has failed. */
    struct lks__segment_header *h = lks__segment_header(segment);
    lks__segment_abort(segment, LKS_ERR_NAN, 1, "a loss that is no number");
    memcpy(data + n, h, head);
    fuzz_seed(data, (size_t)n + head);
    lks__segment_close(segment);
    fuzz_seed_text("RANK=0\nWORLD_SIZE=1\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=1");
    fuzz_seed_text("SLURM_PROCID=6\nSLURM_LOCALID=0\nSLURM_STEP_NUM_TASKS=7\nSLURM_NODEID=3\n"
                   "SLURM_STEP_TASKS_PER_NODE=2(x3),1");
}

/* Set the variables in the lines; in the segment's variable '$' becomes the descriptor. */
static void set_variables(char *lines, int fd)
{
    char *save = NULL, value[256];
    for (char *line = strtok_r(lines, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *equals = strchr(line, '=');
        if (equals == NULL)
            continue;
        *equals++ = '\0';
        for (int i = 0; i < N_NAMES; i++) {
            if (strcmp(line, names[i]) != 0)
                continue;
            if (*equals == '$' && strlen(equals) < 100)
                snprintf(value, sizeof value, "%d%s", fd, equals + 1);
            setenv(line, *equals == '$' && strlen(equals) < 100 ? value : equals, 1);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *zero = memchr(data, 0, bytes);
    size_t n = zero != NULL ? (size_t)(zero - data) : bytes;
    size_t head = zero != NULL ? bytes - n - 1 : 0;
    char *lines = malloc(n + 1);
    int fd = memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    FUZZ_HOLDS(lines != NULL && fd >= 0 && ftruncate(fd, SEGMENT_BYTES) == 0);
    FUZZ_HOLDS(head == 0 || write(fd, zero + 1, head) == (ssize_t)head);
    FUZZ_HOLDS(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    memcpy(lines, data, n);
    lines[n] = '\0';
    set_variables(lines, fd);
    free(lines);
    lks_world world = {0};
    if (lks_world_from_env(&world) == LKS_OK) {
        FUZZ_HOLDS(world.rank >= 0 && world.rank < world.world_size);
        FUZZ_HOLDS(world.local_rank >= 0 && world.local_rank < world.local_world_size);
        FUZZ_HOLDS(world.local_world_size <= world.world_size);
        lks__segment *segment = NULL;
        if (lks__segment_inherit(world.world_size, &segment) == LKS_OK) {
            lks_status st;
            int rank;
            char text[2048];
            FUZZ_HOLDS(lks__segment_fd(segment) == fd);
            /* A segment that claims to be still written is waited for, 0.2 s. */
            unsigned writing = 1;
            atomic_compare_exchange_strong(&lks__segment_header(segment)->abort_state, &writing, 2);
            if (lks__segment_aborted(segment)) {
                lks__segment_failure(segment, &st, &rank, text, sizeof text);
                FUZZ_HOLDS(memchr(text, 0, sizeof text) != NULL && strchr(text, '\x1b') == NULL);
            }
            for (int r = 0; r < world.world_size; r++) {
                lks__rank_status status;
                lks__segment_status(segment, r, &status);
                FUZZ_HOLDS(strchr(status.phase, '\x1b') == NULL);
            }
            lks__segment_close(segment);
            fd = -1;
        }
    }
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < N_NAMES; i++)
        unsetenv(names[i]);
    return 0;
}
