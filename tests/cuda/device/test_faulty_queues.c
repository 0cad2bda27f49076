/* The stand-ins find what they are there for: the faults of faulty_queues.cu, one by one, in one of
 * their orders at least, and none in the program without a fault. argv[1] is that program. */
#include "support.h"

#include <string.h>

enum { ORDERS = 4 };

static const char *program;

static const struct {
    const char *name, *says;
} faults[] = {
    {"no_wait_for_input", "a result is wrong"},
    {"no_wait_for_kernel", "a result is wrong"},
    {"mark_before_kernel", "a result is wrong"},
    {"mark_never_made", "a result is wrong"},
    {"other_mark", "a result is wrong"},
    {"input_written_early", "a result is wrong"},
    {"output_read_early", "a result is wrong"},
    {"output_after_a_query", "a result is wrong"},
    {"host_reads_device", "the host touched"},
    {"call_reads_device", "cudaLaunchHostFunc touched"},
    {"call_calls_cuda", "a CUDA call by cudaLaunchHostFunc"},
    {"pageable", "cudaMemcpyAsync with pageable memory"},
    {"copy_too_long", "cudaMemcpyAsync: 1028 bytes from byte 0 of a block of 1024"},
    {"copy_backwards", "in another direction than its kind"},
    {"kernel_too_long", "add_twice touched"},
    {"not_cleared", "a result is wrong"},
    {"freed_early", "which was freed"},
    {"pinned_freed_early", "cudaFreeHost of memory that a queued cuda"},
    {"freed_twice", "cudaFree of memory that was not allocated so"},
    {"stream_closed_early", "entries are queued"},
    {"event_closed_early", "cudaEventDestroy of an event that is queued"},
    {"closed_stream", "is put on no stream"},
};

/* On stdout: a sanitizer's report on stderr would count as a failure of the test. */
static lks_test_result run(const char *name, int order)
{
    const char *command = lks_test_text("exec '%s' %s 2>&1", program, name);
    return lks_test_run((const char *const[]){"sh", "-c", command, NULL},
                        (const char *const[]){lks_test_text("CUDA_STANDIN_SEED=%d", order), NULL},
                        60);
}

TEST(test_faults)
{
    bool all = true;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        bool found = false;
        const char *said = "";
        for (int order = 0; order < ORDERS && !found; order++) {
            const lks_test_result r = run(faults[i].name, order);
            found = r.exit_code != 0 && strstr(r.out, faults[i].says) != NULL;
            said = r.out[0] != '\0' ? lks_test_text("%s", r.out) : said;
        }
        if (!found)
            print_error("%s: not found in any order: %s\n", faults[i].name, said);
        all = all && found;
    }
    assert_true(all);
}

TEST(test_sound)
{
    for (int order = 0; order < ORDERS; order++) {
        assert_exits(0, run("sound", order));
    }
}

int main(int argc, char **argv)
{
    program = argv[1];
    return lks_test_run_all(NULL, NULL);
}
