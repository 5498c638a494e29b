include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Headers alone: nothing depends on the architecture.
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/LazyLLM)
install(DIRECTORY include/lazyllm DESTINATION include)
# A file for each component, so that one can be used where the libraries of the others are missing.
foreach(component IN ITEMS core cpu cuda mpi)
  install(TARGETS LazyLLM_${component} EXPORT LazyLLM_${component})
  install(EXPORT LazyLLM_${component} NAMESPACE LazyLLM:: FILE LazyLLM_${component}.cmake DESTINATION ${package_dir})
endforeach()
install(TARGETS LazyLLM_LazyLLM EXPORT LazyLLM_cpu)
configure_package_config_file(cmake/LazyLLMConfig.cmake.in LazyLLMConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(LazyLLMConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/LazyLLMConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/LazyLLMConfigVersion.cmake
        DESTINATION ${package_dir})

# For engines that are not built with CMake. The prefix is found from where the file lies.
set(pkgconfig_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir}
           OUTPUT_VARIABLE prefix_from_pkgconfig_dir)
configure_file(cmake/lazyllm.pc.in lazyllm.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lazyllm.pc DESTINATION ${pkgconfig_dir})
