#include "links.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "native/blocked_signals.h"

namespace byteprophet::van {
namespace {

using exchange::Descriptor;

constexpr int kBacklog = 128;

Descriptor Checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return Descriptor(fd);
}

std::string Text(int error) { return std::generic_category().message(error); }

// The first address of `host` and `port`, and a socket of its family that does not block.
struct Endpoint {
  Endpoint(const std::string& host, uint16_t port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) throw std::runtime_error(gai_strerror(error));
    std::memcpy(&address, found->ai_addr, found->ai_addrlen);
    size_bytes = found->ai_addrlen;
    const int family = found->ai_family;
    freeaddrinfo(found);
    socket = Checked(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
  }

  sockaddr* name() { return reinterpret_cast<sockaddr*>(&address); }

  sockaddr_storage address{};
  socklen_t size_bytes = 0;
  Descriptor socket;
};

uint16_t PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size_bytes = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size_bytes) != 0)
    throw std::system_error(errno, std::generic_category(), "getsockname");
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void SetOption(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value, sizeof(value));  // else it is slower, or learns later
}

struct NoAnswer : std::runtime_error {
  NoAnswer() : std::runtime_error("no answer") {}
};

// Until `socket` has one of `events`. Throws when it is too late.
void Await(int socket, short events, std::chrono::steady_clock::time_point until) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd one = {socket, events, 0};
    const int ready = poll(&one, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready > 0) return;
    if (ready == 0) throw NoAnswer();
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "poll");
  }
}

}  // namespace

// A socket that the server at `address` has welcomed.
Descriptor Links::Introduce(const std::string& address, uint16_t port, const Hello& hello,
                            Clock::time_point until) const {
  Endpoint server(address, port);
  const int socket = server.socket.fd();
  if (connect(socket, server.name(), server.size_bytes) != 0) {
    if (errno != EINPROGRESS) throw std::runtime_error(Text(errno));
    Await(socket, POLLOUT, until);
    int error = 0;
    socklen_t size_bytes = sizeof(error);
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size_bytes);
    if (error != 0) throw std::runtime_error(Text(error));
  }
  Prepare(socket);
  // An empty socket takes so little whole.
  if (send(socket, &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello)))
    throw std::runtime_error("connection closed");
  Await(socket, POLLIN, until);
  char answer = 0;
  if (recv(socket, &answer, 1, 0) != 1 || answer != kWelcome) throw std::runtime_error("refused");
  return std::move(server.socket);
}

void Links::Prepare(int socket) const {
  constexpr int kProbeAfterS = 3, kProbeEveryS = 3;
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  if (vanished_after_ <= Milliseconds(0)) return;
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(vanished_after_.count()));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
}

Links::Links(Sink& sink, Milliseconds patience, Milliseconds vanished_after)
    : sink_(sink),
      patience_(patience),
      vanished_after_(vanished_after),
      epoll_(Checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(Checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")) {
  Watch(wake_.fd());
}

Offer Links::Listen(const std::string& address) {
  Endpoint own(address, 0);
  if (bind(own.socket.fd(), own.name(), own.size_bytes) != 0 ||
      listen(own.socket.fd(), kBacklog) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot listen on " + address);
  const uint16_t port = PortOf(own.socket.fd());
  if (getrandom(word_.data(), word_.size(), 0) != static_cast<ssize_t>(word_.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  listener_ = std::move(own.socket);
  Watch(listener_.fd());
  Start();
  return {port, word_};
}

std::string Links::Connect(int peer, int own, const std::string& address, const Offer& offer) {
  const auto until = Clock::now() + (hurries_ ? std::min(patience_, kLessPatience) : patience_);
  std::array<Descriptor, kLanes> sockets;
  try {
    for (uint32_t lane = 0; lane < kLanes; ++lane)
      sockets[lane] = Introduce(address, offer.port, {kHelloMark, offer.word, own, lane}, until);
  } catch (const NoAnswer& error) {
    hurries_ = true;
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane)
    Add(peer, static_cast<Lane>(lane), std::move(sockets[lane]));
  Start();
  return "";
}

bool Links::Has(int peer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = links_.find(peer);
  return found != links_.end() && found->second.complete();
}

Links::Result Links::Send(int peer, Lane lane, Outgoing message) {
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = links_.find(peer);
    if (found == links_.end() || !found->second.complete()) return Result::kNoLink;
    if (found->second.is_over) return Result::kOver;
    connection = found->second.lanes[lane];
  }
  return connection->Send(std::move(message)) ? Result::kSent : Result::kOver;
}

void Links::Stop(Milliseconds linger) {
  if (!thread_.joinable()) return;
  for (const auto until = Clock::now() + linger; Clock::now() < until && !AreDrained();)
    std::this_thread::sleep_for(Milliseconds(1));
  stopping_ = true;
  const uint64_t one = 1;
  (void)!write(wake_.fd(), &one, sizeof(one));
  thread_.join();
  strangers_.clear();
  std::unordered_map<int, std::shared_ptr<Connection>> connections;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    connections.swap(connections_);
    for (auto& [peer, link] : links_) link.is_over = true;
  }
  for (const auto& [fd, connection] : connections) connection->End();
}

void Links::Start() {
  if (thread_.joinable() || stopping_) return;
  const BlockedSignals blocked;
  thread_ = std::thread(&Links::Run, this);
  pthread_setname_np(thread_.native_handle(), "data-links");
}

void Links::Run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count =
        epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), TimeoutMs());
    if (stopping_) return;
    for (int i = 0; i < count; ++i) {  // none after a signal
      const epoll_event& event = events[static_cast<size_t>(i)];
      const int fd = event.data.fd;
      if (fd == listener_.fd()) {
        Accept();
      } else if (const auto stranger = strangers_.find(fd); stranger != strangers_.end()) {
        if (!Hear(stranger->second)) strangers_.erase(stranger);
      } else {
        Serve(fd, event.events);
      }
    }
    std::erase_if(strangers_,
                  [now = Clock::now()](const auto& entry) { return entry.second.until <= now; });
  }
}

int Links::TimeoutMs() const {
  if (strangers_.empty()) return -1;
  auto first = Clock::time_point::max();
  for (const auto& [fd, stranger] : strangers_) first = std::min(first, stranger.until);
  const auto left = std::chrono::ceil<Milliseconds>(first - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void Links::Accept() {
  Descriptor socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const int fd = socket.fd();
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
    epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, listener_.fd(), nullptr);  // who is late uses ZeroMQ
  if (fd < 0 || strangers_.size() >= kMostStrangers) return;
  Prepare(fd);
  Watch(fd);
  Stranger stranger{std::move(socket), {}, 0, Clock::now() + patience_};
  strangers_.emplace(fd, std::move(stranger));
}

bool Links::Hear(Stranger& stranger) {
  auto* const bytes = reinterpret_cast<char*>(&stranger.hello);
  const ssize_t received = recv(stranger.socket.fd(), bytes + stranger.got,
                                sizeof(stranger.hello) - stranger.got, MSG_DONTWAIT);
  if (received < 0) return errno == EAGAIN || errno == EINTR;
  if (received == 0) return false;
  stranger.got += static_cast<size_t>(received);
  return stranger.got < sizeof(stranger.hello) || !Welcome(stranger);
}

// True: it was heard to the end, and is welcome or not.
bool Links::Welcome(Stranger& stranger) {
  const Hello& hello = stranger.hello;
  if (hello.mark != kHelloMark || !AreEqual(hello.word, word_) || hello.lane >= kLanes) return true;
  const int peer = hello.node;
  const auto lane = static_cast<Lane>(hello.lane);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = links_.find(peer);
    if (found != links_.end() && found->second.lanes[lane]) return true;  // it is here already
  }
  const int fd = stranger.socket.fd();
  // What the worker sends now is received by this thread, and so after it has been added.
  (void)!send(fd, &kWelcome, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  Add(peer, lane, std::move(stranger.socket));
  if (lane == kValues) sink_.Joined(peer, fd);
  return true;
}

void Links::Serve(int fd, uint32_t events) {
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    connection = found->second;
  }
  if ((events & EPOLLOUT) != 0) connection->Flush();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0 || connection->Receive(sink_)) return;
  if (connection->is_closed() && IsOpen(connection->peer()))
    epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);
  else
    Close(connection);
}

bool Links::IsOpen(int peer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = links_.find(peer);
  if (found == links_.end() || !found->second.complete()) return false;
  const auto& lanes = found->second.lanes;
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const auto& lane) { return !lane->is_closed(); });
}

void Links::Close(const std::shared_ptr<Connection>& connection) {
  const int peer = connection->peer();
  Link link;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = links_.find(peer);
    if (found == links_.end()) return;
    link = found->second;
    const bool was_used = std::any_of(link.lanes.begin(), link.lanes.end(), [](const auto& lane) {
      return lane && lane->has_received();
    });
    found->second.is_over = true;
    for (const auto& lane : link.lanes) {
      if (lane) connections_.erase(lane->fd());
    }
    if (listener_.fd() >= 0 && !was_used) links_.erase(found);
  }
  const int error = connection->error();
  sink_.Left(peer,
             connection->is_damaged() ? "what came is no message"
             : error != 0             ? Text(error)
                                      : "the other end has closed it",
             error == ETIMEDOUT);
  for (const auto& lane : link.lanes) {
    if (!lane) continue;
    epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, lane->fd(), nullptr);
    lane->End();
  }
}

void Links::Add(int peer, Lane lane, Descriptor socket) {
  const int fd = socket.fd();
  auto connection = std::make_shared<Connection>(peer, std::move(socket), epoll_.fd());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    connections_[fd] = connection;
    links_[peer].lanes[lane] = std::move(connection);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  // One that was a stranger is watched already.
  epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event);
}

void Links::Watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

bool Links::AreDrained() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& entry) { return entry.second->IsDrained(); });
}

}  // namespace byteprophet::van
