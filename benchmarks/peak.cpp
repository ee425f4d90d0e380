// Probes of the machine's peak speed. Multiply-adds (float32), dot products and matrices (bfloat16)
// run as independent chains in registers, written in assembly so that no compiler can shorten them.
// Another probe reads memory.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#define CHAINS(instruction)                                                                 \
  instruction(0) instruction(1) instruction(2) instruction(3) instruction(4) instruction(5) \
      instruction(6) instruction(7) instruction(8) instruction(9) instruction(10) instruction(11)

#if defined(__AVX512F__)
constexpr double fma_operations = 12 * 2 * 16;
#define MULTIPLY_ADD(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define ZERO(n) "vpxord %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n"
#define OPERANDS ZERO(30) ZERO(31)
#define CLOBBERS \
  "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11"
#elif defined(__FMA__)
constexpr double fma_operations = 12 * 2 * 8;
#define MULTIPLY_ADD(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n"
#define ZERO(n) "vxorps %%ymm" #n ", %%ymm" #n ", %%ymm" #n "\n"
#define OPERANDS ZERO(14) ZERO(15)
#define CLOBBERS \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11"
#else
constexpr double fma_operations = 0;  // no probe for this machine
#define MULTIPLY_ADD(n) ""
#define ZERO(n) ""
#define OPERANDS ""
#define CLOBBERS "memory"
#endif

#if defined(__AVX512BF16__)
constexpr double dot_operations = 2 * fma_operations;
#define DOT(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#else
constexpr double dot_operations = 0;
#define DOT(n) ""
#endif

// What other code left in the registers may be subnormal, which some processors multiply at a
// hundredth of their speed.
void set_registers() { asm volatile(CHAINS(ZERO) OPERANDS ::: CLOBBERS); }

void multiply_add(long rounds) {
  set_registers();
  for (long i = 0; i < rounds; ++i) asm volatile(CHAINS(MULTIPLY_ADD)::: CLOBBERS);
}

void dot(long rounds) {
  set_registers();
  for (long i = 0; i < rounds; ++i) asm volatile(CHAINS(DOT)::: CLOBBERS);
}

#if defined(__AMX_BF16__) && defined(__linux__)
constexpr double matrix_operations = 4 * 2 * 16 * 16 * 32;

void multiply_matrices(long rounds) {
  constexpr int request_permission = 0x1023, matrix_registers = 18;
  syscall(SYS_arch_prctl, request_permission, matrix_registers);
  struct alignas(64) Configuration {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16};
  } const configuration;  // which sets all registers to 0
  asm volatile("ldtilecfg %0" ::"m"(configuration));
  for (long i = 0; i < rounds; ++i)
    asm volatile(
        "tdpbf16ps %tmm5, %tmm4, %tmm0\n tdpbf16ps %tmm5, %tmm4, %tmm1\n"
        "tdpbf16ps %tmm5, %tmm4, %tmm2\n tdpbf16ps %tmm5, %tmm4, %tmm3\n");
  asm volatile("tilerelease");
}
#else
constexpr double matrix_operations = 0;
void multiply_matrices(long) {}
#endif

template <class Work>
double seconds(int threads, Work work) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back(work, i);
  for (std::thread& thread : pool) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

typedef unsigned Line __attribute__((vector_size(64)));

// Reads all lines by a bitwise OR, with several accumulators to hide latency.
void read(const Line* begin, const Line* end, Line* result) {
  Line bits[8] = {};
  for (; end - begin >= 8; begin += 8) {
    for (int i = 0; i < 8; ++i) bits[i] |= begin[i];
  }
  *result = bits[0];
  for (int i = 1; i < 8; ++i) *result |= bits[i];
}

}  // namespace

// Returns operations per second of `threads` threads, or 0 if there is no probe.
extern "C" double fma_peak(int threads, long rounds) {
  if (fma_operations == 0) return 0;
  return fma_operations * rounds * threads / seconds(threads, [=](int) { multiply_add(rounds); });
}

extern "C" double bf16_dot_peak(int threads, long rounds) {
  if (dot_operations == 0) return 0;
  return dot_operations * rounds * threads / seconds(threads, [=](int) { dot(rounds); });
}

extern "C" double bf16_matrix_peak(int threads, long rounds) {
  if (matrix_operations == 0) return 0;
  return matrix_operations * rounds * threads /
         seconds(threads, [=](int) { multiply_matrices(rounds); });
}

// Returns bytes per second, the best of `passes` over a buffer that is split between the threads.
extern "C" double read_peak(int threads, long bytes, int passes) {
  const std::size_t lines = bytes / sizeof(Line) / threads;
  std::vector<std::vector<Line>> parts(threads);
  std::vector<Line> results(threads);
  seconds(threads, [&](int i) { parts[i].assign(lines, Line{}); });
  double best = 1e9;
  for (int pass = 0; pass < passes; ++pass) {
    best = std::min(best, seconds(threads, [&](int i) {
                      read(parts[i].data(), parts[i].data() + lines, &results[i]);
                    }));
  }
  asm volatile("" ::"r"(results.data()) : "memory");  // keeps the reads from being optimised away
  return static_cast<double>(lines * sizeof(Line)) * threads / best;
}
