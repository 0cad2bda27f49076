/* Lists of parts of names, as parameter-golf's script takes them: what matches, which tensors they
 * make Adam's, and which stay fp32 in an artifact. */
#include "support.h"

#include <string.h>

#include "model/model.h"
#include "model/table/parts.h"
#include "settings/family.h"
#include "settings/settings.h"
#include "train/checkpoint.h"
#include "train/procedure/families/families.h"

TEST(test_match)
{
    assert_true(lks__parts_match("attn_scale,q_gain", "blocks.0.attn.q_gain"));
    assert_true(lks__parts_match(",,gain,", "blocks.0.attn.q_gain"));
    assert_true(lks__parts_match("x,blocks.0.attn.q_gain", "blocks.0.attn.q_gain"));
    assert_false(lks__parts_match("q_gains,attn_scale", "blocks.0.attn.q_gain"));
    assert_false(lks__parts_match("", "a"));
    assert_false(lks__parts_match(",", "a"));
    assert_false(lks__parts_match(" a", "a")); /* a space is part of a part, as in the script */
}

/* The table of a run with these lists; NULL: the default. */
static lks__table table_with(const char *control, const char *fp32)
{
    lks__settings s;
    lks__table table;
    lks__settings_defaults(&s);
    assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "family", "golf", LKS__FROM_ARG, ""));
    s.n_layer = 2;
    s.n_embd = 48;
    s.tie_embeddings = false;
    if (control != NULL)
        assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "control_tensor_name_patterns", control,
                                    LKS__FROM_ENV, ""));
    if (fp32 != NULL)
        assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "int8_keep_float_fp32_name_patterns", fp32,
                                    LKS__FROM_ENV, ""));
    const lks__model_config config = lks__state_model_config(&s, 64);
    assert_ok(lks__model_table(&config, &table));
    return table;
}

static const lks__table_tensor *at(const lks__table *table, const char *name)
{
    const lks__table_tensor *t = lks__table_find(table, name);
    assert_non_null(t);
    return t;
}

/* The defaults give what the rows of the family's list say, and so do configs without lists. */
TEST(test_defaults)
{
    lks__table table = table_with(NULL, NULL), bare;
    const lks__model_config config = {.ops = &lks__model_golf,
                                      .n_layer = 2,
                                      .n_head = 12,
                                      .n_kv_head = 4,
                                      .n_embd = 48,
                                      .mlp_mult = 2,
                                      .block_size = 1024,
                                      .vocab_size = 64,
                                      .logit_softcap = 30.0f,
                                      .rope_base = 10000.0f};
    assert_ok(lks__model_table(&config, &bare));
    assert_int_equal(table.n_tensors, bare.n_tensors);
    for (size_t i = 0; i < table.n_tensors; i++) {
        const lks__table_tensor *a = &table.tensors[i], *b = &bare.tensors[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->kind, b->kind);
        assert_int_equal(a->keep_float, b->keep_float);
        assert_int_equal(a->keep_float, a->kind == LKS__PARAM_SCALAR);
    }
    assert_int_equal(at(&table, "blocks.1.resid_mix")->kind, LKS__PARAM_SCALAR);
    assert_int_equal(at(&table, "blocks.1.mlp.fc.weight")->kind, LKS__PARAM_MATRIX);
    lks__table_free(&table);
    lks__table_free(&bare);
}

/* Only matrices of layers change hands, by names that begin with the layer's number; what stays
 * fp32 follows, unless it has its own list. */
TEST(test_lists)
{
    lks__table t = table_with("1.attn.c_k,blocks.0,skip,tok_emb,lm_head", NULL);
    assert_int_equal(at(&t, "blocks.1.attn.c_k.weight")->kind, LKS__PARAM_SCALAR);
    assert_int_equal(at(&t, "blocks.0.attn.c_k.weight")->kind, LKS__PARAM_MATRIX);
    assert_int_equal(at(&t, "blocks.0.resid_mix")->kind, LKS__PARAM_MATRIX);
    assert_int_equal(at(&t, "blocks.0.attn_scale")->kind, LKS__PARAM_SCALAR); /* a vector */
    assert_int_equal(at(&t, "skip_weights")->kind, LKS__PARAM_SCALAR);
    assert_int_equal(at(&t, "tok_emb.weight")->kind, LKS__PARAM_EMBED);
    assert_int_equal(at(&t, "lm_head.weight")->kind, LKS__PARAM_HEAD);
    assert_true(at(&t, "blocks.0.attn.c_k.weight")->keep_float); /* here names are whole */
    assert_true(at(&t, "tok_emb.weight")->keep_float);
    assert_false(at(&t, "blocks.1.attn_scale")->keep_float);
    lks__table_free(&t);

    t = table_with("", "resid_mix");
    assert_int_equal(at(&t, "blocks.1.resid_mix")->kind, LKS__PARAM_MATRIX);
    assert_int_equal(at(&t, "skip_weights")->kind, LKS__PARAM_SCALAR);
    assert_true(at(&t, "blocks.1.resid_mix")->keep_float);
    assert_false(at(&t, "skip_weights")->keep_float);
    lks__table_free(&t);

    t = table_with(NULL, "");
    for (size_t i = 0; i < t.n_tensors; i++)
        assert_false(t.tensors[i].keep_float);
    lks__table_free(&t);
}

/* What a message names: parts that nothing matches, but for those of the script's own list. */
TEST(test_unused)
{
    lks__table t = table_with(NULL, NULL);
    const char *parts = "c_q,oops,,attn_scales,resid_mixe", *part;
    size_t n;
    part = lks__parts_unused(&parts, &t, LKS__GOLF_CONTROL, &n);
    assert_true(n == 4 && strncmp(part, "oops", n) == 0);
    part = lks__parts_unused(&parts, &t, LKS__GOLF_CONTROL, &n);
    assert_true(n == 10 && strncmp(part, "resid_mixe", n) == 0);
    assert_null(lks__parts_unused(&parts, &t, LKS__GOLF_CONTROL, &n));
    parts = LKS__GOLF_CONTROL;
    assert_null(lks__parts_unused(&parts, &t, LKS__GOLF_CONTROL, &n));
    lks__table_free(&t);
}
