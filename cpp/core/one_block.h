// Attention over at most one block of keys.
#pragma once

#include "core/tiles.h"

namespace ntk_alibi {

// Computes small tiles of queries, each in one step.
void attend_one_block(const Tiles& tiles, const AttentionProblem& problem);

}  // namespace ntk_alibi
