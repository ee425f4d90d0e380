// Access to a KeyList in both of its forms.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// The core has a block_count of its own: inline functions must not cross between ISAs.
inline std::int64_t block_count(const KeyList& keys) {
  return (keys.count + keys_per_block - 1) / keys_per_block;
}

inline int keys_in_block(const KeyList& keys, std::int64_t b) {
  const std::int64_t left = keys.count - b * keys_per_block;
  return static_cast<int>(left < keys_per_block ? left : keys_per_block);
}

inline std::int64_t index_of(const KeyList& keys, std::int64_t c) {
  return keys.indices != nullptr ? keys.indices[c] : c;
}

inline std::int32_t position_of(const KeyList& keys, std::int64_t c) {
  return keys.positions != nullptr ? keys.positions[c] : static_cast<std::int32_t>(c);
}

inline KeyBlock block_of(const KeyList& keys, std::int64_t b) {
  if (keys.blocks != nullptr) return keys.blocks[b];
  const std::int64_t first = b * keys_per_block;
  return {static_cast<std::int32_t>(first),
          static_cast<std::int32_t>(first + keys_in_block(keys, b) - 1)};
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
