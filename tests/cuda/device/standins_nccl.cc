/* standins_nccl.cc - stands in for NCCL, between processes of one machine: pieces are files in a
 * folder that the id names. See standins.h for what the environment sets, and for what ends the
 * process.
 *
 * A group of calls is put on its stream when NCCL says that it is no longer in progress, and not
 * before; the first one is until all ranks have begun theirs. Its pieces travel in any order, over
 * several turns of the stream; until the last has arrived, the stream goes no further, and memory
 * that receives holds NaNs. */
#include <dlfcn.h>
#include <fcntl.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "standins.h"

namespace
{

/* Of the CUDA stand-in: in this program, or in the module that is beside this one. */
const lks_standins &cuda()
{
    static const lks_standins *found;
    if (found == NULL)
        found = (const lks_standins *)dlsym(RTLD_DEFAULT, "lks_standins_table");
    if (found == NULL) {
        const char *folder = getenv("LOCKSTEP_MODULES");
        const std::string path = std::string(folder == NULL ? "." : folder) + "/lockstep_cuda.so";
        void *module = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
        if (module != NULL)
            found = (const lks_standins *)dlsym(module, "lks_standins_table");
    }
    if (found == NULL) {
        fprintf(stderr, "NCCL stand-in: there is no CUDA stand-in\n");
        abort();
    }
    return *found;
}

#define DIE(...) cuda().die(__VA_ARGS__)

struct piece {
    enum { SEND, RECEIVE, SPREAD } kind;
    int peer; /* the root of a SPREAD */
    char *mem;
    size_t bytes;
    uint64_t number; /* of those between the two ranks, or of SPREADs */
    bool filled, done;
};

enum { MOST_BUSY = 4 };

} // namespace

struct ncclComm {
    std::string folder;
    int rank, n_ranks;
    int busy;      /* so many polls find it in progress */
    bool joined;   /* all ranks are there */
    bool linked;   /* all have begun a group: NCCL connects them then, with the hosts' help */
    bool leaving;  /* finalized */
    bool aborted;  /* what is on streams ends */
    int on_stream; /* groups */
    std::map<int, uint64_t> sent, received;
    uint64_t n_spread;
    std::vector<std::pair<cudaStream_t, std::vector<piece>>> groups; /* not yet on streams */
    std::string last_error;
};

namespace
{

int depth; /* of groups */
ncclComm_t open_comm;
cudaStream_t open_stream;
std::vector<piece> open_group;

ncclResult_t failed(ncclComm_t comm, ncclResult_t result, const char *text)
{
    if (comm != NULL)
        comm->last_error = text;
    return result;
}

#define NCCL_CALL(comm, signature)                                                                 \
    const std::lock_guard<std::recursive_mutex> own_turn(*cuda().mutex);                           \
    if (cuda().fails(__func__, signature))                                                         \
    return failed((comm), ncclSystemError, "a cable is missing")

/* Nothing may be begun while something is in progress. */
void must_be_idle(ncclComm_t comm, const char *call)
{
    if (!comm->joined || comm->busy > 0 || !comm->groups.empty())
        DIE("%s while an earlier call is in progress", call);
    if (comm->leaving || comm->aborted)
        DIE("%s after the end", call);
}

/* --- files ----------------------------------------------------------------------------------- */

/* The device's memory is opened when the program touches it, not when the kernel does. So files are
 * written and read by way of other memory. */

std::string name_of(const ncclComm *c, const piece &p, int to)
{
    char text[100];
    const bool spread = p.kind == piece::SPREAD;
    snprintf(text, sizeof text, "/%s%d-%d-%llu", spread ? "all" : "",
             p.kind == piece::RECEIVE || spread ? p.peer : c->rank, to,
             (unsigned long long)p.number);
    return c->folder + text;
}

void write_file(const std::string &name, const void *data, size_t bytes)
{
    const std::string first = name + ".part", copy((const char *)data, bytes);
    FILE *f = fopen(first.c_str(), "wb");
    if (f == NULL || fwrite(copy.data(), 1, bytes, f) != bytes || fclose(f) != 0 ||
        rename(first.c_str(), name.c_str()) != 0)
        DIE("NCCL can't write %s", name.c_str());
}

/* False: it isn't there yet. */
bool read_file(const std::string &name, void *data, size_t bytes)
{
    struct stat info;
    FILE *f = fopen(name.c_str(), "rb");
    if (f == NULL)
        return false;
    if (fstat(fileno(f), &info) != 0 || (size_t)info.st_size != bytes)
        DIE("NCCL: %zu bytes were asked for, and %lld come, in %s", bytes, (long long)info.st_size,
            name.c_str());
    std::string copy(bytes, '\0');
    if (fread(&copy[0], 1, bytes, f) != bytes)
        DIE("NCCL can't read %s", name.c_str());
    memcpy(data, copy.data(), bytes);
    fclose(f);
    unlink(name.c_str());
    return true;
}

/* --- groups on streams ----------------------------------------------------------------------- */

void advance(const ncclComm *c, piece &p)
{
    const bool sends = p.kind == piece::SEND || (p.kind == piece::SPREAD && p.peer == c->rank);
    if (!sends && !p.filled)
        memset(p.mem, 0xff, p.bytes);
    p.filled = true;
    if (p.kind == piece::SEND)
        write_file(name_of(c, p, p.peer), p.mem, p.bytes);
    for (int r = 0; r < c->n_ranks && sends && p.kind == piece::SPREAD; r++)
        if (r != c->rank)
            write_file(name_of(c, p, r), p.mem, p.bytes);
    p.done = sends || read_file(name_of(c, p, c->rank), p.mem, p.bytes);
}

/* A turn of the stream: some of the pieces. */
bool attempt(ncclComm *c, std::vector<piece> &group)
{
    size_t left = 0;
    for (size_t i = 0, at = cuda().draw((uint32_t)group.size()); i < group.size(); i++) {
        piece &p = group[(at + i) % group.size()];
        if (!p.done && !c->aborted && cuda().draw(4) != 0)
            advance(c, p);
        left += !p.done;
    }
    if (left > 0 && !c->aborted)
        return false;
    c->on_stream--;
    return true;
}

void put_groups(ncclComm_t c)
{
    for (auto &g : c->groups) {
        auto group = std::make_shared<std::vector<piece>>(std::move(g.second));
        c->on_stream++;
        cuda().put(g.first, "NCCL's group", [c, group] { return attempt(c, *group); });
    }
    c->groups.clear();
}

/* --- joining --------------------------------------------------------------------------------- */

std::string place_of(const ncclComm *c, int rank)
{
    return c->folder + "/rank" + std::to_string(rank);
}

std::string end_of(const ncclComm *c, int rank)
{
    return c->folder + "/end" + std::to_string(rank);
}

std::string link_of(const ncclComm *c, int rank)
{
    return c->folder + "/link" + std::to_string(rank);
}

/* Have all ranks begun a group, as this one has? */
bool look_for_links(ncclComm_t c)
{
    write_file(link_of(c, c->rank), "", 0);
    for (int r = 0; r < c->n_ranks; r++)
        if (access(link_of(c, r).c_str(), F_OK) != 0)
            return false;
    return true;
}

/* Are all there, each with a GPU of its own? */
ncclResult_t look_for_ranks(ncclComm_t c)
{
    std::map<std::string, int> gpus;
    for (int r = 0; r < c->n_ranks; r++) {
        char text[64] = "";
        FILE *f = fopen(place_of(c, r).c_str(), "rb");
        if (f == NULL)
            return ncclInProgress;
        (void)!fread(text, 1, sizeof text - 1, f);
        fclose(f);
        if (!gpus.emplace(text, r).second)
            return failed(c, ncclInvalidUsage, "Duplicate GPU detected");
    }
    c->joined = true;
    return ncclSuccess;
}

/* The last one removes the folder. A rank that is slow may still look for the others in it. */
void leave(ncclComm_t c)
{
    write_file(end_of(c, c->rank), "", 0);
    for (int r = 0; r < c->n_ranks; r++)
        if (access(end_of(c, r).c_str(), F_OK) != 0)
            return;
    for (int r = 0; r < c->n_ranks; r++) {
        unlink(place_of(c, r).c_str());
        unlink(end_of(c, r).c_str());
        unlink(link_of(c, r).c_str());
    }
    rmdir(c->folder.c_str());
}

ncclResult_t add(ncclComm_t c, cudaStream_t stream, piece p)
{
    if (depth == 0)
        DIE("NCCL: a piece outside of a group, which may wait for another one for ever");
    if (open_group.empty())
        must_be_idle(c, "NCCL: a piece");
    if (!open_group.empty() && (open_comm != c || open_stream != stream))
        DIE("NCCL: a group on several streams");
    cuda().is_device_memory("NCCL's piece", p.mem, p.bytes);
    open_comm = c;
    open_stream = stream;
    open_group.push_back(p);
    return ncclSuccess;
}

} // namespace

/* --- NCCL ------------------------------------------------------------------------------------ */

ncclResult_t ncclGetVersion(int *version)
{
    NCCL_CALL(NULL, "");
    *version = 22809;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    cuda().fails(__func__, "");
    return result == ncclRemoteError    ? "remote process exited or there was a network error"
           : result == ncclInvalidUsage ? "invalid usage"
                                        : "unhandled system error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    cuda().fails(__func__, "");
    return comm == NULL ? "" : comm->last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    NCCL_CALL(NULL, "");
    const char *above = getenv("CUDA_STANDIN_NCCL");
    snprintf(id->internal, sizeof id->internal, "%s/nccl-XXXXXX", above == NULL ? "/tmp" : above);
    return mkdtemp(id->internal) != NULL ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    NCCL_CALL(NULL, "blocking = 0");
    if (config->blocking != 0)
        DIE("ncclCommInitRankConfig would block");
    if (rank < 0 || rank >= n_ranks)
        return ncclInvalidArgument;
    const char *host = getenv("GROUP_RANK");
    ncclComm *c = new ncclComm();
    c->folder = id.internal;
    c->rank = rank;
    c->n_ranks = n_ranks;
    c->busy = 1;
    const std::string place =
        std::string(host == NULL ? "0" : host) + ":" + std::to_string(*cuda().unit);
    write_file(place_of(c, rank), place.data(), place.size());
    *comm = c;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    NCCL_CALL(comm, "");
    *error = ncclSuccess;
    if (cuda().is_chosen_time("asynchronous")) {
        *error = failed(comm, ncclRemoteError, "connection closed by remote peer");
        return ncclSuccess;
    }
    if (comm->busy > 0) {
        comm->busy--;
        *error = ncclInProgress;
    } else if (!comm->joined) {
        *error = look_for_ranks(comm);
    } else if (comm->leaving && comm->on_stream > 0) {
        cuda().go_on();
        *error = ncclInProgress;
    } else if (!comm->groups.empty() && !comm->linked && !(comm->linked = look_for_links(comm))) {
        *error = ncclInProgress;
    } else {
        put_groups(comm);
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    NCCL_CALL(NULL, "");
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    std::vector<piece> group = std::move(open_group);
    open_group.clear();
    if (--depth < 0)
        DIE("ncclGroupEnd without a start");
    NCCL_CALL(group.empty() ? NULL : open_comm, "");
    if (group.empty())
        return ncclSuccess;
    ncclComm_t c = open_comm;
    for (piece &p : group)
        p.number = p.kind == piece::SEND      ? c->sent[p.peer]++
                   : p.kind == piece::RECEIVE ? c->received[p.peer]++
                                              : c->n_spread++;
    c->groups.emplace_back(open_stream, std::move(group));
    c->busy = (int)cuda().draw(MOST_BUSY);
    return ncclInProgress;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    NCCL_CALL(comm, "ncclUint8");
    return add(comm, stream, {piece::SEND, peer, (char *)(uintptr_t)from, count, 0, false, false});
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    NCCL_CALL(comm, "ncclUint8");
    return add(comm, stream, {piece::RECEIVE, peer, (char *)to, count, 0, false, false});
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    NCCL_CALL(comm, "ncclUint8, in place");
    if (from != to)
        DIE("ncclBroadcast that isn't in place");
    return add(comm, stream, {piece::SPREAD, root, (char *)to, count, 0, false, false});
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    NCCL_CALL(comm, "");
    must_be_idle(comm, "ncclCommFinalize");
    comm->leaving = true;
    comm->busy = 1;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    NCCL_CALL(comm, "");
    if (!comm->leaving || comm->busy > 0 || comm->on_stream > 0)
        DIE("ncclCommDestroy before all is done");
    leave(comm);
    delete comm;
    return ncclSuccess;
}

/* Groups that are on streams need it until their turn comes: it is never freed, and kept where a
 * search for leaks finds it. What was to be moved stays in the folder. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    static auto &aborted = *new std::vector<ncclComm_t>();
    NCCL_CALL(comm, "");
    if (comm->aborted)
        DIE("ncclCommAbort again");
    aborted.push_back(comm);
    comm->aborted = true;
    return ncclSuccess;
}
