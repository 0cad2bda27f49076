/* train/loop/report/report_host.c - members of host lines: machine, versions, time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/number/units.h"
#include "base/system/sys.h"
#include "lks_commit.h"
#include "plan/gradients.h"
#include "train/loop/report/report.h"

enum { COMMAND_BYTES = 8 << 10 };

/* Write the arguments of this process, unless they are too long for a line. */
static void write_command(lks__jsonw *w)
{
    char text[COMMAND_BYTES];
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t bytes = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL)
        fclose(f);
    text[bytes] = '\0';
    if (bytes == 0 || bytes == sizeof text - 1)
        return;
    lks__jsonw_array(w, "command");
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1)
        lks__jsonw_str(w, NULL, text + at);
    lks__jsonw_end(w);
}

/* Add members to a host line: schema, time, host, command, commit. */
static void write_host(lks__jsonw *w)
{
    char host[65] = "", when[32];
    struct tm utc;
    time_t now = (time_t)lks__sys_wall();
    lks__jsonw_int(w, "schema", LKS__METRICS_SCHEMA);
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    lks__jsonw_str(w, "time", when);
    gethostname(host, sizeof host - 1);
    lks__jsonw_str(w, "host", host);
    write_command(w);
    if (LKS_COMMIT[0] != '\0')
        lks__jsonw_str(w, "commit", LKS_COMMIT);
}

/* Write the parts of the fingerprint. They show why two runs' fingerprints differ. */
static void write_parts(lks__jsonw *w, const lks__session *s)
{
    const lks__device_part *parts = s->device->parts;
    char text[17 + LKS__DEVICE_PART_TEXT];
    lks__jsonw_object(w, "fingerprint_parts");
    lks__jsonw_str(w, "the CPU's kernels",
                   lks__hex(lks__kernels_fingerprint(&s->kernels, s->ex.bf16)));
    for (int i = 0; i < LKS__DEVICE_PARTS && parts[i].name != NULL; i++) {
        snprintf(text, sizeof text, "%016" PRIx64 " %s", parts[i].value, parts[i].text);
        lks__jsonw_str(w, parts[i].name, text);
    }
    lks__jsonw_end(w);
}

/* Write the table of algorithms, whose lines are "SHAPE: ATTRIBUTES DATA". */
static void write_algorithms(lks__jsonw *w, const char *table)
{
    char name[400], attributes[400];
    lks__jsonw_object(w, "algorithms");
    for (const char *line = table; (line = strchr(line, '\n')) != NULL;)
        if (sscanf(++line, "%399[^:\n]: %399[^\n]", name, attributes) == 2) {
            char *data = strrchr(attributes, ' ');
            if (data != NULL)
                *data = '\0';
            lks__jsonw_str(w, name, attributes);
        }
    lks__jsonw_end(w);
}

lks__jsonw *lks__report_begin_host(lks__report *r, const lks__trainer *t)
{
    const lks__run *run = &t->run;
    const lks__session *ses = &t->ses;
    char *absolute = realpath(run->data_dir, NULL);
    lks__jsonw *w = lks__metrics_begin(r->metrics, "host");
    write_host(w);
    lks__jsonw_int(w, "world_size", ses->world.world_size);
    lks__jsonw_int(w, "threads", ses->threads);
    lks__jsonw_str(w, "backend", lks_comm_backend(ses->comm));
    lks__jsonw_str(w, "replicas", lks__setting_word(&run->s, LKS__SETTING_replicas));
    lks__jsonw_str(w, "device", ses->device->ops->name);
    const char *exchange = lks__memory_exchange(t->state.memory, lks__chosen_must_join(&run->s));
    if (exchange != NULL)
        lks__jsonw_str(w, "exchange", exchange);
    lks__jsonw_str(w, "cpu", lks__cpu_model());
    lks__jsonw_str(w, "kernels", lks__cpu_level_name(ses->kernels.level));
    lks__jsonw_str(w, "gemm", lks__kernels_gemm_library(&ses->kernels));
    lks__jsonw_int(w, "gemm_kinds_library", (int64_t)lks__kernels_gemm_kinds().library);
    lks__jsonw_int(w, "gemm_kinds_own", (int64_t)lks__kernels_gemm_kinds().own);
    lks__jsonw_str(w, "fingerprint", ses->fingerprint);
    if (ses->device->fingerprint != 0)
        write_parts(w, ses);
    if (ses->device->ops->algorithms != NULL)
        write_algorithms(w, ses->device->ops->algorithms(ses->device));
    lks__jsonw_float(w, "peak_gflops", r->peak.flops * 1e-9);
    lks__jsonw_object(w, "paths");
    lks__jsonw_str(w, "dataset", run->data_dir);
    lks__jsonw_str(w, "dataset_absolute", absolute != NULL ? absolute : run->data_dir);
    lks__jsonw_str(w, "out_dir", run->s.out_dir);
    lks__jsonw_end(w);
    lks__jsonw_object(w, "settings");
    lks__settings_write(&run->s, LKS__SETTING_KEPT, NULL, w);
    lks__jsonw_end(w);
    free(absolute);
    return w;
}
