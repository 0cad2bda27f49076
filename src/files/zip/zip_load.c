#include "files/zip/zip_load.h"

#include <pthread.h>
#include <string.h>

#include "base/system/module.h"

enum { WHY_BYTES = 400 };

static struct {
    pthread_mutex_t mutex; /* guards loading; later only reads */
    const lks__zip_module *module;
} loaded = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static lks_status missing(const char *why)
{
    char shown[WHY_BYTES], advice[LKS__MODULE_ADVICE];
    return lks__fail(LKS_ERR_SUPPORT, "cannot read or write zip files: %s; %s",
                     lks__escape(shown, sizeof shown, why, strlen(why)),
                     lks__module_advice(LKS__ZIP_MODULE_FILE, "libzip-dev", advice));
}

static lks_status load(void)
{
    char why[WHY_BYTES];
    loaded.module =
        lks__module_load(LKS__ZIP_MODULE_FILE, LKS__ZIP_MODULE_VERSION, why, sizeof why);
    return loaded.module != NULL ? LKS_OK : missing(why);
}

lks_status lks__zip_module_open(const lks__zip_module **module_p)
{
    pthread_mutex_lock(&loaded.mutex);
    lks_status st = loaded.module ? LKS_OK : load();
    pthread_mutex_unlock(&loaded.mutex);
    if (st == LKS_OK)
        *module_p = loaded.module;
    return st;
}

lks_status lks__zip_available(void)
{
    const lks__zip_module *module;
    return lks__zip_module_open(&module);
}
