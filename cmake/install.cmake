include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Headers alone: nothing depends on the architecture.
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/LazyLLM)
install(TARGETS LazyLLM EXPORT LazyLLMTargets)
install(EXPORT LazyLLMTargets NAMESPACE LazyLLM:: DESTINATION ${package_dir})
install(DIRECTORY include/lazyllm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
configure_package_config_file(cmake/LazyLLMConfig.cmake.in LazyLLMConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(LazyLLMConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/LazyLLMConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/LazyLLMConfigVersion.cmake
        DESTINATION ${package_dir})
