// lockstep_sentencepiece.so: see spm_module.h.
#include "data/text/sentencepiece/spm_module.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

using sentencepiece::SentencePieceProcessor;

namespace
{

void say(char *why, size_t why_bytes, const char *text)
{
    std::snprintf(why, why_bytes, "%s", text);
}

// Runs `work`, which returns SentencePiece's status; 0 on success.
template <typename Work> int guarded(char *why, size_t why_bytes, Work work)
{
    try {
        const sentencepiece::util::Status status = work();
        if (status.ok())
            return 0;
        say(why, why_bytes, status.error_message());
    } catch (const std::bad_alloc &) {
        say(why, why_bytes, "");
    } catch (const std::exception &e) {
        say(why, why_bytes, e.what());
    } catch (...) {
        say(why, why_bytes, "an exception of an unknown kind");
    }
    return 1;
}

const SentencePieceProcessor &of(const void *sp)
{
    return *static_cast<const SentencePieceProcessor *>(sp);
}

void *spm_open(const char *model, size_t bytes, char *why, size_t why_bytes)
{
    SentencePieceProcessor *sp = nullptr;
    const int failed = guarded(why, why_bytes, [&] {
        sp = new SentencePieceProcessor;
        return sp->LoadFromSerializedProto(absl::string_view(model, bytes));
    });
    if (!failed)
        return sp;
    delete sp;
    return nullptr;
}

void spm_close(void *sp)
{
    delete static_cast<SentencePieceProcessor *>(sp);
}

int spm_size(const void *sp)
{
    return of(sp).GetPieceSize();
}

int spm_bos(const void *sp)
{
    return of(sp).bos_id();
}

const char *spm_piece(const void *sp, int id, size_t *bytes_p)
{
    const std::string &piece = of(sp).IdToPiece(id);
    *bytes_p = piece.size();
    return piece.data();
}

unsigned spm_kind(const void *sp, int id)
{
    unsigned kind = 0;
    if (of(sp).IsControl(id))
        kind |= LKS__SPM_CONTROL;
    if (of(sp).IsUnknown(id))
        kind |= LKS__SPM_UNKNOWN;
    if (of(sp).IsUnused(id))
        kind |= LKS__SPM_UNUSED;
    if (of(sp).IsByte(id))
        kind |= LKS__SPM_BYTE;
    return kind;
}

int spm_encode(const void *sp, const char *text, size_t bytes, int32_t **ids_p, size_t *n_p,
               char *why, size_t why_bytes)
{
    return guarded(why, why_bytes, [&] {
        std::vector<int> ids;
        const auto status = of(sp).Encode(absl::string_view(text, bytes), &ids);
        if (!status.ok())
            return status;
        auto *out = static_cast<int32_t *>(std::malloc((ids.size() + 1) * sizeof(int32_t)));
        if (out == nullptr)
            throw std::bad_alloc();
        for (size_t i = 0; i < ids.size(); i++)
            out[i] = ids[i];
        *ids_p = out;
        *n_p = ids.size();
        return status;
    });
}

class Sentences : public sentencepiece::SentenceIterator
{
  public:
    Sentences(lks__spm_next *next, void *ctx) : next_(next), ctx_(ctx)
    {
        Next();
    }
    bool done() const override
    {
        return done_;
    }
    void Next() override
    {
        const char *text = nullptr;
        size_t bytes = 0;
        done_ = !next_(ctx_, &text, &bytes);
        if (!done_)
            value_.assign(text, bytes);
    }
    const std::string &value() const override
    {
        return value_;
    }
    sentencepiece::util::Status status() const override
    {
        return {};
    }

  private:
    lks__spm_next *next_;
    void *ctx_;
    bool done_ = false;
    std::string value_;
};

int spm_train(const char *const *options, lks__spm_next *next, void *ctx, char **model_p,
              size_t *bytes_p, char *why, size_t why_bytes)
{
    return guarded(why, why_bytes, [&] {
        std::unordered_map<std::string, std::string> given;
        for (; options[0] != nullptr; options += 2)
            given[options[0]] = options[1];
        Sentences sentences(next, ctx);
        std::string model;
        const auto status = sentencepiece::SentencePieceTrainer::Train(given, &sentences, &model);
        if (!status.ok())
            return status;
        auto *out = static_cast<char *>(std::malloc(model.size() + 1));
        if (out == nullptr)
            throw std::bad_alloc();
        std::memcpy(out, model.data(), model.size());
        *model_p = out;
        *bytes_p = model.size();
        return status;
    });
}

} // namespace

extern "C" LKS__MODULE_EXPORT const lks__spm_module lks__module_table;

const lks__spm_module lks__module_table = {
    LKS__SPM_MODULE_VERSION,
    spm_open,
    spm_close,
    spm_size,
    spm_bos,
    spm_piece,
    spm_kind,
    spm_encode,
    spm_train,
};
