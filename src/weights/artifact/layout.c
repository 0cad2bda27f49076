#include "weights/artifact/layout.h"

#include <stdio.h>
#include <string.h>

#include "weights/artifact/artifact.h"

void lks__artifact_part_of(const lks__table_tensor *t, lks__artifact_part *part)
{
    lks__artifact_part_as(t, t->keep_float, part);
}

void lks__artifact_part_as(const lks__table_tensor *t, bool keep_float, lks__artifact_part *part)
{
    static const char *const dtypes[] = {[LKS__QUANT_FLOAT] = "F32",
                                         [LKS__QUANT_HALF] = "F16",
                                         [LKS__QUANT_ROWS] = "I8",
                                         [LKS__QUANT_WHOLE] = "I8"};
    memset(part, 0, sizeof *part);
    lks__quant_scheme scheme = lks__quant_scheme_of(keep_float, t->n_dims, t->count);
    bool by_rows = scheme == LKS__QUANT_ROWS;
    part->tensor = t;
    part->scheme = scheme;
    part->rows = by_rows ? t->shape[0] : 1;
    part->cols = t->count / part->rows;
    part->values = (lks__st_tensor){.name = t->name,
                                    .dtype = dtypes[scheme],
                                    .n_dims = t->n_dims,
                                    .bytes = lks__quant_value_bytes(scheme, t->count)};
    for (int d = 0; d < t->n_dims; d++)
        part->values.shape[d] = t->shape[d];
    part->has_scales = by_rows || scheme == LKS__QUANT_WHOLE;
    if (!part->has_scales)
        return;
    snprintf(part->scales_name, sizeof part->scales_name, "%s.scale", t->name);
    part->scales = (lks__st_tensor){.name = part->scales_name,
                                    .dtype = by_rows ? "F16" : "F32",
                                    .n_dims = by_rows ? 1 : 0,
                                    .shape = {by_rows ? part->rows : 0},
                                    .bytes = lks__quant_scale_bytes(scheme, part->rows)};
}

size_t lks__part_room(const lks__table *table)
{
    size_t most = 1;
    for (size_t i = 0; i < table->n_tensors; i++) {
        lks__artifact_part part;
        lks__artifact_part_as(&table->tensors[i], true, &part);
        size_t bytes = lks__artifact_part_scales_at(&part) + part.scales.bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

void lks__artifact_count(const lks__table *table, lks__artifact_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    for (size_t i = 0; i < table->n_tensors; i++) {
        lks__artifact_part part;
        lks__artifact_part_of(&table->tensors[i], &part);
        stats->baseline_tensor_bytes += part.tensor->count * sizeof(float);
        stats->int8_payload_bytes += part.values.bytes + part.scales.bytes;
    }
}
