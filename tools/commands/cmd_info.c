/* lockstep info: shows the features of this build and this machine. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../tool.h"
#include "base/system/module.h"
#include "comm/backend.h"
#include "data/fetch/download.h"
#include "data/text/sentencepiece/spm.h"
#include "files/zip/zip.h"
#include "info.h"
#include "report/live/serve.h"
#include "report/plot/plot.h"

static const char usage[] =
    "Usage: lockstep info\n"
    "       lockstep info RUN|DATA\n"
    "\n"
    "Shows the features of this build and of this machine: kernels, devices,\n"
    "libraries. With RUN, a run's folder such as out/my, it shows that run: its\n"
    "model, data, losses and checkpoints. With DATA, a folder of tokens such as\n"
    "data/my, it shows their kind and number.\n";

static int n_packages; /* names of packages printed for missing modules */
static char advice_on_missing[160];

/* Print one line. The sentence about a missing module is long, and the same for all of them: print
 * only the package's name. The end of the list says how to install it. */
static void print_module(const char *topic, const char *name, const char *sentence)
{
    char package[80];
    const char *advice;
    if (!lks__module_is_missing(sentence, &advice, package)) {
        printf("%-13s%s: %s\n", topic, name, sentence);
        return;
    }
    printf("%-13s%s: not in this build%s%s%s\n", topic, name, package[0] != '\0' ? " (" : "",
           package, package[0] != '\0' ? ")" : "");
    if (package[0] != '\0') {
        n_packages++;
        snprintf(advice_on_missing, sizeof advice_on_missing, "%s", advice);
    }
}

static void print_status(const char *topic, const char *name, lks_status st)
{
    print_module(topic, name, st == LKS_OK ? "ready" : lks_last_error());
}

static lks_status print_kernels(void)
{
    lks__cpu_level level;
    lks__kernels kernels;
    LKS__TRY(lks__cpu_level_get(&level));
    printf("kernels      %s (LOCKSTEP_CPU forces a level)\n", lks__cpu_level_name(level));
    LKS__TRY(lks__kernels_open(level, &kernels));
    lks__kernels_thread_init();
    const uint64_t print = lks__kernels_fingerprint(&kernels, false);
    const lks__gemm_kinds kinds = lks__kernels_gemm_kinds();
    printf("gemm         %s", lks__kernels_gemm_library(&kernels));
    if (kinds.library + kinds.own > 0)
        printf(" for %zu of the fingerprint's %zu kinds of products", kinds.library,
               kinds.library + kinds.own);
    printf("\nfingerprint  %016" PRIx64 "\n", print);
    return LKS_OK;
}

static void print_devices(void)
{
    for (const lks__device_row *row = lks__device_rows; row->name != NULL; row++) {
        char text[LKS__DEVICE_LOOK], *rest;
        row->look(text);
        print_module("device", row->name, strtok_r(text, "\n", &rest));
        for (const char *line; (line = strtok_r(NULL, "\n", &rest)) != NULL;)
            printf("device       %s:%s\n", row->name, line);
    }
}

static void print_binding(void)
{
    lks__bind_share share;
    char why_not[512];
    const char *library = lks__bind_find(0, 1, &share, why_not, sizeof why_not);
    if (library == NULL)
        print_module("binding", "hwloc", why_not);
    else
        printf("binding      %s: %d core%s, %d memory node%s: --bind=auto %s\n", library,
               share.cores, share.cores == 1 ? "" : "s", share.nodes, share.nodes == 1 ? "" : "s",
               share.nodes > 1 ? "binds ranks" : "leaves ranks to the system");
}

int tool_info(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("info", LKS__CMD_INFO, usage, argc, argv, 1, &s, &args, &code))
        return code;
    if (args.n_positional > 0)
        return (info_is_data(args.positional[0]) ? info_data : info_run)(args.positional[0]);
    printf("lockstep     %s\n", LKS_VERSION_TEXT);
    printf("cpu          %s, %d core%s\n", lks__cpu_model(), lks__cpu_count(),
           lks__cpu_count() == 1 ? "" : "s");
    printf("memory       %.1f GB\n",
           (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9);
    print_status("tokenizer", "sentencepiece", lks__spm_available());
    print_status("zip", "libzip", lks__zip_available());
    print_status("fetch", "libcurl", lks__download_available());
    print_status("page", "libmicrohttpd", lks__serve_available());
    print_status("png", "cairo", lks__plot_png_available());
    const lks_status st = print_kernels();
    print_devices();
    print_binding();
    for (int i = 0; lks__backend_at(i) != NULL; i++) {
        char state[LKS__BACKEND_TEXT];
        const struct lks_comm_ops *ops = lks__backend_at(i);
        lks__comm_describe(ops, state);
        print_module("backend", ops->name, state);
    }
    if (n_packages > 0)
        printf("\nTo add a missing part to this build, install the package in brackets%s.\n",
               strstr(advice_on_missing, "build") != NULL
                   ? ", then configure and build lockstep again"
                   : "");
    return st == LKS_OK ? TOOL_OK : tool_fail("info", st);
}
