// Threads, their exceptions and interruption, and the choice of the instruction set.
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "checks.h"
#include "core/isa.h"
#include "core/parallel.h"

using namespace ntk_alibi;

void test_parallel_for_covers_everything_once() {
  for (int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (std::int64_t count : {0, 1, 2, 7, 1000}) {
      for (std::int64_t grain : {1, 3, 5000}) {
        std::vector<int> visits(count);
        parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, Cancellation&) {
          for (std::int64_t i = begin; i < end; ++i) ++visits[i];
        });
        bool once = true;
        for (int visited : visits) once = once && visited == 1;
        CHECK(once);
      }
    }
  }
  set_num_threads(0);
}

// Of exceptions in several threads one arrives, and later regions work.
void test_exceptions_leave_parallel_regions() {
  for (int threads : {1, 2, 8}) {
    set_num_threads(threads);
    for (std::int64_t failing : {0, 1, 99}) {
      std::atomic<int> begun{0};
      bool caught = false;
      try {
        for_each_task({100, 1, TaskOrder::neighbours_together}, {64, 64},
                      [&](std::int64_t task, void*, StopCheck) {
                        ++begun;
                        if (task >= failing) throw std::bad_alloc();
                      });
      } catch (const std::bad_alloc&) {
        caught = true;
      }
      CHECK(caught);
      CHECK(begun <= failing + threads);
    }
  }
  set_num_threads(0);
}

// The check runs on the calling thread, also while that one waits for the others.
void test_interrupts_stop_parallel_regions() {
  static std::thread::id caller;
  static std::atomic<int> checks;
  caller = std::this_thread::get_id(), checks = 0;
  set_interrupt_check([] {
    CHECK(std::this_thread::get_id() == caller);
    if (++checks == 2) throw std::runtime_error("interrupted");
  });
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    checks = 0;
    bool caught = false;
    try {
      parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t, Cancellation& cancellation) {
        // All ranges but the caller's, or the caller's if it is alone, would take for ever.
        while ((begin > 0 || threads == 1) && !cancellation.requested())
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught && checks == 2);
  }
  set_interrupt_check(nullptr);
  set_num_threads(0);
}

void test_unknown_isas_are_refused() {
  for (const char* name : {"", "mmx", "AVX2"}) {
    bool refused = false;
    try {
      select_isa(name);
    } catch (const std::invalid_argument& error) {
      refused = std::strstr(error.what(), "portable") != nullptr;
    }
    CHECK(refused);
  }
}
