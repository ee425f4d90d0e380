// Attention of 4 heads, 70 queries and 1500 keys for every skip_tolerance that the command line
// names ("none" or a number), with the slopes of ALiBi, with their negatives, and without a bias.
// Prints the logsumexps, one call a line; tests/test_cpp_package.py compares them with Python's.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ntk_alibi/attention.h"

namespace {

constexpr std::int64_t heads = 4, queries = 70, keys = 1500, head_dim = 64;

std::vector<float> make_inputs(std::uint32_t state, std::size_t count) {
  std::vector<float> drawn(count);
  for (float& number : drawn) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
  }
  return drawn;
}

}  // namespace

int main(int count, char** tolerances) {
  const std::vector<float> query = make_inputs(1, heads * queries * head_dim);
  const std::vector<float> key = make_inputs(2, heads * keys * head_dim);
  const std::vector<float> value = make_inputs(3, heads * keys * head_dim);
  const std::vector<float> slopes = ntk_alibi::alibi_slopes(heads);
  std::vector<float> negative, output(query.size());
  for (const float slope : slopes) negative.push_back(-slope);
  std::vector<double> logsumexp(heads * queries);

  ntk_alibi::AttentionArguments call;
  call.query_heads = call.key_heads = heads;
  call.query_length = queries;
  call.key_length = keys;
  call.head_dim = head_dim;
  call.query = ntk_alibi::contiguous<const void>(query.data(), heads, queries, head_dim);
  call.key = ntk_alibi::contiguous<const void>(key.data(), heads, keys, head_dim);
  call.value = ntk_alibi::contiguous<const void>(value.data(), heads, keys, head_dim);
  call.output = ntk_alibi::contiguous<void>(output.data(), heads, queries, head_dim);
  call.logsumexp = logsumexp.data();
  for (int i = 1; i < count; ++i) {
    call.skip_tolerance.reset();
    if (std::strcmp(tolerances[i], "none") != 0) call.skip_tolerance = std::atof(tolerances[i]);
    const float* const biases[] = {slopes.data(), negative.data(), nullptr};
    for (const float* bias : biases) {
      call.slopes = bias;
      ntk_alibi::attention(call);
      for (const double log : logsumexp) std::printf("%.17g ", log);
      std::printf("\n");
    }
  }
}
