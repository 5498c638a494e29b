find_package(doctest REQUIRED)

# For tests whose own speed does not count. -Og compiles in three quarters of the time of -O1. Assertions that catch no
# exceptions compile faster, too: an exception in one ends its test case, which then fails. The warning is that of
# lazyllm_quick_to_compile. Eigen is as in the examples' kernels, so that one precompiled header serves all.
add_library(lazyllm_quick_tests INTERFACE)
target_compile_options(lazyllm_quick_tests INTERFACE $<$<CONFIG:Release>:-Og> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
target_compile_definitions(lazyllm_quick_tests INTERFACE DOCTEST_CONFIG_SUPER_FAST_ASSERTS EIGEN_DONT_PARALLELIZE)

# doctest's main function, compiled once for all programs.
add_library(lazyllm_test_main OBJECT ${PROJECT_SOURCE_DIR}/tests/main.cpp)
target_link_libraries(lazyllm_test_main PRIVATE lazyllm_options doctest::doctest)

# Where the project is, for tests that read its files; and the headers that most tests include, precompiled: without that
# many of them take 3 to 5 s more with GCC, and 7 s more with clang and sanitizers.
add_library(lazyllm_source_folder OBJECT ${PROJECT_SOURCE_DIR}/tests/support/source_folder.cpp)
target_link_libraries(lazyllm_source_folder PRIVATE lazyllm_options doctest::doctest lazyllm_quick_tests)
set(CMAKE_PCH_PROLOGUE "")  # by default it calls all headers the system's, which have no warnings
# ccache takes clang's precompiled headers without the times of their files alone.
target_compile_options(lazyllm_source_folder PRIVATE "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
if(LAZYLLM_BUILD_FUZZERS AND NOT LAZYLLM_SANITIZED)  # only what links the fuzzers' libraries is sanitized then
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()
target_precompile_headers(lazyllm_source_folder PRIVATE <doctest/doctest.h> <lazyllm/check.hpp> <lazyllm/lazyllm.hpp>)
target_include_directories(lazyllm_source_folder PRIVATE ${PROJECT_SOURCE_DIR}/tests)
set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/support/source_folder.cpp PROPERTIES
                            COMPILE_DEFINITIONS LAZYLLM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# lazyllm_test(NAME [OPTIMISED | SLOW] SOURCES file… [LIBRARIES target…]): one doctest program `NAME` and its ctest of the
# same name. OPTIMISED programs compile the library's arithmetic as an engine does. SLOW ones are optimised in debug builds,
# too: sanitized, they take up to seven times as long without.
function(lazyllm_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OPTIMISED;SLOW" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${arg_SOURCES} $<TARGET_OBJECTS:lazyllm_test_main> $<TARGET_OBJECTS:lazyllm_source_folder>)
  target_link_libraries(${name} PRIVATE lazyllm_options doctest::doctest ${arg_LIBRARIES}
                                        $<$<NOT:$<BOOL:${arg_OPTIMISED}>>:lazyllm_quick_tests>)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  if(arg_SLOW AND CMAKE_BUILD_TYPE STREQUAL "Debug")  # the precompiled header has other flags
    target_compile_options(${name} PRIVATE -O1)
  elseif(NOT arg_OPTIMISED)
    target_precompile_headers(${name} REUSE_FROM lazyllm_source_folder)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
endfunction()

# CUDA on the CPU, for tests that need no more of a CUDA toolkit than its headers: kernels run in
# tests/support/cuda_emulation.hpp, Thrust on OpenMP. Clang on ARM lacks a built-in function that the emulation needs.
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND OpenMP_CXX_FOUND
   AND NOT (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64"))
  list(GET CUDAToolkit_INCLUDE_DIRS 0 toolkit)
  add_library(lazyllm_emulated_cuda INTERFACE)
  target_link_libraries(lazyllm_emulated_cuda INTERFACE lazyllm_options lazyllm_quick_to_compile)
  target_include_directories(lazyllm_emulated_cuda INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_include_directories(lazyllm_emulated_cuda SYSTEM INTERFACE ${toolkit} ${toolkit}/cccl)
  target_compile_definitions(lazyllm_emulated_cuda INTERFACE THRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_OMP)
  target_compile_options(lazyllm_emulated_cuda INTERFACE -Wno-unknown-pragmas)  # those of CUDA compilers
  add_library(lazyllm_cuda_emulation OBJECT ${PROJECT_SOURCE_DIR}/tests/support/cuda_emulation.cpp)
  target_link_libraries(lazyllm_cuda_emulation PRIVATE lazyllm_emulated_cuda)
endif()

# lazyllm_emulated_cuda_test(NAME SOURCES file…): a doctest program of the CUDA backend that runs on the CPU.
function(lazyllm_emulated_cuda_test name)
  if(NOT TARGET lazyllm_emulated_cuda)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: all of ${name}: no CUDA toolkit or no OpenMP, or clang on ARM")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  lazyllm_test(${name} SOURCES ${arg_SOURCES} $<TARGET_OBJECTS:lazyllm_cuda_emulation> LIBRARIES lazyllm_emulated_cuda)
  set_tests_properties(${name} PROPERTIES COST 100)  # the longest: started first
endfunction()

if(LAZYLLM_CUDA)
  add_library(lazyllm_cuda_test_options INTERFACE)
  target_link_libraries(lazyllm_cuda_test_options INTERFACE LazyLLM::LazyLLM doctest::doctest)
  target_include_directories(lazyllm_cuda_test_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(lazyllm_cuda_test_options
                         INTERFACE -Xcompiler=-Wall,-Wextra,-Wconversion
                                   $<$<BOOL:${LAZYLLM_WERROR}>:-Xcompiler=-Werror -Werror=all-warnings>)
  add_library(lazyllm_cuda_test_main OBJECT ${PROJECT_SOURCE_DIR}/tests/cuda_main.cpp)
  target_link_libraries(lazyllm_cuda_test_main PRIVATE lazyllm_options CUDA::cudart doctest::doctest)
endif()

# lazyllm_cuda_test(NAME SOURCES file…): a doctest program for a device. Compiled where LAZYLLM_CUDA is on; where there is no
# device, it says so and is skipped.
function(lazyllm_cuda_test name)
  if(NOT LAZYLLM_CUDA)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  add_executable(${name} ${arg_SOURCES} $<TARGET_OBJECTS:lazyllm_cuda_test_main> $<TARGET_OBJECTS:lazyllm_source_folder>)
  target_link_libraries(${name} PRIVATE lazyllm_cuda_test_options)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
endfunction()

# The environment of MPI's processes. Root may start them, as in CI, and waiting ones give the processor to the others.
# OpenMPI leaks in modules that are unloaded by then; ranks that are threads are watched for leaks.
set(lazyllm_mpi_environment
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_WAIT_POLICY=passive
    ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=0)

# lazyllm_mpi_test(NAME RANKS command…): a command that runs as so many processes of MPI.
function(lazyllm_mpi_test name ranks)
  if(NOT MPI_CXX_FOUND)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: all of ${name}: no MPI")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
    return()
  endif()
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${ARGN})
  set_tests_properties(${name} PROPERTIES PROCESSORS 2 TIMEOUT 300 ENVIRONMENT "${lazyllm_mpi_environment}")
endfunction()

# lazyllm_python_test(NAME argument…): the test program NAME.py of the present folder. It says "skipped: all" where it needs more than
# the standard library, and that is not there.
function(lazyllm_python_test name)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_FOUND)
    add_test(NAME ${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${name}.py ${ARGN})
  else()
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: all of ${name}, there is no python3")
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
endfunction()
