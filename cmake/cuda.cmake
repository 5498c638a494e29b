include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "LAZYLLM_CUDA is ON but no CUDA compiler was found: put nvcc on the PATH, set the environment variable "
                      "CUDACXX to it, or configure with -DLAZYLLM_CUDA=OFF")
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
