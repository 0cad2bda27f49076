/* train/procedure/families/gpt2.c - nanoGPT's model, trained as its train.py does. */
#include "model/model.h"
#include "train/procedure/families/families.h"
#include "train/procedure/procedure.h"

/* Without a default, so that the compiler refuses a word of --gelu that has no case here. */
static bool has_tanh(const lks__settings *s)
{
    switch (s->gelu) {
    case LKS__gelu_tanh:
        return true;
    case LKS__gelu_auto:
    case LKS__gelu_exact:
        break;
    }
    return false;
}

static void config(const lks__settings *s, lks__model_config *c)
{
    c->bias = s->bias;
    c->gelu_tanh = has_tanh(s);
    c->dropout = (float)s->dropout;
}

static lks_status complete(lks__settings *s)
{
    if (s->gelu == LKS__gelu_auto) /* weights with the tanh form have set it by now */
        s->gelu = LKS__gelu_exact;
    return lks__family_check_heads(s);
}

const lks__family lks__family_gpt2 = {
    .name = "gpt2",
    .about = "nanoGPT's model",
    .model = &lks__model_gpt2,
    .procedure = &lks__procedure_nanogpt,
    .optimizer = &lks__optimizer_adamw,
    .config = config,
    .complete = complete,
    .prep = "char",
};
