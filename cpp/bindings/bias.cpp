// Slopes and bias tensors.
#include "bindings/pybind.h"
#include "core/bias_tensor.h"
#include "core/slopes.h"

namespace ntk_alibi {
namespace {

py::array_t<double> bind_alibi_exponents(std::int64_t num_heads, SlopeRule rule) {
  py::array_t<double> exponents(num_heads);
  alibi_exponents(num_heads, rule, exponents.mutable_data());
  return exponents;
}

void bind_key_bias(const py::array_t<std::uint8_t, py::array::c_style>& mask,
                   const py::array_t<float>& slopes, Anchor anchor, DType dtype, py::array out) {
  const KeyBiasShape shape{mask.shape(0), slopes.shape(1), mask.shape(1)};
  const QueryView slope_view = view_per_query(slopes);
  const std::uint8_t* mask_data = mask.data();
  void* destination = out.mutable_data();
  py::gil_scoped_release release;
  key_bias(shape, mask_data, slope_view, anchor, dtype, destination);
}

void bind_relative_bias(const py::array_t<float>& left, const py::array_t<float>& right,
                        DType dtype, py::array out) {
  const RelativeBiasShape shape{out.shape(0), out.shape(1), out.shape(2), out.shape(3)};
  const QueryView left_view = view_per_query(left), right_view = view_per_query(right);
  void* destination = out.mutable_data();
  py::gil_scoped_release release;
  relative_bias(shape, left_view, right_view, dtype, destination);
}

}  // namespace

void register_bias(py::module_& module) {
  py::enum_<SlopeRule>(module, "SlopeRule")
      .value("press", SlopeRule::press)
      .value("geometric", SlopeRule::geometric);
  py::enum_<DType>(module, "DType")
      .value("float32", DType::float32)
      .value("bfloat16", DType::bfloat16)
      .value("float16", DType::float16);
  py::enum_<Anchor>(module, "Anchor").value("first", Anchor::first).value("last", Anchor::last);
  module.def("alibi_exponents", &bind_alibi_exponents, py::arg("num_heads"), py::arg("rule"));
  module.def("key_bias", &bind_key_bias, py::arg("mask"), py::arg("slopes"), py::arg("anchor"),
             py::arg("dtype"), py::arg("out"));
  module.def("relative_bias", &bind_relative_bias, py::arg("left"), py::arg("right"),
             py::arg("dtype"), py::arg("out"));
}

}  // namespace ntk_alibi
