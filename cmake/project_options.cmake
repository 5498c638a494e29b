# Flags of everything that the project builds itself; the installed interface target carries none of them.
add_library(lazyllm_options INTERFACE)
target_link_libraries(lazyllm_options INTERFACE LazyLLM::LazyLLM)
target_compile_options(lazyllm_options INTERFACE -Wall -Wextra -Wconversion $<$<BOOL:${LAZYLLM_WERROR}>:-Werror>
                                                 $<$<BOOL:${LAZYLLM_NATIVE}>:-march=native>)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
