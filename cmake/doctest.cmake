find_package(doctest REQUIRED)

# lazyllm_test(NAME SOURCES file… [LIBRARIES target…]): one doctest program `NAME` and its ctest of the same name.
function(lazyllm_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/main.cpp)
  target_link_libraries(${name} PRIVATE lazyllm_options doctest::doctest ${arg_LIBRARIES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE LAZYLLM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: all")
endfunction()
