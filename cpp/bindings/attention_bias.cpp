// Biases of attention, in the form that the core takes. Each keeps its arrays alive.
#include "bindings/pybind.h"
#include "core/attention.h"

namespace ntk_alibi {
namespace {

AttentionBias no_bias() {
  AttentionBias bias{};
  bias.kind = BiasKind::none;
  return bias;
}

AttentionBias linear_bias(const py::array_t<float>& left, const py::array_t<float>& right) {
  AttentionBias bias{};
  bias.kind = BiasKind::two_sided;
  bias.left = view_per_query(left);
  bias.right = view_per_query(right);
  return bias;
}

AttentionBias knee_bias(const py::array_t<float>& left, const py::array_t<float>& right,
                        const py::array_t<float>& far_left, const py::array_t<float>& far_right,
                        std::int64_t knee) {
  AttentionBias bias = linear_bias(left, right);
  bias.kind = BiasKind::two_sided_knee;
  bias.far_left = view_per_query(far_left);
  bias.far_right = view_per_query(far_right);
  bias.knee = knee;
  return bias;
}

AttentionBias table_bias(const py::array_t<float>& table, std::int64_t begin) {
  AttentionBias bias{};
  bias.kind = BiasKind::table;
  bias.table = table.data();
  bias.table_head_stride = stride(table, 0);
  bias.table_begin = begin;
  bias.table_size = table.shape(1);
  bias.table_bounds = std::make_shared<TableBounds>(bias.table, table.shape(0),
                                                    bias.table_head_stride, bias.table_size);
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

}  // namespace

void register_attention_bias(py::module_& module) {
  py::class_<AttentionBias>(module, "AttentionBias");
  module.def("no_bias", &no_bias);
  module.def("linear_bias", &linear_bias, py::arg("left"), py::arg("right"), py::keep_alive<0, 1>(),
             py::keep_alive<0, 2>());
  module.def("knee_bias", &knee_bias, py::arg("left"), py::arg("right"), py::arg("far_left"),
             py::arg("far_right"), py::arg("knee"), py::keep_alive<0, 1>(), py::keep_alive<0, 2>(),
             py::keep_alive<0, 3>(), py::keep_alive<0, 4>());
  module.def("table_bias", &table_bias, py::arg("table"), py::arg("begin"), py::keep_alive<0, 1>());
  module.def("sums_bias", &sums_bias, py::arg("sums"), py::keep_alive<0, 1>());
  module.def("dense_bias", &dense_bias, py::arg("dense"), py::keep_alive<0, 1>());
}

}  // namespace ntk_alibi
