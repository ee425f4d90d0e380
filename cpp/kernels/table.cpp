// The table of this ISA's kernels: the one symbol the core looks up.
#include "kernels/bias_rows.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

extern const KernelTable kernel_table = {scaled_positions, linear_bias_row, stream_fence};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
