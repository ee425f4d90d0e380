// Attention and its gradients.
#include "core/attention.h"

#include <algorithm>
#include <string>

#include "bindings/problem.h"
#include "core/attention_gradient.h"
#include "core/skip_bounds.h"

namespace ntk_alibi {
namespace {

using Floats = py::array_t<float>;

// Scales (batch, key heads, keys) of int8 keys and values, adjacent for the keys of a head.
ScaleView view_scales(const char* name, const Floats& scales, const Sizes& sizes) {
  check_sizes(name, scales, sizes);
  check_adjacent(name, scales);
  return {scales.data(), stride(scales, 0), stride(scales, 1)};
}

// Checks norms (batch, key heads, blocks, 3), the fields of BlockNorms, and centres (batch, key
// heads, head_dim) of keys, and returns the number of blocks of a head.
std::int64_t check_norms(const Floats& norms, const Floats& centres, const Sizes& keys) {
  static_assert(sizeof(BlockNorms) == 3 * sizeof(float), "seen as three floats from Python");
  const auto [batch, heads, length, head_dim] = keys.size;
  check_contiguous("norms", norms, {batch, heads, any_size, 3});
  check_contiguous("centres", centres, {batch, heads, head_dim});
  if (norms.shape(2) * keys_per_block < length)
    throw py::value_error("norms must have a block for every " + std::to_string(keys_per_block) +
                          " keys, got " + std::to_string(norms.shape(2)));
  return norms.shape(2);
}

// The memory of an array that the core fills; null without one.
template <class T>
T* written(const char* name, std::optional<py::array_t<T>>& array, const Sizes& sizes) {
  if (!array) return nullptr;
  check_written(name, *array, sizes);
  return array->mutable_data();
}

// The same for an array of a dictionary.
template <class T>
T* written(const char* name, const py::dict& arrays, const Sizes& sizes) {
  if (!arrays.contains(name)) return nullptr;
  const py::object array = arrays[name];
  if (!py::isinstance<py::array_t<T>>(array))
    throw py::type_error(std::string(name) + " must be an array of another dtype");
  std::optional<py::array_t<T>> given = py::reinterpret_borrow<py::array_t<T>>(array);
  return written(name, given, sizes);
}

template <class T>
const T* contiguous(const char* name, const std::optional<py::array_t<T>>& array,
                    const Sizes& sizes) {
  if (!array) return nullptr;
  check_contiguous(name, *array, sizes);
  return array->data();
}

void check_head_dim(py::ssize_t head_dim) {
  if (head_dim < 1 || head_dim > greatest_head_dim)
    throw py::value_error("head_dim must be between 1 and " + std::to_string(greatest_head_dim) +
                          ", got " + std::to_string(head_dim));
}

// A problem with the inputs of a call, which stay alive while the core reads them.
struct Call {
  AttentionProblem problem;
  Sizes queries, keys, per_query;
  Rows query, key, value;

  Call(const Problem& shared, const py::array& given_query, const py::array& given_key,
       const py::array& given_value, bool quantized, const std::optional<Dropout>& dropout)
      : problem(shared.view),
        queries(sizes_of("query", given_query)),
        keys(sizes_of("key", given_key)),
        per_query{problem.batch, problem.query_heads, problem.query_length},
        query("query", given_query, dtype_of("query", given_query),
              {problem.batch, problem.query_heads, problem.query_length, any_size}),
        key("key", given_key, quantized ? DType::int8 : query.dtype(),
            {problem.batch, any_size, problem.key_length, queries.size[3]}),
        value("value", given_value, key.dtype(), keys) {
    if (query.dtype() == DType::int8) throw py::type_error("query must be floating, got int8");
    if (problem.query_heads % std::max<py::ssize_t>(keys.size[1], 1) != 0 ||
        (keys.size[1] == 0 && problem.query_heads > 0))
      throw py::value_error("query must have a multiple of key's heads, got " +
                            std::to_string(problem.query_heads) + " and " +
                            std::to_string(keys.size[1]));
    check_head_dim(queries.size[3]);
    problem.dtype = query.dtype();
    problem.query = query.view();
    problem.key = key.view();
    problem.value = value.view();
    problem.key_heads = keys.size[1];
    problem.head_dim = queries.size[3];
    if (dropout) problem.dropout = *dropout;
  }
};

void bind_attention(const Problem& shared, const py::array& query, const py::array& key,
                    const py::array& value, py::array output,
                    std::optional<py::array_t<double>> logsumexp,
                    std::optional<py::array_t<std::int64_t>> block_counts,
                    const std::optional<std::pair<Floats, Floats>>& key_norms,
                    const std::optional<py::array_t<double>>& known_logsumexps,
                    const std::optional<std::pair<Floats, Floats>>& scales,
                    const std::optional<Dropout>& dropout) {
  Call call(shared, query, key, value, scales.has_value(), dropout);
  AttentionProblem& problem = call.problem;
  problem.output = written_rows("output", output, problem.dtype, call.queries);
  problem.logsumexp = written("logsumexp", logsumexp, call.per_query);
  problem.block_counts =
      written("block_counts", block_counts, {problem.batch, problem.query_heads, kinds_of_counts});
  problem.known_logsumexps = contiguous("known_logsumexps", known_logsumexps, call.per_query);
  if (scales) {
    const Sizes per_key{problem.batch, problem.key_heads, problem.key_length};
    problem.key_scales = view_scales("key scales", scales->first, per_key);
    problem.value_scales = view_scales("value scales", scales->second, per_key);
  }
  if (key_norms) {
    const auto& [norms, centres] = *key_norms;
    problem.key_norms_stride = check_norms(norms, centres, call.keys);
    problem.key_norms = reinterpret_cast<const BlockNorms*>(norms.data());
    problem.key_centres = centres.data();
  }
  py::gil_scoped_release release;
  if (shared.segments) return attention_of_segments(problem, *shared.segments);
  attention(problem);
}

void bind_attention_gradients(const Problem& shared, const py::array& query, const py::array& key,
                              const py::array& value, const py::array& output,
                              const py::array_t<double>& logsumexp,
                              const py::array& output_gradient,
                              const std::optional<Floats>& logsumexp_gradient,
                              py::array query_gradient, py::array key_gradient,
                              py::array value_gradient, const py::dict& bias_gradients,
                              const std::optional<Dropout>& dropout) {
  Call call(shared, query, key, value, false, dropout);
  AttentionProblem& problem = call.problem;
  const DType dtype = problem.dtype;
  const py::ssize_t batch = problem.batch, heads = problem.query_heads;
  const py::ssize_t queries = problem.query_length, keys = problem.key_length;
  const Rows forward_output("output", output, dtype, call.queries);
  const Rows incoming("output_gradient", output_gradient, dtype, call.queries);
  problem.output = forward_output.view();
  check_contiguous("logsumexp", logsumexp, call.per_query);
  problem.logsumexp = const_cast<double*>(logsumexp.data());  // only read
  AttentionGradients gradients{};
  gradients.output_gradient = incoming.view();
  gradients.logsumexp_gradient =
      contiguous("logsumexp_gradient", logsumexp_gradient, call.per_query);
  gradients.query = written_rows("query_gradient", query_gradient, dtype, call.queries);
  gradients.key = written_rows("key_gradient", key_gradient, dtype, call.keys);
  gradients.value = written_rows("value_gradient", value_gradient, dtype, call.keys);
  gradients.slopes[0] = written<float>("left", bias_gradients, call.per_query);
  gradients.slopes[1] = written<float>("right", bias_gradients, call.per_query);
  gradients.table = written<double>("table", bias_gradients, {heads, problem.bias.table_size});
  gradients.sums = written<double>("sums", bias_gradients, {batch, heads, keys});
  gradients.dense = written<float>("dense", bias_gradients, {batch, heads, queries, keys});
  py::gil_scoped_release release;
  if (shared.segments) return attention_gradients_of_segments(problem, gradients, *shared.segments);
  attention_gradients(problem, gradients);
}

void bind_measure_key_norms(const py::array& key, std::int64_t known, Floats norms, Floats centres,
                            const std::optional<Floats>& scales) {
  const DType dtype = dtype_of("key", key);
  if ((dtype == DType::int8) != scales.has_value())
    throw py::type_error("scales must be given with int8 keys, and with no others");
  const Sizes sizes = sizes_of("key", key);
  check_head_dim(sizes.size[3]);
  const Rows keys("key", key, dtype, sizes);
  const KeyNormsShape shape{sizes.size[0], sizes.size[1], sizes.size[2], sizes.size[3]};
  if (known < 0 || known > shape.key_length)
    throw py::value_error("known must be between 0 and the number of keys, got " +
                          std::to_string(known));
  const std::int64_t norms_stride = check_norms(norms, centres, sizes);
  ScaleView scale_view{};
  if (scales)
    scale_view = view_scales("scales", *scales, {shape.batch, shape.key_heads, shape.key_length});
  const TensorView view = keys.view();
  BlockNorms* destination = reinterpret_cast<BlockNorms*>(norms.mutable_data());
  float* centre_data = centres.mutable_data();
  py::gil_scoped_release release;
  measure_key_norms(shape, view, scale_view, dtype, known, destination, norms_stride, centre_data);
}

}  // namespace

void register_attention(py::module_& module) {
  module.def("attention", &bind_attention, py::arg("problem"), py::arg("query"), py::arg("key"),
             py::arg("value"), py::arg("output"), py::arg("logsumexp").noconvert() = py::none(),
             py::arg("block_counts").noconvert() = py::none(), py::arg("key_norms") = py::none(),
             py::arg("known_logsumexps") = py::none(), py::arg("scales") = py::none(),
             py::arg("dropout") = py::none());
  module.def("attention_gradients", &bind_attention_gradients, py::arg("problem"), py::arg("query"),
             py::arg("key"), py::arg("value"), py::arg("output"), py::arg("logsumexp"),
             py::arg("output_gradient"), py::arg("logsumexp_gradient"), py::arg("query_gradient"),
             py::arg("key_gradient"), py::arg("value_gradient"), py::arg("bias_gradients"),
             py::arg("dropout") = py::none());
  module.attr("keys_per_block") = keys_per_block;
  module.def("measure_key_norms", &bind_measure_key_norms, py::arg("key"), py::arg("known"),
             py::arg("norms").noconvert(), py::arg("centres").noconvert(),
             py::arg("scales") = py::none());
}

}  // namespace ntk_alibi
