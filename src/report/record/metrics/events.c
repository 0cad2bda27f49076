#include "report/record/metrics/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"

static const char prefix[] = "events.out.tfevents.";

enum {
    RECORD_BYTES = 256 << 10,
    HEADER_BYTES = 12, /* length, and its checksum */
    DEPTH = 8,
    LENGTH_BYTES = 4, /* of a message within another one: a varint that is always this long */
    MOST_FILES = 1000000,
};

struct lks__events {
    char path[LKS__SYS_PATH];
    int fd;
    size_t n;             /* bytes of the record so far */
    size_t opened[DEPTH]; /* offsets of the lengths of open messages */
    int depth;
    bool overflow;
    unsigned char record[RECORD_BYTES];
};

/* --- checksums -------------------------------------------------------------------------------- */

static uint32_t crc_of_byte(uint32_t byte)
{
    for (int bit = 0; bit < 8; bit++)
        byte = (byte >> 1) ^ (0x82f63b78u & (0u - (byte & 1u)));
    return byte;
}

uint32_t lks__crc32c(const void *data, size_t bytes)
{
    static uint32_t table[256]; /* only rank 0's main thread writes events */
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;
    if (table[1] == 0)
        for (uint32_t i = 0; i < 256; i++)
            table[i] = crc_of_byte(i);
    for (size_t i = 0; i < bytes; i++)
        crc = (crc >> 8) ^ table[(crc ^ p[i]) & 0xffu];
    return crc ^ 0xffffffffu;
}

static void put_u32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

/* TensorFlow masks stored CRCs, because a CRC over data that contain CRCs is weak. */
static void put_masked_crc(unsigned char *at, const void *data, size_t bytes)
{
    uint32_t crc = lks__crc32c(data, bytes);
    put_u32(at, ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

/* --- protobuf --------------------------------------------------------------------------------- */

enum wire_type { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* Fields of TensorFlow's event.proto, summary.proto, tensor.proto and tensor_shape.proto. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SESSION_LOG_STATUS = 1,
    SESSION_LOG_START = 1, /* a value of that field */
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME = 1,
    TENSOR_DTYPE = 1,
    TENSOR_SHAPE = 2,
    TENSOR_STRING = 8,
    DTYPE_STRING = 7, /* a value of TENSOR_DTYPE */
    SHAPE_DIM = 2,
    DIM_SIZE = 1,
};

/* Leave four bytes for the checksum after the record. */
static void put(lks__events *e, const void *data, size_t bytes)
{
    if (bytes > RECORD_BYTES - 4 - e->n) {
        e->overflow = true;
        return;
    }
    memcpy(e->record + e->n, data, bytes);
    e->n += bytes;
}

static void put_varint(lks__events *e, uint64_t value)
{
    unsigned char byte;
    for (; value >= 0x80; value >>= 7) {
        byte = (unsigned char)(value | 0x80);
        put(e, &byte, 1);
    }
    byte = (unsigned char)value;
    put(e, &byte, 1);
}

static void put_key(lks__events *e, unsigned field, enum wire_type type)
{
    put_varint(e, (uint64_t)field << 3 | type);
}

static void put_number(lks__events *e, unsigned field, uint64_t value)
{
    put_key(e, field, VARINT);
    put_varint(e, value);
}

static void put_text(lks__events *e, unsigned field, const char *text)
{
    put_key(e, field, BYTES);
    put_varint(e, strlen(text));
    put(e, text, strlen(text));
}

static void put_double(lks__events *e, unsigned field, double value)
{
    uint64_t bits;
    unsigned char bytes[8];
    memcpy(&bits, &value, sizeof bits);
    put_u32(bytes, (uint32_t)bits);
    put_u32(bytes + 4, (uint32_t)(bits >> 32));
    put_key(e, field, FIXED64);
    put(e, bytes, sizeof bytes);
}

static void put_float(lks__events *e, unsigned field, float value)
{
    uint32_t bits;
    unsigned char bytes[4];
    memcpy(&bits, &value, sizeof bits);
    put_u32(bytes, bits);
    put_key(e, field, FIXED32);
    put(e, bytes, sizeof bytes);
}

/* Begin a message within another one; close_message() fills in its length. */
static void open_message(lks__events *e, unsigned field)
{
    static const unsigned char length[LENGTH_BYTES];
    put_key(e, field, BYTES);
    e->opened[e->depth++] = e->n;
    put(e, length, sizeof length);
}

static void close_message(lks__events *e)
{
    size_t at = e->opened[--e->depth], bytes = e->n - at - LENGTH_BYTES;
    if (e->overflow)
        return;
    for (size_t i = 0; i < LENGTH_BYTES; i++, bytes >>= 7)
        e->record[at + i] = (unsigned char)((bytes & 0x7f) | (i < LENGTH_BYTES - 1 ? 0x80 : 0));
}

/* --- records ---------------------------------------------------------------------------------- */

static void begin_event(lks__events *e, uint64_t step)
{
    e->n = HEADER_BYTES;
    e->depth = 0;
    e->overflow = false;
    put_double(e, EVENT_WALL_TIME, lks__sys_wall());
    put_number(e, EVENT_STEP, step);
}

static lks_status end_event(lks__events *e)
{
    const size_t bytes = e->n - HEADER_BYTES;
    if (e->overflow)
        return lks__fail(LKS_ERR_NOMEM, "no room for a record of %s", e->path);
    put_u32(e->record, (uint32_t)bytes);
    put_u32(e->record + 4, 0);
    put_masked_crc(e->record + 8, e->record, 8);
    put_masked_crc(e->record + e->n, e->record + HEADER_BYTES, bytes);
    if (lks__sys_write_all(e->fd, e->record, e->n + 4) != 0)
        return lks__sys_fail("can't write", e->path);
    return LKS_OK;
}

lks_status lks__events_back(lks__events *e, uint64_t step)
{
    begin_event(e, step);
    open_message(e, EVENT_SESSION_LOG);
    put_number(e, SESSION_LOG_STATUS, SESSION_LOG_START);
    close_message(e);
    return end_event(e);
}

void lks__events_begin(lks__events *e, uint64_t step)
{
    begin_event(e, step);
    open_message(e, EVENT_SUMMARY);
}

void lks__events_scalar(lks__events *e, const char *tag, double value)
{
    open_message(e, SUMMARY_VALUE);
    put_text(e, VALUE_TAG, tag);
    put_float(e, VALUE_SIMPLE, (float)value);
    close_message(e);
}

void lks__events_text(lks__events *e, const char *tag, const char *markdown)
{
    open_message(e, SUMMARY_VALUE);
    put_text(e, VALUE_TAG, tag);
    open_message(e, VALUE_METADATA);
    open_message(e, METADATA_PLUGIN);
    put_text(e, PLUGIN_NAME, "text");
    close_message(e);
    close_message(e);
    open_message(e, VALUE_TENSOR);
    put_number(e, TENSOR_DTYPE, DTYPE_STRING);
    open_message(e, TENSOR_SHAPE);
    open_message(e, SHAPE_DIM);
    put_number(e, DIM_SIZE, 1);
    close_message(e);
    close_message(e);
    put_text(e, TENSOR_STRING, markdown);
    close_message(e);
    close_message(e);
}

lks_status lks__events_end(lks__events *e)
{
    close_message(e);
    return end_event(e);
}

/* --- files ------------------------------------------------------------------------------------ */

/* True if the record contains a tag that begins with "final/". */
static bool is_final(const unsigned char *record, size_t bytes)
{
    static const char group[] = "final/";
    const unsigned char *at = record, *end = record + bytes;
    while ((at = memmem(at, (size_t)(end - at), group, sizeof group - 1)) != NULL) {
        /* field and length of the tag */
        if (at - record >= 2 && at[-2] == (VALUE_TAG << 3 | BYTES) && at[-1] < 32)
            return true;
        at++;
    }
    return false;
}

static uint64_t get_u64(const unsigned char *at)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* Cut a file before the evaluation of the final checkpoint: the run continues, and will write
 * another one. TensorBoard's server would keep the old value, because the new file has no later
 * value of that tag. Reading ends at the first record that isn't valid. */
static lks_status cut_final(lks__events *e, const char *path)
{
    unsigned char head[HEADER_BYTES];
    struct stat info;
    lks_status st = LKS_OK;
    const int fd = lks__sys_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return lks__sys_fail("can't open", path);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        info.st_size = 0;
    for (uint64_t at = 0, n, size = (uint64_t)info.st_size; size - at >= HEADER_BYTES + 4;
         at += HEADER_BYTES + n + 4) {
        if (lks__sys_read_at(fd, head, sizeof head, at) != 0)
            break;
        n = get_u64(head);
        if (n > RECORD_BYTES || n > size - at - HEADER_BYTES - 4 ||
            lks__sys_read_at(fd, e->record, (size_t)n, at + HEADER_BYTES) != 0)
            break;
        if (!is_final(e->record, (size_t)n))
            continue;
        if (lks__sys_truncate(fd, at) != 0)
            st = lks__sys_fail("can't cut", path);
        break;
    }
    lks__sys_close(fd);
    return st;
}

static lks_status open_next(lks__events *e, const char *out_dir)
{
    char earlier[sizeof e->path] = "";
    for (unsigned i = 1; i < MOST_FILES; i++) {
        snprintf(e->path, sizeof e->path, "%s/%s%06u.lockstep", out_dir, prefix, i);
        e->fd = lks__sys_open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
        if (e->fd >= 0)
            return earlier[0] != '\0' ? cut_final(e, earlier) : LKS_OK;
        if (errno != EEXIST)
            break;
        memcpy(earlier, e->path, sizeof earlier);
    }
    return lks__sys_fail("can't make", e->path);
}

static lks_status write_head(lks__events *e, uint64_t step)
{
    begin_event(e, step);
    put_text(e, EVENT_FILE_VERSION, "brain.Event:2");
    LKS__TRY(end_event(e));
    return lks__events_back(e, step);
}

lks_status lks__events_create(const char *out_dir, uint64_t step, lks__events **events_p)
{
    lks__events *e = calloc(1, sizeof *e);
    LKS__MEMORY(e, "for TensorBoard's events");
    e->fd = -1;
    lks_status st = open_next(e, out_dir);
    LKS__THEN(st, write_head(e, step));
    if (st != LKS_OK) {
        lks__events_close(e);
        return st;
    }
    *events_p = e;
    return LKS_OK;
}

lks_status lks__events_close(lks__events *e)
{
    if (e == NULL)
        return LKS_OK;
    lks_status st =
        e->fd < 0 || lks__sys_close(e->fd) == 0 ? LKS_OK : lks__sys_fail("can't write", e->path);
    free(e);
    return st;
}
