/* train/loop/report/report_host.c - who made a run, when and with what: members of host lines. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "lks_commit.h"
#include "train/loop/report/report.h"

enum { COMMAND_BYTES = 8 << 10 };

/* The arguments of this process; left out if they are too long for a line. */
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

void lks__report_host(lks__jsonw *w)
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
