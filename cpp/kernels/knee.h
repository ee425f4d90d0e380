// The bias of two pieces, as the tiles and the single queries add it.
#pragma once

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// product - slope min(distance, knee) - far_slope max(distance - knee, 0). Both parts have one
// sign, so that no digits cancel.
inline f32v below_knee(f32v product, f32v distance, f32v knee, f32v slope, f32v far_slope) {
  const f32v near = min(distance, knee);
  return minus_product(minus_product(product, slope, near), far_slope, distance - near);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
