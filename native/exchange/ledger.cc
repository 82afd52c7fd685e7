#include "exchange/ledger.h"

#include <stdexcept>

namespace byteprophet::exchange {

void Ledger::Add(const Operation& operation) {
  InFlight added;
  for (const Operation* each = &operation; each != nullptr; each = each->then.get()) {
    std::vector<int> awaited;
    for (int rank = 0; rank < static_cast<int>(each->shares.size()); ++rank) {
      if (rank != each->rank && each->From(rank).size_bytes > 0) awaited.push_back(rank);
    }
    added.awaited.emplace_back(each->number, std::move(awaited));
    added.holders += 2;
  }
  const std::lock_guard lock(mutex_);
  if (refuses_) throw std::invalid_argument("mesh: it is closed");
  if (!in_flight_.try_emplace(operation.over, std::move(added)).second)
    throw std::invalid_argument("mesh: operation " + std::to_string(operation.over) +
                                " is in flight already");
}

void Ledger::Came(const Operation& operation, int rank) {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(operation.over);
  if (found == in_flight_.end()) return;
  for (auto& [number, awaited] : found->second.awaited) {
    if (number == operation.number) std::erase(awaited, rank);
  }
}

void Ledger::Summed(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  over_.emplace_back(operation.number, std::nullopt);
  changed_.notify_all();
}

bool Ledger::LetGo(const Operation& operation, const std::string& error) {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(operation.over);
  if (found == in_flight_.end()) return true;
  InFlight& held = found->second;
  if (!error.empty() && !held.error) held.error = error;
  if (--held.holders > 0) return false;
  over_.emplace_back(operation.over, std::move(held.error));
  in_flight_.erase(found);
  changed_.notify_all();
  return true;
}

std::vector<Over> Ledger::Take(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !over_.empty() || closed_; });
  return std::exchange(over_, {});
}

std::vector<int> Ledger::Missing(uint64_t over) const {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(over);
  if (found == in_flight_.end()) return {};
  for (const auto& [number, awaited] : found->second.awaited) {
    if (!awaited.empty()) return awaited;
  }
  return {};
}

void Ledger::Refuse() {
  const std::lock_guard lock(mutex_);
  refuses_ = true;
}

void Ledger::Close(const std::string& error) {
  const std::lock_guard lock(mutex_);
  for (auto& [operation, held] : in_flight_)
    over_.emplace_back(operation, held.error ? std::move(held.error) : error);
  in_flight_.clear();
  closed_ = true;
  changed_.notify_all();
}

}  // namespace byteprophet::exchange
