#include "train/loop/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/text/meta.h"
#include "weights/use/write.h"

struct lks__samples {
    lks__replica model; /* only its tokenizer is used */
    lks__text text;
    lks__generator *generator;
    bool *has; /* [vocab_size] the tokenizer has this id */
    int32_t *prompt;
    size_t n_prompt;
    lks_comm *comm;
    char out[LKS__SAMPLE_BYTES + 1];
    size_t n;
};

/* Encode the prompt of `lockstep sample`, a line feed. Use token 0 if the tokenizer has none. */
static lks_status find_prompt(lks__samples *s, const char *start)
{
    const lks_status st =
        lks__text_encode(&s->text, start, strlen(start), &s->prompt, &s->n_prompt);
    if ((st != LKS_OK && st != LKS_ERR_FORMAT) || s->n_prompt > 0)
        return st;
    free(s->prompt);
    s->prompt = calloc(1, sizeof *s->prompt);
    s->n_prompt = 1;
    return s->prompt != NULL ? LKS_OK : lks__no_memory("for the prompt");
}

static lks_status open_text(lks__samples *s, const lks__trainer *t)
{
    const lks__run *run = &t->run;
    s->comm = t->ses.comm;
    s->model.meta = run->meta;
    snprintf(s->model.vocabulary, sizeof s->model.vocabulary, "%s", run->vocabulary);
    char path[sizeof run->data_dir + 16];
    snprintf(path, sizeof path, "%s", run->s.tokenizer_path);
    if (path[0] == '\0' && run->meta.is_sentencepiece)
        snprintf(path, sizeof path, "%s/" LKS__META_MODEL, run->data_dir);
    LKS__TRY(lks__text_open(path, &s->model, &s->text));
    if (!lks__text_known(&s->text))
        return lks__fail(LKS_ERR_CONFIG, "the data's meta.json names no tokenizer: leave "
                                         "--sample_tokens out, or let `lockstep prep` make the "
                                         "data");
    LKS__TRY(find_prompt(s, run->s.start));
    LKS__TRY(lks__text_ids(&s->text, (size_t)run->model_config.vocab_size, &s->has));
    const lks__generator_size size = {
        .samples = 1, .tokens = (uint64_t)s->n_prompt + (uint64_t)run->s.sample_tokens};
    return lks__generator_open(&run->model_config, &run->table, t->state.memory->params.dev, &size,
                               t->ses.device, &s->generator);
}

lks_status lks__samples_open(const lks__trainer *t, lks__samples **samples_p)
{
    lks__samples *s = calloc(1, sizeof *s);
    LKS__MEMORY(s, "for samples");
    const lks_status st = open_text(s, t);
    if (st != LKS_OK) {
        lks__samples_close(s);
        return lks__fail_in(st, "sample_tokens");
    }
    *samples_p = s;
    return LKS_OK;
}

void lks__samples_close(lks__samples *s)
{
    if (s == NULL)
        return;
    lks__generator_close(s->generator);
    lks__text_close(&s->text);
    free(s->prompt);
    free(s->has);
    free(s);
}

/* Append whole characters. Beat, because the other ranks wait. */
static lks_status put(void *ctx, const char *text, size_t bytes)
{
    lks__samples *s = ctx;
    lks_comm_beat(s->comm);
    if (s->n + bytes > LKS__SAMPLE_BYTES) {
        s->n = LKS__SAMPLE_BYTES; /* drop a shorter character that would still fit */
        return LKS_OK;
    }
    for (size_t i = 0; i < bytes; i++)
        s->out[s->n++] = text[i] == '\0' ? ' ' : text[i];
    s->out[s->n] = '\0';
    return LKS_OK;
}

lks_status lks__samples_draw(lks__samples *s, const lks__run *run, const char **text_p)
{
    static const char *const no_stops[] = {NULL};
    lks__writer w = {.generator = s->generator,
                     .text = &s->text,
                     .how = {.draw = {.seed = (uint64_t)run->s.seed,
                                      .temperature = run->s.temperature,
                                      .top_k = (uint32_t)run->s.top_k,
                                      .top_p = run->s.top_p,
                                      .has = s->has},
                             .max_new_tokens = (uint64_t)run->s.sample_tokens},
                     .stops = no_stops,
                     .put = put,
                     .ctx = s};
    bool newline;
    s->n = 0;
    s->out[0] = '\0';
    lks__generator_begin(s->generator, 1);
    lks__generator_read(s->generator, s->prompt, s->n_prompt);
    *text_p = s->out;
    return lks__write_answer(&w, &newline);
}
