// Attention of 8 heads over 600 tokens with ALiBi, and one more token beside a key cache with room.
//
// Prints the logsumexp of every head at the last token, and the first number of its output, so that
// both can be compared with Python's (tests/test_cpp_package.py does).
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "ntk_alibi/attention.h"

namespace {

constexpr std::int64_t heads = 8, tokens = 600, room = 1024, head_dim = 64;

// Values between -1 and 1, the same on every machine.
std::vector<float> random_values(std::uint32_t state, std::size_t count) {
  std::vector<float> drawn(count);
  for (float& number : drawn) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
  }
  return drawn;
}

void print(const char* name, const std::vector<float>& output, const std::vector<double>& logsumexp,
           std::int64_t queries) {
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t last = (h + 1) * queries - 1;
    std::printf("%s %d %.9g %.9g\n", name, static_cast<int>(h), logsumexp[last],
                output[last * head_dim]);
  }
}

}  // namespace

int main() try {
  // The caches have room for more tokens than there are: strides say where rows are.
  const std::vector<float> query = random_values(1, heads * tokens * head_dim);
  const std::vector<float> key = random_values(2, heads * room * head_dim);
  const std::vector<float> value = random_values(3, heads * room * head_dim);
  const std::vector<float> slopes = ntk_alibi::alibi_slopes(heads);
  std::vector<float> output(query.size());
  std::vector<double> logsumexp(heads * tokens);

  ntk_alibi::AttentionArguments prompt;
  prompt.query_heads = prompt.key_heads = heads;
  prompt.query_length = prompt.key_length = tokens;
  prompt.head_dim = head_dim;
  prompt.query = ntk_alibi::contiguous<const void>(query.data(), heads, tokens, head_dim);
  prompt.key = ntk_alibi::contiguous<const void>(key.data(), heads, room, head_dim);
  prompt.value = ntk_alibi::contiguous<const void>(value.data(), heads, room, head_dim);
  prompt.output = ntk_alibi::contiguous<void>(output.data(), heads, tokens, head_dim);
  prompt.logsumexp = logsumexp.data();
  prompt.slopes = slopes.data();
  ntk_alibi::attention(prompt);
  print("prompt", output, logsumexp, tokens);

  // The next token: one query for each head, one key more, and no key is left out.
  const std::vector<float> next = random_values(4, heads * head_dim);
  ntk_alibi::AttentionArguments token = prompt;
  token.query_length = 1;
  token.key_length = tokens + 1;
  token.query = ntk_alibi::contiguous<const void>(next.data(), heads, 1, head_dim);
  token.output = ntk_alibi::contiguous<void>(output.data(), heads, 1, head_dim);
  token.skip_tolerance = std::nullopt;
  ntk_alibi::attention(token);
  print("token", output, logsumexp, 1);
} catch (const std::exception& error) {
  std::fprintf(stderr, "causal_attention: %s\n", error.what());
  return 1;
}
