// What Python cannot see: the vector layer and the 16-bit formats of every ISA against plain scalar
// code, dispatch errors, and that parallel ranges cover everything once.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/attention.h"
#include "core/attention_gradient.h"
#include "core/bias_tensor.h"
#include "core/isa.h"
#include "core/parallel.h"
#include "core/slopes.h"

using namespace ntk_alibi;

namespace {

int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                               \
    }                                                                           \
  } while (false)

// Values of the 16-bit formats by their definition, and rounding by search for the nearest.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

std::uint16_t nearest_even(float x, int exponent_bits, int mantissa_bits) {
  const std::uint16_t infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  int low = 0,
      high =
          infinity;  // positive patterns are ordered like their values; infinity counts as 2^emax+1
  const double magnitude = std::fabs(static_cast<double>(x));
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value_of(middle, exponent_bits, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(low, exponent_bits, mantissa_bits);
  const double above = value_of(high, exponent_bits, mantissa_bits) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return sign | (up ? high : low);
}

std::vector<float> hard_floats() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x7f80; ++high) {  // every bfloat16 and what lies around it
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1000u,
                              0x0fffu, 0x2fffu, 0x3000u}) {
      const std::uint32_t bits = high << 16 | low;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
    }
  }
  return values;
}

void test_sixteen_bit_formats() {
  const std::vector<float> values = hard_floats();
  const std::int64_t count = values.size();
  std::vector<std::uint16_t> out(count);
  const SlopeView slopes{values.data(), 0, 1, 0};
  for (int sign = 0; sign < 2; ++sign) {
    // Each head one value: position 1 of a two-key row, or the key one behind the query.
    const std::uint8_t mask[] = {1, 1};
    for (DType dtype : {DType::bfloat16, DType::float16}) {
      const int exponent_bits = dtype == DType::bfloat16 ? 8 : 5,
                mantissa_bits = 15 - exponent_bits;
      std::vector<std::uint16_t> pairs(2 * count);
      if (sign == 0) {
        key_bias({1, count, 2}, mask, slopes, Anchor::first, dtype, pairs.data());
      } else {
        relative_bias({1, count, 1, 2}, slopes, slopes, dtype, pairs.data());
      }
      int wrong = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const float exact = sign == 0 ? values[i] : -values[i];
        wrong += pairs[2 * i + (sign == 0)] != nearest_even(exact, exponent_bits, mantissa_bits);
      }
      CHECK(wrong == 0);
    }
  }
}

void test_rows_of_every_length_and_alignment() {
  for (std::int64_t length = 0; length < 70; ++length) {
    for (int offset = 0; offset < 17; ++offset) {
      std::vector<float> out(length + 40, 7.0f);
      const float slope = 0.5f;
      relative_bias({1, 1, 1, length}, {&slope, 0, 0, 0}, {&slope, 0, 0, 0}, DType::float32,
                    out.data() + offset);
      bool right = true;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i) {
        const std::int64_t k = i - offset;
        const float expected = k < 0 || k >= length ? 7.0f : -0.5f * (length - 1 - k);
        right = right && out[i] == expected;
      }
      CHECK(right);
    }
  }
}

// Causal attention of one head with slope 1/16 against plain float64 sums; Python tests the rest.
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
    problem.head_dim = dim;
    problem.scale = static_cast<float>(scale);
    problem.mask = {true, std::numeric_limits<std::int32_t>::max(), 0, 0};
    problem.bias.kind = BiasKind::two_sided;
    problem.bias.left = problem.bias.right = {slopes, 0, 0, 0};
    problem.skip_tolerance = std::ldexp(1.0, -24);
    attention(problem);
    // Values are below 1: the rounding of the result and some units of float32.
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

// One problem with everything that calls could share: keys, masks, statistics, parts of keys.
struct Call {
  static constexpr std::int64_t heads = 3, dim = 20;
  std::vector<float> numbers, output, logsumexp;
  std::vector<std::uint8_t> mask;
  std::vector<std::int64_t> counts;
  AttentionProblem problem{};

  Call(std::int64_t queries, std::int64_t keys, bool masked) {
    static const float slopes[heads] = {0.5f, 0.03f, 0.002f};
    numbers.resize(heads * keys * dim);
    std::uint32_t state = 7;
    for (float& number : numbers) {
      state = state * 1664525u + 1013904223u;
      number = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
    }
    output.resize(heads * queries * dim);
    logsumexp.resize(heads * queries);
    counts.resize(2 * heads);
    const TensorView view{numbers.data(), 0, keys * dim, dim};
    problem.dtype = DType::float32;
    problem.query = problem.key = problem.value = view;
    problem.output = {output.data(), 0, queries * dim, dim};
    problem.logsumexp = logsumexp.data();
    problem.batch = 1;
    problem.query_heads = problem.key_heads = heads;
    problem.query_length = queries;
    problem.key_length = keys;
    problem.head_dim = dim;
    problem.scale = 0.2f;
    problem.mask = {true, std::numeric_limits<std::int32_t>::max(), 0, 0};
    problem.bias.kind = BiasKind::two_sided;
    problem.bias.left = problem.bias.right = {slopes, 0, 1, 0};
    problem.skip_tolerance = std::ldexp(1.0, -24);
    problem.block_counts = counts.data();
    if (!masked) return;
    mask.assign(keys, 1);
    for (std::int64_t k = 0; k < keys; k += 5) mask[k] = 0;
    problem.key_mask = mask.data();
  }
};

// For ThreadSanitizer, too: several threads call, and each call has threads of its own.
void test_callers_at_once() {
  for (const bool masked : {false, true}) {
    for (const auto& [queries, keys] : {std::pair{130, 300}, std::pair{2, 9000}}) {
      set_num_threads(1);
      Call serial(queries, keys, masked);
      attention(serial.problem);
      set_num_threads(3);
      std::vector<Call> calls;
      for (int i = 0; i < 4; ++i) calls.emplace_back(queries, keys, masked);
      std::vector<std::thread> callers;
      for (int i = 0; i < 4; ++i) {
        // All read the same keys and mask, and write what is theirs.
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

// A call and the gradients of all it reads, for gradients that come in for all it returns.
struct GradientCall : Call {
  const std::int64_t queries, keys;
  std::vector<float> incoming;  // of the output, of the logsumexp
  std::vector<float> results;   // of queries, keys, values and left slopes
  AttentionGradients gradients{};

  GradientCall(std::int64_t query_length, std::int64_t key_length, bool masked)
      : Call(query_length, key_length, masked), queries(query_length), keys(key_length) {
    const std::int64_t rows = heads * queries;
    incoming.assign(numbers.rbegin(), numbers.rbegin() + rows * (dim + 1));
    results.resize(rows * dim + 2 * heads * keys * dim + rows);
    gradients.output_gradient = {incoming.data(), 0, queries * dim, dim};
    gradients.logsumexp_gradient = incoming.data() + rows * dim;
    gradients.query = {results.data(), 0, queries * dim, dim};
    gradients.key = {results.data() + rows * dim, 0, keys * dim, dim};
    gradients.value = {results.data() + (rows + heads * keys) * dim, 0, keys * dim, dim};
    gradients.left_slopes = results.data() + (rows + 2 * heads * keys) * dim;
  }

  void run() {
    attention(problem);
    attention_gradients(problem, gradients);
  }
};

double product(const float* a, const float* b) {
  double sum = 0.0;
  for (int d = 0; d < Call::dim; ++d) sum += static_cast<double>(a[d]) * b[d];
  return sum;
}

double magnitude(const float* a, const float* b) {
  double sum = 0.0;
  for (int d = 0; d < Call::dim; ++d) sum += std::fabs(static_cast<double>(a[d]) * b[d]);
  return sum;
}

// The results of a GradientCall by plain float64 sums, and by how many units of float32 others may
// differ. Numbers are below 1 and scores without bias below A = 4: a weight errs by (dim + 8 + 4) A
// and 4 |bias| units; the logsumexp by the mean of that, in which |bias| is some nats; sums by 100.
class PlainGradients {
 public:
  explicit PlainGradients(const GradientCall& call)
      : results(call.results.size()), units(call.results.size()), call_(call) {
    for (std::int64_t h = 0; h < Call::heads; ++h)
      for (std::int64_t i = 0; i < call.queries; ++i) add_row(h, i);
  }

  std::vector<double> results, units;

 private:
  void add_row(std::int64_t h, std::int64_t i) {
    constexpr std::int64_t dim = Call::dim;
    const std::int64_t row = h * call_.queries + i, seen = call_.keys - call_.queries + i + 1;
    const float* const keys = call_.numbers.data() + h * call_.keys * dim;  // and values, queries
    const float* const incoming = call_.incoming.data() + row * dim;
    std::vector<double> weights(seen), gradients(seen);
    double total = 0.0, mean = 0.0, size = 0.0;
    for (std::int64_t j = 0; j < seen; ++j) {
      if (!call_.mask.empty() && call_.mask[j] == 0) continue;
      const double bias = -call_.problem.bias.left.data[h] * static_cast<double>(seen - 1 - j);
      weights[j] = std::exp(call_.problem.scale * product(keys + i * dim, keys + j * dim) + bias);
      gradients[j] = product(incoming, keys + j * dim);
      total += weights[j];
      mean += weights[j] * gradients[j];
      size += weights[j] * magnitude(incoming, keys + j * dim);
    }
    const double log_gradient = call_.gradients.logsumexp_gradient[row];
    const std::int64_t left = (Call::heads * (call_.queries + 2 * call_.keys)) * dim + row;
    for (std::int64_t j = 0; j < seen; ++j) {
      const double distance = static_cast<double>(seen - 1 - j), weight = weights[j] / total;
      const double error = weight * (400 + 4 * call_.problem.bias.left.data[h] * distance);
      const double gradient = weight * (gradients[j] - mean / total + log_gradient);
      const double gradient_error =
          error * (magnitude(incoming, keys + j * dim) + size / total + std::fabs(log_gradient));
      add(left, gradient, -distance, gradient_error);
      for (std::int64_t d = 0; d < dim; ++d) {
        const std::int64_t query = row * dim + d;
        const std::int64_t key = (Call::heads * call_.queries + h * call_.keys + j) * dim + d;
        add(query, gradient, call_.problem.scale * keys[j * dim + d], gradient_error);
        add(key, gradient, call_.problem.scale * keys[i * dim + d], gradient_error);
        add(key + Call::heads * call_.keys * dim, weight, incoming[d], error);
      }
    }
  }

  void add(std::int64_t n, double factor, double other, double error) {
    results[n] += factor * other;
    units[n] += error * std::fabs(other);
  }

  const GradientCall& call_;
};

// Of one caller, and of several at once, which all get the same bits.
void test_gradients() {
  for (const bool masked : {false, true}) {
    for (const auto& [queries, keys] : {std::pair{130, 300}, std::pair{40, 1100}}) {
      set_num_threads(1);
      GradientCall serial(queries, keys, masked);
      serial.run();
      const PlainGradients exact(serial);
      // What is skipped weighs no more than a unit for each query; products are below dim.
      const double unit = std::ldexp(1.0, -24), most = 2 * Call::dim + 1;
      int wrong = 0;
      for (std::size_t n = 0; n < exact.results.size(); ++n) {
        const bool slope = n >= exact.results.size() - Call::heads * queries;
        const double allowed = unit * (exact.units[n] + most * (slope ? keys : queries));
        wrong += !(std::fabs(serial.results[n] - exact.results[n]) <= allowed);
      }
      CHECK(wrong == 0);

      set_num_threads(3);
      std::vector<GradientCall> calls;
      for (int i = 0; i < 4; ++i) calls.emplace_back(queries, keys, masked);
      std::vector<std::thread> callers;
      for (int i = 0; i < 4; ++i) {
        AttentionProblem& problem = calls[i].problem;
        problem.query = problem.key = problem.value = serial.problem.query;
        problem.key_mask = serial.problem.key_mask;
        callers.emplace_back([&call = calls[i], i] {
          set_num_threads(2 + i % 2);
          call.run();
        });
      }
      for (std::thread& caller : callers) caller.join();
      for (const GradientCall& call : calls) CHECK(call.results == serial.results);
    }
  }
  set_num_threads(0);
}

void test_parallel_for_covers_everything_once() {
  for (int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (std::int64_t count : {0, 1, 2, 7, 1000}) {
      for (std::int64_t grain : {1, 3, 5000}) {
        std::vector<int> visits(count);
        parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
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

void test_exponents() {
  double exponents[12];
  alibi_exponents(12, SlopeRule::press, exponents);
  CHECK(exponents[0] == 1.0 && exponents[7] == 8.0 && exponents[8] == 0.5 && exponents[11] == 3.5);
  alibi_exponents(12, SlopeRule::geometric, exponents);
  CHECK(exponents[11] == 8.0 && exponents[2] == 2.0);
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

}  // namespace

int main() {
  test_parallel_for_covers_everything_once();
  test_exponents();
  test_unknown_isas_are_refused();
  for (const std::string& isa : available_isas()) {
    select_isa(isa);
    std::printf("%s\n", isa.c_str());
    test_sixteen_bit_formats();
    test_rows_of_every_length_and_alignment();
    test_attention();
    test_callers_at_once();
    test_gradients();
  }
  std::printf(failures ? "%d failures\n" : "all tests passed\n", failures);
  return failures != 0;
}
