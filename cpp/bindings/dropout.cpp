// Dropout, and what is drawn for it.
#include "core/dropout.h"

#include "bindings/pybind.h"

namespace ntk_alibi {
namespace {

// One number of 16 bits for each pair of (batch, heads, queries, keys).
py::array_t<std::uint16_t> bind_random_numbers(const Dropout& dropout,
                                               const std::array<py::ssize_t, 4>& shape) {
  py::ssize_t count = 2;  // bytes
  for (const py::ssize_t size : shape)
    if (size < 0 || __builtin_mul_overflow(count, size, &count))
      throw py::value_error("shape must be of sizes whose product fits into memory, got others");
  py::array_t<std::uint16_t> out(shape);
  std::uint16_t* drawn = out.mutable_data();
  py::gil_scoped_release release;
  random_numbers({shape[0], shape[1], shape[2], shape[3]}, dropout, drawn);
  return out;
}

}  // namespace

void register_dropout(py::module_& module) {
  py::class_<Dropout>(module, "Dropout")
      .def(py::init([](std::int32_t least_kept, std::uint64_t seed, std::uint32_t row,
                       std::uint32_t head, std::uint32_t query, std::int64_t key) {
             constexpr std::int32_t all = 1 << 16;
             const std::int32_t kept = all - least_kept;
             const float factor = kept > 0 ? static_cast<float>(1.0 * all / kept) : 0.0f;
             return Dropout{
                 least_kept,
                 factor,
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
                 row,
                 head,
                 query,
                 key};
           }),
           py::arg("least_kept"), py::arg("seed"), py::arg("row"), py::arg("head"),
           py::arg("query"), py::arg("key"));
  module.def("random_numbers", &bind_random_numbers, py::arg("dropout"), py::arg("shape"));
}

}  // namespace ntk_alibi
