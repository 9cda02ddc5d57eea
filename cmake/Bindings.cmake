# The Python extensions, one `_core` a package: theseus_py and resccl over libtheseus.so.0, flowsim on its own.

if(NOT THESEUS_BINDINGS OR THESEUS_SANITIZE)
  return()
endif()

find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module)
if(NOT Python_FOUND)
  message(STATUS "Python extensions left out: no Python >= 3.10 with its headers (python3-dev); set -DPython_EXECUTABLE=...")
  return()
endif()
if(NOT pybind11_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 2.12 QUIET CONFIG)
if(NOT pybind11_FOUND)
  message(STATUS "Python extensions left out: ${Python_EXECUTABLE} has no pybind11 (pip install pybind11)")
  return()
endif()

# theseus_extension(PACKAGE FOLDER LIBRARIES... [RPATH path]): PACKAGE/_core, target PACKAGE_core, from the files (not the
# subfolders) of csrc/FOLDER. A folder without sources makes no target.
function(theseus_extension package folder)
  cmake_parse_arguments(PARSE_ARGV 2 extension "" "RPATH" "LIBRARIES")
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/${folder}/*.cc")
  if(NOT sources)
    return()
  endif()
  set(target ${package}_core)
  pybind11_add_module(${target} MODULE NO_EXTRAS ${sources})
  target_link_libraries(${target} PRIVATE ${extension_LIBRARIES})
  # A static layer inside an extension is that extension's own: its names must not meet libtheseus.so.0's in one process.
  target_link_options(${target} PRIVATE "LINKER:--exclude-libs,ALL")
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME _core
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/python/${package}"
    INSTALL_RPATH "${extension_RPATH}")
  install(TARGETS ${target} LIBRARY DESTINATION ${package} COMPONENT wheel)
endfunction()

theseus_extension(theseus_py bindings LIBRARIES theseus RPATH "$ORIGIN/lib")
theseus_extension(resccl bindings/resccl LIBRARIES theseus RPATH "$ORIGIN/../theseus_py/lib")
theseus_extension(flowsim bindings/flowsim LIBRARIES theseus_flowsim theseus_base)
