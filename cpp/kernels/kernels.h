// The contract between the core and the per-ISA kernels: plain structs and one table of functions.
// Nothing here may have inline members: the header is compiled for different instruction sets, and
// the linker would keep only one of the copies.
#pragma once

#include <cstdint>

#ifdef __FAST_MATH__
#error "ntk_alibi computes with infinities and NaN, which -ffast-math leaves out: build without it"
#endif

namespace ntk_alibi {

// int8 is for keys and values only, whose rows then have a scale each.
enum class DType : int { float32 = 0, bfloat16 = 1, float16 = 2, int8 = 3 };

// Kernels with many blocks of keys call requested(context) now and then. If it returns true they
// return early, and their results are not used.
struct StopCheck {
  bool (*requested)(void* context);
  void* context;
};

// One row of a linear bias over distance. With d = query_position - k:
//   out[k] = -left_slope * d  for d > 0,   0 for d = 0,   right_slope * d  for d < 0.
// An infinite slope masks its side: the values there are -inf.
struct LinearBiasRow {
  float left_slope;
  float right_slope;
  std::int64_t query_position;
  std::int64_t key_length;
};

// --- attention -----------------------------------------------------------------------------------

// Kernels read keys in blocks of this many, in the order of the key list.
constexpr int keys_per_block = 64;

// The mean of the first keys, up to this many, is the centre of a head. More hardly improve it.
constexpr std::int64_t keys_in_centre = 256;

// Errors that certificates allow for; benchmarks/results/skipping.md derives them.
// A score has head_dim roundings from its dot product and 12 more from scaling and bias, each
// relative to scale |q| |k|. We count the 12 twice.
constexpr double extra_score_roundings = 24.0;

// Bounds the errors of exp2 and of the sum of weights in the logarithm of that sum.
constexpr double exp2_and_sum_error = 1e-5;

// Squares of channels that underflow take at most this from a norm.
constexpr float underflowed_norm = 2e-18f;

// No ISA packs more queries into a tile.
constexpr int most_queries_per_tile = 32;

// Up to this many tiles of one head read the keys together.
constexpr int tiles_per_group = 4;

// The term added to a score, in nats. d = query_position - key_position, t = origin - key_position.
enum class BiasKind : int {
  none,
  one_sided,  // -left_slope t; only distances >= 0 are visible
  two_sided,  // -left_slope t for t > 0, right_slope t for t < 0
  table,      // table[d - table_begin], 0 outside
  sums,       // query_sums[i] - key_sums[j], differences taken in float64
  dense       // dense[i * dense_query_stride + j * dense_key_stride]
};

// The bias of one tile. Slopes are finite: the core turns infinite ones into a mask.
struct TileBias {
  BiasKind kind;
  // For each query the position from which a linear bias is measured, and what this adds to all its
  // scores. It is the position of the query, or of the nearest visible key if all are far on
  // one side: the product of slope and distance is rounded.
  const std::int32_t* origins;
  const double* shifts;
  // One for each query; null for biases without slopes.
  const float* left_slopes;
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

// The range of positions of a block of keys.
struct KeyBlock {
  std::int32_t least_position;
  std::int32_t greatest_position;
};

// The greatest norms of keys, less the centre of their head.
struct BlockNorms {
  float of_block;
  float up_to;  // of this block and the ones before it
  float from;   // of this block and the ones after it
};

// The keys of one batch row, without padding. If all pointers are null, these are the first `count`
// keys, at positions 0, 1, ...
struct KeyList {
  std::int64_t count;
  const std::int32_t* indices;  // the row of each key in `key` and `value`, ascending
  const std::int32_t* positions;
  const KeyBlock* blocks;
  bool positions_rise;  // strictly
};

// Upper bounds for a set of bias values, log2 domain.
struct BiasBound {
  double each;  // of every value
  double sum;   // of log2 of the sum of all 2^value
};

// Permission to skip keys that are proven to weigh, together, at most max_dropped_share of each
// query's sum. Without norms, or with a share of 0, the kernels read every visible block.
struct Skipping {
  double max_dropped_share;
  // For each query, the natural logarithm of a sum over other keys that counts as read, or null.
  const double* known_logsumexps;
  const BlockNorms* norms;
  const float* centre;  // [head_dim], finite; null without norms
  // For a table, one bound for each of its distances d: behind[d] covers the distances >= d and
  // ahead[d] those <= d. For sums, one bound for each block, of minus key_sums: behind[b].each
  // covers block b, behind[b].sum block b and the blocks before it, ahead[b].sum block b and the
  // blocks after it. Null for other biases.
  const BiasBound* behind;
  const BiasBound* ahead;
};

// Counts of blocks of keys.
struct BlocksRead {
  std::int64_t scored;
  std::int64_t weighed;  // of the scored: exponentials were formed, and values were added
};

// Query i sees a key at distance d if
//   d >= least_distances[i] and (d <= greatest_distances[i] or key position < sink_ends[i])
// and if, for key c of the list, bit c % 64 of words[i * words_stride + c / 64] is set.
struct TileMask {
  const std::int32_t* least_distances;
  const std::int32_t* greatest_distances;
  const std::int32_t* sink_ends;
  const std::uint64_t* words;  // null if all bits are set
  std::int64_t words_stride;
  // For each block of keys: shown_to_all, or the number of keys up to the last one whose bit is set
  // for a query. Null if they are to be found from the words.
  const std::uint8_t* shown;
};

// All keys of a block have their bits set for all queries of a tile.
constexpr int shown_to_all = 255;

// What TileMask::shown has for a block of `keys` keys, from the words of a tile's queries: the bits
// that any of them has, and those that all have. It is static so that each file has its own copy.
[[maybe_unused]] static int shown_of(std::uint64_t any, std::uint64_t all, std::int64_t keys) {
  const std::uint64_t here = ~std::uint64_t{0} >> (keys_per_block - keys);
  if ((all & here) == here) return shown_to_all;
  any &= here;
  return any == 0 ? 0 : keys_per_block - __builtin_clzll(any);
}

// The rows of one head. The elements of a row are adjacent; the stride is between rows.
struct HeadRows {
  const void* data;
  std::int64_t stride;
  DType dtype;
  const float* scales;  // of int8: element d of row r is data[r][d] scales[r]; else null
};

// Dropout: the weight of a pair is set to 0 if the pair's random number is below least_kept, and
// else multiplied by `factor`, after the sum of all weights is formed. Query i = first_query + its
// number in the tile, key j = first_key + its row in `key`. Philox4x32-10 with the key `seed` makes
// four words of a counter; each half of a word, of 16 bits, belongs to a query and one of 8 keys:
//
//   counter (j / 8, i, head, row)  ->  word     0        1        2        3
//                              upper | lower  1 | 0    3 | 2    5 | 4    7 | 6  = j % 8
struct Dropout {
  std::int32_t least_kept;  // 0: no weight is dropped
  float factor;             // 2^16 / (2^16 - least_kept)
  std::uint32_t seed[2];
  std::uint32_t row, head, first_query;
  std::int64_t first_key;
};

struct AttentionTile {
  DType dtype;  // of queries and output
  // The elements of a row are adjacent; strides are between rows.
  const void* query;
  void* output;
  HeadRows key;
  HeadRows value;
  double* logsumexp;  // one for each query, or null
  bool* weightless;   // one for each query: true if the sum of its weights is 0
  std::int64_t query_stride;
  std::int64_t output_stride;
  int query_count;
  int head_dim;
  const float* scales;   // of the products q.k, one for each query
  float greatest_scale;  // the greatest magnitude of the scales of all tiles
  const std::int32_t* query_positions;
  KeyList keys;
  TileMask mask;
  TileBias bias;
  Skipping skipping;
  Dropout dropout;
  std::int64_t tiles_of_keys;  // the number of tiles that read these keys
  StopCheck stop;
};

// Whether tiles read the rows of keys and values where they are, which takes float32 rows without
// gaps, and need no copy of them for a head. It is static so that each file has a copy of its own.
[[maybe_unused]] static bool read_in_place(const AttentionTile& tile) {
  return tile.key.dtype == DType::float32 && tile.key.stride == tile.head_dim &&
         tile.value.stride == tile.head_dim;
}

// Rows of gradients are padded to a multiple of this many channels, which suits every ISA.
constexpr int gradient_padding = 16;

// Left and right slopes.
constexpr int slope_sides = 2;

// Gradients of a tile over the blocks of keys [first_block, end_block):
//   ds_ij = p_ij (z_ij do_i.v_j - do_i.o_i + dlse_i), float32.
// z is 1 without dropout; with it, 0 for dropped weights and the factor of the others.
struct GradientTile {
  const AttentionTile* tile;  // its output and logsumexp, over all keys, are read
  std::int64_t first_block;
  std::int64_t end_block;
  const void* output_gradient;  // rows of the tile's dtype
  std::int64_t output_gradient_stride;
  const float* logsumexp_gradient;  // one for each query, or null
  // Overwritten with scale_i sum_j ds_ij k_j, over these blocks.
  void* query_gradient;
  std::int64_t query_gradient_stride;
  DType query_gradient_dtype;
  // Added to, in padded rows from first_block on: sum_i scale_i ds_ij q_i and
  // sum_i z_ij p_ij do_i.
  float* key_gradient;
  float* value_gradient;
  // Gradients of the bias; null pointers are skipped. Slopes (left, right) and query_sums are
  // overwritten with one value for each query: the sum of -d ds_ij over d > 0, the sum of d ds_ij
  // over d < 0, and the sum of ds_ij.
  float* slopes[slope_sides];
  double* query_sums;
  // Added to: -ds_ij for each row of keys, and ds_ij for each distance.
  double* key_sums;
  double* table;
  // Overwritten with ds_ij.
  float* dense;
  std::int64_t dense_query_stride;
  std::int64_t dense_key_stride;
};

// A part of the keys for one query: the blocks [first_block, end_block), read from the last one
// back. The tile has one query and no dropout, and its bias is none or linear.
struct DecodeTask {
  std::int64_t first_block;
  std::int64_t end_block;
  double log_sum;  // log2 of a lower bound of the query's sum over other parts, less the score of
                   // the centre; or -infinity
};

// The result of a part, log2 domain. merge_parts joins the parts of a query.
struct DecodePart {
  float maximum;
  float sum;      // relative to the maximum, as output is
  float* output;  // head_dim floats
  BlocksRead read;
  double log_sum;     // a lower bound of log2 of the exact sum, less the score of the centre
  bool rest_dropped;  // the blocks before this part are invisible or may be skipped
};

// One query's results over disjoint keys, `parts` of them, and where the result over all keys goes:
//   logsumexp = log sum_p exp(logsumexps[p]),  output = sum_p exp(logsumexps[p] - logsumexp)
//   outputs[p]
// 0 and -infinity if every logsumexp is -infinity. The results may replace a part's.
struct MergeRow {
  int parts;
  int head_dim;
  DType dtype;
  const void* const* outputs;
  const double* logsumexps;
  double* weights;  // memory for `parts` entries
  void* output;
  double* logsumexp;
};

struct KernelTable {
  // out[k] = slope * positions[k], k < key_length, rounded to nearest even.
  void (*scaled_positions)(const std::int32_t* positions, std::int64_t key_length, float slope,
                           DType dtype, bool stream, void* out);
  void (*linear_bias_row)(const LinearBiasRow& row, DType dtype, bool stream, void* out);
  // The number of queries in a tile of attention_tiles. Scratch memory is aligned to 64 bytes.
  int queries_per_tile;
  // The scratch memory for attention_tiles depends on the dtype, the keys, the strides and the
  // number of tiles of them. Its first scratch_header_bytes, the record of the blocks that a thread
  // has stored, are 0 before the first call; while the inputs do not change, later calls find there
  // what they can reuse.
  std::int64_t scratch_header_bytes;
  std::int64_t (*attention_scratch_bytes)(const AttentionTile& tile);
  // softmax(scale_i q.k + bias) v over the visible keys, and its logsumexp; 0 and -inf where no key
  // is visible, or the scores of all are below float32's range in units of log 2. Up to
  // tiles_per_group tiles may share a call if they differ only in their queries, outputs and
  // positions. read: the blocks of keys that each tile read.
  void (*attention_tiles)(const AttentionTile* tiles, int count, void* scratch, BlocksRead* read);
  // As attention_tiles, for one tile of at most queries_per_vector queries and at most one block of
  // keys, which it reads if it is visible.
  int queries_per_vector;
  std::int64_t (*one_block_scratch_bytes)(int head_dim);
  void (*one_block_tile)(const AttentionTile& tile, void* scratch);
  // The scratch memory is as that for attention_tiles.
  std::int64_t (*gradient_scratch_bytes)(const AttentionTile& tile);
  void (*gradient_tile)(const GradientTile& gradient, void* scratch);
  // out = row, rounded to nearest even.
  void (*write_row)(const float* row, int head_dim, DType dtype, void* out);
  std::int64_t (*decode_scratch_bytes)(int head_dim);
  void (*decode_part)(const AttentionTile& tile, const DecodeTask& task, void* scratch,
                      DecodePart* part);
  // Writes output and logsumexp of a tile of one query.
  void (*merge_parts)(const AttentionTile& tile, const DecodePart* parts, std::int64_t count,
                      void* scratch);
  void (*merge_row)(const MergeRow& row);
  // The number of blocks that the tile would read without skipping.
  std::int64_t (*visible_blocks)(const AttentionTile& tile);
  // True if no entry of `count` rows, from the first one on, is infinite or NaN.
  bool (*rows_are_finite)(const HeadRows& rows, std::int64_t first, std::int64_t count,
                          int head_dim);
  // Writes the mean of the first keys of a head. A channel without a finite mean is 0.
  void (*centre_of_keys)(const KeyList& keys, const HeadRows& key, int head_dim, float* centre);
  // The greatest norm of the keys of block b less the centre; infinity if a norm overflows or is
  // NaN.
  float (*greatest_norm)(const KeyList& keys, std::int64_t b, const HeadRows& key, int head_dim,
                         const float* centre);
  // Dropout's random integers for queries_per_vector queries and the first `keys` rows of keys;
  // `stride` is from query to query.
  void (*random_numbers)(const Dropout& dropout, std::int64_t keys, std::int64_t stride,
                         std::uint16_t* out);
  // Makes streamed stores visible to other threads; the thread that streamed calls it.
  void (*stream_fence)();
};

}  // namespace ntk_alibi
