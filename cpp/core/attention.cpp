#include "core/attention.h"

#include "core/decoding.h"
#include "core/one_block.h"
#include "core/prefill.h"
#include "core/tiles.h"

namespace ntk_alibi {
namespace {

// A tile computes all its lanes, so that up to this many queries are cheaper one by one, if there
// are more keys than these: several queries over fewer keys are cheaper together.
constexpr std::int64_t most_decoded_queries = 4;
constexpr std::int64_t few_keys = 16;

bool worth_decoding(const AttentionProblem& problem) {
  const BiasKind kind = problem.bias.kind;
  const bool known = kind != BiasKind::sums && kind != BiasKind::dense;
  return known && problem.dropout.least_kept == 0 && problem.query_length <= most_decoded_queries &&
         (problem.query_length == 1 || problem.key_length > few_keys);
}

}  // namespace

void attention(const AttentionProblem& problem) {
  const Tiles tiles(problem);
  if (worth_decoding(problem)) return decode(tiles, problem);
  if (problem.key_length <= keys_per_block) return attend_one_block(tiles, problem);
  prefill(tiles, problem);
}

}  // namespace ntk_alibi
