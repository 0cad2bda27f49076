#include "faults.h"

#include <stdio.h>
#include <string.h>

#include "laws/marked.h"

static fault_run settings(const char *data, const char *out, int W)
{
    fault_run run = {.data = data, .out = out, .args = law_begin(data, out)};
    law_add_line(&run.args, "--vocab_size=65 --n_layer=1 --n_head=2 --n_embd=16 --block_size=8 "
                            "--batch_size=2 --virtual_ranks=4 --gradient_accumulation_steps=4 "
                            "--max_iters=9 --eval_interval=2 --eval_iters=2 --threads=1");
    fault_add(&run, "--nproc_per_node=%d", W);
    return run;
}

fault_run fault_train(int W)
{
    const char *folder = lks_test_folder();
    lks_test_generated_tokens(folder);
    return settings(folder, lks_test_text("%s/out", lks_test_folder()), W);
}

fault_run fault_resume(const fault_run *run, int W)
{
    fault_run resumed = settings(run->data, run->out, W);
    fault_add(&resumed, "--init_from=resume");
    return resumed;
}

void fault_succeeds(const fault_run *run)
{
    assert_exits(0, lks_test_run(run->args.argv, NULL, 30));
}

const char *fault_fails(const fault_run *run, int exit_code, const char *const env[],
                        const char *const texts[])
{
    const char *all[8] = {marked_variable()};
    for (int i = 0; env != NULL && env[i] != NULL; i++) {
        assert_true(i < 6);
        all[i + 1] = env[i];
    }
    lks_test_result r = lks_test_run(run->args.argv, all, 30);
    if (r.signal != 0 || r.exit_code == 0 || (exit_code > 0 && r.exit_code != exit_code))
        fail_msg("exit code %d (expected %d), signal %d: %s%s", r.exit_code, exit_code, r.signal,
                 r.out, r.err);
    marked_assert_gone(all[0], 0.5);
    if (r.seconds > 5 * lks_test_patience())
        fail_msg("it took %.1f s to fail: %s", r.seconds, r.err);
    assert_contains(r.err, "lockstep ");
    assert_int_equal(r.err[strlen(r.err) - 1], '\n');
    for (; *texts != NULL; texts++)
        assert_contains(r.err, *texts);
    return r.err;
}

const char *fault_snapshot(const char *folder)
{
    return lks_test_do("sh", "-c",
                       "cd \"$1\" && find . -printf '%p %y %l\\n' | sort; find . -type f "
                       "| sort | xargs -d '\\n' md5sum",
                       "sh", folder)
        .out;
}
