// The public interface: equal to the core, and wrong arguments are refused.
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "call.h"
#include "checks.h"
#include "ntk_alibi/attention.h"

using namespace ntk_alibi;

namespace {

// The arguments of a call of the core, with results of their own.
struct Arguments {
  std::vector<float> output;
  std::vector<double> logsumexp;
  std::vector<float> slopes{0.5f, 0.03f, 0.002f};
  AttentionArguments arguments;

  explicit Arguments(const Call& call)
      : output(call.output.size()), logsumexp(call.logsumexp.size()) {
    const AttentionProblem& p = call.problem;
    arguments.query_heads = arguments.key_heads = Call::heads;
    arguments.query_length = p.query_length;
    arguments.key_length = p.key_length;
    arguments.head_dim = Call::dim;
    arguments.query = arguments.key = arguments.value =
        contiguous<const void>(call.numbers.data(), Call::heads, p.key_length, Call::dim);
    arguments.output = contiguous<void>(output.data(), Call::heads, p.query_length, Call::dim);
    arguments.logsumexp = logsumexp.data();
    arguments.scale = p.scale;
    arguments.slopes = slopes.data();
    arguments.key_padding_mask = p.key_mask;
  }
};

// The message of the error that changed arguments give; empty if there is none.
std::string error_of(const std::function<void(AttentionArguments&)>& change) {
  const Call call(70, 300, false);
  Arguments with(call);
  change(with.arguments);
  try {
    attention(with.arguments);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

void test_public_interface() {
  for (const bool masked : {false, true}) {
    Call call(70, 300, masked);
    attention(call.problem);
    Arguments with(call);
    attention(with.arguments);
    CHECK(with.output == call.output && with.logsumexp == call.logsumexp);
  }
  CHECK(alibi_slopes(4) == (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  AttentionArguments nothing;
  nothing.head_dim = 1;
  attention(nothing);  // no queries and no keys
}

void test_public_interface_refuses() {
  const auto mentions = [](const std::string& message, const char* words) {
    return message.find(words) != std::string::npos;
  };
  using Arguments = AttentionArguments;
  CHECK(error_of([](Arguments&) {}).empty());
  CHECK(error_of([](Arguments& a) { a.head_dim = 257; }) == "head_dim must be 1 to 256, got 257");
  CHECK(mentions(error_of([](Arguments& a) { a.batch = -1; }), "batch must be 0 to"));
  CHECK(error_of([](Arguments& a) { a.key_heads = 2; }) ==
        "query_heads must be a multiple of key_heads 2, got 3");
  CHECK(mentions(error_of([](Arguments& a) { a.key_heads = 0; }), "key_heads must be 1 to"));
  CHECK(error_of([](Arguments& a) { a.query_length = 301; }) ==
        "query_length must be at most key_length 300, got 301");
  CHECK(mentions(error_of([](Arguments& a) { a.skip_tolerance = 1.0; }), "skip_tolerance must"));
  CHECK(mentions(error_of([](Arguments& a) { a.skip_tolerance = std::nan(""); }), "got nan"));
  CHECK(mentions(error_of([](Arguments& a) { a.skip_tolerance = -0.1; }), "skip_tolerance must"));
  CHECK(mentions(error_of([](Arguments& a) { a.scale = INFINITY; }), "scale must be"));
  CHECK(mentions(error_of([](Arguments& a) { a.window = 0; }), "window must be 1 to"));
  CHECK(mentions(error_of([](Arguments& a) { a.sink = -1; }), "sink must be 0 to"));
  CHECK(mentions(error_of([](Arguments& a) { a.causal_block = 4, a.causal = false; }),
                 "causal must be true with causal_block"));
  CHECK(mentions(error_of([](Arguments& a) { a.value.data = nullptr; }), "value must have data"));
  CHECK(mentions(error_of([](Arguments& a) { a.output.data = nullptr; }), "output must have data"));
  static const float slopes[] = {0.5f, std::numeric_limits<float>::infinity(), 0.1f};
  CHECK(mentions(error_of([](Arguments& a) { a.slopes = slopes; }), "slopes[1] must be finite"));
  CHECK(mentions(error_of([](Arguments& a) { a.element_type = static_cast<ElementType>(7); }),
                 "element_type must be"));
}
