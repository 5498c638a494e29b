#include "properties/cuda_runs.hpp"
