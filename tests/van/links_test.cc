#include "native/byteps/van/links.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/byteps/van/buffers.h"

namespace byteprophet::van {
namespace {

using std::chrono::milliseconds;

constexpr int kServer = 8, kWorker = 9;
constexpr const char* kLoopback = "127.0.0.1";
constexpr milliseconds kLong{20'000};

// Bytes that differ from message to message and along a message.
std::string Values(size_t size_bytes, uint32_t seed) {
  std::string text(size_bytes, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& byte : text) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return text;
}

// Keeps what comes.
class Box : public Sink {
 public:
  struct Message {
    int peer = 0;
    Packet packet;
    std::string values;
    const char* at = nullptr;
  };

  ~Box() override = default;

  std::shared_ptr<char> Place(int, const Head& head) override {
    if (place) return {std::shared_ptr<char>(), place};
    return buffers_.Take(head.values_bytes);
  }

  void Deliver(int peer, const Packet& packet, std::shared_ptr<char> values) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string copy(values.get(), values ? packet.head.values_bytes : 0);
    messages_.push_back({peer, packet, std::move(copy), values.get()});
    changed_.notify_all();
  }

  void Joined(int peer, int fd) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_GE(fd, 0);
    joined_.push_back(peer);
    changed_.notify_all();
  }

  void Left(int peer, const std::string& why, bool has_waited) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_FALSE(has_waited);
    left_.push_back(peer);
    why_ = why;
    changed_.notify_all();
  }

  // The first `count` messages, which are taken.
  std::vector<Message> Take(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLong, [&] { return messages_.size() >= count; }))
        << messages_.size() << " of " << count;
    count = std::min(count, messages_.size());
    const auto end = messages_.begin() + static_cast<ptrdiff_t>(count);
    std::vector<Message> taken(std::make_move_iterator(messages_.begin()),
                               std::make_move_iterator(end));
    messages_.erase(messages_.begin(), end);
    return taken;
  }

  bool HasLeft(int peer, milliseconds wait = kLong) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(
        lock, wait, [&] { return std::find(left_.begin(), left_.end(), peer) != left_.end(); });
  }

  // Why the last one has left.
  std::string why() {
    std::lock_guard<std::mutex> lock(mutex_);
    return why_;
  }

  std::vector<int> joined() {
    std::lock_guard<std::mutex> lock(mutex_);
    return joined_;
  }

  char* place = nullptr;  // where values go, or null

 private:
  Buffers buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  std::vector<int> joined_, left_;
  std::string why_;
};

// Values that live until they are sent, and are gone then.
Outgoing Push(uint32_t number, size_t size_bytes) {
  auto values = std::make_shared<std::string>(Values(size_bytes, number));
  Outgoing outgoing;
  Head& head = outgoing.packet.head;
  head.command = 7;
  head.timestamp = static_cast<int32_t>(number);
  head.is_request = head.is_push = 1;
  head.key = number;
  head.parts = 3;
  head.keys_bytes = 8;
  head.lengths_bytes = 4;
  head.values_bytes = size_bytes;
  const std::string small = Values(12, number + 1);
  std::copy(small.begin(), small.end(), outgoing.packet.small.begin());
  outgoing.values = values->data();
  outgoing.keep = std::move(values);
  return outgoing;
}

Outgoing Notice(uint32_t number) {
  Outgoing outgoing;
  outgoing.packet.head.timestamp = static_cast<int32_t>(number);
  outgoing.packet.head.is_push = 1;
  return outgoing;
}

void ExpectPush(const Box::Message& message, uint32_t number, size_t size_bytes) {
  EXPECT_EQ(message.packet.head.timestamp, static_cast<int32_t>(number));
  EXPECT_EQ(message.packet.head.key, number);
  EXPECT_EQ(message.packet.head.command, 7);
  EXPECT_EQ(message.packet.head.parts, 3);
  EXPECT_EQ(std::string(message.packet.small.data(), 12), Values(12, number + 1));
  EXPECT_TRUE(message.values == Values(size_bytes, number)) << number;
}

// A server welcomes a worker before it adds the link: who was just welcomed is waited for here.
void AwaitLink(const Links& links, int peer) {
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (!links.Has(peer) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(links.Has(peer));
}

struct Pair {
  explicit Pair(milliseconds patience = kLong)
      : server(at_server, patience), worker(at_worker, patience) {
    offer = server.Listen(kLoopback);
    const std::string why = worker.Connect(kServer, kWorker, kLoopback, offer);
    EXPECT_EQ(why, "");
    AwaitLink(server, kWorker);
  }

  Box at_server, at_worker;
  Links server, worker;
  Offer offer;
};

// A plain socket to the port of `offer`.
exchange::Descriptor PlainSocket(const Offer& offer) {
  exchange::Descriptor plain(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(offer.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(plain.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return plain;
}

// What the server says to `hello`: kWelcome, or nothing before it closes the socket.
std::string AnswerTo(int socket, const Hello& hello) {
  EXPECT_EQ(send(socket, &hello, sizeof(hello), MSG_NOSIGNAL), ssize_t{sizeof(hello)});
  char answer = 0;
  return recv(socket, &answer, 1, 0) == 1 ? std::string(1, answer) : "";
}

TEST(Links, CarryMessagesOfEverySizeInOrder) {
  Pair pair;
  std::vector<size_t> sizes = {0, 1, 7, 100, 4095, 4096, 5000, 70'000, 1 << 20, 3'000'001};
  for (size_t size = 3900; size < 4200; ++size) sizes.push_back(size);  // across what is staged
  uint32_t number = 0;
  for (const size_t size : sizes)
    ASSERT_EQ(pair.worker.Send(kServer, kValues, Push(number++, size)), Links::Result::kSent);
  const auto messages = pair.at_server.Take(sizes.size());
  ASSERT_EQ(messages.size(), sizes.size());
  for (uint32_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].peer, kWorker);
    ExpectPush(messages[i], i, sizes[i]);
  }
  EXPECT_EQ(pair.at_server.joined(), std::vector<int>{kWorker});
}

TEST(Links, CarryBothDirectionsFromSeveralThreads) {
  Pair pair;
  constexpr uint32_t kThreads = 4, kEach = 60;
  constexpr size_t kSize = 200'000;
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t i = 0; i < kEach; ++i) {
        pair.worker.Send(kServer, kValues, Push(thread * kEach + i, kSize));
        pair.server.Send(kWorker, kValues, Push(thread * kEach + i, kSize));
        pair.server.Send(kWorker, kNotices, Notice(1'000'000 + i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (Box* const box : {&pair.at_server, &pair.at_worker}) {
    const bool with_notices = box == &pair.at_worker;
    const auto messages = box->Take(kThreads * kEach * (with_notices ? 2 : 1));
    std::vector<uint32_t> next(kThreads);
    for (const auto& message : messages) {
      const auto number = static_cast<uint32_t>(message.packet.head.timestamp);
      if (number >= 1'000'000) continue;
      ExpectPush(message, number, kSize);
      EXPECT_EQ(number % kEach, next[number / kEach]++);  // a thread's own order is kept
    }
    EXPECT_EQ(next, std::vector<uint32_t>(kThreads, kEach));
  }
}

TEST(Links, ReceiveWhereTheValuesAreWanted) {
  Pair pair;
  std::string wanted(2'000'000, '\0');
  pair.at_worker.place = wanted.data();
  pair.server.Send(kWorker, kValues, Push(5, wanted.size()));
  const auto message = pair.at_worker.Take(1).at(0);
  EXPECT_EQ(message.at, wanted.data());
  EXPECT_TRUE(wanted == Values(wanted.size(), 5));
}

TEST(Links, SayWhenTheKernelHasTakenAMessage) {
  Pair pair;
  std::atomic<int> sent{0};
  for (uint32_t i = 0; i < 20; ++i) {
    Outgoing outgoing = Push(i, 1 << 20);
    outgoing.sent = [&sent] { ++sent; };
    pair.worker.Send(kServer, kValues, std::move(outgoing));
  }
  (void)pair.at_server.Take(20);
  for (int waits = 0; sent < 20 && waits < 2000; ++waits)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(sent, 20);
}

// One that has linked itself and reads nothing.
struct SilentWorker {
  explicit SilentWorker(const Offer& offer, int node = kWorker)
      : values(PlainSocket(offer)), notices(PlainSocket(offer)) {
    EXPECT_EQ(AnswerTo(values.fd(), {kHelloMark, offer.word, node, kValues}), "+");
    EXPECT_EQ(AnswerTo(notices.fd(), {kHelloMark, offer.word, node, kNotices}), "+");
  }
  exchange::Descriptor values, notices;
};

TEST(Links, NobodyWaitsForAPeerThatReadsNothing) {
  Box box;
  Links server(box);
  const Offer offer = server.Listen(kLoopback);
  SilentWorker silent(offer);
  Box at_worker;
  Links worker(at_worker);
  ASSERT_EQ(worker.Connect(kServer, kWorker + 2, kLoopback, offer), "");
  for (const int peer : {kWorker, kWorker + 2}) AwaitLink(server, peer);
  std::atomic<int> released{0};
  constexpr int kMany = 40;
  for (uint32_t i = 0; i < kMany; ++i) {
    Outgoing outgoing = Push(i, 1 << 20);
    outgoing.keep = std::shared_ptr<const void>(
        outgoing.keep.get(), [kept = outgoing.keep, &released](const void*) { ++released; });
    ASSERT_EQ(server.Send(kWorker, kValues, std::move(outgoing)), Links::Result::kSent);
  }
  EXPECT_LT(released, kMany);
  // Others, and acknowledgements to it, get through.
  server.Send(kWorker + 2, kValues, Push(99, 100'000));
  ExpectPush(at_worker.Take(1).at(0), 99, 100'000);
  server.Send(kWorker, kNotices, Notice(3));
  Packet packet;
  ASSERT_EQ(recv(silent.notices.fd(), &packet, sizeof(Head), MSG_WAITALL), ssize_t{sizeof(Head)});
  EXPECT_EQ(packet.head.timestamp, 3);
  server.Stop(milliseconds(50));
  EXPECT_EQ(released, kMany);
}

TEST(Links, AMessageMayComeInAnyPieces) {
  Box box;
  Links server(box);
  const Offer offer = server.Listen(kLoopback);
  SilentWorker worker(offer);
  std::string bytes;
  const std::vector<size_t> sizes = {0, 500, 40, 9000};
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    const Outgoing outgoing = Push(i, sizes[i]);
    bytes.append(reinterpret_cast<const char*>(&outgoing.packet), outgoing.packet.size_bytes());
    bytes.append(outgoing.values, sizes[i]);
  }
  for (size_t at = 0, piece = 1; at < bytes.size(); at += piece, piece = 1 + piece * 7 % 13) {
    piece = std::min(piece, bytes.size() - at);
    ASSERT_EQ(send(worker.values.fd(), bytes.data() + at, piece, MSG_NOSIGNAL),
              static_cast<ssize_t>(piece));
    if (at < 400) std::this_thread::sleep_for(milliseconds(1));  // so that it is read in pieces
  }
  const auto messages = box.Take(sizes.size());
  for (uint32_t i = 0; i < messages.size(); ++i) ExpectPush(messages[i], i, sizes[i]);
}

TEST(Links, StrangersAreRefused) {
  Box box;
  Links server(box, milliseconds(200));
  const Offer offer = server.Listen(kLoopback);
  Word wrong = offer.word;
  wrong[31] ^= 1;
  for (const Hello& hello : {Hello{kHelloMark, wrong, kWorker, kValues},
                             Hello{kHelloMark + 1, offer.word, kWorker, kValues},
                             Hello{kHelloMark, offer.word, kWorker, kLanes}}) {
    const auto stranger = PlainSocket(offer);
    EXPECT_EQ(AnswerTo(stranger.fd(), hello), "");
  }
  // One that says nothing, or less than all, is not waited for.
  const auto silent = PlainSocket(offer), slow = PlainSocket(offer);
  ASSERT_EQ(send(slow.fd(), &offer, 10, MSG_NOSIGNAL), 10);
  char answer;
  EXPECT_EQ(recv(silent.fd(), &answer, 1, 0), 0);
  EXPECT_LE(recv(slow.fd(), &answer, 1, 0), 0);
  EXPECT_TRUE(box.joined().empty());
  EXPECT_EQ(server.Send(kWorker, kValues, Notice(1)), Links::Result::kNoLink);

  SilentWorker known(offer);
  const auto again = PlainSocket(offer);  // under a name that is taken
  EXPECT_EQ(AnswerTo(again.fd(), {kHelloMark, offer.word, kWorker, kValues}), "");
  EXPECT_EQ(box.joined(), std::vector<int>{kWorker});
}

TEST(Links, AConnectionThatCannotBeHadIsGivenUp) {
  Box box;
  Links worker(box, milliseconds(200));
  const exchange::Descriptor mute(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(mute.fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(mute.fd(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  Offer offer;
  offer.port = ntohs(address.sin_port);
  EXPECT_NE(worker.Connect(kServer, kWorker, kLoopback, offer), "");  // nobody listens
  ASSERT_EQ(listen(mute.fd(), 8), 0);
  EXPECT_EQ(worker.Connect(kServer, kWorker, kLoopback, offer), "no answer");
  EXPECT_FALSE(worker.Has(kServer));
  EXPECT_EQ(worker.Send(kServer, kValues, Notice(1)), Links::Result::kNoLink);
  // Another one is not given up.
  Box at_server;
  Links server(at_server);
  EXPECT_EQ(worker.Connect(kServer + 2, kWorker, kLoopback, server.Listen(kLoopback)), "");
  EXPECT_TRUE(worker.Has(kServer + 2));
}

TEST(Links, AResetSaysSo) {
  Box box;
  Links server(box);
  const Offer offer = server.Listen(kLoopback);
  {
    SilentWorker worker(offer);
    const linger at_once = {1, 0};  // a socket that is closed resets its connection
    for (const int fd : {worker.values.fd(), worker.notices.fd()})
      ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  }
  ASSERT_TRUE(box.HasLeft(kWorker));
  EXPECT_EQ(box.why(), "Connection reset by peer");
}

// Whoever writes takes the socket's error, so that a read finds only its end.
TEST(Links, AResetOfOneFullSocketSaysSo) {
  Box box;
  Links server(box);
  SilentWorker worker(server.Listen(kLoopback));
  AwaitLink(server, kWorker);
  constexpr size_t kMore = 32 << 20;  // than the buffers of a connection hold
  ASSERT_EQ(server.Send(kWorker, kValues, Push(1, kMore)), Links::Result::kSent);
  const linger at_once = {1, 0};
  ASSERT_EQ(setsockopt(worker.values.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  worker.values = exchange::Descriptor(-1);
  ASSERT_TRUE(box.HasLeft(kWorker));
  EXPECT_EQ(box.why(), "Connection reset by peer");
}

int UserTimeoutOf(int fd) {
  int value_ms = 0;
  socklen_t size = sizeof(value_ms);
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value_ms, &size), 0);
  return value_ms;
}

TEST(Links, ThatDoNotAnswerEnd) {
  class Noting : public Box {
   public:
    void Joined(int peer, int fd) override {
      timeout_ms = UserTimeoutOf(fd);
      Box::Joined(peer, fd);
    }
    std::atomic<int> timeout_ms{-1};
  };
  for (const int told_ms : {0, 24'000}) {
    Noting box;
    Links server(box, kLong, milliseconds(told_ms));
    SilentWorker worker(server.Listen(kLoopback));
    AwaitLink(server, kWorker);
    EXPECT_EQ(box.timeout_ms, told_ms);
  }
}

TEST(Links, WhatIsSentToAPeerThatIsGoneIsDropped) {
  Box at_server, at_worker;
  Links server(at_server);
  const Offer offer = server.Listen(kLoopback);
  auto worker = std::make_unique<Links>(at_worker);
  ASSERT_EQ(worker->Connect(kServer, kWorker, kLoopback, offer), "");
  worker->Send(kServer, kValues, Push(1, 1000));
  (void)at_server.Take(1);
  worker.reset();
  ASSERT_TRUE(at_server.HasLeft(kWorker));
  EXPECT_EQ(at_server.why(), "the other end has closed it");
  EXPECT_EQ(server.Send(kWorker, kValues, Push(2, 1000)), Links::Result::kOver);
  EXPECT_EQ(server.Send(kWorker, kNotices, Notice(2)), Links::Result::kOver);
}

TEST(Links, ALinkThatWasNeverUsedIsForgotten) {
  Box at_server, at_worker;
  Links server(at_server);
  const Offer offer = server.Listen(kLoopback);
  auto worker = std::make_unique<Links>(at_worker);
  ASSERT_EQ(worker->Connect(kServer, kWorker, kLoopback, offer), "");
  worker.reset();
  ASSERT_TRUE(at_server.HasLeft(kWorker));
  EXPECT_EQ(server.Send(kWorker, kValues, Push(2, 1000)), Links::Result::kNoLink);
}

TEST(Links, APeerThatSendsNonsenseLosesItsLink) {
  Box box;
  Links server(box);
  const Offer offer = server.Listen(kLoopback);
  SilentWorker worker(offer);
  Outgoing outgoing = Push(1, 10);
  outgoing.packet.head.keys_bytes = kMostSmallBytes + 1;
  ASSERT_EQ(send(worker.values.fd(), &outgoing.packet, sizeof(Packet), MSG_NOSIGNAL),
            ssize_t{sizeof(Packet)});
  EXPECT_TRUE(box.HasLeft(kWorker));
  EXPECT_EQ(box.why(), "what came is no message");
  char end;
  EXPECT_LE(recv(worker.notices.fd(), &end, 1, 0), 0);
}

TEST(Links, WhatWasSentOverASocketComesThoughTheOtherOneIsClosed) {
  Box box;
  Links server(box);
  const Offer offer = server.Listen(kLoopback);
  SilentWorker worker(offer);
  AwaitLink(server, kWorker);
  worker.notices = exchange::Descriptor();
  EXPECT_FALSE(box.HasLeft(kWorker, milliseconds(200)));
  const Outgoing outgoing = Push(1, 5000);
  std::string bytes(reinterpret_cast<const char*>(&outgoing.packet), outgoing.packet.size_bytes());
  bytes.append(outgoing.values, 5000);
  ASSERT_EQ(send(worker.values.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  ExpectPush(box.Take(1).at(0), 1, 5000);
  worker.values = exchange::Descriptor();
  EXPECT_TRUE(box.HasLeft(kWorker));
  EXPECT_EQ(box.why(), "the other end has closed it");
}

TEST(Links, StopSendsWhatIsQueued) {
  Box at_server, at_worker;
  Links server(at_server);
  const Offer offer = server.Listen(kLoopback);
  constexpr uint32_t kMany = 30;
  {
    Links worker(at_worker);
    ASSERT_EQ(worker.Connect(kServer, kWorker, kLoopback, offer), "");
    for (uint32_t i = 0; i < kMany; ++i) worker.Send(kServer, kValues, Push(i, 1 << 20));
    worker.Stop(kLong);
    EXPECT_EQ(worker.Send(kServer, kValues, Push(0, 10)), Links::Result::kOver);
  }
  const auto messages = at_server.Take(kMany);
  for (uint32_t i = 0; i < messages.size(); ++i) ExpectPush(messages[i], i, 1 << 20);
}

TEST(Offer, TravelsAsText) {
  Offer offer;
  offer.port = 54321;
  for (size_t i = 0; i < kWordBytes; ++i) offer.word[i] = static_cast<unsigned char>(i * 7);
  char text[64] = {};
  EXPECT_FALSE(ReadOffer(text));
  Write(offer, text);
  const auto read = ReadOffer(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->port, offer.port);
  EXPECT_EQ(read->word, offer.word);
}

}  // namespace
}  // namespace byteprophet::van
