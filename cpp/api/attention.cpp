// Checks the arguments of the public interface and passes them to the core.
#include "ntk_alibi/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "core/attention.h"
#include "core/block_mask.h"
#include "core/constants.h"

namespace ntk_alibi {
namespace {

constexpr std::int64_t greatest_length = int32_max;
constexpr std::int64_t greatest_head_count = 1 << 20;  // of alibi_slopes, which allocates them

// Of an array, in elements: its bytes, and sums of a few such sizes, are below 2^63.
constexpr std::int64_t greatest_size = std::int64_t{1} << 60;

template <class Number>
[[noreturn]] void refuse(const std::string& name, const std::string& expected, Number got) {
  throw std::invalid_argument(name + " must be " + expected + ", got " + std::to_string(got));
}

void check_integer(const char* name, std::int64_t value, std::int64_t least,
                   std::int64_t greatest = greatest_length) {
  if (value < least || value > greatest)
    refuse(name, std::to_string(least) + " to " + std::to_string(greatest), value);
}

void check_length(const char* name, std::int64_t value) {
  if (value == not_given) throw std::invalid_argument(std::string(name) + " must be given");
  check_integer(name, value, 0);
}

// Returns a * b for a, b >= 0, or more than greatest_size if it is greater.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  const bool fits = !__builtin_mul_overflow(a, b, &result) && result <= greatest_size;
  return fits ? result : greatest_size + 1;
}

void check_sizes(const AttentionArguments& a) {
  check_integer("batch", a.batch, 0);
  check_integer("query_heads", a.query_heads, 1);
  check_integer("key_heads", a.key_heads, 1);
  if (a.query_heads % a.key_heads != 0)
    refuse("query_heads", "a multiple of key_heads " + std::to_string(a.key_heads), a.query_heads);
  check_length("query_length", a.query_length);
  check_length("key_length", a.key_length);
  check_integer("head_dim", a.head_dim, 1, greatest_head_dim);
  if (a.query_length > a.key_length)
    refuse("query_length", "at most key_length " + std::to_string(a.key_length), a.query_length);
  const std::int64_t heads = product(a.batch, a.query_heads);
  if (product(product(heads, a.key_length), a.head_dim) > greatest_size)
    throw std::invalid_argument(
        "batch x query_heads x key_length x head_dim must be at most 2^60, got " +
        std::to_string(a.batch) + " x " + std::to_string(a.query_heads) + " x " +
        std::to_string(a.key_length) + " x " + std::to_string(a.head_dim));
}

// The sizes of a tensor (batch, heads, rows, head_dim).
struct Shape {
  std::int64_t batch, heads, rows, head_dim;
};

struct Axis {
  std::int64_t size, stride;  // the stride without its sign
};

// Returns a stride, which must be given for an axis of more than one.
std::int64_t checked_stride(const char* tensor, const char* name, std::int64_t stride,
                            std::int64_t size) {
  if (stride != not_given) return stride;
  if (size > 1)
    throw std::invalid_argument(std::string(tensor) + "'s " + name +
                                " must be given for an axis of " + std::to_string(size));
  return 0;
}

// Returns the view of a tensor with data, and with strides that stay within 2^60 elements. Rows
// that are written must not overlap: each stride is as long as all that lies within it.
template <class Void>
TensorView checked_rows(const char* name, const Rows<Void>& rows, const Shape& shape,
                        bool written) {
  if (shape.batch == 0 || shape.rows == 0) return {};
  if (rows.data == nullptr)
    throw std::invalid_argument(std::string(name) + " must have data, got a null pointer");
  const std::int64_t batch_stride =
      checked_stride(name, "batch_stride", rows.batch_stride, shape.batch);
  const std::int64_t head_stride =
      checked_stride(name, "head_stride", rows.head_stride, shape.heads);
  const std::int64_t row_stride = checked_stride(name, "row_stride", rows.row_stride, shape.rows);
  const auto refuse_strides = [&](const char* expected) {
    throw std::invalid_argument(std::string(name) + "'s strides must " + expected + ", got " +
                                std::to_string(batch_stride) + ", " + std::to_string(head_stride) +
                                " and " + std::to_string(row_stride) + " (batch, head and row)");
  };
  Axis axes[] = {{shape.batch, batch_stride}, {shape.heads, head_stride}, {shape.rows, row_stride}};
  bool small = true;
  for (Axis& axis : axes) {
    small = small && axis.stride >= -greatest_size && axis.stride <= greatest_size;
    axis.stride = small ? std::abs(axis.stride) : 0;
  }
  std::sort(std::begin(axes), std::end(axes),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t extent = shape.head_dim;
  bool apart = true;
  for (const Axis& axis : axes) {
    apart = apart && (axis.size == 1 || axis.stride >= extent);
    extent = std::min(extent + product(axis.size - 1, axis.stride), greatest_size + 1);
  }
  if (!small || extent > greatest_size) refuse_strides("span at most 2^60 elements");
  if (written && !apart) refuse_strides("keep rows apart");
  // The core writes to the output alone.
  return {const_cast<void*>(rows.data), batch_stride, head_stride, row_stride};
}

// Checks the tensors and gives their views to the problem.
void view_tensors(const AttentionArguments& a, AttentionProblem& problem) {
  const Shape queries{a.batch, a.query_heads, a.query_length, a.head_dim};
  const Shape keys{a.batch, a.key_heads, a.key_length, a.head_dim};
  problem.query = checked_rows<const void>("query", a.query, queries, false);
  problem.key = checked_rows<const void>("key", a.key, keys, false);
  problem.value = checked_rows<const void>("value", a.value, keys, false);
  problem.output = checked_rows<void>("output", a.output, queries, true);
  for (const void* input : {a.query.data, a.key.data, a.value.data})
    if (input != nullptr && input == a.output.data)
      throw std::invalid_argument("output must not share memory with an input, got an input's");
}

void check_scalars(const AttentionArguments& a) {
  if (a.scale && *a.scale != 0.0f && !std::isnormal(*a.scale))
    refuse("scale", "0 or within float32's range", *a.scale);
  for (std::int64_t h = 0; a.slopes != nullptr && h < a.query_heads; ++h)
    if (!std::isfinite(a.slopes[h]))
      refuse("slopes[" + std::to_string(h) + "]", "finite", a.slopes[h]);
  // Written so that NaN is refused, too.
  if (a.skip_tolerance && !(*a.skip_tolerance >= 0.0 && *a.skip_tolerance < 1.0))
    refuse("skip_tolerance", "at least 0 and below 1", *a.skip_tolerance);
}

// Returns the view of a mask of pairs.
MaskView checked_mask(const AttentionArguments& a) {
  const Mask& mask = a.mask;
  MaskView view{mask.data,
                {a.batch, a.query_heads, a.query_length, a.key_length},
                {checked_stride("mask", "batch_stride", mask.batch_stride, a.batch),
                 checked_stride("mask", "head_stride", mask.head_stride, a.query_heads),
                 checked_stride("mask", "query_stride", mask.query_stride, a.query_length),
                 checked_stride("mask", "key_stride", mask.key_stride, a.key_length)}};
  for (const std::int64_t stride : view.strides)
    check_integer("mask's strides", stride, -greatest_size, greatest_size);
  return view;
}

void check_rule(const AttentionArguments& a) {
  if (a.window) check_integer("window", *a.window, 1);
  check_integer("sink", a.sink, 0);
  if (a.sink != 0 && !a.window && !a.causal_block)
    throw std::invalid_argument("sink must be 0 without window or causal_block, got " +
                                std::to_string(a.sink));
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

}  // namespace

void attention(const AttentionArguments& a) {
  check_sizes(a);
  AttentionProblem problem{};
  problem.dtype = dtype_of(a.element_type);
  view_tensors(a, problem);
  check_scalars(a);
  check_rule(a);
  std::optional<MaskView> mask_view;
  if (a.mask.data != nullptr) mask_view = checked_mask(a);
  if (a.batch == 0 || a.query_length == 0) return;

  problem.logsumexp = a.logsumexp;
  problem.batch = a.batch;
  problem.query_heads = a.query_heads, problem.key_heads = a.key_heads;
  problem.query_length = a.query_length, problem.key_length = a.key_length;
  problem.query_pitch = a.query_length, problem.key_pitch = a.key_length;
  problem.head_dim = a.head_dim;
  problem.scale = a.scale.value_or(1.0f / std::sqrt(static_cast<float>(a.head_dim)));
  problem.key_mask = a.key_padding_mask;
  problem.mask = {a.causal, a.window.value_or(MaskRule::no_window), a.causal_block.value_or(0),
                  a.sink};
  std::optional<BlockMask> mask;
  if (mask_view) {
    mask.emplace(*mask_view);
    problem.pairs = {&*mask, 0, 0, 0};
  }
  if (a.slopes != nullptr) {
    problem.bias.kind = BiasKind::two_sided;
    problem.bias.left = problem.bias.right = {a.slopes, 0, 1, 0};
  }
  problem.skip_tolerance = a.skip_tolerance;
  attention(problem);
}

std::int64_t element_count(std::int64_t heads, std::int64_t rows, std::int64_t head_dim) {
  check_integer("heads", heads, 0, greatest_size);
  check_integer("rows", rows, 0, greatest_size);
  check_integer("head_dim", head_dim, 0, greatest_size);
  const std::int64_t count = product(product(heads, rows), head_dim);
  if (count > greatest_size)
    throw std::invalid_argument("heads x rows x head_dim must be at most 2^60 elements, got " +
                                std::to_string(heads) + " x " + std::to_string(rows) + " x " +
                                std::to_string(head_dim));
  return count;
}

std::vector<float> alibi_slopes(std::int64_t num_heads) {
  check_integer("num_heads", num_heads, 1, greatest_head_count);
  constexpr double last_exponent = 8.0;
  std::int64_t regular = 1;  // a power of two
  while (2 * regular <= num_heads) regular *= 2;
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < num_heads; ++h) {
    // The heads beyond take every other exponent of twice as many heads.
    const double exponent = h < regular ? last_exponent * (h + 1) / regular
                                        : last_exponent * (2 * (h - regular) + 1) / (2 * regular);
    slopes.push_back(static_cast<float>(std::exp2(-exponent)));
  }
  return slopes;
}

}  // namespace ntk_alibi
