/* weights/forms/llmc.c - the model files of llm.c: 256 int32, then the parameters, kind by kind,
 * each for all layers; float32 (version 3) or bfloat16 (version 5). The token table is padded with
 * rows of zeros to a multiple of 128; the padding is omitted. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "weights/forms/form.h"

enum { MAGIC = 20240326, HEADER = 256, VERSION_F32 = 3, VERSION_BF16 = 5 };

struct llmc {
    int fd;
    size_t width; /* bytes per number */
};

struct sizes {
    uint64_t T, V, L, NH, C, padded;
};

static bool looks(const lks__weights_path *p)
{
    int32_t magic;
    memcpy(&magic, p->head, sizeof magic);
    return !p->folder && magic == MAGIC;
}

/* Add a matrix [d0, d1], or a vector if d1 == 0, for each of `layers` layers (-1: outside of
 * them). */
static lks_status add(lks__weights *w, const char *name, int layers, uint64_t d0, uint64_t d1,
                      uint64_t *at)
{
    const uint64_t count = d1 == 0 ? d0 : d0 * d1;
    for (int l = 0; l < (layers < 0 ? 1 : layers); l++) {
        char prefix[32] = "transformer.";
        if (layers >= 0)
            snprintf(prefix, sizeof prefix, "transformer.h.%d.", l);
        lks__weights_tensor *t = lks__weights_add(w, prefix, name);
        if (t == NULL)
            return LKS_ERR_NOMEM;
        t->n_dims = d1 == 0 ? 1 : 2;
        t->shape[0] = d0;
        t->shape[1] = d1;
        t->at = *at;
        *at += count;
    }
    return LKS_OK;
}

/* Count the numbers of the whole file. The sizes are in range, so no product overflows. */
static lks_status add_all(lks__weights *w, const struct sizes *z, uint64_t *n_p)
{
    const uint64_t C = z->C;
    const int L = (int)z->L;
    uint64_t at = 0;
    LKS__TRY(add(w, "wte.weight", -1, z->V, C, &at));
    at += (z->padded - z->V) * C;
    LKS__TRY(add(w, "wpe.weight", -1, z->T, C, &at));
    LKS__TRY(add(w, "ln_1.weight", L, C, 0, &at));
    LKS__TRY(add(w, "ln_1.bias", L, C, 0, &at));
    LKS__TRY(add(w, "attn.c_attn.weight", L, 3 * C, C, &at));
    LKS__TRY(add(w, "attn.c_attn.bias", L, 3 * C, 0, &at));
    LKS__TRY(add(w, "attn.c_proj.weight", L, C, C, &at));
    LKS__TRY(add(w, "attn.c_proj.bias", L, C, 0, &at));
    LKS__TRY(add(w, "ln_2.weight", L, C, 0, &at));
    LKS__TRY(add(w, "ln_2.bias", L, C, 0, &at));
    LKS__TRY(add(w, "mlp.c_fc.weight", L, 4 * C, C, &at));
    LKS__TRY(add(w, "mlp.c_fc.bias", L, 4 * C, 0, &at));
    LKS__TRY(add(w, "mlp.c_proj.weight", L, C, 4 * C, &at));
    LKS__TRY(add(w, "mlp.c_proj.bias", L, C, 0, &at));
    LKS__TRY(add(w, "ln_f.weight", -1, C, 0, &at));
    LKS__TRY(add(w, "ln_f.bias", -1, C, 0, &at));
    *n_p = at;
    return LKS_OK;
}

static lks_status set_sizes(lks__weights *w, const int32_t *header, struct sizes *z)
{
    for (int i = 2; i < 8; i++)
        if (header[i] <= 0)
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: number %d of its header is %" PRId32 ", but sizes are positive",
                             w->shown, i, header[i]);
    *z = (struct sizes){.T = (uint64_t)header[2],
                        .V = (uint64_t)header[3],
                        .L = (uint64_t)header[4],
                        .NH = (uint64_t)header[5],
                        .C = (uint64_t)header[6],
                        .padded = (uint64_t)header[7]};
    LKS__TRY(lks__weights_set(w, "family", "gpt2"));
    LKS__TRY(lks__weights_set_int(w, "block_size", z->T));
    LKS__TRY(lks__weights_set_int(w, "vocab_size", z->V));
    LKS__TRY(lks__weights_set_int(w, "n_layer", z->L));
    LKS__TRY(lks__weights_set_int(w, "n_head", z->NH));
    LKS__TRY(lks__weights_set_int(w, "n_embd", z->C));
    LKS__TRY(lks__weights_set(w, "bias", "true"));
    LKS__TRY(lks__weights_set(w, "gelu", "tanh"));
    if (z->padded < z->V || z->padded - z->V > 1 << 24)
        return lks__fail(LKS_ERR_FORMAT, "%s: a vocabulary of %" PRIu64 " is padded to %" PRIu64,
                         w->shown, z->V, z->padded);
    return LKS_OK;
}

static lks_status open_model(const lks__weights_want *want, lks__weights *w)
{
    int32_t header[HEADER];
    struct stat info;
    struct sizes sizes = {0};
    uint64_t n;
    struct llmc *file = calloc(1, sizeof *file);
    LKS__MEMORY(file, "to open %s", w->shown);
    w->source = file;
    file->fd = lks__sys_open(w->path, O_RDONLY | O_NONBLOCK, 0);
    if (file->fd < 0 || fstat(file->fd, &info) < 0)
        return lks__sys_fail("cannot open", w->path);
    if (info.st_size < (off_t)sizeof header)
        return lks__fail(LKS_ERR_FORMAT, "%s is truncated within its header of %zu bytes", w->shown,
                         sizeof header);
    if (lks__sys_read_at(file->fd, header, sizeof header, 0) < 0)
        return lks__sys_fail("cannot read", w->path);
    if (header[1] != VERSION_F32 && header[1] != VERSION_BF16)
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s is a model file of llm.c of version %" PRId32
                         "; lockstep reads 3 (float32) and 5 (bfloat16)",
                         w->shown, header[1]);
    file->width = header[1] == VERSION_F32 ? sizeof(float) : sizeof(uint16_t);
    LKS__TRY(set_sizes(w, header, &sizes));
    LKS__TRY(add_all(w, &sizes, &n));
    uint64_t bytes = sizeof header + n * file->width;
    if ((uint64_t)info.st_size != bytes)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has %" PRIu64
                         " bytes, but a model of the sizes in its header has %" PRIu64 ": it is %s",
                         w->shown, (uint64_t)info.st_size, bytes,
                         (uint64_t)info.st_size < bytes ? "truncated" : "damaged");
    snprintf(w->origin, sizeof w->origin, "llm.c's model file");
    return LKS_OK;
}

static lks_status read_part(lks__weights *w, const lks__weights_tensor *t, uint64_t first, size_t n,
                            float *out)
{
    const struct llmc *file = w->source;
    const bool wide = file->width == sizeof *out;
    char *to = (char *)out + (wide ? 0 : n * file->width);
    const uint64_t at = HEADER * sizeof(int32_t) + (t->at + first) * file->width;
    if (lks__sys_read_at(file->fd, to, n * file->width, at) < 0)
        return errno == 0 ? lks__fail(LKS_ERR_FORMAT, "%s ended while it was read", w->shown)
                          : lks__sys_fail("cannot read", w->path);
    if (!wide)
        lks__weights_widen(out, n, false);
    return LKS_OK;
}

static void close_model(lks__weights *w)
{
    const struct llmc *file = w->source;
    if (file != NULL)
        lks__sys_close(file->fd);
    free(w->source);
}

const lks__weights_form lks__weights_llmc = {
    .about = "a model file of llm.c (NAME.bin)",
    .looks = looks,
    .open = open_model,
    .read = read_part,
    .close = close_model,
};
