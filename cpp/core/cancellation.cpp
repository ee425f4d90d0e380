#include "core/cancellation.h"

#include <time.h>

#include <chrono>

#include "core/flush_to_zero.h"

namespace ntk_alibi {
namespace {

// Between checks: short for a person, long for all that the check has to wait for.
constexpr std::int64_t check_interval_ms = 200;

// Threads ask for the time before each task, so it must cost little; some milliseconds do not
// matter.
std::int64_t milliseconds() {
#ifdef CLOCK_MONOTONIC_COARSE
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
#else
  using std::chrono::duration_cast;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return duration_cast<std::chrono::milliseconds>(now).count();
#endif
}

std::atomic<InterruptCheck> interrupt_check{nullptr};

}  // namespace

void set_interrupt_check(InterruptCheck check) { interrupt_check = check; }

Cancellation::Cancellation()
    : caller_(std::this_thread::get_id()), next_check_(milliseconds() + check_interval_ms) {}

bool Cancellation::requested() noexcept {
  if (requested_.load(std::memory_order_relaxed)) return true;
  if (std::this_thread::get_id() != caller_) return false;
  const std::int64_t now = milliseconds();
  if (now < next_check_) return false;
  try {
    const FlushToZero keeping(false);  // Python may run here
    if (const InterruptCheck check = interrupt_check) check();
  } catch (...) {
    fail();
  }
  next_check_ = now + check_interval_ms;
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
