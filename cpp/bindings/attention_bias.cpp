// Biases of attention, in the form that the core takes.
#include "bindings/attention_bias.h"

#include <utility>

namespace ntk_alibi {
namespace {

using Floats = py::array_t<float>;

// The slopes of a side, (1 or batch, 1 or heads, 1 or queries).
QueryView hold_slopes(HeldBias& held, const char* name, const Floats& slopes) {
  check_sizes(name, slopes, {any_size, any_size, any_size});
  held.arrays.push_back({name, slopes, {Axis::batch, Axis::heads, Axis::queries}, Axes::broadcast});
  return view_per_query(slopes);
}

HeldBias no_bias() {
  HeldBias held;
  held.bias.kind = BiasKind::none;
  return held;
}

HeldBias linear_bias(const Floats& left, const Floats& right) {
  HeldBias held;
  held.bias.kind = BiasKind::two_sided;
  held.bias.left = hold_slopes(held, "left", left);
  held.bias.right = hold_slopes(held, "right", right);
  return held;
}

HeldBias knee_bias(const Floats& left, const Floats& right, const Floats& far_left,
                   const Floats& far_right, std::int64_t knee) {
  HeldBias held = linear_bias(left, right);
  held.bias.kind = BiasKind::two_sided_knee;
  held.bias.far_left = hold_slopes(held, "far_left", far_left);
  held.bias.far_right = hold_slopes(held, "far_right", far_right);
  held.bias.knee = knee;
  return held;
}

HeldBias table_bias(const Floats& table, std::int64_t begin) {
  check_sizes("table", table, {any_size, any_size});
  check_adjacent("table", table);
  HeldBias held;
  AttentionBias& bias = held.bias;
  bias.kind = BiasKind::table;
  bias.table = table.data();
  bias.table_head_stride = stride(table, 0);
  bias.table_begin = begin;
  bias.table_size = table.shape(1);
  bias.table_bounds = std::make_shared<TableBounds>(bias.table, table.shape(0),
                                                    bias.table_head_stride, bias.table_size);
  held.arrays.push_back({"table", table, {Axis::heads, Axis::own}, Axes::whole});
  return held;
}

HeldBias sums_bias(const py::array_t<double>& sums) {
  check_sizes("sums", sums, {any_size, any_size, any_size});
  check_adjacent("sums", sums);
  HeldBias held;
  held.bias.kind = BiasKind::sums;
  held.bias.sums = sums.data();
  held.bias.sums_batch_stride = stride(sums, 0);
  held.bias.sums_head_stride = stride(sums, 1);
  held.arrays.push_back({"sums", sums, {Axis::batch, Axis::heads, Axis::keys}, Axes::whole});
  return held;
}

HeldBias dense_bias(const Floats& dense) {
  check_sizes("dense", dense, {any_size, any_size, any_size, any_size});
  HeldBias held;
  held.bias.kind = BiasKind::dense;
  held.bias.dense = dense.data();
  for (int axis = 0; axis < 4; ++axis) held.bias.dense_strides[axis] = stride(dense, axis);
  held.arrays.push_back(
      {"dense", dense, {Axis::batch, Axis::heads, Axis::queries, Axis::keys}, Axes::whole});
  return held;
}

py::ssize_t size_of(Axis axis, const AttentionProblem& problem) {
  switch (axis) {
    case Axis::batch: return problem.batch;
    case Axis::heads: return problem.query_heads;
    case Axis::queries: return problem.query_length;
    case Axis::keys: return problem.key_length;
    case Axis::own: break;
  }
  return any_size;
}

}  // namespace

void HeldBias::check(const AttentionProblem& problem) const {
  for (const BiasArray& held : arrays) {
    Sizes sizes{};
    for (const Axis axis : held.axes) sizes.size[sizes.count++] = size_of(axis, problem);
    check_sizes(held.name, held.array, sizes, held.sizes);
  }
  if (bias.kind == BiasKind::sums && problem.query_length > problem.key_length)
    throw py::value_error("sums must have an entry for each query, got more queries than keys");
}

void register_attention_bias(py::module_& module) {
  py::class_<HeldBias>(module, "AttentionBias");
  module.def("no_bias", &no_bias);
  module.def("linear_bias", &linear_bias, py::arg("left"), py::arg("right"));
  module.def("knee_bias", &knee_bias, py::arg("left"), py::arg("right"), py::arg("far_left"),
             py::arg("far_right"), py::arg("knee"));
  module.def("table_bias", &table_bias, py::arg("table"), py::arg("begin"));
  module.def("sums_bias", &sums_bias, py::arg("sums"));
  module.def("dense_bias", &dense_bias, py::arg("dense"));
}

}  // namespace ntk_alibi
