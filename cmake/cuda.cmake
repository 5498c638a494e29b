include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "LAZYLLM_CUDA is ON but no CUDA compiler was found: put nvcc on the PATH, set the environment variable "
                      "CUDACXX to it, or configure with -DLAZYLLM_CUDA=OFF")
endif()
# The reference engine's kernels need 8.0; nvcc's own default is older.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
enable_language(CUDA)
# CMake 3.25 does not know nvcc's C++20, so not through CMAKE_CUDA_STANDARD.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
