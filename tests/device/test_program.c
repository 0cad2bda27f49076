/* --device of the tool, and of the tests' own tool, which has one more device. */
#include "support.h"

#include <string.h>

static const char *deferred_tool;

static lks_test_result dry(const char *tool, const char *device)
{
    return lks_test_run((const char *const[]){tool, "train", "--dry_run", "--dataset=/nowhere",
                                              lks_test_text("--device=%s", device), NULL},
                        NULL, 60);
}

/* Both tools accept exactly the words of their lists; with a valid one they fail later, at the
 * data. */
static void test_choices(void **state)
{
    static const char *const good[] = {"auto", "cpu"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_contains(dry("lockstep", good[i]).err, "there is no such folder");
        assert_contains(dry(deferred_tool, good[i]).err, "there is no such folder");
    }
    assert_contains(dry(deferred_tool, "deferred").err, "there is no such folder");
    lks_test_result r = dry("lockstep", "deferred");
    assert_int_equal(r.exit_code, 2);
    assert_contains(r.err, "device must be auto or cpu in this build, not \"deferred\"");
    r = dry(deferred_tool, "cuda");
    assert_int_equal(r.exit_code, 2);
    assert_contains(r.err, "device must be auto, deferred or cpu in this build, not \"cuda\"");
}

/* The device that a short run reports. */
static const char *device_of(const char *tool, const char *device)
{
    const char *data = lks_test_folder(), *out = lks_test_folder();
    lks_test_generated_tokens(data);
    lks_test_result r = lks_test_run(
        (const char *const[]){tool, "train", lks_test_text("--dataset=%s", data),
                              lks_test_text("--out_dir=%s", out), "--n_layer=1", "--n_head=1",
                              "--n_embd=8", "--block_size=8", "--batch_size=1", "--vocab_size=65",
                              "--gradient_accumulation_steps=1", "--max_iters=0", "--eval_iters=1",
                              lks_test_text("--device=%s", device), NULL},
        NULL, 60);
    if (r.exit_code != 0)
        fail_msg("exit code %d: %s", r.exit_code, r.err);
    const json_t *hosts = lks_test_metrics(lks_test_text("%s/metrics.jsonl", out), "host");
    return json_string_value(lks_test_member(json_array_get(hosts, 0), "device"));
}

static void test_named_in_metrics(void **state)
{
    assert_string_equal(device_of("lockstep", "auto"), "cpu");
    assert_string_equal(device_of("lockstep", "cpu"), "cpu");
    assert_string_equal(device_of(deferred_tool, "cpu"), "cpu");
}

int main(int argc, char **argv)
{
    deferred_tool = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_named_in_metrics),
    };
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
