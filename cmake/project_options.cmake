# Flags of everything that the project builds itself; the installed interface target carries none of them.
add_library(lazyllm_options INTERFACE)
target_link_libraries(lazyllm_options INTERFACE LazyLLM::LazyLLM)
target_compile_options(lazyllm_options INTERFACE -Wall -Wextra -Wconversion $<$<BOOL:${LAZYLLM_WERROR}>:-Werror>
                                                 $<$<BOOL:${LAZYLLM_NATIVE}>:-march=native>)
# GCC's own AVX-512 headers trip this warning wherever Eigen is vectorised (GCC bug 105593).
target_compile_options(lazyllm_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
