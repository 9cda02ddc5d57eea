# theseus_py/_core: the Python extension over libtheseus.so.0.

file(GLOB binding_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/bindings/*.cc")
if(NOT THESEUS_BINDINGS OR NOT binding_sources OR THESEUS_SANITIZE)
  return()
endif()

find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module)
if(NOT Python_FOUND)
  message(STATUS "Python extension left out: no Python >= 3.10 with its headers (python3-dev); set -DPython_EXECUTABLE=...")
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
  message(STATUS "Python extension left out: ${Python_EXECUTABLE} has no pybind11 (pip install pybind11)")
  return()
endif()

pybind11_add_module(_core MODULE NO_EXTRAS ${binding_sources})
target_link_libraries(_core PRIVATE theseus)
set_target_properties(_core PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/python/theseus_py"
  INSTALL_RPATH "$ORIGIN/lib")
install(TARGETS _core LIBRARY DESTINATION theseus_py COMPONENT wheel)
