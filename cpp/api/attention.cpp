// Checks the arguments of the public interface and passes them to the core.
#include "ntk_alibi/attention.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/attention.h"
#include "core/slopes.h"

namespace ntk_alibi {
namespace {

constexpr std::int64_t greatest_head_dim = 256;
constexpr std::int64_t greatest_length = int32_max;

template <class Number>
[[noreturn]] void refuse(const std::string& name, const std::string& expected, Number got) {
  throw std::invalid_argument(name + " must be " + expected + ", got " + std::to_string(got));
}

void check_integer(const char* name, std::int64_t value, std::int64_t least,
                   std::int64_t greatest = greatest_length) {
  if (value < least || value > greatest)
    refuse(name, std::to_string(least) + " to " + std::to_string(greatest), value);
}

void check_sizes(const AttentionArguments& a) {
  check_integer("batch", a.batch, 0);
  check_integer("query_heads", a.query_heads, 1);
  check_integer("key_heads", a.key_heads, 1);
  if (a.query_heads % a.key_heads != 0)
    refuse("query_heads", "a multiple of key_heads " + std::to_string(a.key_heads), a.query_heads);
  check_integer("query_length", a.query_length, 0);
  check_integer("key_length", a.key_length, 0);
  check_integer("head_dim", a.head_dim, 1, greatest_head_dim);
  if (a.query_length > a.key_length)
    refuse("query_length", "at most key_length " + std::to_string(a.key_length), a.query_length);
}

void check_data(const char* name, const void* data, std::int64_t rows) {
  if (data == nullptr && rows > 0)
    throw std::invalid_argument(std::string(name) + " must have data, got a null pointer");
}

void check_numbers(const AttentionArguments& a) {
  if (a.scale && *a.scale != 0.0f && !std::isnormal(*a.scale))
    refuse("scale", "0 or within float32's range", *a.scale);
  for (std::int64_t h = 0; a.slopes != nullptr && h < a.query_heads; ++h)
    if (!std::isfinite(a.slopes[h]))
      refuse("slopes[" + std::to_string(h) + "]", "finite", a.slopes[h]);
  // Written so that NaN is refused, too.
  if (a.skip_tolerance && !(*a.skip_tolerance >= 0.0 && *a.skip_tolerance < 1.0))
    refuse("skip_tolerance", "at least 0 and below 1", *a.skip_tolerance);
}

void check_mask(const AttentionArguments& a) {
  if (a.window) check_integer("window", *a.window, 1);
  check_integer("sink", a.sink, 0);
  if (!a.causal_block) return;
  check_integer("causal_block", *a.causal_block, 1);
  if (!a.causal) throw std::invalid_argument("causal must be true with causal_block, got false");
}

DType dtype_of(ElementType type) {
  switch (type) {
    case ElementType::float32: return DType::float32;
    case ElementType::bfloat16: return DType::bfloat16;
    case ElementType::float16: return DType::float16;
  }
  refuse("element_type", "float32, bfloat16 or float16", static_cast<int>(type));
}

// The core writes to the output alone.
TensorView view(const Rows<const void>& rows) {
  return {const_cast<void*>(rows.data), rows.batch_stride, rows.head_stride, rows.row_stride};
}

}  // namespace

void attention(const AttentionArguments& a) {
  check_sizes(a);
  check_numbers(a);
  check_mask(a);
  const DType dtype = dtype_of(a.element_type);
  const std::int64_t queries = a.batch * a.query_length, keys = a.batch * a.key_length;
  check_data("query", a.query.data, queries);
  check_data("key", a.key.data, keys);
  check_data("value", a.value.data, keys);
  check_data("output", a.output.data, queries);

  AttentionProblem problem{};
  problem.dtype = dtype;
  problem.query = view(a.query), problem.key = view(a.key), problem.value = view(a.value);
  problem.output = {a.output.data, a.output.batch_stride, a.output.head_stride,
                    a.output.row_stride};
  problem.logsumexp = a.logsumexp;
  problem.batch = a.batch;
  problem.query_heads = a.query_heads, problem.key_heads = a.key_heads;
  problem.query_length = a.query_length, problem.key_length = a.key_length;
  problem.head_dim = a.head_dim;
  problem.scale = a.scale.value_or(1.0f / std::sqrt(static_cast<float>(a.head_dim)));
  problem.key_mask = a.key_padding_mask;
  problem.mask = {a.causal, a.window.value_or(int32_max), a.causal_block.value_or(0), a.sink};
  if (a.slopes != nullptr) {
    problem.bias.kind = BiasKind::two_sided;
    problem.bias.left = problem.bias.right = {a.slopes, 0, 1, 0};
  }
  problem.skip_tolerance = a.skip_tolerance;
  attention(problem);
}

std::vector<float> alibi_slopes(std::int64_t num_heads) {
  check_integer("num_heads", num_heads, 1);
  std::vector<double> exponents(num_heads);
  alibi_exponents(num_heads, SlopeRule::press, exponents.data());
  std::vector<float> slopes;
  for (const double exponent : exponents)
    slopes.push_back(static_cast<float>(std::exp2(-exponent)));
  return slopes;
}

}  // namespace ntk_alibi
