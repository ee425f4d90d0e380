// Attention of one or two queries for each head.
#pragma once

#include "core/tiles.h"

namespace ntk_alibi {

// Computes each query on its own, split over its keys so that all threads have work. The bias must
// be linear or none.
void decode(const Tiles& tiles, const AttentionProblem& problem);

}  // namespace ntk_alibi
