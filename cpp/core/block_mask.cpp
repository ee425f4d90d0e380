#include "core/block_mask.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"

namespace ntk_alibi {
namespace {

constexpr std::int64_t bits_per_word = 64;
static_assert(keys_per_block == bits_per_word, "a block of keys has one word");

// Threads share the rows of a mask if each reads at least this many bytes.
constexpr std::int64_t least_bytes = 1 << 16;

// The bits of `count` bytes, 1 for each that is not 0.
std::uint64_t pack(const std::uint8_t* bytes, std::int64_t stride, std::int64_t count) {
  std::uint64_t word = 0;
  std::int64_t k = 0;
  for (; stride == 1 && k + 8 <= count; k += 8) {
    constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f;
    std::uint64_t eight;
    std::memcpy(&eight, bytes + k, sizeof eight);
    // The highest bit of each byte, then the bits of all bytes side by side.
    const std::uint64_t set = (((eight & low) + low) | eight) & ~low;
    word |= ((set >> 7) * 0x0102040810204080 >> 56) << k;
  }
  for (; k < count; ++k) word |= std::uint64_t{bytes[k * stride] != 0} << k;
  return word;
}

// The 64 bits of a row from a bit on; 0 behind the last word.
std::uint64_t bits_from(const std::uint64_t* words, std::int64_t size, std::int64_t bit) {
  const std::int64_t at = bit / bits_per_word, shift = bit % bits_per_word;
  const auto word = [&](std::int64_t w) { return w < size ? words[w] : 0; };
  return shift == 0 ? word(at) : word(at) >> shift | word(at + 1) << (bits_per_word - shift);
}

std::uint64_t first_bits(std::int64_t count) {
  return count >= bits_per_word ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// Neighbouring keys that are neighbours in the key list, too.
struct Run {
  std::int64_t key, place, count;
};

std::vector<Run> runs_of(const KeyList& keys) {
  if (keys.indices == nullptr) return {{0, 0, keys.count}};
  std::vector<Run> runs;
  for (std::int64_t c = 0; c < keys.count; ++c) {
    if (!runs.empty() && keys.indices[c] == runs.back().key + runs.back().count)
      ++runs.back().count;
    else
      runs.push_back({keys.indices[c], c, 1});
  }
  return runs;
}

}  // namespace

BlockMask::BlockMask(const MaskView& view) {
  std::copy(view.shape, view.shape + 4, shape_);
  const auto different = [&](int axis) {
    return view.strides[axis] == 0 ? std::min<std::int64_t>(view.shape[axis], 1) : view.shape[axis];
  };
  batch_ = different(0), heads_ = different(1), queries_ = different(2);
  const std::int64_t keys = view.shape[3];
  words_per_row_ = block_count(keys);
  words_.resize(batch_ * heads_ * queries_ * words_per_row_);
  const std::int64_t grain = 1 + least_bytes / (1 + keys);
  parallel_for_each(batch_ * heads_ * queries_, grain, [&](std::int64_t row) {
    const std::int64_t head = row / queries_;
    const std::uint8_t* bytes = view.data + head / heads_ * view.strides[0] +
                                head % heads_ * view.strides[1] + row % queries_ * view.strides[2];
    std::uint64_t* words = words_.data() + row * words_per_row_;
    for (std::int64_t k = 0; k < keys; k += bits_per_word)
      words[k / bits_per_word] = pack(bytes + k * view.strides[3], view.strides[3],
                                      std::min<std::int64_t>(bits_per_word, keys - k));
  });
}

const std::uint64_t* BlockMask::row(std::int64_t b, std::int64_t h, std::int64_t query) const {
  const std::int64_t head = (batch_ > 1 ? b : 0) * heads_ + (heads_ > 1 ? h : 0);
  return words_.data() + (head * queries_ + (queries_ > 1 ? query : 0)) * words_per_row_;
}

PairBits::PairBits(const AttentionProblem& problem, const KeyLists& lists, const QueryTiles& tiles)
    : part_(problem.pairs),
      mask_(problem.pairs.mask),
      lists_(lists),
      tiles_(tiles),
      key_length_(problem.key_length),
      queries_(problem.query_length) {
  if (mask_ == nullptr || problem.batch == 0 || queries_ == 0) return;
  rows_ = lists.shared() && mask_->batch() <= 1 ? 1 : problem.batch;
  heads_ = mask_->heads();
  blocks_ = block_count(key_length_);
  stride_ = mask_->query_stride();
  bool in_place = true;
  for (std::int64_t b = 0; b < rows_; ++b) in_place = in_place && this->in_place(b);
  if (!in_place) {
    stride_ = stride_ == 0 ? 0 : blocks_;
    copies_.resize(rows_ * heads_ * (stride_ == 0 ? 1 : queries_) * blocks_);
    for (std::int64_t b = 0; b < rows_; ++b) copy(b);
  }
  shown_.resize(rows_ * heads_ * tiles_.count() * blocks_);
  for (std::int64_t b = 0; b < rows_; ++b) count_blocks(b);
}

// True if the keys of a batch row are as the mask has them, from the first bit of a word on.
bool PairBits::in_place(std::int64_t b) const {
  return part_.first_key % bits_per_word == 0 && lists_.of_row(b).view().count == key_length_;
}

std::int64_t PairBits::head_of(std::int64_t b, std::int64_t h) const {
  return (rows_ > 1 ? b : 0) * heads_ + (heads_ > 1 ? h : 0);
}

void PairBits::copy(std::int64_t b) {
  const std::vector<Run> runs = runs_of(lists_.of_row(b).view());
  const std::int64_t different = stride_ == 0 ? 1 : queries_;
  const std::int64_t size = block_count(part_.first_key + key_length_);
  const std::int64_t grain = 1 + least_bytes / (1 + key_length_);
  parallel_for_each(heads_ * different, grain, [&](std::int64_t row) {
    const std::int64_t h = row / different, query = row % different;
    const std::uint64_t* from = mask_->row(part_.first_row + b, h, part_.first_query + query);
    std::uint64_t* to = copies_.data() + (b * heads_ * different + row) * blocks_;
    for (const Run& run : runs)
      for (std::int64_t done = 0; done < run.count;) {
        const std::int64_t place = run.place + done, shift = place % bits_per_word;
        const std::int64_t count = std::min(run.count - done, bits_per_word - shift);
        const std::uint64_t bits = bits_from(from, size, part_.first_key + run.key + done);
        to[place / bits_per_word] |= (bits & first_bits(count)) << shift;
        done += count;
      }
  });
}

void PairBits::count_blocks(std::int64_t b) {
  const std::int64_t keys = lists_.of_row(b).view().count;
  const std::int64_t grain = 1 + least_bytes / (1 + tiles_.size() * key_length_);
  parallel_for_each(heads_ * tiles_.count(), grain, [&](std::int64_t row) {
    const std::int64_t h = row / tiles_.count(), tile = row % tiles_.count();
    const std::int64_t count = tiles_.queries(tile);
    const std::uint64_t* words = this->words(b, h, tiles_.begin(tile));
    std::uint8_t* shown = shown_.data() + (b * heads_ * tiles_.count() + row) * blocks_;
    for (std::int64_t k = 0; k < block_count(keys); ++k) {
      std::uint64_t any = words[k], all = words[k];
      for (std::int64_t r = 1; r < count; ++r) {
        any |= words[r * stride_ + k];
        all &= words[r * stride_ + k];
      }
      const std::int64_t here = std::min(keys - k * bits_per_word, bits_per_word);
      shown[k] = static_cast<std::uint8_t>(shown_of(any, all, here));
    }
  });
}

const std::uint64_t* PairBits::words(std::int64_t b, std::int64_t h, std::int64_t first) const {
  if (copies_.empty())
    return mask_->row(part_.first_row + b, h, part_.first_query + first) +
           part_.first_key / bits_per_word;
  const std::int64_t different = stride_ == 0 ? 1 : queries_;
  return copies_.data() + head_of(b, h) * different * blocks_ + first * stride_;
}

const std::uint8_t* PairBits::shown(std::int64_t b, std::int64_t h, std::int64_t first,
                                    std::int64_t count) const {
  const std::int64_t tile = tiles_.beginning_at(first);
  if (tile < 0 || count != tiles_.queries(tile)) return nullptr;
  return shown_.data() + (head_of(b, h) * tiles_.count() + tile) * blocks_;
}

}  // namespace ntk_alibi
