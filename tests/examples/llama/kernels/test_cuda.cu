#include "cuda_cases.hpp"
