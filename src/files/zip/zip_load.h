/* files/zip/zip_load.h - loads the module lockstep_zip.so at its first use. */
#ifndef LKS_FILES_ZIP_ZIP_LOAD_H
#define LKS_FILES_ZIP_ZIP_LOAD_H

#include "base/status.h"
#include "files/zip/zip_module.h"

/* ERR_SUPPORT names the package to install. */
lks_status lks__zip_module_open(const lks__zip_module **module_p);
/* Only check that the module can be loaded. */
lks_status lks__zip_available(void);

#endif
