// Attention of many queries.
#pragma once

#include "core/tiles.h"

namespace ntk_alibi {

// Computes tiles of queries, in groups that share their reading of the keys.
void prefill(const Tiles& tiles, const AttentionProblem& problem);

}  // namespace ntk_alibi
