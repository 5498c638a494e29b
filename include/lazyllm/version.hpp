#pragma once

/// Semantic version of the library; `CMakeLists.txt` reads it from here.
#define LAZYLLM_VERSION_MAJOR 0
#define LAZYLLM_VERSION_MINOR 1
#define LAZYLLM_VERSION_PATCH 0
