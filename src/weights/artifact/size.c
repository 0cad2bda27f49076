/* weights/artifact/size.c - the size of a submission, in the script's format. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "weights/artifact/artifact.h"

lks_status lks__artifact_file_bytes(const char *path, uint64_t *bytes_p)
{
    struct stat info;
    if (stat(path, &info) < 0)
        return lks__sys_fail("cannot read", path);
    if (!S_ISREG(info.st_mode))
        return lks__fail(LKS_ERR_IO, "cannot count the bytes of %s: it is not a regular file",
                         lks__shown(path, 512));
    *bytes_p = (uint64_t)info.st_size;
    return LKS_OK;
}

lks_status lks__artifact_code_bytes(const char *list, uint64_t *bytes_p)
{
    char path[4096];
    uint64_t bytes = 0, sum = 0;
    for (size_t n; *list != '\0'; list += n + (list[n] == '\n')) {
        n = strcspn(list, "\n");
        snprintf(path, sizeof path, "%.*s", (int)n, list);
        LKS__TRY(lks__artifact_file_bytes(path, &bytes));
        sum += bytes;
    }
    *bytes_p = sum;
    return LKS_OK;
}

void lks__artifact_lines(const lks__artifact_stats *s, uint64_t model_bytes, uint64_t code_bytes,
                         char out[LKS__ARTIFACT_LINES])
{
    uint64_t payload = s->int8_payload_bytes ? s->int8_payload_bytes : 1;
    snprintf(out, LKS__ARTIFACT_LINES,
             "Serialized model: %" PRIu64 " bytes\n"
             "Code size: %" PRIu64 " bytes\n"
             "Total submission size: %" PRIu64 " bytes\n"
             "Serialized model int8+zlib: %" PRIu64 " bytes (payload:%" PRIu64 " raw_torch:%" PRIu64
             " payload_ratio:%.2fx)\n"
             "Total submission size int8+zlib: %" PRIu64 " bytes\n",
             model_bytes, code_bytes, model_bytes + code_bytes, s->file_bytes,
             s->int8_payload_bytes, s->container_bytes,
             (double)s->baseline_tensor_bytes / (double)payload, s->file_bytes + code_bytes);
}

bool lks__artifact_too_large(const lks__artifact_stats *s, uint64_t code_bytes, char out[200])
{
    uint64_t total = s->file_bytes + code_bytes;
    if (total <= LKS__ARTIFACT_LIMIT)
        return false;
    snprintf(out, 200,
             "TOO LARGE: artifact and code are %" PRIu64 " bytes together, %" PRIu64
             " over the limit of %d",
             total, total - LKS__ARTIFACT_LIMIT, LKS__ARTIFACT_LIMIT);
    return true;
}
