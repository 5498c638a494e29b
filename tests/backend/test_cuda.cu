#include "backend/cuda_cases.hpp"
