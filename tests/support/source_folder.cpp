#include "support/source_folder.hpp"

namespace lazyllm::test {

std::filesystem::path source_folder() { return LAZYLLM_SOURCE_DIR; }

}  // namespace lazyllm::test
