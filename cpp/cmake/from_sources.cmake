# The CMake package of a wheel: builds ntk_alibi::core with the compiler of the project that asks.
if(NOT TARGET ntk_alibi::core)
  add_subdirectory("${CMAKE_CURRENT_LIST_DIR}/source" "${CMAKE_BINARY_DIR}/ntk_alibi")
endif()
