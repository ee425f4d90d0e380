// The contract between the core and the per-ISA kernels: plain structs and one table of functions.
// Nothing here may have inline members: the header is compiled with different instruction sets, and
// the linker would keep one of the copies.
#pragma once

#include <cstdint>

namespace ntk_alibi {

enum class DType : int { float32 = 0, bfloat16 = 1, float16 = 2 };

// One row of a linear bias over distance. With d = query_position - k:
//   out[k] = -left_slope * d  for d > 0,   0 for d = 0,   right_slope * d  for d < 0.
// An infinite slope masks its side: the value there is -inf.
struct LinearBiasRow {
  float left_slope;
  float right_slope;
  std::int64_t query_position;
  std::int64_t key_length;
};

// --- attention
// ---------------------------------------------------------------------------------------

// Keys are walked in blocks of this many, in the order of the problem's key list.
constexpr int keys_per_block = 64;

// The queries of a tile; no ISA packs more.
constexpr int most_queries_per_tile = 32;

// Tiles of one head that share their reading of the keys.
constexpr int tiles_per_group = 4;

// What is added to a score, in nats, of a query at distance d = query_position - key_position.
enum class BiasKind : int {
  none,
  one_sided,  // -left_slope d; only distances >= 0 are visible
  two_sided,  // -left_slope d for d > 0, right_slope d for d < 0
  table,      // table[d - table_begin], 0 outside
  sums,       // query_sums[i] - key_sums[j], differences taken in float64
  dense       // dense[i * dense_query_stride + j * dense_key_stride]
};

// For the rows of one tile of one head. Slopes are finite: an infinite one is a mask.
struct TileBias {
  BiasKind kind;
  const float* left_slopes;  // one for each query
  const float* right_slopes;
  const float* table;
  std::int64_t table_begin;
  std::int64_t table_size;
  const double* query_sums;
  const double* key_sums;
  const float* dense;
  std::int64_t dense_query_stride;
  std::int64_t dense_key_stride;
};

// Positions of a block of keys.
struct KeyBlock {
  std::int32_t least_position;
  std::int32_t greatest_position;
};

// How far the keys of a block, and of all blocks before and after it, reach: their greatest norms.
struct BlockNorms {
  float own;
  float up_to;  // this block and the ones before it
  float from;   // this block and the ones after it
};

// The keys of one batch row that are real. All pointers null: the first `count` keys, at positions
// 0, 1, ...
struct KeyList {
  std::int64_t count;
  const std::int32_t* indices;  // row of each key in `key` and `value`, ascending
  const std::int32_t* positions;
  const KeyBlock* blocks;
  bool positions_rise;  // strictly
};

// Upper bounds of some values of a bias, log2 domain: of each, and of the sum of all 2^value.
struct BiasBound {
  double each;
  double sum;
};

// Leave out keys that are proven to weigh no more than this share of each query's sum, together.
// norms == nullptr: leave out none.
struct Skipping {
  double tolerance;
  const BlockNorms* norms;
  // For a table, one for each of its distances: of those not less, and of those not greater. For
  // sums, one for each block, of minus key_sums: behind[b].each is of block b, behind[b].sum of it
  // and the blocks before, ahead[b].sum of it and those after. Else null.
  const BiasBound* behind;
  const BiasBound* ahead;
};

// Query i sees the keys at distances least_distances[i] .. greatest_distances[i], and those at
// positions below sink_ends[i] that are not nearer than the least.
struct TileMask {
  const std::int32_t* least_distances;
  const std::int32_t* greatest_distances;
  const std::int32_t* sink_ends;
};

struct AttentionTile {
  DType dtype;
  const void* query;  // row stride below; elements of a row are adjacent, as for key and value
  const void* key;
  const void* value;
  void* output;
  float* logsumexp;  // one for each query, or null
  std::int64_t query_stride;
  std::int64_t key_stride;
  std::int64_t value_stride;
  std::int64_t output_stride;
  int query_count;
  int head_dim;
  float scale;
  const std::int32_t* query_positions;
  KeyList keys;
  TileMask mask;
  TileBias bias;
  Skipping skipping;
};

// Rows of gradients are padded to a multiple of this many channels, whatever the vectors' width.
constexpr int gradient_padding = 16;

// Gradients of a tile over the blocks of keys [first_block, end_block): ds_ij = p_ij (do_i.v_j -
// do_i.o_i + dlse_i), float32.
struct GradientTile {
  const AttentionTile* tile;  // output and logsumexp (all keys') are read
  std::int64_t first_block;
  std::int64_t end_block;
  const void* output_gradient;  // rows of the tile's dtype
  std::int64_t output_gradient_stride;
  const float* logsumexp_gradient;  // one for each query, or null
  // Written: scale sum_j ds_ij k_j, over these blocks.
  void* query_gradient;
  std::int64_t query_gradient_stride;
  DType query_gradient_dtype;
  // Added to, for the keys from first_block on; padded rows: sum_i ds_ij q_i and sum_i p_ij do_i.
  float* key_gradient;
  float* value_gradient;
  // Of the bias, null if not asked for. Per query, written: sums of ds_ij times minus the distance
  // behind, and times the (negative) distance ahead; sum_j ds_ij.
  float* left_slopes;
  float* right_slopes;
  double* query_sums;
  // Added to: minus sum_i ds_ij for each row of keys; the table's.
  double* key_sums;
  double* table;
  // Written: ds_ij.
  float* dense;
  std::int64_t dense_query_stride;
  std::int64_t dense_key_stride;
};

// One query over a part of the keys: blocks [first_block, end_block), from the last one back. For a
// tile of one query whose bias is none or linear.
struct DecodeTask {
  std::int64_t first_block;
  std::int64_t end_block;
  double log_sum;  // to the base 2, a lower bound of what the query sums up elsewhere, or -infinity
};

// What `merge_parts` joins, log2 domain.
struct DecodePart {
  float maximum;
  float sum;      // relative to the maximum, as output is
  float* output;  // head_dim floats
  std::int64_t visited;
  double log_sum;     // a lower bound of this part's sum, whatever the rounding
  bool rest_dropped;  // all blocks before this part are proven not to matter, too
};

struct KernelTable {
  // out[k] = slope * positions[k], k < key_length, rounded to nearest even.
  void (*scaled_positions)(const std::int32_t* positions, std::int64_t key_length, float slope,
                           DType dtype, bool stream, void* out);
  void (*linear_bias_row)(const LinearBiasRow& row, DType dtype, bool stream, void* out);
  // Queries in a tile of attention_tiles, and the scratch memory it needs, aligned to 64 bytes.
  int queries_per_tile;
  std::int64_t (*attention_scratch_bytes)(int head_dim);
  // softmax(scale q.k + bias) v over the visible keys, and its logsumexp; 0 and -inf without any.
  // For up to tiles_per_group tiles that differ in their queries, outputs and positions alone.
  // visited: how many blocks of keys each read.
  void (*attention_tiles)(const AttentionTile* tiles, int count, void* scratch,
                          std::int64_t* visited);
  std::int64_t (*gradient_scratch_bytes)(int head_dim);
  void (*gradient_tile)(const GradientTile& gradient, void* scratch);
  // out = row times factor, rounded to nearest even.
  void (*write_scaled_row)(const float* row, int head_dim, float factor, DType dtype, void* out);
  std::int64_t (*decode_scratch_bytes)(int head_dim);
  void (*decode_part)(const AttentionTile& tile, const DecodeTask& task, void* scratch,
                      DecodePart* part);
  // Writes output and logsumexp of a tile of one query.
  void (*merge_parts)(const AttentionTile& tile, const DecodePart* parts, std::int64_t count,
                      void* scratch);
  // How many it would read without skipping.
  std::int64_t (*visible_blocks)(const AttentionTile& tile);
  // The greatest norm of the keys of block b.
  float (*greatest_norm)(const KeyList& keys, std::int64_t b, const void* key,
                         std::int64_t key_stride, int head_dim, DType dtype);
  // Makes streamed stores visible to other threads; to be called by the thread that streamed.
  void (*stream_fence)();
};

}  // namespace ntk_alibi
