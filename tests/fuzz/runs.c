/* The records that `report`, `plot` and `watch` read: metrics.jsonl, and after a 0 byte
 * ranks.jsonl. Next to a sound run, in every form of output. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "report/live/feed.h"
#include "report/live/screen.h"
#include "report/plot/plot.h"
#include "report/view/compare.h"

const char *const fuzz_words[] = {
    "\"kind\":\"train\"",
    "\"kind\":\"eval\"",
    "\"kind\":\"final\"",
    "\"kind\":\"host\"",
    "\"kind\":\"config\"",
    "\"kind\":\"rollback\"",
    "\"iter\":3",
    "\"to\":0",
    "\"changed\":{}",
    "\"resumed_iter\":2",
    "\"sample\":\"</",
    "9223372036854775807",
    "1e308",
    "-1e308",
    "1e-320",
    "\\u001b[2J",
    "\xc2\x9b",
    "null",
    "\n",
    NULL,
};

static const char run[] =
    "{\"kind\":\"config\",\"seed\":1,\"n_layer\":2,\"max_iters\":4,\"batch_size\":4,"
    "\"dataset\":\"\\u001b[2J\\u009b2J\"}\n"
    "{\"kind\":\"host\",\"world_size\":2,\"hosts\":[{\"host\":\"a\",\"ranks\":2}]}\n"
    "{\"kind\":\"eval\",\"iter\":0,\"train_loss\":4,\"val_loss\":4,\"sample\":\"To </script>\"}\n"
    "{\"kind\":\"train\",\"iter\":0,\"loss\":4.5,\"lr\":0.1,\"grad_norm\":1,\"tokens\":64,"
    "\"ms\":5,\"tok_per_s\":9,\"mfu\":0.5,\"comm_exposed_ms\":1}\n"
    "{\"kind\":\"train\",\"iter\":1,\"loss\":4.25,\"tokens\":128,\"ms\":5}\n"
    "{\"kind\":\"checkpoint\",\"iter\":2,\"params_hash\":\"0123456789abcdef\",\"path\":\"a\"}\n"
    "{\"kind\":\"host\",\"resumed_iter\":2,\"changed\":{\"batch_size\":8}}\n"
    "{\"kind\":\"recheck\",\"iter\":2,\"wrong\":[{\"host\":\"b\"}],\"right\":1}\n"
    "{\"kind\":\"rollback\",\"iter\":3,\"to\":1}\n"
    "{\"kind\":\"train\",\"iter\":1,\"loss\":4,\"tokens\":192,\"ms\":5}\n"
    "{\"kind\":\"final\",\"iter\":3,\"val_loss\":3.5,\"val_bpb\":1.5}\n"
    "{\"kind\":\"host\",\"micro_batches\":9}\n"
    "\0{\"iter\":1,\"compute_ms\":[1,2],\"wait_ms\":[1,0.5],\"memory_bytes\":[5e6,7e6]}\n";

void fuzz_seeds(void)
{
    setlocale(LC_CTYPE, "C.UTF-8");
    mkdir(fuzz_path("sound"), 0777);
    mkdir(fuzz_path("input"), 0777);
    fuzz_file("sound/metrics.jsonl", run, strlen(run));
    fuzz_seed(run, sizeof run - 1);
    fuzz_seed(run, strlen(run) - 40); /* the last line isn't complete */
}

/* Printed text can't control the terminal. */
static void check_text(FILE **out, char **text)
{
    fclose(*out);
    for (const char *c = *text; *c != '\0'; c++)
        FUZZ_HOLDS(((unsigned char)*c >= 0x20 || *c == '\n') && strncmp(c, "\xc2\x9b", 2) != 0);
    free(*text);
}

#define PRINTED(call)                                                                              \
    do {                                                                                           \
        char *text = NULL;                                                                         \
        size_t n;                                                                                  \
        FILE *out = open_memstream(&text, &n);                                                     \
        FUZZ_HOLDS(out != NULL);                                                                   \
        call;                                                                                      \
        check_text(&out, &text);                                                                   \
    } while (0)

static void use(lks__series *both)
{
    lks__runs runs = {.all = both, .n = 2};
    for (int i = 0; i < 4; i++)
        PRINTED(lks__screen(out, &runs, 0, 4 + 9 * i, 9 + 40 * i, i % 2));
    for (int i = 0; i < 6; i++) {
        const lks__plot plot = {both, 1 + i % 2u, (lks__plot_axis)(i % 3), i < 3};
        PRINTED(lks__plot_text(&plot, out, 20 + 20 * i, i % 2));
        lks__plot_file(&plot, fuzz_path("plot.svg"));
    }
    for (int metric = 0; metric <= LKS__COMPARE_ARTIFACT_BPB; metric++) {
        const lks__compare_how how = {(lks__compare_metric)metric, metric % 2, 0.005, 0.05};
        json_t *report;
        if (lks__compare(both, 2, &how, &report) != LKS_OK)
            continue;
        for (int form = 0; form <= LKS__COMPARE_CSV; form++)
            PRINTED(lks__compare_print(out, report, (lks__compare_form)form, 80));
        json_decref(report);
    }
    size_t bytes;
    char *page = lks__feed_page(&runs, &bytes);
    /* The first tag after the beginning of the data ends them. */
    const char *rest = strstr(lks__page, "id=\"data\">") + 10;
    FUZZ_HOLDS(page != NULL && strcmp(strstr(page + (rest - lks__page), "</"), rest) == 0);
    free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *zero = memchr(data, 0, bytes);
    const size_t n = zero != NULL ? (size_t)(zero - data) : bytes;
    lks__series both[2], parts;
    fuzz_file("input/ranks.jsonl", zero != NULL ? zero + 1 : data,
              zero != NULL ? bytes - n - 1 : 0);
    fuzz_file("input/metrics.jsonl", data, n / 2);
    FUZZ_HOLDS(lks__series_open(fuzz_path("input"), &parts) == LKS_OK);
    fuzz_file("input/metrics.jsonl", data, n);
    FUZZ_HOLDS(lks__series_read(&parts) == LKS_OK);
    FUZZ_HOLDS(lks__series_open(fuzz_path("input"), &both[0]) == LKS_OK);
    FUZZ_HOLDS(lks__series_open(fuzz_path("sound"), &both[1]) == LKS_OK);
    /* A run that is read while it is written has the same numbers in the end. */
    FUZZ_HOLDS(parts.n_points == both[0].n_points && parts.n_evals == both[0].n_evals);
    FUZZ_HOLDS(parts.n_marks == both[0].n_marks && parts.bad == both[0].bad);
    use(both);
    for (int i = 0; i < 2; i++)
        lks__series_close(&both[i]);
    lks__series_close(&parts);
    return 0;
}
