// Gradients against float64 sums, and from several threads at once.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "call.h"
#include "checks.h"
#include "core/attention_gradient.h"
#include "core/parallel.h"

using namespace ntk_alibi;

namespace {

// A call and its gradients, with incoming gradients of the output and of the logsumexp.
struct GradientCall : Call {
  const std::int64_t queries, keys;
  std::vector<float> incoming;  // gradients of the output and of the logsumexp
  std::vector<float> results;   // gradients of queries, keys, values and left slopes
  AttentionGradients gradients{};

  GradientCall(std::int64_t query_length, std::int64_t key_length, bool masked)
      : Call(query_length, key_length, masked), queries(query_length), keys(key_length) {
    const std::int64_t rows = heads * queries;
    incoming.assign(inputs.rbegin(), inputs.rbegin() + rows * (dim + 1));
    results.resize(rows * dim + 2 * heads * keys * dim + rows);
    gradients.output_gradient = {incoming.data(), 0, queries * dim, dim};
    gradients.logsumexp_gradient = incoming.data() + rows * dim;
    gradients.query = {results.data(), 0, queries * dim, dim};
    gradients.key = {results.data() + rows * dim, 0, keys * dim, dim};
    gradients.value = {results.data() + (rows + heads * keys) * dim, 0, keys * dim, dim};
    gradients.slopes[0] = results.data() + (rows + 2 * heads * keys) * dim;
  }

  double bias(std::int64_t h, double distance) const {
    return -problem.bias.left.data[h] * distance;
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

// The results of a GradientCall by float64 sums, and the allowed error in units of float32. Inputs
// are below 1 and scores without bias below A = 4: a weight errs by (dim + 8 + 4) A and 4 |bias|
// units; the logsumexp by the mean of that, where |bias| is some nats; sums by 100.
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
    const float* const keys =
        call_.inputs.data() + h * call_.keys * dim;  // also the values and queries
    const float* const incoming = call_.incoming.data() + row * dim;
    std::vector<double> weights(seen), gradients(seen);
    double total = 0.0, mean = 0.0, size = 0.0;
    for (std::int64_t j = 0; j < seen; ++j) {
      if (!call_.mask.empty() && call_.mask[j] == 0) continue;
      const double bias = call_.bias(h, static_cast<double>(seen - 1 - j));
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
      const double error = weight * (400 - 4 * call_.bias(h, distance));
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

}  // namespace

// One caller gets the exact gradients; several callers at once all get the same bits.
void test_gradients() {
  for (const bool masked : {false, true}) {
    for (const auto& [queries, keys] : {std::pair{130, 300}, std::pair{40, 1100}}) {
      set_num_threads(1);
      GradientCall serial(queries, keys, masked);
      serial.run();
      const PlainGradients exact(serial);
      // Skipped keys weigh at most one unit of each query's sum; products are below dim.
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

// Far keys weigh less than any normal number, and so do their products with small values. The
// processor records whether an instruction has read a subnormal number.
void test_no_operand_is_subnormal() {
#if defined(__x86_64__)
  constexpr unsigned subnormal_operand = 2;
  static const float steep[Call::heads] = {8.0f, 0.7f, 0.05f};
  set_num_threads(1);
  for (const auto& [queries, keys] : {std::pair{1, 3000}, std::pair{40, 50}, std::pair{100, 3000}})
    for (const float size : {1.0f, 1e-25f}) {
      GradientCall call(queries, keys, false);
      std::vector<float> values = call.inputs;
      for (float& value : values) value *= size;
      for (float& number : call.incoming) number *= size;
      call.problem.value.data = values.data();
      call.problem.bias.left = call.problem.bias.right = {steep, 0, 1, 0};
      call.problem.skip_tolerance.reset();
      _mm_setcsr(_mm_getcsr() & ~subnormal_operand);
      call.run();
      CHECK((_mm_getcsr() & subnormal_operand) == 0);
    }
  set_num_threads(0);
#endif
}
