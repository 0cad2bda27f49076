// regression.cc - liblockstep in C++: handles that close themselves, errors as exceptions, vectors
// as parameters. 1, 2, 3, 4 and 8 ranks print the same.
//
//     lockstep run --standalone --nproc-per-node=4 ./regression
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>

namespace
{

constexpr int samples = 512, n = 24, virtual_ranks = 8, steps = 40;

void check(lks_status st)
{
    if (st != LKS_OK)
        throw std::runtime_error(lks_last_error());
}

// A handle is closed at the end of its scope, the lks_ddp before its group. If an exception is the
// reason, close reports to the other ranks that this one has left.
struct Close {
    void operator()(lks_comm *comm) const
    {
        lks_comm_close(comm);
    }
    void operator()(lks_ddp *ddp) const
    {
        lks_ddp_close(ddp);
    }
};
using Comm = std::unique_ptr<lks_comm, Close>;
using Ddp = std::unique_ptr<lks_ddp, Close>;

Comm join()
{
    lks_comm *comm = nullptr;
    check(lks_comm_init(&comm));
    return Comm(comm);
}

struct Param {
    std::string name;
    std::vector<float> value, grad;

    Param(std::string called, size_t count) : name(std::move(called)), value(count), grad(count)
    {
    }
};

Ddp open(const Comm &comm, std::vector<Param> &params)
{
    std::vector<lks_param> list;
    for (auto &p : params)
        list.push_back({p.name.c_str(), p.value.data(), p.grad.data(), p.value.size()});
    lks_ddp_options options = {};
    options.virtual_ranks = virtual_ranks;
    lks_ddp *ddp = nullptr;
    check(lks_ddp_open(comm.get(), list.data(), list.size(), &options, &ddp));
    return Ddp(ddp);
}

// The gradients of one sample are added to `params`; returns its loss.
double sample(int s, std::vector<Param> &params)
{
    auto &w = params[0], &b = params[1];
    float x[n], error = b.value[0] - 0.5f;
    for (int i = 0; i < n; i++) {
        x[i] = static_cast<float>((s * 37 + i * 101) % 64) / 32 - 1;
        error += (w.value[i] - static_cast<float>(i % 5)) * x[i];
    }
    for (int i = 0; i < n; i++)
        w.grad[i] += error * x[i];
    b.grad[0] += error;
    return 0.5 * static_cast<double>(error) * error;
}

void train(const Comm &comm)
{
    std::vector<Param> params;
    params.emplace_back("w", n);
    params.emplace_back("b", 1);
    Ddp ddp = open(comm, params);
    for (int step = 1; step <= steps; step++) {
        for (int v = lks_ddp_first(ddp.get()); v < lks_ddp_end(ddp.get()); v++) {
            check(lks_ddp_begin(ddp.get(), v));
            for (int s = v; s < samples; s += virtual_ranks)
                check(lks_ddp_add_loss(ddp.get(), sample(s, params)));
            check(lks_ddp_accumulate(ddp.get(), samples / virtual_ranks));
        }
        lks_ddp_result result;
        check(lks_ddp_step(ddp.get(), &result));
        for (auto &p : params)
            for (size_t i = 0; i < p.value.size(); i++)
                p.value[i] -= 0.1f * p.grad[i];
        if (lks_comm_rank(comm.get()) == 0 && step % 10 == 0)
            std::printf("step %d: loss %.9g\n", step, result.loss);
    }
}

} // namespace

int main()
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
        train(join());
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
