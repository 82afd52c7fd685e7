#include "exchange/ledger.h"

#include <stdexcept>

namespace byteprophet::exchange {

void Ledger::Add(uint64_t operation, std::vector<int> awaited) {
  const std::lock_guard lock(mutex_);
  if (refuses_) throw std::invalid_argument("mesh: it is closed");
  InFlight added;
  added.awaited = std::move(awaited);
  if (!in_flight_.try_emplace(operation, std::move(added)).second)
    throw std::invalid_argument("mesh: operation " + std::to_string(operation) +
                                " is in flight already");
}

void Ledger::Came(uint64_t operation, int rank) {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(operation);
  if (found != in_flight_.end()) std::erase(found->second.awaited, rank);
}

void Ledger::LetGo(uint64_t operation, const std::string& error) {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(operation);
  if (found == in_flight_.end()) return;
  InFlight& held = found->second;
  if (!error.empty() && !held.error) held.error = error;
  if (--held.holders > 0) return;
  over_.emplace_back(operation, std::move(held.error));
  in_flight_.erase(found);
  changed_.notify_all();
}

std::vector<Over> Ledger::Take(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !over_.empty() || closed_; });
  return std::exchange(over_, {});
}

std::vector<int> Ledger::Missing(uint64_t operation) const {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(operation);
  return found == in_flight_.end() ? std::vector<int>() : found->second.awaited;
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
