// Stops the threads of a parallel region: after an exception in one of them, or on request.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>

#include "kernels/kernels.h"

namespace ntk_alibi {

// Called now and then on the thread that entered a parallel region. Throws to stop the region, for
// instance on Ctrl-C.
using InterruptCheck = void (*)();

// Sets the check of all later regions; null for none.
void set_interrupt_check(InterruptCheck check);

// The state of one parallel region.
class Cancellation {
 public:
  Cancellation();

  // Returns true once the threads must stop.
  bool requested() noexcept;

  // Stops the threads. rethrow() throws the current exception; of several, the first.
  void fail() noexcept;

  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

  // The same as requested(), for kernels.
  StopCheck for_kernels() noexcept;

 private:
  const std::thread::id caller_;
  std::int64_t next_check_;  // milliseconds
  std::atomic<bool> requested_{false}, has_exception_{false};
  std::exception_ptr exception_;
};

}  // namespace ntk_alibi
