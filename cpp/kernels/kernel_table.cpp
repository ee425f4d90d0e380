// The table of this ISA's kernels. The core uses no other symbol of this build.
#include "kernels/attention.h"
#include "kernels/attention_gradient.h"
#include "kernels/bias_rows.h"
#include "kernels/decode.h"
#include "kernels/dropout.h"
#include "kernels/elements.h"
#include "kernels/key_norms.h"
#include "kernels/merge.h"
#include "kernels/one_block.h"
#include "kernels/scratch.h"
#include "kernels/simd.h"
#include "kernels/visible_blocks.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

extern const KernelTable kernel_table = {scaled_positions,
                                         linear_bias_row,
                                         queries_per_tile,
                                         sizeof(StoredBlocks),
                                         attention_scratch_bytes,
                                         attention_tiles,
                                         lanes,
                                         one_block_scratch_bytes,
                                         one_block_tile,
                                         gradient_scratch_bytes,
                                         gradient_tile,
                                         write_row,
                                         decode_scratch_bytes,
                                         decode_part,
                                         merge_parts,
                                         merge_row,
                                         visible_blocks,
                                         rows_are_finite,
                                         centre_of_keys,
                                         greatest_norm,
                                         random_numbers,
                                         stream_fence};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
