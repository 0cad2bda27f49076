#include "fake.h"

#include <stdio.h>
#include <sys/stat.h>

static void write_lines(const char *path, const char *mode, const char *lines)
{
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    for (; *lines != '\0'; lines++)
        fputc(*lines == '\'' ? '"' : *lines, f);
    assert_int_equal(fclose(f), 0);
}

void fake_append(const char *dir, const char *lines)
{
    write_lines(lks_test_text("%s/metrics.jsonl", dir), "a", lines);
}

void fake_ranks(const char *dir, const char *lines)
{
    write_lines(lks_test_text("%s/ranks.jsonl", dir), "w", lines);
}

const char *fake_run(const char *name, int seed, int steps, double last, const char *settings)
{
    const char *dir = lks_test_text("%s/%s", lks_test_folder(), name);
    assert_int_equal(mkdir(dir, 0777), 0);
    fake_append(
        dir, lks_test_text("{'kind':'config','version':'0.1.0','seed':%d,%s}\n", seed, settings));
    fake_append(dir, "{'kind':'host','schema':1,'world_size':2,'threads':1,'cpu':'a processor'}\n");
    for (int i = 0; i < steps; i++) {
        double above = (double)(steps - 1 - i) / steps;
        if (i % 10 == 0)
            fake_append(dir, lks_test_text("{'kind':'eval','iter':%d,'train_loss':%.9g,"
                                           "'val_loss':%.9g}\n",
                                           i, last + above, last + 0.1 + above));
        fake_append(dir,
                    lks_test_text("{'kind':'train','iter':%d,'loss':%.9g,'lr':0.001,'grad_norm':1,"
                                  "'tokens':%d,'ms':100,'tok_per_s':10000,'mfu':0.5,"
                                  "'comm_exposed_ms':2}\n",
                                  i, last + above, 1000 * (i + 1)));
    }
    fake_append(dir, lks_test_text("{'kind':'checkpoint','iter':%d,'path':'ckpt-%08d',"
                                   "'params_hash':'00112233445566%02d'}\n",
                                   steps, steps, seed % 100));
    fake_append(dir, lks_test_text("{'kind':'final','iter':%d,'train_loss':%.9g,'val_loss':%.9g}\n",
                                   steps, last, last));
    fake_append(dir, "{'kind':'host','schema':1,'micro_batches':[4,4],'memory_bytes':123456}\n");
    return dir;
}
