#include "data/read/hashes.h"

#include <string.h>
#include <xxhash.h>

#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "data/text/meta.h"

static bool all_whole(lks__shards *const data[2])
{
    for (int split = 0; split < 2; split++)
        if (data[split] != NULL && !lks__shards_whole(data[split]))
            return false;
    return true;
}

/* Combine the hashes of all files: those in meta.json, or, with `read`, those of the files as they
 * are. "" if one is missing. *changed_p: the first file whose two hashes differ, or NULL. */
static lks_status combine(const char *dir, lks__shards *const data[2], bool read, char out[17],
                          const char **changed_p)
{
    json_t *hashes;
    lks_status st = LKS_OK;
    LKS__TRY(lks__meta_hashes(dir, &hashes));
    bool all = true;
    XXH3_state_t *sum = XXH3_createState();
    *changed_p = NULL;
    if (sum == NULL || XXH3_64bits_reset(sum) != XXH_OK)
        st = lks__no_memory("to hash token files");
    for (int split = 0; split < 2 && st == LKS_OK; split++) {
        const int n = data[split] != NULL ? lks__shards_n_files(data[split]) : 0;
        XXH3_64bits_update(sum, &n, sizeof n);
        for (int i = 0; i < n && st == LKS_OK; i++) {
            const char *path = lks__shards_path(data[split], i);
            uint64_t recorded = 0, hash;
            const bool known = lks__json_hash(hashes, lks__sys_name(path), &recorded);
            hash = recorded;
            if (read)
                st = lks__shards_hash(data[split], i, &hash);
            if (known && hash != recorded && *changed_p == NULL)
                *changed_p = path;
            all = all && (known || read);
            XXH3_64bits_update(sum, &hash, sizeof hash);
        }
    }
    if (st == LKS_OK)
        lks__hex_to(out, XXH3_64bits_digest(sum));
    if (!all)
        out[0] = '\0';
    XXH3_freeState(sum);
    json_decref(hashes);
    return st;
}

lks_status lks__hashes_recorded(const char *dir, lks__shards *const data[2], char out[17])
{
    const char *changed;
    out[0] = '\0';
    return all_whole(data) ? LKS_OK : combine(dir, data, false, out, &changed);
}

lks_status lks__hashes_check(const char *dir, lks__shards *const data[2], const char recorded[17])
{
    const char *changed;
    char have[17];
    LKS__TRY(combine(dir, data, true, have, &changed));
    if (strcmp(have, recorded) == 0)
        return LKS_OK;
    const char *path = changed != NULL ? changed : dir;
    const char *shown = lks__shown(path, 512);
    if (changed != NULL)
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s has changed since `lockstep prep` wrote it: its tokens don't have the "
                         "hash in meta.json",
                         shown);
    return lks__fail(LKS_ERR_SUPPORT,
                     "the token files in %s aren't the run's: their hash is %s, not %s", shown,
                     have, recorded);
}
