/* lockstep export: the model's tokenizer, for formats that contain one. */
#include <stdlib.h>

#include "weights/export/form.h"

static lks_status check_size(const lks__export_model *e, uint32_t tokens)
{
    if (tokens <= (uint32_t)e->config.vocab_size)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT, "%s: its tokenizer has %u tokens, but its model only %d",
                     e->w->shown, tokens, e->config.vocab_size);
}

/* A run keeps the vocabulary of its tokens next to its checkpoints. */
static lks_status read_bpe(const lks__export_model *e, lks__export_vocabulary *v)
{
    lks__bpe *bpe;
    uint64_t hash;
    if (!lks__bpe_is_at(e->vocabulary)) {
        lks__export_note(e, "no tokenizer is written: there is no " LKS__BPE_FILE
                            " next to the run's checkpoints; give a vocabulary as --tokenizer=DIR");
        return LKS_OK;
    }
    LKS__TRY(lks__bpe_open(e->vocabulary, &bpe));
    lks_status st = lks__bpe_text(bpe, &v->text, &v->bytes, &hash);
    v->size = lks__bpe_size(bpe);
    v->end_of_text = lks__bpe_end_of_text(bpe);
    lks__bpe_close(bpe);
    const bool own = st == LKS_OK && hash == e->meta.model_hash;
    if (own)
        st = check_size(e, v->size);
    else if (st == LKS_OK)
        lks__export_note(e, "no tokenizer is written: " LKS__BPE_FILE
                            " in the run's folder is not the vocabulary that it was trained with");
    if (own && st == LKS_OK)
        return LKS_OK;
    free(v->text);
    *v = (lks__export_vocabulary){.end_of_text = -1};
    return st;
}

lks_status lks__export_tokenizer(const lks__export_model *e, lks__export_vocabulary *v)
{
    const lks__meta *meta = &e->meta;
    *v = (lks__export_vocabulary){.end_of_text = -1};
    LKS__TRY(check_size(e, meta->vocab_size));
    if (meta->is_bpe)
        return read_bpe(e, v);
    if (meta->chars != NULL && lks__meta_find_char(meta, 0) < 0) {
        v->characters = true;
        return LKS_OK;
    }
    lks__export_note(e, "no tokenizer is written: %s",
                     meta->chars != NULL      ? "U+0000 is one of its characters"
                     : meta->is_sentencepiece ? "the tokens are a SentencePiece model's"
                     : meta->is_bytes         ? "the tokens are single bytes"
                     : e->ckpt != NULL
                         ? "the run's data had none"
                         : "the weights come without one that lockstep can read; give it as "
                           "--tokenizer=DIR");
    return LKS_OK;
}
