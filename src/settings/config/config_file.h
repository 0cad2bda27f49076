/* settings/config/config_file.h - settings from files, and from the command line that names them.
 *
 * A recipe (.conf) consists of lines `key = value`; `#` begins a comment at the start of a line or
 * after white space. Values: numbers, arithmetic as in Python (5 * 8, learning_rate / 10) with
 * names that the file has assigned before or that are settings, true, false, words, and strings in
 * '…' or "…", which may contain \n \t \\ \' \".
 *
 * nanoGPT's config files (.py) are read by the same rules, and never executed. Lines that only
 * Python could evaluate (imports, calls in strings) are noted and skipped. So are names without a
 * meaning here (wandb_*, compile), and device, backend and dtype if this build lacks the value. */
#pragma once

#include "settings/settings.h"

/* Read the file's settings, with LKS__FROM_FILE. At most 1 MiB of UTF-8, lines of at most 4,096
 * bytes. ERR_IO, ERR_FORMAT (not text), ERR_CONFIG (FILE:LINE and the error). */
lks_status lks__config_file_read(lks__settings *s, unsigned command, const char *path,
                                 lks__args *args);
