// lockstep_gloo.so: Gloo as an engine between hosts (link/engine.h). An operation is Gloo's
// sends and receives, posted when it starts, so that several can be in progress. Messages have a
// separate connection, with threads that sleep between messages.
#include "comm/hier/link/engine.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace
{

// lockstep has its own deadlines, because it knows which ranks still have heartbeats.
constexpr auto never = std::chrono::hours(24 * 365);
constexpr auto last_message = std::chrono::seconds(2);
constexpr auto longest_rest = std::chrono::milliseconds(20); // as hier/operations.c asks for
constexpr uint64_t message_slot = 1;

void say(char *why, size_t why_bytes, const char *text)
{
    std::snprintf(why, why_bytes, "%s", text);
}

// lockstep's store, with Gloo's interface.
class Store : public gloo::rendezvous::Store
{
  public:
    explicit Store(const lks__engine_join &join) : join_(join)
    {
    }
    void set(const std::string &key, const std::vector<char> &data) override
    {
        if (join_.store_set(join_.store, key.c_str(), data.data(), data.size()) != 0)
            throw std::runtime_error(join_.store_why);
    }
    std::vector<char> get(const std::string &key) override
    {
        void *data = nullptr;
        size_t bytes = 0;
        if (join_.store_get(join_.store, key.c_str(), join_.timeout_s, &data, &bytes) != 0)
            throw std::runtime_error(join_.store_why);
        std::vector<char> value(static_cast<char *>(data), static_cast<char *>(data) + bytes);
        std::free(data);
        return value;
    }
    void wait(const std::vector<std::string> &keys) override
    {
        for (const auto &key : keys)
            get(key);
    }
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override
    {
        wait(keys);
    }

  private:
    const lks__engine_join &join_;
};

struct Peer {
    char in[LKS__ENGINE_MESSAGE], out[LKS__ENGINE_MESSAGE];
    std::unique_ptr<gloo::transport::UnboundBuffer> received, sent;
    std::thread thread;
    std::deque<std::vector<char>> heard; // guarded by Member::lock, as are the next members
    uint64_t told = 0;                   // number of the last message to it
    bool sending = false;                // that message isn't sent yet
    bool gone = false;
    std::string why;
};

// The posted parts of one operation in one direction, to wait for.
struct Posted {
    std::unique_ptr<gloo::transport::UnboundBuffer> out, in;
    int sends = 0, recvs = 0;
};

// --- connections and children ---------------------------------------------------------------

// Gloo's sockets would stay open in programs that a rank starts and in its forked children. Then a
// rank's connections would survive the rank, and the others would notice its end only after their
// deadline. So programs don't inherit them, and a forked child replaces them by /dev/null, since it
// may close them later.
struct Socket {
    const void *member;
    int file;
    ino_t number; // Gloo closes it if its peer fails; then `file` may be another one
};
std::mutex sockets_lock;
// Never destroyed: a process may end while its thread is still inside gloo_join().
std::vector<Socket> &sockets = *new std::vector<Socket>;

std::vector<int> open_files()
{
    std::vector<int> files;
    DIR *dir = opendir("/proc/self/fd");
    while (const dirent *entry = dir != nullptr ? readdir(dir) : nullptr)
        if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])))
            files.push_back(std::atoi(entry->d_name));
    if (dir != nullptr)
        closedir(dir);
    return files;
}

// A socket's inode, read without the descriptor, which may belong to another thread; 0: not a
// socket.
ino_t number_of(int file)
{
    unsigned long number = 0;
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    char target[64] = "";
    if (readlink(link.c_str(), target, sizeof target - 1) > 0)
        std::sscanf(target, "socket:[%lu]", &number);
    return number;
}

void before_fork()
{
    sockets_lock.lock();
}

void after_fork()
{
    sockets_lock.unlock();
}

void in_child()
{
    struct stat info;
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const Socket &socket : sockets)
        if (nothing >= 0 && fstat(socket.file, &info) == 0 && info.st_ino == socket.number)
            dup3(nothing, socket.file, O_CLOEXEC);
    if (nothing >= 0)
        close(nothing);
    sockets.clear();
    sockets_lock.unlock();
}

// Keep the TCP sockets that were opened since `before` from children.
void hide_sockets(const void *member, const std::vector<int> &before)
{
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(before_fork, after_fork, in_child); });
    std::lock_guard<std::mutex> held(sockets_lock);
    for (const int file : open_files()) {
        sockaddr_storage peer;
        socklen_t bytes = sizeof peer;
        const ino_t number = number_of(file);
        if (number == 0 || std::find(before.begin(), before.end(), file) != before.end() ||
            getpeername(file, reinterpret_cast<sockaddr *>(&peer), &bytes) != 0 ||
            (peer.ss_family != AF_INET && peer.ss_family != AF_INET6))
            continue;
        fcntl(file, F_SETFD, FD_CLOEXEC);
        sockets.push_back({member, file, number});
    }
}

// Before Gloo closes a member's sockets.
void forget_sockets(const void *member)
{
    std::lock_guard<std::mutex> held(sockets_lock);
    sockets.erase(std::remove_if(sockets.begin(), sockets.end(),
                                 [member](const Socket &s) { return s.member == member; }),
                  sockets.end());
}

// Data have a connection for each direction: up, from lower to higher hosts, and down. While a
// thread writes to a connection, Gloo's thread can't read from it, and polls until it can.
enum { UP, DOWN, DIRECTIONS };

struct Member {
    int host, n_hosts;
    std::shared_ptr<gloo::Context> data[DIRECTIONS], messages;
    uint64_t number = 0; // number of the last operation: its tag

    std::mutex lock;
    std::condition_variable changed;
    bool stop = false;

    Posted posted[LKS__ENGINE_SLOTS][DIRECTIONS];
    Posted *awaited = nullptr; // both directions; guarded by lock
    std::string why;           // a failed wait's
    std::thread interrupter;

    std::thread sender;
    uint64_t told = 0; // messages for all others; `out` is the last one
    char out[LKS__ENGINE_MESSAGE];
    Peer *receiver = nullptr; // whose message the sender waits for

    std::vector<Peer> peers;

    Member *left_before; // if this one was left out of order

    ~Member()
    {
        forget_sockets(this);
    }
};

std::shared_ptr<gloo::Context> connect(const lks__engine_join &join, const char *name)
{
    gloo::transport::tcp::attr attr;
    const char *iface = std::getenv("GLOO_SOCKET_IFNAME");
    if (iface != nullptr && iface[0] != '\0')
        attr.iface = iface;
    else
        attr.hostname = join.address;
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(join.host, join.n_hosts);
    context->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(join.timeout_s * 1e3)));
    Store store(join);
    gloo::rendezvous::PrefixStore named(name, store);
    context->connectFullMesh(named, device);
    context->setTimeout(never);
    return context;
}

// --- operations -----------------------------------------------------------------------------

// The pieces that are sent or received: n of them, starting at `base`.
struct Pieces {
    char *base;
    const size_t *at, *bytes;
    int n;

    size_t extent() const
    {
        size_t end = 0;
        for (int i = 0; i < n; i++)
            if (bytes[i] > 0)
                end = std::max(end, at[i] + bytes[i]);
        return end;
    }
};

void send(Member &m, Posted *both, int to, const Pieces &from, int piece)
{
    if (to == m.host || from.bytes[piece] == 0)
        return;
    Posted &p = both[to > m.host ? UP : DOWN];
    p.out->send(to, m.number, from.at[piece], from.bytes[piece]);
    p.sends++;
}

void receive(Member &m, Posted *both, int from, const Pieces &to, int piece)
{
    if (from == m.host || to.bytes[piece] == 0)
        return;
    Posted &p = both[from < m.host ? UP : DOWN];
    p.in->recv(from, m.number, to.at[piece], to.bytes[piece]);
    p.recvs++;
}

// Post receives first, so that arriving data have a destination.
void post(Member &m, Posted *p, const lks__engine_op &op)
{
    const bool all_to_all = op.kind == LKS__ENGINE_ALL_TO_ALL;
    const int n = op.kind == LKS__ENGINE_BROADCAST ? 1 : m.n_hosts;
    const Pieces in = {static_cast<char *>(op.recv), op.recv_at, op.recv_bytes, n};
    Pieces out = in;
    if (all_to_all)
        out = {static_cast<char *>(const_cast<void *>(op.send)), op.send_at, op.send_bytes, n};
    for (int d = 0; d < DIRECTIONS; d++) {
        p[d].in = m.data[d]->createUnboundBuffer(in.base, in.extent());
        p[d].out = m.data[d]->createUnboundBuffer(out.base, out.extent());
        p[d].sends = p[d].recvs = 0;
    }
    if (op.kind == LKS__ENGINE_BROADCAST) {
        if (m.host != op.root)
            receive(m, p, op.root, in, 0);
        for (int h = 0; h < m.n_hosts && m.host == op.root; h++)
            send(m, p, h, out, 0);
        return;
    }
    for (int k = 1; k < m.n_hosts; k++) {
        const int h = (m.host + m.n_hosts - k) % m.n_hosts;
        receive(m, p, h, in, h);
    }
    for (int k = 1; k < m.n_hosts; k++) {
        const int h = (m.host + k) % m.n_hosts;
        send(m, p, h, out, all_to_all ? h : m.host);
    }
}

bool is_done(const Posted *p)
{
    return p[UP].recvs + p[UP].sends + p[DOWN].recvs + p[DOWN].sends == 0;
}

// Returns early if interrupted.
void finish(Posted *both)
{
    for (int d = 0; d < DIRECTIONS; d++)
        for (Posted &p = both[d]; p.recvs > 0; p.recvs--)
            if (!p.in->waitRecv(never))
                return;
    for (int d = 0; d < DIRECTIONS; d++)
        for (Posted &p = both[d]; p.sends > 0; p.sends--)
            if (!p.out->waitSend(never))
                return;
}

// The text of an exception that `fn` throws; empty if it doesn't.
template <typename Fn> std::string caught(Fn fn)
{
    try {
        fn();
    } catch (const std::exception &e) {
        return e.what();
    } catch (...) {
        return "an exception of an unknown kind";
    }
    return "";
}

// Limits each wait to `longest_rest`: Gloo closes its connections when its own time limits end.
void interrupt_waits(Member *m)
{
    std::unique_lock<std::mutex> held(m->lock);
    while (!m->changed.wait_for(held, longest_rest, [m] { return m->stop; })) {
        if (m->receiver != nullptr)
            m->receiver->sent->abortWaitSend();
        for (int d = 0; d < DIRECTIONS && m->awaited != nullptr; d++) {
            m->awaited[d].in->abortWaitRecv();
            m->awaited[d].out->abortWaitSend();
        }
    }
}

int gloo_start(void *engine, int slot, const lks__engine_op *op, char *why, size_t why_bytes)
{
    auto *m = static_cast<Member *>(engine);
    m->number++;
    if (m->n_hosts == 1)
        return 0;
    std::string text = caught([&] { post(*m, m->posted[slot], *op); });
    if (!text.empty())
        say(why, why_bytes, text.c_str());
    return text.empty() ? 0 : -1;
}

int gloo_test(void *engine, int slot, char *why, size_t why_bytes)
{
    auto *m = static_cast<Member *>(engine);
    if (!m->why.empty())
        say(why, why_bytes, m->why.c_str());
    return !m->why.empty() ? -1 : is_done(m->posted[slot]);
}

void set_awaited(Member *m, Posted *p)
{
    std::lock_guard<std::mutex> held(m->lock);
    m->awaited = p;
}

void gloo_rest(void *engine, int slot, double seconds)
{
    auto *m = static_cast<Member *>(engine);
    set_awaited(m, m->posted[slot]);
    m->why = caught([&] { finish(m->posted[slot]); });
    set_awaited(m, nullptr);
}

// --- messages ----------------------------------------------------------------------------------

bool is_behind(const Member *m, const Peer &peer)
{
    return &peer != &m->peers[m->host] && !peer.gone && (peer.sending || peer.told < m->told);
}

bool any_is_behind(const Member *m)
{
    return std::any_of(m->peers.begin(), m->peers.end(),
                       [m](const Peer &peer) { return is_behind(m, peer); });
}

// Send each host the newest message. A host that can't be reached must not delay the others'.
void send_messages(Member *m)
{
    std::unique_lock<std::mutex> held(m->lock);
    for (int h = 0;; h = (h + 1) % m->n_hosts) {
        m->changed.wait(held, [m] { return m->stop || any_is_behind(m); });
        if (m->stop)
            return;
        Peer &peer = m->peers[h];
        if (!is_behind(m, peer))
            continue;
        const bool begins = !peer.sending;
        if (begins) {
            std::memcpy(peer.out, m->out, sizeof peer.out);
            peer.told = m->told;
        }
        m->receiver = &peer;
        held.unlock();
        bool sent = true;
        try { // the receiver reports a connection that has failed
            if (begins)
                peer.sent->send(h, message_slot);
            sent = peer.sent->waitSend(never);
        } catch (const std::exception &) {
        }
        held.lock();
        m->receiver = nullptr;
        peer.sending = !sent;
        m->changed.notify_all();
    }
}

void receive_messages(Member *m, int host)
{
    Peer &peer = m->peers[host];
    std::string why = "the connection was closed";
    try {
        while (true) {
            peer.received->recv(host, message_slot);
            if (!peer.received->waitRecv(never))
                return; // this host leaves
            std::lock_guard<std::mutex> held(m->lock);
            if (m->stop)
                return;
            peer.heard.emplace_back(peer.in, peer.in + sizeof peer.in);
        }
    } catch (const std::exception &e) {
        why = e.what();
    }
    std::unique_lock<std::mutex> held(m->lock);
    peer.gone = true;
    peer.why = why;
    m->changed.notify_all();
    // End when this host leaves: a rank that has given up may end before its threads are joined or
    // detached, and the thread sanitizer would report one that has ended.
    m->changed.wait(held, [m] { return m->stop; });
}

int gloo_tell(void *engine, const void *message)
{
    auto *m = static_cast<Member *>(engine);
    std::lock_guard<std::mutex> held(m->lock);
    std::memcpy(m->out, message, sizeof m->out);
    m->told++;
    m->changed.notify_all();
    return 1;
}

int gloo_hear(void *engine, int host, void *message, char *why, size_t why_bytes)
{
    auto *m = static_cast<Member *>(engine);
    std::lock_guard<std::mutex> held(m->lock);
    Peer &peer = m->peers[host];
    if (!peer.heard.empty()) {
        std::memcpy(message, peer.heard.front().data(), LKS__ENGINE_MESSAGE);
        peer.heard.pop_front();
        return 1;
    }
    if (peer.gone)
        say(why, why_bytes, peer.why.c_str());
    return peer.gone ? -1 : 0;
}

// --- joining and leaving --------------------------------------------------------------------

int gloo_probe(char *why, size_t why_bytes)
{
    return 1; // lockstep finds the store that Gloo needs
}

void *gloo_join(lks__engine_join *join, int *host_p, int *n_hosts_p, char *why, size_t why_bytes)
{
    try {
        auto m = std::make_unique<Member>();
        m->host = *host_p = join->host;
        m->n_hosts = *n_hosts_p = join->n_hosts;
        m->peers = std::vector<Peer>(static_cast<size_t>(m->n_hosts));
        if (m->n_hosts > 1) {
            const std::vector<int> before = open_files();
            m->data[UP] = connect(*join, "data up");
            m->data[DOWN] = connect(*join, "data down");
            m->messages = connect(*join, "notes");
            hide_sockets(m.get(), before);
            for (int h = 0; h < m->n_hosts; h++) {
                if (h == m->host)
                    continue;
                Peer &peer = m->peers[h];
                peer.sent = m->messages->createUnboundBuffer(peer.out, sizeof peer.out);
                peer.received = m->messages->createUnboundBuffer(peer.in, sizeof peer.in);
            }
        }
        Member *raw = m.release();
        raw->interrupter = std::thread(interrupt_waits, raw);
        raw->sender = std::thread(send_messages, raw);
        for (int h = 0; h < raw->n_hosts; h++)
            if (h != raw->host)
                raw->peers[h].thread = std::thread(receive_messages, raw, h);
        return raw;
    } catch (const std::exception &e) {
        say(why, why_bytes, e.what());
    } catch (...) {
        say(why, why_bytes, "an exception of an unknown kind");
    }
    return nullptr;
}

void gloo_leave(void *engine, int orderly)
{
    auto *m = static_cast<Member *>(engine);
    if (!orderly) {
        // Closed connections move no data. Threads may wait inside Gloo forever: leave them and
        // their memory to the end of the process, which is near. The list keeps that memory from
        // being reported as lost.
        static std::atomic<Member *> left;
        m->left_before = left.exchange(m);
        m->sender.detach();
        for (auto &peer : m->peers)
            if (peer.thread.joinable())
                peer.thread.detach();
    }
    {
        // The last message contains the reason. If the connection closed before it, the close
        // would be reported as the failure.
        std::unique_lock<std::mutex> held(m->lock);
        m->changed.wait_for(held, last_message, [m] { return !any_is_behind(m); });
        m->stop = true;
        m->changed.notify_all();
    }
    m->interrupter.join();
    if (!orderly) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100)); // give it time to arrive
        forget_sockets(m);
        for (auto *context : {m->data[UP].get(), m->data[DOWN].get(), m->messages.get()})
            if (context != nullptr)
                context->closeConnections();
        return;
    }
    for (auto &peer : m->peers)
        if (peer.sent) {
            peer.sent->abortWaitSend();
            peer.received->abortWaitRecv();
        }
    m->sender.join();
    for (auto &peer : m->peers)
        if (peer.thread.joinable())
            peer.thread.join();
    delete m;
}

} // namespace

extern "C" LKS__MODULE_EXPORT const lks__engine lks__module_table;

const lks__engine lks__module_table = {
    LKS__ENGINE_VERSION, "Gloo",     0,         1,         gloo_probe, nullptr,   gloo_join,
    gloo_leave,          gloo_start, gloo_test, gloo_rest, gloo_tell,  gloo_hear, 0,
};
