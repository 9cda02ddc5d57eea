# The two shared libraries of the package. libtheseus.so.0 holds all state, so that a process has one runtime, whichever way it
# came in; libnccl.so.2 is the C ABI over it.

# A missing function is an error here, not at a user's first call. A sanitizer's own functions come with the program.
set(theseus_complete "LINKER:--no-undefined")
if(THESEUS_SANITIZE)
  set(theseus_complete "")
endif()

# --- libtheseus.so.0: every layer below nccl_api, whole. The layers beside them (THESEUS_SIDE_LAYERS) stay out.
set(theseus_objects "")
foreach(layer IN LISTS THESEUS_LAYERS)
  get_target_property(type theseus_${layer} TYPE)
  if(type STREQUAL "STATIC_LIBRARY" AND NOT layer STREQUAL "nccl_api")
    list(APPEND theseus_objects $<TARGET_OBJECTS:theseus_${layer}>)
  endif()
endforeach()

set(theseus_map "${PROJECT_SOURCE_DIR}/cmake/theseus.map")
add_library(theseus SHARED ${theseus_objects})
set_target_properties(theseus PROPERTIES SOVERSION 0 INSTALL_RPATH "$ORIGIN" LINKER_LANGUAGE CXX LINK_DEPENDS "${theseus_map}")
target_include_directories(theseus PUBLIC "${PROJECT_SOURCE_DIR}/csrc")
target_link_libraries(theseus PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
# Functions bind to our own copy; data does not, so that an inline variable stays one across the libraries.
target_link_options(theseus PRIVATE "LINKER:--version-script=${theseus_map}" "LINKER:-Bsymbolic-functions"
  "LINKER:-z,nodelete" ${theseus_complete})  # the watch thread lives as long as the process
install(TARGETS theseus LIBRARY DESTINATION theseus_py/lib COMPONENT wheel NAMELINK_SKIP)

# --- libnccl.so.2: the C ABI alone.
set(nccl_folder "${PROJECT_SOURCE_DIR}/csrc/nccl_api")
file(GLOB_RECURSE nccl_sources CONFIGURE_DEPENDS "${nccl_folder}/*.cc")
if(nccl_sources)
  set(nccl_map "${nccl_folder}/nccl.map")
  if(NOT EXISTS "${nccl_map}")
    message(FATAL_ERROR "csrc/nccl_api/nccl.map is missing: without it libnccl.so.2 would export C++ names")
  endif()
  add_library(nccl SHARED $<TARGET_OBJECTS:theseus_nccl_api>)
  set_target_properties(nccl PROPERTIES SOVERSION 2 INSTALL_RPATH "$ORIGIN" LINKER_LANGUAGE CXX LINK_DEPENDS "${nccl_map}")
  target_link_libraries(nccl PRIVATE theseus)
  target_link_options(nccl PRIVATE "LINKER:--version-script=${nccl_map}" ${theseus_complete})
  install(TARGETS nccl LIBRARY DESTINATION theseus_py/lib COMPONENT wheel)
endif()

# --- What others need to build against libnccl: the headers, and a pkg-config file that finds itself.
file(GLOB public_headers CONFIGURE_DEPENDS "${nccl_folder}/include/*.h" "${PROJECT_SOURCE_DIR}/csrc/runtime/include/*.h")
if(public_headers)
  install(FILES ${public_headers} DESTINATION theseus_py/include COMPONENT wheel)
endif()

set(NCCL_VERSION "${PROJECT_VERSION}")
if(EXISTS "${nccl_folder}/include/nccl.h")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${nccl_folder}/include/nccl.h")
  file(STRINGS "${nccl_folder}/include/nccl.h" version_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  list(TRANSFORM version_lines REPLACE "^#define NCCL_[A-Z]+ +([0-9]+).*" "\\1")
  list(JOIN version_lines "." NCCL_VERSION)
endif()
if(EXISTS "${nccl_folder}/nccl.pc.in")
  configure_file("${nccl_folder}/nccl.pc.in" "${CMAKE_BINARY_DIR}/lib/pkgconfig/nccl.pc" @ONLY)
  install(FILES "${CMAKE_BINARY_DIR}/lib/pkgconfig/nccl.pc" DESTINATION theseus_py/lib/pkgconfig COMPONENT wheel)
endif()
