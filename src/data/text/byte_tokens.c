#include "data/text/byte_tokens.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"

enum { MAX_BYTES = 1 << 16 }; /* the script's file has some 200 */

void lks__byte_tokens(const char *text, size_t bytes, int32_t *ids)
{
    for (size_t i = 0; i < bytes; i++)
        ids[i] = LKS__BYTE_FIRST + (unsigned char)text[i];
}

static bool is_number(const json_t *object, const char *key, int want)
{
    const json_t *number = json_object_get(object, key);
    return json_is_integer(number) && json_integer_value(number) == want;
}

static bool is_ours(const json_t *json)
{
    const json_t *config = json_object_get(json, "config");
    return is_number(json, "vocab_size", LKS__BYTE_TOKENS) && is_number(config, "pad_id", 0) &&
           is_number(config, "bos_id", LKS__BYTE_BOS) && is_number(config, "eos_id", 2) &&
           is_number(config, "unk_id", 3) && is_number(config, "byte_offset", LKS__BYTE_FIRST) &&
           is_number(config, "byte_count", 256);
}

static lks_status check(const json_t *json, const char *path, bool *found_p)
{
    const char *kind = json_string_value(json_object_get(json, "tokenizer_type"));
    *found_p = kind != NULL && strcmp(kind, "pure_byte") == 0;
    if (!*found_p || is_ours(json))
        return LKS_OK;
    return lks__fail(
        LKS_ERR_FORMAT,
        "%s describes tokens of single bytes with other ids than parameter-golf's data "
        "script: bytes must begin at %d of %d",
        lks__shown(path, 256), LKS__BYTE_FIRST, LKS__BYTE_TOKENS);
}

lks_status lks__byte_tokens_at(const char *path, bool *found_p)
{
    struct stat info;
    json_error_t error;
    char *text;
    size_t bytes;
    *found_p = false;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > MAX_BYTES)
        return LKS_OK; /* opening the file reports this error */
    LKS__TRY(lks__sys_read_file(path, MAX_BYTES, &text, &bytes));
    json_t *json = lks__json_load(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    const lks_status st = json != NULL ? check(json, path, found_p) : LKS_OK;
    json_decref(json);
    return st;
}
