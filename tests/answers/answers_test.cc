#include "answers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tcp.h"

namespace byteprophet {
namespace {

constexpr uint64_t kAnswerBytes = 64 << 10;
constexpr int kWorker = 9;

// A TCP connection over loopback, with a receiver that reads when it is told to. Sends never block:
// what the kernel does not take is dropped, as only the order matters here.
class Connection {
 public:
  Connection() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    int small = 8192;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    EXPECT_EQ(bind(listener, name, size), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    EXPECT_EQ(getsockname(listener, name, &size), 0);
    sender_ = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(sender_, name, size), 0);
    receiver_ = accept(listener, nullptr, nullptr);
    close(listener);
    fcntl(sender_, F_SETFL, O_NONBLOCK);
  }
  ~Connection() {
    if (reader_.joinable()) reader_.join();
    close(sender_);
    close(receiver_);
  }

  void Send(uint64_t bytes) const {
    const std::vector<char> data(bytes);
    (void)!send(sender_, data.data(), data.size(), 0);
  }
  // Until the sender is closed.
  void StartReading() {
    reader_ = std::thread([this] {
      std::vector<char> data(1 << 20);
      while (recv(receiver_, data.data(), data.size(), 0) > 0) {
      }
    });
  }
  void EndSending() const { shutdown(sender_, SHUT_WR); }
  int fd() const { return sender_; }

 private:
  int sender_ = -1;
  int receiver_ = -1;
  std::thread reader_;
};

// Notes which answers were sent, in order.
class Log {
 public:
  std::function<void()> Note(int number, const Connection* to = nullptr) {
    return [this, number, to] {
      if (to != nullptr) to->Send(kAnswerBytes);
      std::lock_guard<std::mutex> lock(mutex_);
      numbers_.push_back(number);
    };
  }
  std::vector<int> numbers() {
    std::lock_guard<std::mutex> lock(mutex_);
    return numbers_;
  }
  std::vector<int> WaitFor(size_t count) {
    for (int i = 0; i < 2000 && numbers().size() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return numbers();
  }

 private:
  std::mutex mutex_;
  std::vector<int> numbers_;
};

TEST(Answers, LeaveAtOnceWhereTheKernelSaysNothing) {
  Log log;
  Answers answers;  // last: it sends what waits when it ends
  for (int i = 0; i < 100; ++i) answers.Add(kWorker, -i, kAnswerBytes, log.Note(i));
  answers.Heard(kWorker, -1);
  answers.Add(kWorker, 0, kAnswerBytes, log.Note(100));
  const auto sent = log.numbers();
  ASSERT_EQ(sent.size(), 101u);
  EXPECT_TRUE(std::is_sorted(sent.begin(), sent.end()));
}

TEST(Answers, TheMostUrgentGoesFirstOnceTheLinkIsFull) {
  Connection connection;
  Log log;
  Answers answers;  // last: it sends what waits when it ends
  answers.Heard(kWorker, connection.fd());
  constexpr int kAnswers = 200;
  // Ever more urgent. As nobody reads, at most a few more trickle out while they are added.
  for (int i = 0; i < kAnswers; ++i)
    answers.Add(kWorker, kAnswers - i, kAnswerBytes, log.Note(i, &connection));
  const size_t before = log.numbers().size();
  ASSERT_LT(before, size_t{kAnswers} / 2);
  connection.StartReading();
  const auto sent = log.WaitFor(kAnswers);
  ASSERT_EQ(sent.size(), size_t{kAnswers});
  // From then on downwards, but for one that was taken while the last ones came.
  EXPECT_TRUE(std::is_sorted(sent.begin() + static_cast<ptrdiff_t>(before) + 1, sent.end(),
                             std::greater<>()));
  EXPECT_EQ(sent.back() < kAnswers / 2, true);
  answers.Stop();
  connection.EndSending();
}

TEST(Answers, NoneWaitsForEverIfNobodyReads) {
  Connection connection;
  Log log;
  Answers answers;  // last: it sends what waits when it ends
  answers.Heard(kWorker, connection.fd());
  int number = 0;
  while (log.numbers().size() == static_cast<size_t>(number))
    answers.Add(kWorker, 1, kAnswerBytes, log.Note(number++, &connection));
  EXPECT_EQ(log.WaitFor(static_cast<size_t>(number)).size(), static_cast<size_t>(number));
}

TEST(Answers, OneWorkersFullLinkHoldsNobodyElseUp) {
  Connection full;
  Connection open;
  Log log;
  Log other;
  Answers answers;  // last: it sends what waits when it ends
  answers.Heard(kWorker, full.fd());
  answers.Heard(kWorker + 2, open.fd());
  for (int i = 0; i < 300; ++i) answers.Add(kWorker, 1, kAnswerBytes, log.Note(i, &full));
  ASSERT_LT(log.numbers().size(), 300u);
  answers.Add(kWorker + 2, 1, kAnswerBytes, other.Note(0, &open));
  EXPECT_EQ(other.numbers().size(), 1u);
}

TEST(Answers, StopSendsWhatWaitsAndAddMayFollow) {
  Connection connection;
  Log log;
  Answers answers;  // last: it sends what waits when it ends
  for (int round = 1; round <= 2; ++round) {
    answers.Heard(kWorker, connection.fd());
    for (int i = 0; i < 100; ++i) answers.Add(kWorker, 1, kAnswerBytes, log.Note(i, &connection));
    answers.Stop();
    EXPECT_EQ(log.numbers().size(), 100u * static_cast<size_t>(round));
  }
}

TEST(Answers, ThreadsThatAddAtOnceLoseNone) {
  Connection connection;
  Answers answers;  // last: it sends what waits when it ends
  connection.StartReading();
  answers.Heard(kWorker, connection.fd());
  std::atomic<int> sent = 0;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 500; ++i) {
          answers.Add(kWorker, thread, 1000, [&] {
            connection.Send(1000);
            ++sent;
          });
          answers.Heard(kWorker, connection.fd());
        }
      });
    }
  }
  answers.Stop();
  EXPECT_EQ(sent, 2000);
  connection.EndSending();
}

TEST(Command, CarriesTypeAndPriority) {
  for (const int type : {0, 5, 75, 255}) {
    int last = -1;
    for (const int32_t priority : {3, -1, -2, -161, -100'000, -8'000'000}) {
      const int command = CommandWithPriority(type, priority);
      EXPECT_GE(command, 0);
      EXPECT_EQ(TypeOf(command), type);
      EXPECT_GT(RankOf(command), last);
      last = RankOf(command);
    }
    EXPECT_EQ(CommandWithPriority(type, 0), type);
    EXPECT_EQ(TypeOf(CommandWithPriority(type, INT32_MIN)), type);
    EXPECT_GE(RankOf(CommandWithPriority(type, INT32_MIN)), last);
  }
}

TEST(Tcp, CountsWhatTheOtherEndHasTaken) {
  Connection connection;
  const auto before = ReadTcp(connection.fd());
  ASSERT_TRUE(before.has_value());
  connection.Send(1000);
  for (int i = 0; i < 1000 && ReadTcp(connection.fd())->queued_bytes > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ReadTcp(connection.fd())->acked_bytes, before->acked_bytes + 1000);
  EXPECT_FALSE(ReadTcp(STDOUT_FILENO).has_value());
}

}  // namespace
}  // namespace byteprophet
