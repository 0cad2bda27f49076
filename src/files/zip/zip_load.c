#include "files/zip/zip_load.h"

#include "base/system/module.h"

lks_status lks__zip_module_open(const lks__zip_module **module_p)
{
    static lks__module zip = {
        .file = LKS__ZIP_MODULE_FILE,
        .version = LKS__ZIP_MODULE_VERSION,
        .package = "libzip-dev",
        .failure = "cannot read or write zip files",
        .mutex = PTHREAD_MUTEX_INITIALIZER,
    };
    *module_p = lks__module_get(&zip);
    return *module_p != NULL ? LKS_OK : LKS_ERR_SUPPORT;
}

lks_status lks__zip_available(void)
{
    const lks__zip_module *module;
    return lks__zip_module_open(&module);
}
