// A call of attention with its tensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/attention.h"

// Three heads with causal two-sided bias, skipping and statistics; with `masked` every fifth key is
// padding.
struct Call {
  static constexpr std::int64_t heads = 3, dim = 20;
  std::vector<float> inputs, output;
  std::vector<double> logsumexp;
  std::vector<std::uint8_t> mask;
  std::vector<std::int64_t> counts;
  ntk_alibi::AttentionProblem problem{};

  Call(std::int64_t queries, std::int64_t keys, bool masked) {
    static const float slopes[heads] = {0.5f, 0.03f, 0.002f};
    inputs.resize(heads * keys * dim);
    std::uint32_t state = 7;
    for (float& input : inputs) {
      state = state * 1664525u + 1013904223u;
      input = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
    }
    output.resize(heads * queries * dim);
    logsumexp.resize(heads * queries);
    counts.resize(ntk_alibi::kinds_of_counts * heads);
    const ntk_alibi::TensorView view{inputs.data(), 0, keys * dim, dim};
    problem.dtype = ntk_alibi::DType::float32;
    problem.query = problem.key = problem.value = view;
    problem.output = {output.data(), 0, queries * dim, dim};
    problem.logsumexp = logsumexp.data();
    problem.batch = 1;
    problem.query_heads = problem.key_heads = heads;
    problem.query_length = queries;
    problem.key_length = keys;
    problem.query_pitch = queries;
    problem.key_pitch = keys;
    problem.head_dim = dim;
    problem.scale = 0.2f;
    problem.mask = {true, std::numeric_limits<std::int32_t>::max(), 0, 0};
    problem.bias.kind = ntk_alibi::BiasKind::two_sided;
    problem.bias.left = problem.bias.right = {slopes, 0, 1, 0};
    problem.block_counts = counts.data();
    if (!masked) return;
    mask.assign(keys, 1);
    for (std::int64_t k = 0; k < keys; k += 5) mask[k] = 0;
    problem.key_mask = mask.data();
  }
};
