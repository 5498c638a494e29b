# The target `docs` writes the API reference to docs/html in the build folder.
find_package(Doxygen QUIET)
if(DOXYGEN_FOUND)
  configure_file(docs/Doxyfile.in docs/Doxyfile @ONLY)
  add_custom_target(docs COMMAND Doxygen::doxygen ${CMAKE_CURRENT_BINARY_DIR}/docs/Doxyfile VERBATIM
                    COMMENT "Writing the API reference to ${CMAKE_CURRENT_BINARY_DIR}/docs/html")
endif()
