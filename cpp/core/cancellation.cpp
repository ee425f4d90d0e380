#include "core/cancellation.h"

namespace ntk_alibi {
namespace {

// Between checks: short for a person, long for whatever the check has to wait for.
constexpr std::chrono::milliseconds check_interval{200};

std::atomic<InterruptCheck> interrupt_check{nullptr};

}  // namespace

void set_interrupt_check(InterruptCheck check) { interrupt_check = check; }

Cancellation::Cancellation()
    : caller_(std::this_thread::get_id()),
      next_check_(std::chrono::steady_clock::now() + check_interval) {}

bool Cancellation::requested() noexcept {
  if (requested_.load(std::memory_order_relaxed)) return true;
  if (std::this_thread::get_id() != caller_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_check_) return false;
  try {
    if (const InterruptCheck check = interrupt_check) check();
  } catch (...) {
    fail();
  }
  next_check_ = now + check_interval;
  return requested_.load(std::memory_order_relaxed);
}

void Cancellation::fail() noexcept {
  if (!has_exception_.exchange(true)) exception_ = std::current_exception();
  requested_.store(true, std::memory_order_relaxed);
}

StopCheck Cancellation::for_kernels() noexcept {
  return {[](void* context) { return static_cast<Cancellation*>(context)->requested(); }, this};
}

}  // namespace ntk_alibi
