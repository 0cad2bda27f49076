#include "runs.h"

#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

lks_status tool_runs_open(const lks__args *args, tool_runs *runs)
{
    *runs = (tool_runs){.n = 0};
    if (args->n_positional == 0)
        return lks__fail(LKS_ERR_CONFIG, "name the folder of a run, or several: OUT, or NAME=OUT");
    runs->all = calloc((size_t)args->n_positional, sizeof *runs->all);
    if (runs->all == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the runs");
    for (int i = 0; i < args->n_positional; i++, runs->n++)
        LKS__TRY(lks__series_open(args->positional[i], &runs->all[i]));
    return LKS_OK;
}

void tool_runs_close(tool_runs *runs)
{
    for (size_t i = 0; i < runs->n; i++)
        lks__series_close(&runs->all[i]);
    free(runs->all);
}

bool tool_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool utf8 = locale != (locale_t)0 && strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    if (locale != (locale_t)0)
        freelocale(locale);
    return utf8;
}
