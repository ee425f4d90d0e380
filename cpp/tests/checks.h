// The check that all C++ tests use, and the tests.
#pragma once

#include <cstdio>

inline int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                               \
    }                                                                           \
  } while (false)

// These do not depend on the instruction set.
void test_the_environment_chooses_the_isa();
void test_parallel_for_covers_everything_once();
void test_exceptions_leave_parallel_regions();
void test_interrupts_stop_parallel_regions();
void test_the_callers_mode_stays();
void test_matrix_registers();
void test_unknown_isas_are_refused();
void test_public_interface_refuses();

// These run once for each instruction set.
void test_sixteen_bit_formats();
void test_rows_of_every_length_and_alignment();
void test_exp2();
void test_attention();
void test_skip_tolerance();
void test_public_interface();
void test_callers_at_once();
void test_gradients();
void test_random_numbers();
void test_no_operand_is_subnormal();
