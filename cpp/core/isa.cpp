#include "core/isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <syscall.h>
#include <unistd.h>
#endif

namespace ntk_alibi {

#define NTK_ALIBI_DECLARE_KERNELS(isa)   \
  namespace isa {                        \
  extern const KernelTable kernel_table; \
  }
#ifdef NTK_ALIBI_HAS_neon
NTK_ALIBI_DECLARE_KERNELS(neon)
namespace portable = neon;  // every aarch64 has it
#else
NTK_ALIBI_DECLARE_KERNELS(portable)
#endif
#ifdef NTK_ALIBI_HAS_avx2
NTK_ALIBI_DECLARE_KERNELS(avx2)
#endif
#ifdef NTK_ALIBI_HAS_avx512
NTK_ALIBI_DECLARE_KERNELS(avx512)
#endif
#ifdef NTK_ALIBI_HAS_avx512_bf16
NTK_ALIBI_DECLARE_KERNELS(avx512_bf16)
#endif
#ifdef NTK_ALIBI_HAS_amx
NTK_ALIBI_DECLARE_KERNELS(amx)
#endif
#undef NTK_ALIBI_DECLARE_KERNELS

namespace {

struct Isa {
  const char* name;
  bool (*runs_here)();
  const KernelTable* kernels;
  bool (*is_fast_here)() = [] { return true; };  // else it is used only where it is asked for
};

bool always() { return true; }

#if defined(__x86_64__)
// What the processor has (the bits of a leaf of cpuid) and the system saves. It is asked here,
// since
// __builtin_cpu_supports needs a library of the compiler's that clang-cl does not link, and says no
// to everything in zig's.
struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
  explicit Leaf(unsigned leaf, unsigned subleaf = 0) {
    __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d);
  }
};

constexpr bool has_all(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

bool system_saves(unsigned registers) {
  constexpr unsigned xgetbv_is_there = 1u << 27;
  if (!has_all(Leaf(1).c, xgetbv_is_there)) return false;
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has_all(low, registers);
}

[[maybe_unused]] bool has_avx2() {
  constexpr unsigned fma = 1u << 12, f16c = 1u << 29, avx2 = 1u << 5, xmm_and_ymm = 0x6;
  return has_all(Leaf(1).c, fma | f16c) && has_all(Leaf(7).b, avx2) && system_saves(xmm_and_ymm);
}
[[maybe_unused]] bool has_avx512() {
  constexpr unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
#if defined(__APPLE__)
  constexpr unsigned masks_and_zmm = 0;  // which macOS begins to save when they are first used
#else
  constexpr unsigned masks_and_zmm = 0xe0;
#endif
  return has_avx2() && has_all(Leaf(7).b, f | dq | bw | vl) && system_saves(masks_and_zmm);
}
[[maybe_unused]] bool has_avx512_bf16() {
  constexpr unsigned bf16 = 1u << 5;
  return has_avx512() && has_all(Leaf(7, 1).a, bf16);
}

// Intel's processors start a dot product of pairs every second cycle, and two multiply-adds in
// each: half the operations of float32 (measured on Sapphire Rapids). AMD's do twice as many as
// in float32. Asking the vendor, and not a clock, gives every process on a machine the same bits.
[[maybe_unused]] bool has_fast_pairs() { return std::string(cpu_vendor()) != "intel"; }
#endif

#if defined(NTK_ALIBI_EMULATE_AMX)
bool has_amx() { return true; }
bool has_registers() { return false; }
#elif defined(NTK_ALIBI_HAS_amx)
// The processor has matrix registers for bfloat16, and the system saves them. Linux gives them to a
// process that asks; it refuses where a thread has a stack for signals that would be too small.
bool asks_for_amx() {
  constexpr int request_permission = 0x1023, matrix_registers = 18;
  constexpr unsigned bfloat16_products = 1u << 22, registers = 1u << 24;
  return has_avx512() && has_all(Leaf(7).d, bfloat16_products | registers) &&
         syscall(SYS_arch_prctl, request_permission, matrix_registers) == 0;
}
bool has_amx() {
  static const bool granted = asks_for_amx();
  return granted;
}
bool has_registers() { return true; }
#endif

// Plainest first. The last one that this machine runs fast is the default.
const Isa compiled_isas[] = {
    {"portable", always, &portable::kernel_table},
#ifdef NTK_ALIBI_HAS_avx2
    {"avx2", has_avx2, &avx2::kernel_table},
#endif
#ifdef NTK_ALIBI_HAS_avx512
    {"avx512", has_avx512, &avx512::kernel_table},
#endif
#ifdef NTK_ALIBI_HAS_avx512_bf16
    {"avx512_bf16", has_avx512_bf16, &avx512_bf16::kernel_table, has_fast_pairs},
#endif
#ifdef NTK_ALIBI_HAS_amx
    {"amx", has_amx, &amx::kernel_table, has_registers},
#endif
#ifdef NTK_ALIBI_HAS_neon
    {"neon", always, &neon::kernel_table},
#endif
};

// Returns the ISA of a name. Throws std::invalid_argument for one that this machine cannot run.
const Isa* named_isa(const std::string& name) {
  std::string choices;
  for (const Isa& isa : compiled_isas) {
    if (!isa.runs_here()) continue;
    if (name == isa.name) return &isa;
    choices += choices.empty() ? "" : ", ";
    choices += isa.name;
  }
  throw std::invalid_argument("NTK_ALIBI_ISA must be one of " + choices +
                              " on this machine, got '" + name + "'");
}

const Isa* best_isa() {
  const Isa* best = nullptr;
  for (const Isa& isa : compiled_isas) {
    if (isa.runs_here() && isa.is_fast_here()) best = &isa;
  }
  return best;
}

// The choice of the environment, which is read once, or the best.
const Isa* first_isa() {
  const char* name = std::getenv("NTK_ALIBI_ISA");
  return name != nullptr && *name != '\0' ? named_isa(name) : best_isa();
}

std::atomic<const Isa*>& active() {
  static std::atomic<const Isa*> isa{first_isa()};
  return isa;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : compiled_isas) {
    if (isa.runs_here()) names.push_back(isa.name);
  }
  return names;
}

const char* active_isa() { return active().load()->name; }

void select_isa(const std::string& name) { active() = named_isa(name); }

const KernelTable& active_kernels() { return *active().load()->kernels; }

const char* cpu_vendor() {
#if defined(__x86_64__)
  const Leaf name(0);
  const unsigned words[] = {name.b, name.d, name.c};
  if (std::memcmp(words, "GenuineIntel", sizeof words) == 0) return "intel";
  if (std::memcmp(words, "AuthenticAMD", sizeof words) == 0) return "amd";
#endif
  return "other";
}

}  // namespace ntk_alibi
