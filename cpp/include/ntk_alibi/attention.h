// The public interface of ntk_alibi for C++: attention with linear biases over distance (ALiBi), in
// main memory. All other headers of the project may change at any time. docs/cpp.md explains
// the build.
//
// Functions throw std::invalid_argument, which names the field, what is expected and what came.
// They may be called from several threads at once.
#pragma once

#if __cplusplus < 201703L
#error "ntk_alibi needs C++17 or newer, such as -std=c++17"
#endif

#include <cstdint>
#include <optional>
#include <vector>

namespace ntk_alibi {

// The lengths and strides of fields that nobody has set.
constexpr std::int64_t not_given = INT64_MIN;

enum class ElementType { float32, bfloat16, float16 };

// Rows (batch, heads, rows, head_dim) in the caller's memory: `Rows<const void>` to be read,
// `Rows<void>` to be written. Strides are in elements, and must be given for axes of more than one;
// a stride of 0 repeats an axis that is read. The elements of a row are adjacent.
template <class Void>
struct Rows {
  Void* data = nullptr;
  std::int64_t batch_stride = not_given, head_stride = not_given, row_stride = not_given;
};

// The number of elements of heads x rows x head_dim, each 0 or more and together at most 2^60.
std::int64_t element_count(std::int64_t heads, std::int64_t rows, std::int64_t head_dim);

// The rows of a tensor without gaps.
template <class Void>
Rows<Void> contiguous(Void* data, std::int64_t heads, std::int64_t rows, std::int64_t head_dim) {
  return {data, element_count(heads, rows, head_dim), element_count(1, rows, head_dim), head_dim};
}

// A mask (batch, query_heads, query_length, key_length) of bytes, 0 where a query must not see a
// key. Strides are in bytes, and must be given as for rows.
struct Mask {
  const std::uint8_t* data = nullptr;
  std::int64_t batch_stride = not_given, head_stride = not_given, query_stride = not_given;
  std::int64_t key_stride = 1;
};

// One call of attention. The last query is at the position of the last key.
//
//   output[i] = sum_j softmax_j(scale q_i.k_j - slopes[h] |i - j|) v_j
//
// The sum is over the keys that query i sees. A query that sees no key gets 0 and logsumexp
// -infinity.
struct AttentionArguments {
  ElementType element_type = ElementType::float32;  // of query, key, value and output
  std::int64_t batch = 1;
  std::int64_t query_heads = 1;
  std::int64_t key_heads = 1;  // divides query_heads (GQA, MQA)
  std::int64_t query_length = not_given;
  std::int64_t key_length = not_given;
  std::int64_t head_dim = 0;  // 1 to 256

  Rows<const void> query;  // (batch, query_heads, query_length, head_dim)
  Rows<const void> key;    // (batch, key_heads, key_length, head_dim)
  Rows<const void> value;  // as key
  Rows<void> output;       // as query; its rows must not overlap each other or the inputs
  // (batch, query_heads, query_length), contiguous: natural logarithms of the sums; or null.
  double* logsumexp = nullptr;

  std::optional<float> scale;     // 1 / sqrt(head_dim) without a number
  const float* slopes = nullptr;  // (query_heads), finite; null for no bias

  bool causal = true;                        // hides keys ahead of the query
  std::optional<std::int64_t> window;        // positions back (and ahead), the query's own included
  std::optional<std::int64_t> causal_block;  // a query sees its own block of this many positions
                                             // up to itself, and the block before
  std::int64_t sink = 0;  // first positions that are seen from beyond the window and the block, one
                          // of which must be given with it
  const std::uint8_t* key_padding_mask = nullptr;  // (batch, key_length), 0 for padding; or null
  Mask mask;  // hides further keys, pair by pair; none without data

  // Keys are left out that are proven to have, together, at most this share of a query's softmax
  // mass; less than 1. 0.0 leaves out only what rounding would swallow (2^-24); without a number
  // every visible key is read. Slopes >= 0 have a proof; with negative ones, or without any, all
  // keys are read. The same as `skip_tolerance` in Python.
  std::optional<double> skip_tolerance = 0.0;
};

// Computes attention on as many threads as OpenMP has (OMP_NUM_THREADS, omp_set_num_threads), by
// the fastest of this machine's instruction sets, or the one that the environment variable
// NTK_ALIBI_ISA names (portable, avx2, avx512 ...), which is read once.
// Throws std::domain_error if scores or sums leave float32's range although all inputs are finite,
// and std::bad_alloc; the output is then undefined.
void attention(const AttentionArguments& arguments);

// The slopes m_h of ALiBi for 1 to 2^20 heads, as BLOOM and MPT have them. Python's `alibi_slopes`
// returns the slopes of a stretched model.
std::vector<float> alibi_slopes(std::int64_t num_heads);

}  // namespace ntk_alibi
