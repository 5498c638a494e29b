# Flags of everything that the project builds itself; the library's own targets carry none of them.
set(LAZYLLM_NATIVE_FLAG -march=native)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")  # clang 14 has no -march=native there
  set(LAZYLLM_NATIVE_FLAG -mcpu=native)
endif()
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(OpenMP COMPONENTS CXX)
add_library(lazyllm_options INTERFACE)
target_link_libraries(lazyllm_options INTERFACE LazyLLM::cpu $<TARGET_NAME_IF_EXISTS:OpenMP::OpenMP_CXX>)
target_compile_options(lazyllm_options INTERFACE -Wall -Wextra -Wconversion $<$<BOOL:${LAZYLLM_WERROR}>:-Werror>
                                                 $<$<BOOL:${LAZYLLM_NATIVE}>:${LAZYLLM_NATIVE_FLAG}>)
# GCC's own AVX-512 headers trip this warning wherever Eigen is vectorised (GCC bug 105593).
target_compile_options(lazyllm_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
# For code whose own speed does not count: -O1 compiles in two thirds of the time of -O3. With it GCC bug 105593 gives one
# more false warning.
add_library(lazyllm_quick_to_compile INTERFACE)
target_compile_options(lazyllm_quick_to_compile INTERFACE $<$<CONFIG:Release>:-O1>
                                                          $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
# Programs are slower then, and some tests make no sense.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set(LAZYLLM_SANITIZED ON)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
