#pragma once

#include <filesystem>

namespace lazyllm::test {

/// The project's folder, where tests find fixtures. Compiled in one place: nothing else depends on where the clone is,
/// so a compiler cache serves all clones.
std::filesystem::path source_folder();

}  // namespace lazyllm::test
