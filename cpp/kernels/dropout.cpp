#include "kernels/dropout.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

void random_numbers(const Dropout& dropout, std::int64_t keys, std::int64_t stride,
                    std::uint16_t* out) {
  TileRandom<1> random(dropout);
  for (std::int64_t j = 0; j < keys; ++j) {
    random.move_to(j);
    const u32v drawn = random.drawn(0);
    for (int r = 0; r < lanes; ++r) out[r * stride + j] = static_cast<std::uint16_t>(drawn[r]);
  }
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
