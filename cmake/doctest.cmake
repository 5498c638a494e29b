find_package(doctest REQUIRED)

# lazyllm_test(NAME SOURCES file… [LIBRARIES target…]): one doctest program `NAME` and its ctest of the same name.
function(lazyllm_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/main.cpp)
  target_link_libraries(${name} PRIVATE lazyllm_options doctest::doctest ${arg_LIBRARIES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE LAZYLLM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
endfunction()

# The headers of a CUDA toolkit, for tests that need no CUDA compiler.
find_package(CUDAToolkit QUIET)

# lazyllm_emulated_cuda_test(NAME SOURCES file…): a doctest program of the CUDA backend that runs on the CPU, its kernels by
# tests/support/cuda_emulation.hpp and Thrust on OpenMP.
function(lazyllm_emulated_cuda_test name)
  if(NOT CUDAToolkit_FOUND OR NOT OpenMP_CXX_FOUND)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: all of ${name}: no CUDA toolkit or no OpenMP")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  lazyllm_test(${name} SOURCES ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/cuda_emulation.cpp)
  list(GET CUDAToolkit_INCLUDE_DIRS 0 toolkit)
  target_include_directories(${name} SYSTEM PRIVATE ${toolkit} ${toolkit}/cccl)
  target_compile_definitions(${name} PRIVATE THRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_OMP)
  target_compile_options(${name} PRIVATE -Wno-unknown-pragmas)  # those of CUDA compilers
endfunction()

# lazyllm_cuda_test(NAME SOURCES file…): a doctest program for a device. Compiled where LAZYLLM_CUDA is on; where there is no
# device, it says so and is skipped.
function(lazyllm_cuda_test name)
  if(NOT LAZYLLM_CUDA)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  add_executable(${name} ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/cuda_main.cu)
  target_link_libraries(${name} PRIVATE LazyLLM::LazyLLM doctest::doctest)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(${name} PRIVATE -Xcompiler=-Wall,-Wextra,-Wconversion
                                         $<$<BOOL:${LAZYLLM_WERROR}>:-Xcompiler=-Werror -Werror=all-warnings>)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
endfunction()
