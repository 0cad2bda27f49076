/* report/record/files.h - every file that a run writes into its folder, in one list
 * (docs/reference/formats.md has the same, and a test compares them). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define LKS__ARTIFACT_FILE "final_model.int8.ptz"
/* Tokens that `lockstep train TEXT` has prepared. Only a folder with this file in it belongs to the
 * run; another folder of that name is the user's. */
#define LKS__DATA_FOLDER "data"
#define LKS__DATA_MARK   "source.json"
/* Tokens that are being prepared or removed. The next run removes this folder. */
#define LKS__DATA_TEMP LKS__DATA_FOLDER ".tmp"

/* How a resume from an older checkpoint treats a file. */
enum lks__later {
    LKS__LATER_STAYS,
    LKS__LATER_COPIED, /* earlier-N gets a copy, and the run continues the file */
    LKS__LATER_MOVED,  /* to earlier-N; of checkpoints, the later ones */
};

typedef struct lks__run_file {
    const char *name; /* a '*' at its end stands for any text */
    bool moves;       /* a new run in the folder moves it to earlier-N */
    enum lks__later later;
} lks__run_file;

extern const lks__run_file lks__run_files[];
extern const size_t lks__n_run_files;

/* True if OUT/data belongs to the run. */
bool lks__run_has_data(const char *out_dir);

/* True if the run's data, which `train TEXT` prepared in `path`, have moved with the run, for
 * example to earlier-N: *out is their folder now. `path` may then contain another run's data. */
bool lks__run_own_data(const char *out_dir, const char *path, char *out, size_t bytes);

/* NULL if no run writes a file of that name. */
const lks__run_file *lks__run_file_of(const char *name);
