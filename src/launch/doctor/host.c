#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/number/units.h"
#include "base/system/cgroup.h"
#include "base/system/memory.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/shm/segment/segment.h"
#include "data/text/sentencepiece/spm.h"
#include "launch/doctor/doctor.h"

void lks__doctor_say(lks__doctor *d, lks__finding finding, const char *topic, const char *advice,
                     const char *fmt, ...)
{
    static const char *const words[] = {
        [LKS__FINE] = "ok", [LKS__NOTE] = "note", [LKS__PROBLEM] = "PROBLEM"};
    va_list ap;
    fprintf(d->out, "%-8s %-13s ", words[finding], topic);
    va_start(ap, fmt);
    vfprintf(d->out, fmt, ap);
    va_end(ap);
    fputc('\n', d->out);
    if (advice != NULL && finding != LKS__FINE)
        fprintf(d->out, "         %-13s -> %s\n", "", advice);
    if (finding == LKS__PROBLEM && d->n_problems == 0)
        snprintf(d->first_problem, sizeof d->first_problem, "%s", topic);
    d->n_notes += finding == LKS__NOTE;
    d->n_problems += finding == LKS__PROBLEM;
}

void lks__doctor_verdict(lks__doctor *d)
{
    const char *between = d->n_peers > 0 ? " and to the hosts named" : "";
    if (d->served)
        fprintf(d->out,
                "not checked here: links from other hosts, which their own doctors print\n");
    else if (d->n_peers == 0)
        fprintf(d->out, "not checked: links to other hosts (start with --serve on one of them)\n");
    else
        fprintf(d->out, "not checked: links between other hosts, the other direction, and all "
                        "hosts sending at once\n");
    fprintf(d->out, "%d problem%s, %d note%s\n", d->n_problems, d->n_problems == 1 ? "" : "s",
            d->n_notes, d->n_notes == 1 ? "" : "s");
    if (d->n_problems > 0)
        fprintf(d->out, "verdict: runs will fail: first solve \"%s\", above\n", d->first_problem);
    else if (d->n_notes > 0)
        fprintf(d->out,
                "verdict: runs work on this host%s; the notes above list limits and slow parts\n",
                between);
    else
        fprintf(d->out, "verdict: runs work on this host%s\n", between);
}

/* The first line of a small file in /proc or /sys; false if the file is missing. */
static bool first_line(const char *path, char text[128])
{
    FILE *f = fopen(path, "re");
    bool found = f != NULL && fgets(text, 128, f) != NULL;
    if (f != NULL)
        fclose(f);
    if (found)
        text[strcspn(text, "\n")] = '\0';
    return found;
}

/* --- processor ---------------------------------------------------------------------------- */

static void look_at_kernels(lks__doctor *d)
{
    lks_status st = lks__cpu_level_get(&d->level);
    LKS__THEN(st, lks__kernels_open(d->level, &d->kernels));
    if (st != LKS_OK) {
        lks__doctor_say(d, LKS__PROBLEM, "kernels", "unset LOCKSTEP_CPU, or name a level it has",
                        "%s", lks_last_error());
        return;
    }
    d->has_kernels = true;
    lks__kernels_thread_init();
    if (lks__kernels_verify(&d->kernels) != LKS_OK)
        lks__doctor_say(d, LKS__PROBLEM, "kernels", "runs end at their start; report this machine",
                        "%s", lks_last_error());
    bool forced = getenv("LOCKSTEP_CPU") != NULL;
    lks__doctor_say(d, d->level == LKS__CPU_PLAIN || forced ? LKS__NOTE : LKS__FINE, "processor",
                    forced ? "unset LOCKSTEP_CPU for the best level that the processor has"
                           : "it has no AVX2, so plain C computes everything, which is slow",
                    "%s, level %s", lks__cpu_model(), lks__cpu_level_name(d->level));
    const char *gemm = lks__kernels_gemm_library(&d->kernels);
    bool own = strcmp(gemm, "own") == 0;
    lks__doctor_say(d, own && d->level >= LKS__CPU_AVX2 ? LKS__NOTE : LKS__FINE, "gemm",
                    "install oneDNN (" LKS__ONEDNN_PACKAGES
                    "): steps may be faster then, with the same bytes",
                    "matrix products by %s", own ? "lockstep's own code" : gemm);
}

/* A container may allow fewer cores than this process sees. */
static void look_at_cores(lks__doctor *d)
{
    int cores = lks__cpu_count();
    double given = lks__cgroup_cores("");
    if (given >= cores)
        lks__doctor_say(d, LKS__FINE, "cores", NULL, "%d for this process", cores);
    else
        lks__doctor_say(d, LKS__NOTE, "cores",
                        "start at most as many ranks and threads as there are allowed cores: more "
                        "slow each other down",
                        "%d for this process, but the container allows only %.3g", cores, given);
}

/* Other programs on the cores are the most common reason of a slow run. */
static void look_at_load(lks__doctor *d)
{
    char text[128];
    if (!first_line("/proc/loadavg", text))
        return;
    double busy = strtod(text, NULL);
    lks__doctor_say(d, busy >= lks__cpu_count() / 2.0 ? LKS__NOTE : LKS__FINE, "load",
                    "other programs, or a run of yours, use the cores: `top` names them",
                    "%.1f threads were computing or waiting for a core in the last minute", busy);
}

/* --- memory ------------------------------------------------------------------------------- */

static void look_at_memory(lks__doctor *d)
{
    uint64_t room = lks__memory_available();
    double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (room == UINT64_MAX)
        lks__doctor_say(d, LKS__NOTE, "memory", "sizes can't be checked before a run starts",
                        "neither /proc/meminfo nor the cgroup can be read");
    else
        lks__doctor_say(d, (double)room < 512e6 ? LKS__NOTE : LKS__FINE, "memory",
                        "end other programs, or raise the container's limit; `lockstep train "
                        "--dry_run` prints a run's memory",
                        "%.1f GB, of which %.1f GB are available (machine and container)",
                        all / 1e9, (double)room / 1e9);
}

/* Create it exactly as a launch does. */
static void look_at_shared_memory(lks__doctor *d)
{
    lks__segment *segment;
    if (lks__segment_create(2, &segment) != LKS_OK) {
        lks__doctor_say(d, LKS__PROBLEM, "shared memory",
                        "several ranks on this host need it, and so does one rank", "%s",
                        lks_last_error());
        return;
    }
    lks__segment_close(segment);
    struct statvfs fs;
    double dev = statvfs("/dev/shm", &fs) == 0 ? (double)fs.f_blocks * (double)fs.f_frsize : 0;
    lks__doctor_say(d, LKS__FINE, "shared memory", NULL,
                    "memfd works (/dev/shm, here with %.0f MB, is not used by lockstep; Open MPI "
                    "uses it)",
                    dev / 1e6);
}

static void look_at_pages(lks__doctor *d)
{
    char text[128];
    bool known = first_line("/sys/kernel/mm/transparent_hugepage/enabled", text);
    bool never = known && strstr(text, "[never]") != NULL;
    lks__doctor_say(d, never ? LKS__NOTE : LKS__FINE, "huge pages",
                    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root) can save "
                    "a few percent of time for large models",
                    "transparent huge pages: %s", known ? text : "not in this kernel");
}

/* --- limits ------------------------------------------------------------------------------- */

struct limit {
    int which;
    const char *topic, *unit, *advice;
    double least, scale; /* less than `least` is a problem */
    lks__finding more;   /* a limit of more than that */
};

static void look_at_limits(lks__doctor *d)
{
    static const struct limit limits[] = {
        {RLIMIT_NOFILE, "open files", "", "ulimit -n 1024, or LimitNOFILE= of the service", 256, 1,
         LKS__FINE},
        {RLIMIT_FSIZE, "file size", " MB",
         "ulimit -f unlimited: checkpoints and shared memory are files", 8e9, 1e6, LKS__NOTE},
        {RLIMIT_AS, "address space", " MB", "ulimit -v unlimited", 8e9, 1e6, LKS__NOTE},
        {RLIMIT_NPROC, "processes", "", "ulimit -u: each thread of each rank counts", 64, 1,
         LKS__FINE},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const struct limit *l = &limits[i];
        struct rlimit r;
        if (getrlimit((__rlimit_resource_t)l->which, &r) != 0)
            continue;
        if (r.rlim_cur == RLIM_INFINITY)
            lks__doctor_say(d, LKS__FINE, l->topic, NULL, "no limit");
        else
            lks__doctor_say(d, (double)r.rlim_cur < l->least ? LKS__PROBLEM : l->more, l->topic,
                            l->advice, "at most %.0f%s", (double)r.rlim_cur / l->scale, l->unit);
    }
    struct rlimit r;
    if (getrlimit(RLIMIT_MEMLOCK, &r) == 0)
        lks__doctor_say(d, LKS__FINE, "locked memory", NULL,
                        r.rlim_cur == RLIM_INFINITY ? "no limit"
                                                    : "at most %.0f MB (matters to MPI over "
                                                      "InfiniBand only)",
                        (double)r.rlim_cur / 1e6);
    const uint64_t pids = lks__cgroup_processes("");
    if (pids < UINT64_MAX)
        lks__doctor_say(d, pids < 64 ? LKS__PROBLEM : LKS__FINE, "pids",
                        "raise the container's pids limit: each thread of each rank counts",
                        "the container allows %" PRIu64 " processes and threads", pids);
}

/* --- kernel and clock --------------------------------------------------------------------- */

static void look_at_system(lks__doctor *d)
{
    struct utsname name;
    uname(&name);
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    lks__doctor_say(d, fd >= 0 ? LKS__FINE : LKS__NOTE, "system",
                    "use Linux 5.3 or newer, or a container that allows pidfd_open: without it, a "
                    "rank's death is noticed only after --timeout",
                    "lockstep %s on %s %s", LKS_VERSION_TEXT, name.sysname, name.release);
    lks__sys_close(fd);
}

static void look_at_clock(lks__doctor *d)
{
    struct timex t = {.modes = 0};
    time_t now = time(NULL);
    char text[64];
    struct tm parts;
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &parts));
    bool old = parts.tm_year < 124;
    bool loose = adjtimex(&t) == TIME_ERROR || (t.status & STA_UNSYNC) != 0;
    lks__doctor_say(d, old || loose ? LKS__NOTE : LKS__FINE, "clock",
                    "set it (NTP: chrony, systemd-timesyncd): runs don't need it, but you can't "
                    "compare the logs of several hosts without it",
                    "%s%s", text, loose ? ", not synchronized by a time server" : "");
}

/* --- modules ------------------------------------------------------------------------------ */

/* A module that can't be used gets a note, with instructions for users who need it. */
static void say_module(lks__doctor *d, const char *topic, const char *name, bool ready,
                       const char *text)
{
    char package[80];
    const char *advice;
    if (ready)
        lks__doctor_say(d, LKS__FINE, topic, NULL, "%s: %s", name, text);
    else if (lks__module_is_missing(text, &advice, package))
        lks__doctor_say(d, LKS__NOTE, topic, advice[0] != '\0' ? advice : NULL,
                        "%s: not in this build", name);
    else
        lks__doctor_say(d, LKS__NOTE, topic, NULL, "%s: %s", name, text);
}

static void look_at_modules(lks__doctor *d)
{
    for (int i = 0; lks__backend_at(i) != NULL; i++) {
        const struct lks_comm_ops *ops = lks__backend_at(i);
        char text[LKS__BACKEND_TEXT];
        say_module(d, "backend", ops->name, lks__comm_describe(ops, text), text);
    }
    const bool spm = lks__spm_available() == LKS_OK;
    say_module(d, "tokenizer", "sentencepiece", spm, spm ? "ready" : lks_last_error());
}

void lks__doctor_host(lks__doctor *d)
{
    look_at_system(d);
    look_at_kernels(d);
    look_at_cores(d);
    look_at_load(d);
    look_at_memory(d);
    look_at_shared_memory(d);
    look_at_pages(d);
    look_at_limits(d);
    look_at_clock(d);
    look_at_modules(d);
}

/* --- a folder ----------------------------------------------------------------------------- */

static bool write_and_lock(const char *path, double *ms_p)
{
    char byte = 0;
    double started = lks__sys_now();
    int fd = lks__sys_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    bool ok = fd >= 0 && lks__sys_write_all(fd, &byte, 1) == 0 && lks__sys_fsync(fd) == 0;
    *ms_p = (lks__sys_now() - started) * 1e3;
    ok = ok && (lks__sys_lock(fd, 0) == 0 || lks__sys_lacks_locks(errno));
    int err = errno;
    if (fd >= 0) {
        lks__sys_close(fd);
        lks__sys_unlink(path);
    }
    errno = err;
    return ok;
}

/* The first of its parents that exists: the folder will be made in it. */
static void existing_part(const char *path, char part[4096])
{
    struct stat info;
    snprintf(part, 4096, "%s", path);
    while (stat(part, &info) != 0) {
        char *slash = strrchr(part, '/');
        if (slash == NULL)
            snprintf(part, 4096, ".");
        else
            slash[slash == part ? 1 : 0] = '\0';
        if (slash == NULL || slash == part)
            return;
    }
}

void lks__doctor_folder(lks__doctor *d, const char *path)
{
    char part[4096], file[LKS__SYS_PATH];
    struct statvfs fs;
    double ms = 0;
    existing_part(path, part);
    const char *shown = lks__shown(part, 512);
    snprintf(file, sizeof file, "%s/.doctor-%d", part, (int)getpid());
    if (!write_and_lock(file, &ms)) {
        lks__doctor_say(d, LKS__PROBLEM, "out_dir",
                        "choose another --out_dir, or change its owner or mode",
                        "%s can't be written to: %s", shown, strerror(errno));
    } else if (statvfs(part, &fs) == 0) {
        double left = (double)fs.f_bavail * (double)fs.f_frsize;
        lks__doctor_say(d, left < 1e9 || ms > 1000 ? LKS__NOTE : LKS__FINE, "out_dir",
                        "a checkpoint has 12 bytes per parameter, and --keep=3 of them are kept",
                        "%s: %s free, a synced write takes %.1f ms", shown, lks__units_memory(left),
                        ms);
    }
}
