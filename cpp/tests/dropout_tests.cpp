// Dropout's random integers against the vectors that Random123 publishes for Philox4x32-10
// (https://github.com/DEShawResearch/random123, tests/kat_vectors).
#include <cstdint>
#include <vector>

#include "checks.h"
#include "core/dropout.h"

using namespace ntk_alibi;

namespace {

struct KnownAnswer {
  std::uint32_t counter[4], key[2], words[4];
};

const KnownAnswer known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

}  // namespace

void test_random_numbers() {
  constexpr std::int64_t before = 3, keys_per_counter = 8;
  for (const KnownAnswer& known : known_answers) {
    // The query of the counter is the fourth one, so that it is in any lane but the first.
    const Dropout dropout{1,
                          1.0f,
                          {known.key[0], known.key[1]},
                          known.counter[3],
                          known.counter[2],
                          known.counter[1] - static_cast<std::uint32_t>(before),
                          keys_per_counter * std::int64_t{known.counter[0]}};
    std::vector<std::uint16_t> drawn((before + 1) * keys_per_counter);
    random_numbers({1, 1, before + 1, keys_per_counter}, dropout, drawn.data());
    for (std::int64_t j = 0; j < keys_per_counter; ++j)
      CHECK(drawn[before * keys_per_counter + j] ==
            static_cast<std::uint16_t>(known.words[j / 2] >> (j % 2 * 16)));
  }
}
