#include "core/skip_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/constants.h"
#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

// The keys of one head.
struct HeadOfKeys {
  KeyList keys;
  HeadRows rows;
  std::int64_t head_dim;
};

// Chooses the centre before the first block.
void measure_blocks(const KernelTable& kernels, const HeadOfKeys& head, std::int64_t first_block,
                    BlockNorms* norms, float* centre) {
  const int head_dim = static_cast<int>(head.head_dim);
  if (first_block == 0) kernels.centre_of_keys(head.keys, head.rows, head_dim, centre);
  const std::int64_t blocks = block_count(head.keys.count);
  for (std::int64_t k = first_block; k < blocks; ++k) {
    norms[k].of_block = kernels.greatest_norm(head.keys, k, head.rows, head_dim, centre);
    norms[k].up_to = k ? std::max(norms[k].of_block, norms[k - 1].up_to) : norms[k].of_block;
    norms[k].from = std::numeric_limits<float>::infinity();
  }
}

// Fills `from`, the running maximum from the last block back.
void accumulate_from_the_end(std::int64_t blocks, BlockNorms* norms) {
  for (std::int64_t k = blocks - 1; k >= 0; --k)
    norms[k].from =
        k + 1 < blocks ? std::max(norms[k].of_block, norms[k + 1].from) : norms[k].of_block;
}

// Measuring the norms of keys takes as long as scoring them with some queries. With 8 heads of 64
// channels on a Zen 5 core, skipping changed the time of 1 query by factors of 2.5, 1.8, 1.4
// and 1.0 at 128, 512, 2048 and 8192 keys, and of 16 queries by 1.1, .9, .6 and .2.
constexpr std::int64_t few_blocks = 4, few_blocks_of_few_queries = 127;
constexpr std::int64_t few_queries = 3;

bool worth_measuring(const AttentionProblem& problem) {
  const std::int64_t blocks = block_count(problem.key_length);
  if (problem.key_norms != nullptr) return blocks > 1;  // a single block has no sum to compare with
  const std::int64_t group = problem.query_heads / std::max<std::int64_t>(1, problem.key_heads);
  const bool few = problem.query_length * group <= few_queries;
  return blocks > (few ? few_blocks_of_few_queries : few_blocks);
}

// The share of a float32 sum that is lost in rounding to nearest: half an ulp.
constexpr double rounding = 0x1p-24;

// The greatest share of a query's sum that keys may weigh together and be skipped; 0 for none.
double dropped_share(const std::optional<double>& skip_tolerance) {
  return skip_tolerance == 0.0 ? rounding : skip_tolerance.value_or(0.0);
}

}  // namespace

SkipBounds::SkipBounds(const AttentionProblem& problem, const KeyLists& lists)
    : problem_(problem), blocks_(block_count(problem.key_length)) {
  const BiasKind kind = problem.bias.kind;
  if (problem.known_logsumexps == nullptr && !worth_measuring(problem)) return;
  if (dropped_share(problem.skip_tolerance) == 0.0 || kind == BiasKind::none ||
      kind == BiasKind::dense)
    return;
  measure_norms(lists);
  if (kind == BiasKind::table) bound_table();
  if (kind == BiasKind::sums) bound_sums(lists);
}

void SkipBounds::measure_norms(const KeyLists& lists) {
  const AttentionProblem& p = problem_;
  key_norms_ = p.key_norms;
  key_norms_stride_ = p.key_norms_stride;
  key_centres_ = p.key_centres;
  if (key_norms_ != nullptr) return;
  norms_.resize(p.batch * p.key_heads * blocks_);
  centres_.resize(p.batch * p.key_heads * p.head_dim);
  key_norms_ = norms_.data();
  key_centres_ = centres_.data();
  key_norms_stride_ = blocks_;
  const KernelTable& kernels = active_kernels();
  const std::int64_t grain = tasks_per_thread(p.key_length * p.head_dim);
  parallel_for_each(p.batch * p.key_heads, grain, [&](std::int64_t row) {
    const std::int64_t b = row / p.key_heads, h = row % p.key_heads;
    const KeyList keys = lists.of_row(b).view();
    BlockNorms* norms = norms_.data() + row * blocks_;
    const HeadOfKeys head{keys, head_rows(p.key, p.key_scales, p.dtype, b, h), p.head_dim};
    measure_blocks(kernels, head, 0, norms, centres_.data() + row * p.head_dim);
    accumulate_from_the_end(block_count(keys.count), norms);
  });
}

void SkipBounds::bound_table() {
  const AttentionBias& bias = problem_.bias;
  table_bounds_ = bias.table_bounds;
  if (table_bounds_ == nullptr)
    table_bounds_ = std::make_shared<TableBounds>(bias.table, problem_.query_heads,
                                                  bias.table_head_stride, bias.table_size);
  table_bounds_->make();
}

void SkipBounds::bound_sums(const KeyLists& lists) {
  const AttentionProblem& p = problem_;
  behind_.resize(p.batch * p.query_heads * blocks_);
  ahead_.resize(behind_.size());
  parallel_for_each(p.batch * p.query_heads, 1, [&](std::int64_t row) {
    const std::int64_t b = row / p.query_heads, h = row % p.query_heads;
    const double* sums = p.bias.sums + b * p.bias.sums_batch_stride + h * p.bias.sums_head_stride;
    const KeyList keys = lists.of_row(b).view();
    const std::int64_t blocks = block_count(keys.count);
    BiasBound* behind = behind_.data() + row * blocks_;
    BiasBound* ahead = ahead_.data() + row * blocks_;
    // `sum` continues from block to block, `each` covers block k alone.
    const auto with_block = [&](BiasBound bound, std::int64_t k) {
      bound.each = empty_bound().each;
      const std::int64_t last = std::min<std::int64_t>((k + 1) * keys_per_block, keys.count);
      for (std::int64_t c = k * keys_per_block; c < last; ++c)
        bound = with_value(bound, -sums[keys.indices ? keys.indices[c] : c] * log2_e);
      return bound;
    };
    BiasBound bound = empty_bound();
    for (std::int64_t k = 0; k < blocks; ++k) behind[k] = bound = with_block(bound, k);
    bound = empty_bound();
    for (std::int64_t k = blocks - 1; k >= 0; --k) ahead[k] = bound = with_block(bound, k);
  });
}

Skipping SkipBounds::of_head(std::int64_t b, std::int64_t h) const {
  const AttentionProblem& p = problem_;
  const std::int64_t key_head = b * p.key_heads + h / (p.query_heads / p.key_heads);
  const BlockNorms* norms = key_norms_ ? key_norms_ + key_head * key_norms_stride_ : nullptr;
  const float* centre = key_norms_ ? key_centres_ + key_head * p.head_dim : nullptr;
  const BiasBound *behind = nullptr, *ahead = nullptr;
  if (table_bounds_ != nullptr) {
    behind = table_bounds_->behind(h);
    ahead = table_bounds_->ahead(h);
  } else if (!behind_.empty()) {
    behind = behind_.data() + (b * p.query_heads + h) * blocks_;
    ahead = ahead_.data() + (b * p.query_heads + h) * blocks_;
  }
  return {dropped_share(p.skip_tolerance), nullptr, norms, centre, behind, ahead};
}

void measure_key_norms(const KeyNormsShape& shape, const TensorView& key, const ScaleView& scales,
                       DType dtype, std::int64_t known, BlockNorms* norms,
                       std::int64_t norms_stride, float* centres) {
  const bool new_centre = known < keys_in_centre && keys_in_centre <= shape.key_length;
  const std::int64_t first_block = new_centre ? 0 : known / keys_per_block;
  const KeyList keys{shape.key_length, nullptr, nullptr, nullptr, true};
  const KernelTable& kernels = active_kernels();
  parallel_for_each(shape.batch * shape.key_heads, 1, [&](std::int64_t row) {
    const HeadRows rows =
        head_rows(key, scales, dtype, row / shape.key_heads, row % shape.key_heads);
    measure_blocks(kernels, {keys, rows, shape.head_dim}, first_block, norms + row * norms_stride,
                   centres + row * shape.head_dim);
  });
}

}  // namespace ntk_alibi
