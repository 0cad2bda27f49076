#include "weights/choice/known.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/nearest.h"
#include "data/fetch/sets.h"
#include "data/text/bpe/bpe.h"

/* Radford et al. (2019), with nanoGPT's and Hugging Face's names. */
static const lks__known models[] = {
    {"gpt2", 12, 12, 768},
    {"gpt2-medium", 24, 16, 1024},
    {"gpt2-large", 36, 20, 1280},
    {"gpt2-xl", 48, 25, 1600},
};

enum { N_MODELS = sizeof models / sizeof models[0] };

const char *lks__known_name(int i)
{
    return i < N_MODELS ? models[i].name : NULL;
}

const lks__known *lks__known_find(const char *name)
{
    for (size_t i = 0; i < N_MODELS; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

/* The variable's value; NULL if it is unset or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static lks_status find_home(char home[LKS__CKPT_PATH])
{
    const char *own = variable("LOCKSTEP_HOME"), *cache = variable("XDG_CACHE_HOME");
    const char *user = variable("HOME");
    if (own == NULL && cache == NULL && user == NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "there is no folder for models, since LOCKSTEP_HOME, XDG_CACHE_HOME and "
                         "HOME are all unset: set LOCKSTEP_HOME, or give a path");
    if (own != NULL)
        return lks__ckpt_join(home, own, "");
    if (cache != NULL)
        return lks__ckpt_join(home, cache, "lockstep/");
    return lks__ckpt_join(home, user, ".cache/lockstep/");
}

lks_status lks__known_folder(const lks__known *known, char path[LKS__CKPT_PATH])
{
    char home[LKS__CKPT_PATH];
    LKS__TRY(find_home(home));
    home[strlen(home) - 1] = '\0'; /* its slash */
    return lks__ckpt_join(path, home, known->name);
}

lks_status lks__known_path(const lks__known *known, char path[LKS__CKPT_PATH])
{
    LKS__TRY(lks__known_folder(known, path));
    if (lks__sys_is_folder(path))
        return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        "%s is not on this machine: `lockstep fetch %s` downloads it to %s. Or put its "
        "config.json, "
        "model.safetensors and tokenizer.json there, or set LOCKSTEP_HOME to the folder that "
        "contains a folder %s",
        known->name, known->name, lks__shown(path, 512), known->name);
}

bool lks__known_ids(const lks__meta *meta)
{
    return !lks__meta_describes(meta) &&
           (meta->vocab_size == LKS__KNOWN_VOCABULARY || meta->vocab_size == LKS__KNOWN_PADDED);
}

bool lks__known_vocabulary(char path[LKS__CKPT_PATH])
{
    for (size_t i = 0; i < N_MODELS; i++)
        if (lks__known_folder(&models[i], path) == LKS_OK && lks__bpe_is_at(path))
            return true;
    strcpy(path, lks__fetch_set_of("gpt2-vocab")->out);
    return lks__bpe_is_at(path);
}

lks_status lks__known_tokenizer(char *tokenizer, size_t bytes)
{
    char path[LKS__CKPT_PATH];
    if (lks__known_find(tokenizer) == NULL || access(tokenizer, F_OK) == 0)
        return LKS_OK;
    if (!lks__known_vocabulary(path))
        return lks__fail(LKS_ERR_CONFIG,
                         "GPT-2's vocabulary is not on this machine: `lockstep fetch gpt2-vocab` "
                         "downloads it to %s",
                         path);
    if (snprintf(tokenizer, bytes, "%s", path) >= (int)bytes)
        return lks__fail(LKS_ERR_CONFIG, "the path of GPT-2's vocabulary is too long");
    return LKS_OK;
}

lks_status lks__known_empty(const lks__known *known, const char *path)
{
    static const char *const names[] = {"encoder.json", "vocab.json", "vocab.bpe", "merges.txt"};
    char file[LKS__CKPT_PATH];
    bool vocabulary = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        LKS__TRY(lks__ckpt_join(file, path, names[i]));
        vocabulary |= access(file, F_OK) == 0;
    }
    return lks__fail(
        LKS_ERR_FORMAT,
        "%s has %sno config.json and model.safetensors: `lockstep fetch %s` downloads them",
        lks__shown(path, 512), vocabulary ? "the vocabulary, but " : "", known->name);
}

lks_status lks__known_missing(const char *path)
{
    const int cause = errno;
    const char *words[N_MODELS + 2] = {"scratch", "resume"};
    for (size_t i = 0; i < N_MODELS; i++)
        words[i + 2] = models[i].name;
    const char *near = cause == ENOENT ? lks__nearest(path, words, N_MODELS + 2) : NULL;
    const char *shown = lks__shown(path, 512);
    if (near != NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "init_from: there is no file or folder %s; did you mean %s?", shown, near);
    return lks__fail(LKS_ERR_CONFIG,
                     "init_from: cannot read %s: %s. It is scratch, resume, gpt2, gpt2-medium, "
                     "gpt2-large, gpt2-xl, or a path of weights",
                     shown, strerror(cause));
}
