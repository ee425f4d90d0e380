// The processor's flush-to-zero mode: results below float32's normal range become 0.
//
// Weights of far keys are that small, and so are their products. Intel's processors take sixty
// nanoseconds for each instruction that forms or reads a subnormal number. Inputs that are
// subnormal keep their values on x86; aarch64 has one mode for both, and reads them as 0.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ntk_alibi {

// Switches the mode of this thread on or off, until the object goes.
class FlushToZero {
 public:
  explicit FlushToZero(bool on) : before_(is_on()) { set(on); }
  ~FlushToZero() { set(before_); }
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;

 private:
  // Flags that operations raise meanwhile stay: only the mode's bit is changed.
#if defined(__x86_64__)
  static constexpr unsigned bit = 1u << 15;
  static bool is_on() { return (_mm_getcsr() & bit) != 0; }
  static void set(bool on) { _mm_setcsr(on ? _mm_getcsr() | bit : _mm_getcsr() & ~bit); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t bit = 1u << 24;
  static std::uint64_t control() {
    std::uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static bool is_on() { return (control() & bit) != 0; }
  static void set(bool on) {
    __asm__ volatile("msr fpcr, %0" ::"r"(on ? control() | bit : control() & ~bit));
  }
#else
  static bool is_on() { return false; }
  static void set(bool) {}
#endif

  const bool before_;
};

}  // namespace ntk_alibi
