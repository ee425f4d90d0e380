// Tests of the parts of the core that Python cannot reach: the vector layer and the 16-bit formats
// of every ISA against scalar code, dispatch errors, several callers at once, and parallel ranges.
#include "checks.h"
#include "core/isa.h"

using namespace ntk_alibi;

namespace {

// Kernels keep wide vectors on the stack, which Windows and Linux align to 16 bytes when a function
// is called: the compiler has to do the rest.
__attribute__((noinline)) void test_on_a_stack_moved_by(int bytes) {
  volatile char* moved = static_cast<char*>(__builtin_alloca(bytes));
  moved[0] = 0;
  test_attention();
  test_gradients();
}

}  // namespace

int main() {
  test_the_environment_chooses_the_isa();
  test_parallel_for_covers_everything_once();
  test_exceptions_leave_parallel_regions();
  test_interrupts_stop_parallel_regions();
  test_the_callers_mode_stays();
  test_matrix_registers();
  test_unknown_isas_are_refused();
  test_public_interface_refuses();
  for (const std::string& isa : available_isas()) {
    select_isa(isa);
    std::printf("%s\n", isa.c_str());
    test_sixteen_bit_formats();
    test_rows_of_every_length_and_alignment();
    test_exp2();
    for (int bytes : {16, 32, 48, 64}) test_on_a_stack_moved_by(bytes);
    test_skip_tolerance();
    test_public_interface();
    test_callers_at_once();
    test_random_numbers();
    test_no_operand_is_subnormal();
  }
  std::printf(failures ? "%d failures\n" : "all tests passed\n", failures);
  return failures != 0;
}
