#include "core/attention.h"

#include "core/decoding.h"
#include "core/prefill.h"
#include "core/tiles.h"

namespace ntk_alibi {
namespace {

// A tile computes all its lanes, so that up to this many queries are cheaper one by one.
constexpr std::int64_t most_decoded_queries = 2;

bool worth_decoding(const AttentionProblem& problem) {
  const bool linear = problem.bias.kind == BiasKind::none || problem.bias.left.data != nullptr;
  return linear && problem.query_length <= most_decoded_queries;
}

}  // namespace

void attention(const AttentionProblem& problem) {
  const Tiles tiles(problem);
  if (worth_decoding(problem)) return decode(tiles, problem);
  prefill(tiles, problem);
}

}  // namespace ntk_alibi
