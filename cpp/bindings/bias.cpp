// Bias tensors.
#include "bindings/arrays.h"
#include "core/bias_tensor.h"

namespace ntk_alibi {
namespace {

// A new tensor of this dtype, which must be one to round to.
void check_filled(const py::array& out, DType dtype, const Sizes& sizes) {
  py::ssize_t count = 1;
  for (int axis = 0; axis < sizes.count; ++axis) count *= sizes.size[axis];
  if (dtype_of("out", out) != dtype)
    throw py::type_error("out must have the dtype that is given, got another");
  if (out.size() != count || (out.flags() & py::array::c_style) == 0 || !out.writeable())
    throw py::value_error("out must be contiguous and writable with " + std::to_string(count) +
                          " entries, got another array of " + std::to_string(out.size()));
}

void bind_key_bias(const py::array_t<std::uint8_t, py::array::c_style>& mask,
                   const py::array_t<float>& slopes, Anchor anchor, DType dtype, py::array out) {
  check_sizes("mask", mask, {any_size, any_size});
  check_sizes("slopes", slopes, {any_size, any_size, 1});
  check_sizes("slopes", slopes, {mask.shape(0), slopes.shape(1), 1}, Axes::broadcast);
  check_filled(out, dtype, {mask.shape(0), slopes.shape(1), mask.shape(1)});
  const KeyBiasShape shape{mask.shape(0), slopes.shape(1), mask.shape(1)};
  const QueryView slope_view = view_per_query(slopes);
  const std::uint8_t* mask_data = mask.data();
  void* destination = out.mutable_data();
  py::gil_scoped_release release;
  key_bias(shape, mask_data, slope_view, anchor, dtype, destination);
}

void bind_relative_bias(const py::array_t<float>& left, const py::array_t<float>& right,
                        DType dtype, py::array out) {
  const Sizes sizes = sizes_of("out", out);
  check_filled(out, dtype, sizes);
  for (const auto& [name, slopes] : {std::pair{"left", &left}, std::pair{"right", &right}})
    check_sizes(name, *slopes, {sizes.size[0], sizes.size[1], sizes.size[2]}, Axes::broadcast);
  const RelativeBiasShape shape{out.shape(0), out.shape(1), out.shape(2), out.shape(3)};
  const QueryView left_view = view_per_query(left), right_view = view_per_query(right);
  void* destination = out.mutable_data();
  py::gil_scoped_release release;
  relative_bias(shape, left_view, right_view, dtype, destination);
}

}  // namespace

void register_bias(py::module_& module) {
  py::enum_<DType>(module, "DType")
      .value("float32", DType::float32)
      .value("bfloat16", DType::bfloat16)
      .value("float16", DType::float16);
  py::enum_<Anchor>(module, "Anchor").value("first", Anchor::first).value("last", Anchor::last);
  module.def("key_bias", &bind_key_bias, py::arg("mask"), py::arg("slopes"), py::arg("anchor"),
             py::arg("dtype"), py::arg("out"));
  module.def("relative_bias", &bind_relative_bias, py::arg("left"), py::arg("right"),
             py::arg("dtype"), py::arg("out"));
}

}  // namespace ntk_alibi
