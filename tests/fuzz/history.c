/* A run's metrics.jsonl, as diff and audit read it. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "report/diff/diff.h"
#include "report/diff/history.h"
#include "train/audit/replay.h"

const char *const fuzz_words[] = {
    "\"kind\":\"train\"",
    "\"kind\":\"config\"",
    "\"kind\":\"host\"",
    "\"kind\":\"rollback\"",
    "\"data_shift\":7",
    "\"iter\":3",
    "\"changed\":{}",
    "\"resumed_iter\":2",
    "\"hosts\":",
    "\"world_size\":4",
    "\"micro_batches\":1",
    "1e400",
    "\\u0000",
    "null",
    "\n",
    NULL,
};

static const char run[] =
    "{\"kind\":\"config\",\"seed\":1,\"n_layer\":2}\n"
    "{\"kind\":\"host\",\"world_size\":2,\"hosts\":[{\"host\":\"a\",\"ranks\":2}]}\n"
    "{\"kind\":\"eval\",\"iter\":0,\"val_loss\":4}\n"
    "{\"kind\":\"train\",\"iter\":0,\"loss\":4.5,\"lr\":0.1,\"grad_norm\":1,\"ms\":5}\n"
    "{\"kind\":\"train\",\"iter\":1,\"loss\":4.25,\"lr\":0.1,\"grad_norm\":1,\"ms\":5}\n"
    "{\"kind\":\"checkpoint\",\"iter\":2,\"params_hash\":\"0123456789abcdef\"}\n"
    "{\"kind\":\"host\",\"world_size\":4,\"resumed_iter\":2,\"changed\":{\"seed\":3}}\n"
    "{\"kind\":\"skip\",\"iter\":2,\"virtual_rank\":1}\n"
    "{\"kind\":\"rollback\",\"iter\":3,\"to\":2,\"data_shift\":2}\n"
    "{\"kind\":\"train\",\"iter\":2,\"loss\":4,\"lr\":0.2,\"grad_norm\":1,\"ms\":5}\n"
    "{\"kind\":\"final\",\"iter\":3,\"val_loss\":3.5}\n";

void fuzz_seeds(void)
{
    fuzz_seed_text(run);
    fuzz_seed(run, sizeof run - 40); /* without the end of the last line */
}

static void use_claims(const lks__claims *c)
{
    char maker[LKS__REPLAY_MAKER];
    uint64_t first;
    FUZZ_HOLDS(c->n_steps > 0);
    for (size_t i = 0; i < c->n_steps; i++) {
        const uint64_t iter = c->steps[i].iter;
        FUZZ_HOLDS(i == 0 || iter > c->steps[i - 1].iter);
        FUZZ_HOLDS(lks__claims_step(c, iter) == &c->steps[i]);
        lks__claims_start(c, iter, &first);
        FUZZ_HOLDS(first <= iter);
        lks__claims_changed(c, iter);
        for (int v = 0; v < 8; v++)
            FUZZ_HOLDS(strlen(lks__replay_maker(c, iter, 8, v, maker)) < sizeof maker);
    }
    for (size_t i = 0; i < c->n_saves; i++)
        FUZZ_HOLDS(lks__claims_save(c, c->saves[i].iter) != NULL);
}

/* The difference between two runs, and how people see it. */
static void use_diff(const char *a, const char *b, bool equal)
{
    static FILE *nowhere;
    lks__history both[2];
    json_t *report;
    if (nowhere == NULL)
        nowhere = fopen("/dev/null", "w");
    if (lks__diff(a, b, both, &report) == LKS_OK) {
        FUZZ_HOLDS(!equal || lks__diff_same(report));
        lks__diff_print(nowhere, report);
        json_decref(report);
    }
    lks__history_close(&both[0]);
    lks__history_close(&both[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *folder = fuzz_folder(), *other = fuzz_path("other");
    const json_t *line = NULL;
    lks__history h;
    mkdir(other, 0777);
    fuzz_file("other/metrics.jsonl", run, sizeof run - 1);
    fuzz_file("metrics.jsonl", data, bytes);
    FUZZ_HOLDS(lks__history_open(folder, &h) == LKS_OK);
    while (lks__history_next(&h, &line) == LKS_OK && line != NULL) {
        FUZZ_HOLDS(json_is_string(json_object_get(line, "kind")));
        FUZZ_HOLDS(json_integer_value(json_object_get(line, "iter")) >= 0);
    }
    if (lks__history_finish(&h) == LKS_OK)
        use_claims(&h.claims);
    lks__history_close(&h);
    use_diff(folder, folder, true);
    use_diff(folder, other, false);
    use_diff(other, folder, false);
    return 0;
}
