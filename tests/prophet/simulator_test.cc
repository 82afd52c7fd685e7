// The simulator notices what it is there to notice: policies broken on purpose.
#include "simulator.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "prophet/registry.h"

namespace prophet {
namespace {

// Passes everything on to a real policy; each test breaks one thing.
class Wrapped : public Policy {
 public:
  explicit Wrapped(std::unique_ptr<Policy> policy) : policy_(std::move(policy)) {}
  void OnReady(const Item& item, TimeNs now) override { policy_->OnReady(item, now); }
  void OnAcked(const Item& item, TimeNs now) override { policy_->OnAcked(item, now); }
  void OnIteration(TimeNs now) override { policy_->OnIteration(now); }
  Decision Next(TimeNs now) override { return policy_->Next(now); }
  void Reconfigure(const Settings& overrides) override { policy_->Reconfigure(overrides); }
  const Settings& settings() const override { return policy_->settings(); }
  size_t pending() const override { return policy_->pending(); }
  std::string_view name() const override { return policy_->name(); }

 protected:
  const std::unique_ptr<Policy> policy_;
};

// The first failure among some seeds.
std::string Finding(const std::string& policy, const PolicyMaker& make) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const std::string failure = Simulate(policy, seed, make).failure;
    if (!failure.empty()) return failure.substr(failure.find(": ") + 2);
  }
  return "nothing";
}

template <typename Broken>
std::string Finding(const std::string& policy) {
  return Finding(policy, [](const std::string& name, const Settings& settings) {
    return std::make_unique<Broken>(MakePolicy(name, settings));
  });
}

TEST(Simulator, FindsNothingWrongWithAWrapper) {
  for (const std::string& name : PolicyNames()) EXPECT_EQ(Finding<Wrapped>(name), "nothing");
}

struct SendsTwice : Wrapped {
  using Wrapped::Wrapped;
  Decision Next(TimeNs now) override {
    if (last_.kind == Decision::Kind::kSend && ++count_ % 10 == 0) return last_;
    return last_ = Wrapped::Next(now);
  }
  Decision last_;
  int count_ = 0;
};

TEST(Simulator, NoticesAnItemSentTwice) { EXPECT_NE(Finding<SendsTwice>("p3"), "nothing"); }

struct LosesAnItem : Wrapped {
  using Wrapped::Wrapped;
  void OnReady(const Item& item, TimeNs now) override {
    if (++count_ % 10 != 0) Wrapped::OnReady(item, now);
  }
  int count_ = 0;
};

TEST(Simulator, NoticesALostItem) { EXPECT_EQ(Finding<LosesAnItem>("fifo"), "pending() is wrong"); }

struct ForgetsAcknowledgements : Wrapped {
  using Wrapped::Wrapped;
  void OnAcked(const Item& item, TimeNs now) override {
    if (item.key % 3 != 0) Wrapped::OnAcked(item, now);
  }
};

TEST(Simulator, NoticesAWindowThatStaysClosed) {
  EXPECT_EQ(Finding<ForgetsAcknowledgements>("p3"),
            "idle with nothing in flight for a server with work");
}

PolicyMaker P3Of(int64_t messages) {
  return [messages](const std::string& name, const Settings&) {
    return MakePolicy(name, {{"outstanding_messages", messages}});
  };
}

TEST(Simulator, NoticesAWindowThatIsTooSmall) {
  EXPECT_EQ(Finding("p3", P3Of(1)), "holds back what may go");
}

TEST(Simulator, NoticesAWindowThatIsTooLarge) {
  EXPECT_EQ(Finding("p3", P3Of(256)), "sent against its own rule");
}

struct CountsUnknownAcknowledgements : Wrapped {
  using Wrapped::Wrapped;
  void OnAcked(const Item& item, TimeNs now) override {
    Wrapped::OnAcked({.key = item.key == ~uint64_t{0} ? last_ : item.key}, now);
  }
  Decision Next(TimeNs now) override {
    const Decision decision = Wrapped::Next(now);
    if (decision.kind == Decision::Kind::kSend) last_ = decision.item.key;
    return decision;
  }
  uint64_t last_ = 0;
};

TEST(Simulator, NoticesWhoBelievesAnUnknownAcknowledgement) {
  EXPECT_EQ(Finding<CountsUnknownAcknowledgements>("bytescheduler"), "sent against its own rule");
}

struct WaitsForAKey : Wrapped {
  using Wrapped::Wrapped;
  void OnReady(const Item& item, TimeNs now) override {
    seen_ = seen_ || item.key == 0;
    Wrapped::OnReady(item, now);
  }
  Decision Next(TimeNs now) override { return seen_ ? Wrapped::Next(now) : Decision{}; }
  bool seen_ = false;
};

TEST(Simulator, NoticesWhoWaitsForOneKey) {
  EXPECT_EQ(Finding<WaitsForAKey>("prophet"), "idle with nothing in flight for a server with work");
}

struct PromisesInVain : WaitsForAKey {
  using WaitsForAKey::WaitsForAKey;
  Decision Next(TimeNs now) override {
    if (seen_) return Wrapped::Next(now);
    return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = now + 1000};
  }
};

TEST(Simulator, NoticesATimeThatIsNotKept) {
  EXPECT_EQ(Finding<PromisesInVain>("fifo"), "does not send at the time that it named");
}

struct WaitsForever : Wrapped {
  using Wrapped::Wrapped;
  Decision Next(TimeNs now) override {
    const Decision decision = Wrapped::Next(now);
    if (decision.kind == Decision::Kind::kSend) return decision;
    return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = TimeNs{1} << 62};
  }
};

TEST(Simulator, NoticesATimeThatNeverComes) {
  EXPECT_EQ(Finding<WaitsForever>("fifo"), "waits too long");
}

struct WaitsAWhile : Wrapped {
  using Wrapped::Wrapped;
  Decision Next(TimeNs now) override {
    if (now < until_) return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = until_};
    if (Wrapped::pending() > 0 && now >= until_ + 100) {
      until_ = now + 100;
      return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = until_};
    }
    return Wrapped::Next(now);
  }
  TimeNs until_ = 0;
};

TEST(Simulator, AllowsAFiniteWait) { EXPECT_EQ(Finding<WaitsAWhile>("fifo"), "nothing"); }

}  // namespace
}  // namespace prophet
