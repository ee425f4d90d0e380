// Joining results over disjoint keys.
#include "core/merge.h"

#include "bindings/arrays.h"

namespace ntk_alibi {
namespace {

void bind_merge(const std::vector<py::array>& outputs,
                const std::vector<py::array_t<double, py::array::c_style>>& logsumexps,
                py::array output, py::array_t<double> logsumexp) {
  const DType dtype = dtype_of("output", output);
  if (dtype == DType::int8) throw py::type_error("output must be floating, got int8");
  const Sizes sizes = sizes_of("output", output);
  const MergeShape shape{sizes.size[0], sizes.size[1], sizes.size[2], sizes.size[3]};
  const Sizes per_query{shape.batch, shape.heads, shape.queries};
  if (outputs.empty() || outputs.size() != logsumexps.size())
    throw py::value_error("outputs and logsumexps must have the same length, at least 1");
  std::vector<Rows> kept;
  std::vector<TensorView> views;
  std::vector<const double*> logs;
  for (const py::array& part : outputs)
    views.push_back(kept.emplace_back("outputs", part, dtype, sizes).view());
  for (const auto& part : logsumexps) {
    check_contiguous("logsumexps", part, per_query);
    logs.push_back(part.data());
  }
  const TensorView destination = written_rows("output", output, dtype, sizes);
  check_written("logsumexp", logsumexp, per_query);
  double* log_destination = logsumexp.mutable_data();
  py::gil_scoped_release release;
  merge(shape, dtype, views, logs, destination, log_destination);
}

}  // namespace

void register_merge(py::module_& module) {
  module.def("merge", &bind_merge, py::arg("outputs"), py::arg("logsumexps"), py::arg("output"),
             py::arg("logsumexp").noconvert());
}

}  // namespace ntk_alibi
