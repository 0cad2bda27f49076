/* What agree.sh needs besides the tool: `hosts_fixture data DIR` writes token files, and
 * `hosts_fixture weight|moment|value|nan RUN` alters the newest checkpoint of a run and updates its
 * hashes (laws/poison.h). */
#include "laws/poison.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *path);
    } all[] = {{"data", poison_write_data},
               {"weight", poison_weight},
               {"moment", poison_moment},
               {"value", poison_value},
               {"nan", poison_embedding}};
    for (size_t i = 0; argc == 3 && i < sizeof all / sizeof all[0]; i++)
        if (strcmp(argv[1], all[i].name) == 0) {
            all[i].run(argv[2]);
            return 0;
        }
    fprintf(stderr, "usage: hosts_fixture data|weight|moment|value|nan FOLDER\n");
    return 2;
}
