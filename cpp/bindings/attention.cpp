// Attention.
#include "core/attention.h"

#include "bindings/pybind.h"
#include "core/attention_gradient.h"

namespace ntk_alibi {
namespace {

template <class T>
std::int64_t stride(const py::array_t<T>& array, int axis) {
  return array.strides(axis) / static_cast<py::ssize_t>(sizeof(T));
}

TensorView view_tensor(const py::array& array) {
  const py::ssize_t size = array.itemsize();
  return {const_cast<void*>(array.data()), array.strides(0) / size, array.strides(1) / size,
          array.strides(2) / size};
}

using Positions = std::optional<py::array_t<std::int32_t>>;

PositionView view_positions(const Positions& positions) {
  if (!positions) return {nullptr, 0};
  return {positions->data(), positions->shape(0) == 1 ? 0 : stride(*positions, 0)};
}

AttentionBias no_bias() {
  AttentionBias bias{};
  bias.kind = BiasKind::none;
  return bias;
}

AttentionBias linear_bias(const py::array_t<float>& left, const py::array_t<float>& right) {
  AttentionBias bias{};
  bias.kind = BiasKind::two_sided;
  bias.left = view_slopes(left);
  bias.right = view_slopes(right);
  return bias;
}

AttentionBias table_bias(const py::array_t<float>& table, std::int64_t begin) {
  AttentionBias bias{};
  bias.kind = BiasKind::table;
  bias.table = table.data();
  bias.table_head_stride = stride(table, 0);
  bias.table_begin = begin;
  bias.table_size = table.shape(1);
  return bias;
}

AttentionBias sums_bias(const py::array_t<double>& sums) {
  AttentionBias bias{};
  bias.kind = BiasKind::sums;
  bias.sums = sums.data();
  bias.sums_batch_stride = stride(sums, 0);
  bias.sums_head_stride = stride(sums, 1);
  return bias;
}

AttentionBias dense_bias(const py::array_t<float>& dense) {
  AttentionBias bias{};
  bias.kind = BiasKind::dense;
  bias.dense = dense.data();
  for (int axis = 0; axis < 4; ++axis) bias.dense_strides[axis] = stride(dense, axis);
  return bias;
}

using Floats = std::optional<py::array_t<float>>;
using Doubles = std::optional<py::array_t<double>>;
using Mask = std::optional<py::array_t<std::uint8_t>>;

template <class T>
T* data_of(std::optional<py::array_t<T>>& array) {
  return array ? array->mutable_data() : nullptr;
}

AttentionProblem describe(const py::array& query, const py::array& key, const py::array& value,
                          const AttentionBias& bias, DType dtype, float scale,
                          const Positions& query_positions, const Positions& key_positions,
                          const Mask& key_mask, const MaskRule& rule, double skip_tolerance) {
  AttentionProblem problem{};
  problem.dtype = dtype;
  problem.query = view_tensor(query);
  problem.key = view_tensor(key);
  problem.value = view_tensor(value);
  problem.batch = query.shape(0);
  problem.query_heads = query.shape(1);
  problem.key_heads = key.shape(1);
  problem.query_length = query.shape(2);
  problem.key_length = key.shape(2);
  problem.head_dim = query.shape(3);
  problem.scale = scale;
  problem.query_positions = view_positions(query_positions);
  problem.key_positions = view_positions(key_positions);
  problem.key_mask = key_mask ? key_mask->data() : nullptr;
  problem.mask = rule;
  problem.bias = bias;
  problem.skip_tolerance = skip_tolerance;
  return problem;
}

void bind_attention(const py::array& query, const py::array& key, const py::array& value,
                    const AttentionBias& bias, DType dtype, float scale,
                    const Positions& query_positions, const Positions& key_positions,
                    const Mask& key_mask, bool causal, std::int64_t window,
                    std::int64_t causal_block, std::int64_t sink, double skip_tolerance,
                    py::array output, Floats logsumexp,
                    std::optional<py::array_t<std::int64_t>> block_counts,
                    const Floats& key_norms) {
  AttentionProblem problem =
      describe(query, key, value, bias, dtype, scale, query_positions, key_positions, key_mask,
               {causal, window, causal_block, sink}, skip_tolerance);
  problem.output = view_tensor(output);
  problem.logsumexp = data_of(logsumexp);
  problem.block_counts = data_of(block_counts);
  if (key_norms) {
    problem.key_norms = reinterpret_cast<const BlockNorms*>(key_norms->data());
    problem.key_norms_stride = key_norms->shape(2);
  }
  py::gil_scoped_release release;
  attention(problem);
}

void bind_attention_gradients(const py::array& query, const py::array& key, const py::array& value,
                              const AttentionBias& bias, DType dtype, float scale,
                              const Positions& query_positions, const Positions& key_positions,
                              const Mask& key_mask, bool causal, std::int64_t window,
                              std::int64_t causal_block, std::int64_t sink, double skip_tolerance,
                              const py::array& output, py::array_t<float> logsumexp,
                              const py::array& output_gradient, Floats logsumexp_gradient,
                              py::array query_gradient, py::array key_gradient,
                              py::array value_gradient, Floats left_slopes, Floats right_slopes,
                              Doubles table, Doubles sums, Floats dense) {
  AttentionProblem problem =
      describe(query, key, value, bias, dtype, scale, query_positions, key_positions, key_mask,
               {causal, window, causal_block, sink}, skip_tolerance);
  problem.output = view_tensor(output);
  problem.logsumexp = logsumexp.mutable_data();
  AttentionGradients gradients{};
  gradients.output_gradient = view_tensor(output_gradient);
  gradients.logsumexp_gradient = data_of(logsumexp_gradient);
  gradients.query = view_tensor(query_gradient);
  gradients.key = view_tensor(key_gradient);
  gradients.value = view_tensor(value_gradient);
  gradients.left_slopes = data_of(left_slopes);
  gradients.right_slopes = data_of(right_slopes);
  gradients.table = data_of(table);
  gradients.sums = data_of(sums);
  gradients.dense = data_of(dense);
  py::gil_scoped_release release;
  attention_gradients(problem, gradients);
}

// norms: (batch, key heads, blocks, 3), the fields of BlockNorms.
void bind_measure_key_norms(const py::array& key, DType dtype, std::int64_t first_block,
                            py::array_t<float> norms) {
  static_assert(sizeof(BlockNorms) == 3 * sizeof(float), "seen as three floats from Python");
  const KeyNormsShape shape{key.shape(0), key.shape(1), key.shape(2), key.shape(3)};
  const TensorView view = view_tensor(key);
  BlockNorms* destination = reinterpret_cast<BlockNorms*>(norms.mutable_data());
  const std::int64_t stride = norms.shape(2);
  py::gil_scoped_release release;
  measure_key_norms(shape, view, dtype, first_block, destination, stride);
}

}  // namespace

void register_attention(py::module_& module) {
  py::class_<AttentionBias>(module, "AttentionBias");
  module.def("no_bias", &no_bias);
  module.def("linear_bias", &linear_bias, py::arg("left"), py::arg("right"), py::keep_alive<0, 1>(),
             py::keep_alive<0, 2>());
  module.def("table_bias", &table_bias, py::arg("table"), py::arg("begin"), py::keep_alive<0, 1>());
  module.def("sums_bias", &sums_bias, py::arg("sums"), py::keep_alive<0, 1>());
  module.def("dense_bias", &dense_bias, py::arg("dense"), py::keep_alive<0, 1>());
  module.def("attention", &bind_attention, py::arg("query"), py::arg("key"), py::arg("value"),
             py::arg("bias"), py::arg("dtype"), py::arg("scale"), py::arg("query_positions"),
             py::arg("key_positions"), py::arg("key_mask"), py::arg("causal"), py::arg("window"),
             py::arg("causal_block"), py::arg("sink"), py::arg("skip_tolerance"), py::arg("output"),
             py::arg("logsumexp"), py::arg("block_counts"), py::arg("key_norms"));
  module.def("attention_gradients", &bind_attention_gradients, py::arg("query"), py::arg("key"),
             py::arg("value"), py::arg("bias"), py::arg("dtype"), py::arg("scale"),
             py::arg("query_positions"), py::arg("key_positions"), py::arg("key_mask"),
             py::arg("causal"), py::arg("window"), py::arg("causal_block"), py::arg("sink"),
             py::arg("skip_tolerance"), py::arg("output"), py::arg("logsumexp"),
             py::arg("output_gradient"), py::arg("logsumexp_gradient"), py::arg("query_gradient"),
             py::arg("key_gradient"), py::arg("value_gradient"), py::arg("left_slopes"),
             py::arg("right_slopes"), py::arg("table"), py::arg("sums"), py::arg("dense"));
  module.def("measure_key_norms", &bind_measure_key_norms, py::arg("key"), py::arg("dtype"),
             py::arg("first_block"), py::arg("norms"));
}

}  // namespace ntk_alibi
