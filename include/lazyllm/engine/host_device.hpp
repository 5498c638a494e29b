#pragma once

/// \def LAZYLLM_HOST_DEVICE
/// Stands before functions that kernels call too.
#ifdef __CUDACC__
#define LAZYLLM_HOST_DEVICE __host__ __device__
#else
#define LAZYLLM_HOST_DEVICE
#endif
