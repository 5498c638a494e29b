# Run in a build folder of the engine beside this file.
file(REMOVE_RECURSE installed)
execute_process(COMMAND ${CMAKE_COMMAND} --install . --prefix installed COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
file(GLOB_RECURSE files RELATIVE ${CMAKE_CURRENT_BINARY_DIR}/installed installed/*)
if(NOT files STREQUAL "bin/engine")
  message(FATAL_ERROR "The engine installs '${files}' instead of its own bin/engine")
endif()
