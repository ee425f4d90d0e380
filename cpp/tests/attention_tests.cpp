// Attention against float64 sums, and from several threads at once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "call.h"
#include "checks.h"
#include "core/attention.h"
#include "core/isa.h"
#include "core/parallel.h"
#include "formats.h"

using namespace ntk_alibi;

// Causal attention of one head with slope 1/16 against float64 sums.
// Python tests the other cases.
void test_attention() {
  constexpr std::int64_t length = 150, dim = 21;
  constexpr double scale = 0.25, slope = 0.0625;
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const int exponent_bits = dtype == DType::bfloat16 ? 8 : 5, mantissa_bits = 15 - exponent_bits;
    std::vector<float> wide(3 * length * dim), out_wide(length * dim);
    std::vector<std::uint16_t> narrow(wide.size()), out_narrow(length * dim);
    std::vector<double> exact(wide.size());
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      state = state * 1664525u + 1013904223u;
      wide[i] = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
      narrow[i] = nearest_even(wide[i], exponent_bits, mantissa_bits);
      exact[i] =
          dtype == DType::float32 ? wide[i] : value_of(narrow[i], exponent_bits, mantissa_bits);
    }
    const auto view = [&](int part) {
      void* data = dtype == DType::float32 ? static_cast<void*>(wide.data() + part * length * dim)
                                           : narrow.data() + part * length * dim;
      return TensorView{data, 0, 0, dim};
    };
    const float slopes[] = {static_cast<float>(slope)};
    AttentionProblem problem{};
    problem.dtype = dtype;
    problem.query = view(0), problem.key = view(1), problem.value = view(2);
    problem.output = {
        dtype == DType::float32 ? static_cast<void*>(out_wide.data()) : out_narrow.data(), 0, 0,
        dim};
    problem.batch = problem.query_heads = problem.key_heads = 1;
    problem.query_length = problem.key_length = length;
    problem.query_pitch = problem.key_pitch = length;
    problem.head_dim = dim;
    problem.scale = static_cast<float>(scale);
    problem.mask = {true, std::numeric_limits<std::int32_t>::max(), 0, 0};
    problem.bias.kind = BiasKind::two_sided;
    problem.bias.left = problem.bias.right = {slopes, 0, 0, 0};
    attention(problem);
    // Values are below 1: we allow the rounding of the result and some units of float32.
    const double allowed =
        (dtype == DType::float32 ? 0.0 : std::ldexp(1.0, -mantissa_bits - 1)) + 2e-6;
    int wrong = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      std::vector<double> sum(dim);
      double total = 0.0;
      for (std::int64_t j = 0; j <= i; ++j) {
        double dot = 0.0;
        for (std::int64_t d = 0; d < dim; ++d)
          dot += exact[i * dim + d] * exact[(length + j) * dim + d];
        const double weight = std::exp(scale * dot - slope * static_cast<double>(i - j));
        total += weight;
        for (std::int64_t d = 0; d < dim; ++d) sum[d] += weight * exact[(2 * length + j) * dim + d];
      }
      for (std::int64_t d = 0; d < dim; ++d) {
        const double got = dtype == DType::float32
                               ? out_wide[i * dim + d]
                               : value_of(out_narrow[i * dim + d], exponent_bits, mantissa_bits);
        wrong += !(std::fabs(got - sum[d] / total) <= allowed);
      }
    }
    CHECK(wrong == 0);
  }
}

float value_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The kernels' 2^x, exactly: merging gives a part its output times 2^maximum here, since the other
// part has all of the sum.
float exp2_of_kernels(float x) {
  float outputs[] = {1.0f, 0.0f}, result;
  bool weightless;
  const DecodePart parts[] = {{x, std::ldexp(1.0f, -60), outputs, {}, 0.0, false},
                              {0.0f, 1.0f, outputs + 1, {}, 0.0, false}};
  AttentionTile tile{};
  tile.dtype = DType::float32;
  tile.head_dim = 1;
  tile.output = &result;
  tile.weightless = &weightless;
  alignas(64) float scratch[16];
  active_kernels().merge_parts(tile, parts, 2, scratch);
  return result;
}

// Values from 0 down to -140, many of each exponent, against float64.
void test_exp2() {
  constexpr std::uint32_t negative_zero = 0x80000000u, stride = 2039;
  constexpr float least_normal_power = -126.0f;
  int wrong = 0;
  for (std::uint32_t bits = negative_zero; value_of_bits(bits) >= -140.0f; bits += stride) {
    const float x = value_of_bits(bits);
    const double exact = std::exp2(static_cast<double>(x)), got = exp2_of_kernels(x);
    const double rounding = x < least_normal_power ? std::ldexp(1.0, -150) : 0.0;
    const bool near = std::fabs(got - exact) <= 1.3e-7 * exact + rounding;
    wrong += !(near || (x < least_normal_power && got == 0.0));
  }
  CHECK(wrong == 0);
  CHECK(exp2_of_kernels(0.0f) == 1.0f);
  CHECK(exp2_of_kernels(-std::numeric_limits<float>::infinity()) == 0.0f);
  CHECK(exp2_of_kernels(-1e30f) == 0.0f);
  CHECK(std::isnan(exp2_of_kernels(std::numeric_limits<float>::quiet_NaN())));
}

// How many blocks are scored, and how many are visible, over all heads.
std::pair<std::int64_t, std::int64_t> blocks_read(std::optional<double> skip_tolerance) {
  Call call(130, 2000, false);
  call.problem.skip_tolerance = skip_tolerance;
  attention(call.problem);
  std::pair<std::int64_t, std::int64_t> read{0, 0};
  for (std::int64_t head = 0; head < Call::heads; ++head) {
    read.first += call.counts[kinds_of_counts * head];
    read.second += call.counts[kinds_of_counts * head + 1];
  }
  return read;
}

// It means the same as Python's argument; tests/fused/test_skipping.py tests it there.
void test_skip_tolerance() {
  const auto [none_scored, none_visible] = blocks_read(std::nullopt);
  const auto [zero_scored, zero_visible] = blocks_read(0.0);
  const auto [rounding_scored, rounding_visible] = blocks_read(std::ldexp(1.0, -24));
  const auto [coarse_scored, coarse_visible] = blocks_read(std::ldexp(1.0, -9));
  CHECK(none_scored == none_visible);
  CHECK(zero_scored < zero_visible && zero_scored == rounding_scored);
  CHECK(coarse_scored < zero_scored);
  CHECK(none_visible == zero_visible && none_visible == rounding_visible &&
        none_visible == coarse_visible);
}

// Several threads call, and each call has threads of its own: ThreadSanitizer runs this test, too.
void test_callers_at_once() {
  for (const bool masked : {false, true}) {
    for (const auto& [queries, keys] :
         {std::pair{130, 300}, std::pair{2, 9000}, std::pair{21, 60}, std::pair{1, 3}}) {
      set_num_threads(1);
      Call serial(queries, keys, masked);
      attention(serial.problem);
      set_num_threads(3);
      std::vector<Call> calls;
      for (int i = 0; i < 4; ++i) calls.emplace_back(queries, keys, masked);
      std::vector<std::thread> callers;
      for (int i = 0; i < 4; ++i) {
        // All callers read the same keys and mask; each writes its own results.
        AttentionProblem& problem = calls[i].problem;
        problem.query = problem.key = problem.value = serial.problem.query;
        problem.key_mask = serial.problem.key_mask;
        problem.output.data = calls[i].output.data();
        problem.logsumexp = calls[i].logsumexp.data();
        problem.block_counts = calls[i].counts.data();
        callers.emplace_back([&problem, i] {
          set_num_threads(2 + i % 2);
          attention(problem);
        });
      }
      for (std::thread& caller : callers) caller.join();
      for (const Call& call : calls) {
        CHECK(call.output == serial.output && call.logsumexp == serial.logsumexp);
        CHECK(call.counts == serial.counts);
      }
    }
  }
  set_num_threads(0);
}
