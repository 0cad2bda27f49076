/* --recompute on any number of ranks and threads: the bytes of the run without it, for both
 * families, with frozen tensors, bfloat16 and private replicas, and after a resume that changes it;
 * and the memory that a process really needs. */
#include "laws.h"

#include <stdlib.h>
#include <string.h>

/* One run and its variants. */
struct recomputed {
    bool golf;
    const char *both[3]; /* settings of all; NULL ends them */
    const char *variants[3][4];
};

static const struct recomputed runs[] = {
    {false,
     {NULL},
     {{"--recompute=rows", "--nproc_per_node=2"},
      {"--recompute=block", "--nproc_per_node=3", "--allow_uneven"},
      {"--recompute=block", "--threads=3"}}},
    {false,
     {"--dtype=bfloat16", "--freeze=w[tp]e|h\\.0\\.|h\\.1\\.(ln_1|attn)"},
     {{"--recompute=rows"}, {"--recompute=block", "--nproc_per_node=4"}, {NULL}}},
    {true,
     {NULL},
     {{"--recompute=block", "--nproc_per_node=2"},
      {"--recompute=block", "--nproc_per_node=8", "--replicas=private"},
      {"--recompute=none", "--threads=2"}}}, /* golf's default: rows */
    {true, {"--dtype=bfloat16"}, {{"--recompute=block"}, {"--recompute=none"}, {NULL}}},
    {true,
     {"--freeze=tok_emb|blocks\\.0|skip", "--tie_embeddings=0"},
     {{"--recompute=block", "--nproc_per_node=4"},
      {"--recompute=none", "--nproc_per_node=2"},
      {NULL}}},
};
enum { N_RUNS = sizeof runs / sizeof runs[0] };

static const char *train(const struct recomputed *run, const char *const more[])
{
    const char *out = lks_test_folder();
    law_args args = law_family(run->golf, out);
    law_add_words(&args, run->both);
    law_add_words(&args, more);
    law_run(&args);
    return out;
}

TEST(test_same_bytes)
{
    static const char *const reference[] = {LAW_REFERENCE, NULL};
    for (int i = 0; i < N_RUNS; i++) {
        const char *alone = train(&runs[i], reference);
        for (int v = 0; v < 3 && runs[i].variants[v][0] != NULL; v++)
            law_assert_same(train(&runs[i], runs[i].variants[v]), alone);
    }
}

/* It doesn't define the run: each part may have another. */
TEST(test_resume)
{
    const char *alone = law_output("random", LAW_REFERENCE);
    const char *out = law_output("random", "--recompute=block", "--max_iters=5");
    law_resume("random", out, "--recompute=rows", "--max_iters=8", "--nproc_per_node=2");
    law_resume("random", out, "--nproc_per_node=4");
    law_assert_same_checkpoint(out, alone, law_family_last(false));
    assert_null(json_object_get(json_array_get(lks_test_record(out, "config"), 0), "recompute"));
}

/* Megabytes after `what` in the output of --dry_run, and of all memory that the run used (Pss). */
static void measure(const char *way, double *planned, double *used)
{
    for (int dry = 0; dry < 2; dry++) {
        const char *out = lks_test_folder();
        law_args args = law_family(false, out);
        law_add_all(&args, "--n_layer=8", "--batch_size=16", "--block_size=96", "--max_iters=0",
                    "--eval_iters=1", "--gradient_accumulation_steps=1", "--virtual_ranks=1");
        law_add(&args, "--recompute=%s", way);
        if (dry == 1) {
            law_add(&args, "--dry_run");
            lks_test_result r = assert_exits(0, lks_test_run(args.argv, NULL, 60));
            const char *at = lks_test_find(r.out, "activations: ");
            *planned = strtod(at + strlen("activations: "), NULL);
            return;
        }
        law_run(&args);
        *used = lks_test_number(lks_test_record(out, "host"), "1.memory_bytes") / 1e6;
    }
}

/* What --dry_run promises is what a process needs less. */
TEST(test_memory)
{
    double planned[3], used[3];
    static const char *const ways[] = {"none", "rows", "block"};
    if (lks_test_on_device())
        return; /* its memory has guards */
    for (int w = 0; w < 3; w++)
        measure(ways[w], &planned[w], &used[w]);
    assert_true(planned[1] < 0.72 * planned[0] && planned[2] < 0.4 * planned[0]);
    for (int w = 1; w < 3; w++) {
        print_message("%s: %.1f MB of activations, %.1f MB in all\n", ways[w], planned[w], used[w]);
#ifndef __SANITIZE_THREAD__ /* its shadow memory counts, too */
        assert_near(used[0] - used[w], planned[0] - planned[w],
                    2.0 + 0.05 * (planned[0] - planned[w]));
#endif
    }
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(NULL, NULL);
}
