// The most float32 multiply-adds this machine does: independent chains in registers, in assembly so
// that no compiler can shorten them.
#include <chrono>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr double flops_per_round = 12 * 2 * 16;
#define ROUND(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define CLOBBERS \
  "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11"
#elif defined(__FMA__)
constexpr double flops_per_round = 12 * 2 * 8;
#define ROUND(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n"
#define CLOBBERS \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11"
#else
#error "no probe for this machine"
#endif

void work(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    asm volatile(ROUND(0) ROUND(1) ROUND(2) ROUND(3) ROUND(4) ROUND(5) ROUND(6) ROUND(7) ROUND(8)
                     ROUND(9) ROUND(10) ROUND(11)::
                         : CLOBBERS);
  }
}

}  // namespace

// Operations a second of `threads` threads.
extern "C" double fma_peak(int threads, long rounds) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back(work, rounds);
  for (std::thread& thread : pool) thread.join();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return flops_per_round * rounds * threads / elapsed.count();
}
