/* --device=cuda: finds the module that computes on NVIDIA's GPUs, and this rank's GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute/cuda/module.h"
#include "compute/cuda/questions.h"
#include "compute/devices.h"
#include "compute/exchange.h"

/* True if this machine has an NVIDIA GPU, or a driver for one. Then its user may expect us to use
 * it. */
static bool has_signs(void)
{
    static const char *const signs[] = {"/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (access(signs[i], F_OK) == 0)
            return true;
    return false;
}

/* The reason why we can use no GPU here, with a remedy; NULL if there are *n_p of them. */
static const char *why_not(const lks__cuda_module **module_p, int *n_p, char text[LKS__DEVICE_TEXT])
{
    char why[400] = "";
    *module_p = lks__module_load(LKS__CUDA_MODULE_FILE, LKS__CUDA_MODULE_VERSION, why, sizeof why);
    if (*module_p == NULL) {
        snprintf(text, LKS__DEVICE_TEXT,
                 "%s: build lockstep with CUDA's toolkit (-DLKS_CUDA=FOLDER), and let the loader "
                 "find CUDA's libraries: docs/guides/cuda.md",
                 lks__shown(why, 500));
        return text;
    }
    *n_p = (*module_p)->count(why, sizeof why);
    if (*n_p == 0)
        snprintf(why, sizeof why, "this process sees no NVIDIA GPU");
    snprintf(text, LKS__DEVICE_TEXT,
             "%s: look at nvidia-smi, and at CUDA_VISIBLE_DEVICES if it is set", why);
    return *n_p <= 0 ? text : NULL;
}

/* The effect of CUDA_VISIBLE_DEVICES, for messages with numbers of GPUs; "": it isn't set. */
static const char *visible(char out[120])
{
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    out[0] = '\0';
    if (given != NULL)
        snprintf(out, 120, ", with CUDA_VISIBLE_DEVICES=%s", lks__shown(given, 80));
    return out;
}

static const lks__nccl_module *load_nccl(char *why, size_t why_bytes)
{
    return lks__module_load(LKS__NCCL_MODULE_FILE, LKS__NCCL_MODULE_VERSION, why, why_bytes);
}

/* Choose this rank's GPU among the n that it sees. Another rank may see others. */
static lks_status choose(const lks__cuda_module *module, const lks__device_place *place, int n,
                         int *gpu_p)
{
    char hidden[120], why[300] = "";
    lks__cuda_gpu gpu;
    if (place->number >= n)
        return lks__fail(LKS_ERR_CONFIG,
                         "--device=cuda:%d: this process sees %d GPU%s%s, counted from 0: use "
                         "cuda:%d, or cuda without a number",
                         place->number, n, n == 1 ? "" : "s", visible(hidden), n - 1);
    *gpu_p = place->number >= 0 ? place->number : place->local_rank % n;
    if (!module->look(*gpu_p, &gpu, why, sizeof why))
        return lks__fail(LKS_ERR_SUPPORT, "GPU %d: %s: look at nvidia-smi", *gpu_p, why);
    if (gpu.major < LKS__CUDA_LEAST)
        return lks__fail(LKS_ERR_SUPPORT,
                         "GPU %d (%s) has capability %d.%d, and lockstep needs %d.0 or more: use "
                         "--device=cpu, or choose another GPU with CUDA_VISIBLE_DEVICES",
                         *gpu_p, gpu.name, gpu.major, gpu.minor, LKS__CUDA_LEAST);
    return LKS_OK;
}

/* --- a device that is only asked ------------------------------------------------------------- */

static void close_asked(lks__device *device)
{
    free(device);
}

static lks_status open_asked(lks__device **device_p)
{
    static const struct lks__exchange_ops exchange;
    static const struct lks__device_ops ops = {
        .name = "cuda",
        .exchange = &exchange,
        .open_bytes = LKS__CUDA_PRODUCT_BYTES + LKS__CUDA_CONTEXT_BYTES,
        .spare_bytes = LKS__CUDA_LATER_BYTES,
        .close = close_asked,
    };
    *device_p = calloc(1, sizeof **device_p);
    LKS__MEMORY(*device_p, "for a device");
    **device_p = (lks__device){.ops = &ops, .layers = &lks__cuda_questions, .bf16 = true};
    return LKS_OK;
}

lks_status lks__device_open_cuda(const lks__device_place *place, lks__device **device_p)
{
    const lks__cuda_module *module;
    char text[LKS__DEVICE_TEXT];
    int n = 0, gpu = 0;
    if (place->questions && place->note == NULL)
        return open_asked(device_p);
    if (place->note != NULL && !has_signs()) /* loading libraries takes time */
        return lks__fail(LKS_ERR_SUPPORT, "no NVIDIA GPU");
    const char *why = why_not(&module, &n, text);
    if (place->note != NULL) {
        /* Until more kinds of GPUs have run these kernels, they are only for users who ask. */
        snprintf(place->note, LKS__DEVICE_TEXT,
                 "this machine has an NVIDIA GPU or its driver, but device=auto uses the CPU: %s",
                 why != NULL ? why : "GPUs are experimental; --device=cuda uses it");
        return lks__fail(LKS_ERR_SUPPORT, "%s", place->note);
    }
    if (why != NULL)
        return lks__fail(LKS_ERR_SUPPORT, "--device=cuda: %s", why);
    LKS__TRY(choose(module, place, n, &gpu));
    LKS__TRY(module->open(gpu, lks__fail, lks__device_wait, load_nccl, device_p));
    visible((*device_p)->which + strlen((*device_p)->which));
    return LKS_OK;
}

/* Append the line of GPU i at text[at], and return the index where the next begins. */
static size_t look_at(const lks__cuda_module *module, int i, char *text, size_t at)
{
    lks__cuda_gpu gpu;
    char why[300] = "";
    if (at >= LKS__DEVICE_LOOK)
        return at;
    if (module->look(i, &gpu, why, sizeof why))
        return at + (size_t)snprintf(text + at, LKS__DEVICE_LOOK - at,
                                     "\n%d: %s, %.1f GB, capability %d.%d%s, PCI %s", i, gpu.name,
                                     (double)gpu.bytes / 1e9, gpu.major, gpu.minor,
                                     gpu.major < LKS__CUDA_LEAST ? " (too old)" : "", gpu.pci);
    return at + (size_t)snprintf(text + at, LKS__DEVICE_LOOK - at, "\n%d: %s", i, why);
}

/* NCCL's version, or how several GPUs work without it. */
static void look_at_nccl(char *text, size_t bytes)
{
    char why[400] = "";
    const lks__nccl_module *nccl = load_nccl(why, sizeof why);
    if (nccl != NULL)
        nccl->about(text, bytes);
    else
        snprintf(text, bytes, "no NCCL, so several GPUs exchange through the host's memory: %s",
                 lks__shown(why, 500));
}

bool lks__device_look_cuda(char text[LKS__DEVICE_LOOK])
{
    const lks__cuda_module *module;
    char none[LKS__DEVICE_TEXT], hidden[120], versions[200] = "", nccl[600];
    int n = 0;
    const char *why = why_not(&module, &n, none);
    if (text == NULL)
        return why == NULL;
    if (module != NULL)
        module->versions(versions, sizeof versions);
    if (why != NULL) {
        snprintf(text, LKS__DEVICE_LOOK, "%s%s%s", why, module != NULL ? "; built with " : "",
                 versions);
        return false;
    }
    size_t at =
        (size_t)snprintf(text, LKS__DEVICE_LOOK,
                         "%d GPU%s%s; %s; experimental: docs/guides/cuda.md has results from GPUs",
                         n, n == 1 ? "" : "s", visible(hidden), versions);
    for (int i = 0; i < n; i++)
        at = look_at(module, i, text, at);
    look_at_nccl(nccl, sizeof nccl);
    snprintf(text + at, at < LKS__DEVICE_LOOK ? LKS__DEVICE_LOOK - at : 0, "\n %s", nccl);
    return true;
}
