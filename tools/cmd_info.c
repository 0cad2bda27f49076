/* lockstep info: what this build and this machine support. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/backend.h"
#include "data/spm.h"
#include "pickle/zip.h"
#include "session/session.h"
#include "tool.h"
#include "watch/plot.h"
#include "watch/serve.h"

static const char usage[] =
    "Usage: lockstep info\n"
    "\n"
    "Shows the features of this build and of this machine: kernels, devices, libraries.\n";

int tool_info(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    lks__cpu_level level;
    lks__kernels kernels;
    int code;
    if (!tool_settings("info", LKS__CMD_INFO, usage, argc, argv, 0, &s, &args, &code))
        return code;
    printf("lockstep     %s\n", LKS_VERSION);
    printf("cpu          %s, %d core%s\n", lks__cpu_model(), lks__cpu_count(),
           lks__cpu_count() == 1 ? "" : "s");
    printf("memory       %.1f GB\n",
           (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9);
    bool has_sentencepiece = lks__spm_available() == LKS_OK;
    printf("tokenizer    sentencepiece: %s\n", has_sentencepiece ? "ready" : lks_last_error());
    bool has_zip = lks__zip_available() == LKS_OK;
    printf("zip          libzip: %s\n", has_zip ? "ready" : lks_last_error());
    bool has_page = lks__serve_available() == LKS_OK;
    printf("page         libmicrohttpd: %s\n", has_page ? "ready" : lks_last_error());
    bool has_png = lks__plot_png_available() == LKS_OK;
    printf("png          cairo: %s\n", has_png ? "ready" : lks_last_error());
    lks_status st = lks__cpu_level_get(&level);
    if (st == LKS_OK) {
        printf("kernels      %s (LOCKSTEP_CPU forces a level)\n", lks__cpu_level_name(level));
        st = lks__kernels_open(level, &kernels);
    }
    if (st == LKS_OK) {
        lks__kernels_thread_init();
        printf("gemm         %s\n", lks__kernels_gemm_library(&kernels));
        printf("fingerprint  %016" PRIx64 "\n", lks__kernels_fingerprint(&kernels, false));
    }
    for (const lks__device_row *row = lks__device_rows; row->name != NULL; row++) {
        char text[LKS__DEVICE_LOOK], *rest;
        row->look(text);
        printf("device       %s: %s\n", row->name, strtok_r(text, "\n", &rest));
        for (const char *line; (line = strtok_r(NULL, "\n", &rest)) != NULL;)
            printf("device       %s:%s\n", row->name, line);
    }
    lks__bind_share share;
    char why_not[512];
    const char *library = lks__bind_look(0, 1, &share, why_not, sizeof why_not);
    if (library == NULL)
        printf("binding      %s\n", why_not);
    else
        printf("binding      %s: %d core%s, %d memory node%s: --bind=auto %s\n", library,
               share.cores, share.cores == 1 ? "" : "s", share.nodes, share.nodes == 1 ? "" : "s",
               share.nodes > 1 ? "binds ranks" : "leaves ranks to the system");
    lks_world world = {0, 1, 0, 1};
    for (int i = 0; lks__comm_backend(i) != NULL; i++) {
        char why[512] = "";
        const struct lks_comm_ops *ops = lks__comm_backend(i);
        bool can = ops->probe(ops, &world, why, sizeof why);
        printf("backend      %s: %s\n", ops->name, can ? "ready" : why);
    }
    return st == LKS_OK ? TOOL_OK : tool_fail("info", st);
}
