#include "kernels/visible_blocks.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

std::int64_t visible_blocks(const AttentionTile& tile) {
  const TileReach reach(tile);
  std::int64_t visible = 0;
  for (std::int64_t b = 0; b < block_count(tile.keys); ++b) visible += reach.sees(tile, b);
  return visible;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
