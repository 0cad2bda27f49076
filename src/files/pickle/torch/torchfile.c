#include "files/pickle/torch/torchfile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "files/zip/zip.h"

enum { KEY_BYTES = 20 }; /* keys are numbers counted from 0 */

struct lks__torchfile {
    lks__zip *zip;
    char *top; /* the folder of all entries, with its trailing '/' */
    char *data;
    lks__pickle *pickle;
    unsigned char *checked;     /* for each entry: its checksum was correct */
    const lks__zip_entry *kept; /* the last storage of a tensor that isn't in C order; or NULL */
    char *kept_data;
};

static lks_status bad(const lks__torchfile *f, const char *why)
{
    return lks__fail(LKS_ERR_FORMAT, "%s: %s", lks__zip_name(f->zip), why);
}

/* ---- the entries ------------------------------------------------------------------------- */

/* The entry TOP/NAME, or NULL. */
static const lks__zip_entry *entry_of(const lks__torchfile *f, const char *name)
{
    char *path;
    if (asprintf(&path, "%s%s", f->top, name) < 0)
        return NULL;
    const lks__zip_entry *entry = lks__zip_find(f->zip, path);
    free(path);
    return entry;
}

/* Find the folder that contains data.pkl; all entries must be in it. */
static lks_status find_top(lks__torchfile *f)
{
    size_t n = lks__zip_count(f->zip), bytes = 0;
    for (size_t i = 0; i < n && !f->top; i++) {
        const char *name = lks__zip_entry_at(f->zip, i)->name;
        const char *slash = strchr(name, '/');
        if (slash && strcmp(slash, "/data.pkl") == 0) {
            bytes = (size_t)(slash - name) + 1;
            f->top = strndup(name, bytes);
            LKS__MEMORY(f->top, "to read a zip file");
        }
    }
    if (!f->top)
        return bad(f, "it is a zip file, but not one of torch.save: the entry data.pkl is missing");
    for (size_t i = 0; i < n; i++)
        if (strncmp(lks__zip_entry_at(f->zip, i)->name, f->top, bytes) != 0)
            return bad(f, "it has entries outside of the folder of its data.pkl");
    if (entry_of(f, "constants.pkl"))
        return bad(f, "it is TorchScript, a program; save only the state_dict(), with torch.save");
    return LKS_OK;
}

/* Verify the checksums of the entries that are not read, so that a file with a changed byte is
 * refused. Storages are checked when they are read, which may be never. */
static lks_status check_others(const lks__torchfile *f)
{
    char small[4096];
    const size_t top = strlen(f->top);
    for (size_t i = 0; i < lks__zip_count(f->zip); i++) {
        const lks__zip_entry *entry = lks__zip_entry_at(f->zip, i);
        if (strncmp(entry->name + top, "data/", 5) != 0 && entry->bytes <= sizeof small)
            LKS__TRY(lks__zip_read_all(f->zip, entry, small));
    }
    return LKS_OK;
}

static lks_status check_byte_order(const lks__torchfile *f)
{
    char order[6];
    const lks__zip_entry *entry = entry_of(f, "byteorder"); /* absent in files of older versions */
    if (!entry)
        return LKS_OK;
    if (entry->bytes == sizeof order)
        LKS__TRY(lks__zip_read_all(f->zip, entry, order));
    return entry->bytes == sizeof order && memcmp(order, "little", sizeof order) == 0
               ? LKS_OK
               : bad(f, "its entry byteorder is not \"little\"; only such files are read");
}

static lks_status check_version(const lks__torchfile *f)
{
    char text[8] = "";
    const lks__zip_entry *entry = entry_of(f, "version");
    if (!entry || entry->bytes == 0 || entry->bytes >= sizeof text)
        return bad(f, "it has no entry version, or one that is not a small number");
    LKS__TRY(lks__zip_read_all(f->zip, entry, text));
    int version = atoi(text);
    return version >= 1 && version <= 10 ? LKS_OK : bad(f, "its version is not one from 1 to 10");
}

/* ---- tensors ----------------------------------------------------------------------------- */

static const lks__zip_entry *storage_entry(const lks__torchfile *f, const lks__pickle_storage *s)
{
    char name[KEY_BYTES + 8];
    if (s->key_bytes > KEY_BYTES || memchr(s->key, '\0', s->key_bytes))
        return NULL;
    snprintf(name, sizeof name, "data/%.*s", (int)s->key_bytes, s->key);
    return entry_of(f, name);
}

static lks_status has_storage(void *ctx, const lks__pickle_storage *s, uint64_t bytes)
{
    const lks__torchfile *f = ctx;
    char key[64];
    const lks__zip_entry *entry = storage_entry(f, s);
    lks__escape(key, sizeof key, s->key, s->key_bytes);
    if (!entry)
        return lks__fail(LKS_ERR_FORMAT, "storage %s has no entry data/%s", key, key);
    if (entry->bytes != bytes)
        return lks__fail(LKS_ERR_FORMAT,
                         "storage %s has %llu elements of %s, but its entry has %llu bytes", key,
                         (unsigned long long)s->count, s->dtype, (unsigned long long)entry->bytes);
    return LKS_OK;
}

/* True if the elements are in C order. */
static bool is_plain(const lks__pickle_tensor *t)
{
    uint64_t step = 1;
    for (int d = t->n_dims; d-- > 0;) {
        if (t->shape[d] > 1 && t->stride[d] != step)
            return false;
        step *= t->shape[d];
    }
    return true;
}

/* Copy elements [first, first + n) of the tensor. */
static void gather(const lks__pickle_tensor *t, const char *from, uint64_t first, size_t n,
                   char *out)
{
    uint64_t index[LKS__PICKLE_MAX_DIMS] = {0}, at = t->first, bytes = t->storage->item_bytes;
    for (int d = t->n_dims; d-- > 0; first /= t->shape[d]) {
        index[d] = first % t->shape[d];
        at += index[d] * t->stride[d];
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(out + i * bytes, from + at * bytes, bytes);
        for (int d = t->n_dims; d-- > 0;) { /* the next index, the last dimension first */
            at += t->stride[d];
            if (++index[d] < t->shape[d])
                break;
            at -= t->stride[d] * t->shape[d];
            index[d] = 0;
        }
    }
}

static lks_status read_strided(lks__torchfile *f, const lks__zip_entry *entry,
                               const lks__pickle_tensor *t, uint64_t first, size_t n, void *out)
{
    if (f->kept != entry) {
        free(f->kept_data);
        f->kept = NULL;
        f->kept_data = malloc(entry->bytes + 1);
        if (!f->kept_data)
            return lks__fail(LKS_ERR_NOMEM, "%s: no memory for a tensor", lks__zip_name(f->zip));
        LKS__TRY(lks__zip_read_all(f->zip, entry, f->kept_data));
        f->kept = entry;
    }
    gather(t, f->kept_data, first, n, out);
    if (first + n == t->count) { /* the last part */
        free(f->kept_data);
        f->kept_data = NULL;
        f->kept = NULL;
    }
    return LKS_OK;
}

lks_status lks__torchfile_read_part(lks__torchfile *f, const lks__pickle_tensor *t, uint64_t first,
                                    size_t n, void *out)
{
    if (n == 0)
        return LKS_OK;
    const lks__zip_entry *entry = storage_entry(f, t->storage);
    uint64_t item = t->storage->item_bytes;
    unsigned char *checked = &f->checked[entry - lks__zip_entry_at(f->zip, 0)];
    if (!is_plain(t)) {
        LKS__TRY(read_strided(f, entry, t, first, n, out));
    } else if (n == t->storage->count) {
        LKS__TRY(lks__zip_read_all(f->zip, entry, out));
    } else {
        if (!*checked)
            LKS__TRY(lks__zip_read_all(f->zip, entry, NULL));
        LKS__TRY(lks__zip_read(f->zip, entry, (t->first + first) * item, out, n * item));
    }
    *checked = 1;
    return LKS_OK;
}

lks_status lks__torchfile_read(lks__torchfile *f, const lks__pickle_tensor *t, void *out)
{
    return lks__torchfile_read_part(f, t, 0, (size_t)t->count, out);
}

/* ---- open and close ---------------------------------------------------------------------- */

static lks_status read_pickle(lks__torchfile *f)
{
    char where[600];
    const lks__zip_entry *entry = entry_of(f, "data.pkl");
    if (!entry || entry->bytes > LKS__PICKLE_MAX_BYTES)
        return bad(f, "its entry data.pkl is longer than 8 MiB");
    f->data = malloc(entry->bytes + 1);
    f->checked = calloc(lks__zip_count(f->zip) + 1, 1);
    if (!f->data || !f->checked)
        return lks__no_memory("to read %s", lks__zip_name(f->zip));
    LKS__TRY(lks__zip_read_all(f->zip, entry, f->data));
    snprintf(where, sizeof where, "%s: entry data.pkl", lks__zip_name(f->zip));
    return lks__pickle_parse(where, f->data, entry->bytes, has_storage, f, &f->pickle);
}

static lks_status open_with(lks__zip *zip, lks__torchfile **file_p)
{
    lks__torchfile *f = calloc(1, sizeof *f);
    if (!f) {
        lks__zip_close(zip);
        return lks__no_memory("to read a zip file");
    }
    f->zip = zip;
    lks_status st = find_top(f);
    LKS__THEN(st, check_others(f));
    LKS__THEN(st, check_byte_order(f));
    LKS__THEN(st, check_version(f));
    LKS__THEN(st, read_pickle(f));
    if (st == LKS_OK)
        *file_p = f;
    else
        lks__torchfile_close(f);
    return st;
}

/* PyTorch before 1.6 wrote a series of pickles that begins with this magic number. */
static const unsigned char legacy[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c,
                                       0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

static lks_status refuse_legacy(const char *name, const void *data, size_t bytes)
{
    if (bytes < sizeof legacy || memcmp(data, legacy, sizeof legacy) != 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT,
                     "%s is in torch.save's format of before PyTorch 1.6, which lockstep doesn't "
                     "read; load it and save it again with a newer PyTorch",
                     name);
}

/* Read the first bytes of a file, up to 16. */
static size_t read_start(const char *path, unsigned char out[16])
{
    size_t n = 0;
    int fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return 0;
    while (n < 16 && lks__sys_read_at(fd, out + n, 1, n) == 0)
        n++;
    lks__sys_close(fd);
    return n;
}

lks_status lks__torchfile_open(const char *path, lks__torchfile **file_p)
{
    unsigned char start[16];
    lks__zip *zip;
    size_t n = read_start(path, start);
    LKS__TRY(refuse_legacy(lks__shown(path, 512), start, n));
    LKS__TRY(lks__zip_open(path, &zip));
    return open_with(zip, file_p);
}

lks_status lks__torchfile_open_bytes(const char *name, const void *data, size_t bytes,
                                     lks__torchfile **file_p)
{
    lks__zip *zip;
    LKS__TRY(refuse_legacy(name, data, bytes));
    LKS__TRY(lks__zip_open_bytes(name, data, bytes, &zip));
    return open_with(zip, file_p);
}

void lks__torchfile_close(lks__torchfile *f)
{
    if (!f)
        return;
    lks__pickle_close(f->pickle);
    lks__zip_close(f->zip);
    free(f->kept_data);
    free(f->checked);
    free(f->data);
    free(f->top);
    free(f);
}

const lks__pickle_value *lks__torchfile_root(const lks__torchfile *f)
{
    return lks__pickle_root(f->pickle);
}

bool lks__torchfile_looks_like(const char *path)
{
    unsigned char start[16];
    size_t n = read_start(path, start);
    return (n >= 4 && memcmp(start, "PK\3\4", 4) == 0) ||
           (n >= sizeof legacy && memcmp(start, legacy, sizeof legacy) == 0);
}
