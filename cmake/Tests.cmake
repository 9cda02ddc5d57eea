# tests/unit/<folder>/*_test.cc become one GoogleTest program, build/tests/test_<folder>.
# tests/emu/*.cc become build/tests/test_emu, which sets THESEUS_DEVICE itself.
# They link the static libraries, so a sanitizer sees everything and hidden names can be tested.

add_custom_target(theseus_tests)
if(NOT THESEUS_TESTS)
  return()
endif()
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(STATUS "C++ tests left out: GoogleTest is not installed (Debian, Ubuntu: apt-get install libgtest-dev)")
  return()
endif()

enable_testing()
foreach(layer IN LISTS THESEUS_LAYERS THESEUS_SIDE_LAYERS)
  set(folder "${PROJECT_SOURCE_DIR}/tests/unit/${layer}")
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*_test.cc")
  if(NOT sources OR NOT TARGET theseus_${layer})
    continue()
  endif()
  add_executable(test_${layer} ${sources})
  target_include_directories(test_${layer} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(test_${layer} PRIVATE theseus_${layer} GTest::gtest GTest::gtest_main)
  set_target_properties(test_${layer} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_dependencies(theseus_tests test_${layer})
  add_test(NAME ${layer} COMMAND test_${layer})
  set_tests_properties(${layer} PROPERTIES TIMEOUT 600
    ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=second_deadlock_stack=1")
endforeach()

file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/emu/*.cc")
if(sources)
  add_executable(test_emu ${sources})
  target_include_directories(test_emu PRIVATE "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/tests/unit/runtime")
  target_link_libraries(test_emu PRIVATE theseus_runtime GTest::gtest)
  set_target_properties(test_emu PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_dependencies(theseus_tests test_emu)
  add_test(NAME emu COMMAND test_emu)
  set_tests_properties(emu PROPERTIES TIMEOUT 600
    ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=second_deadlock_stack=1")
endif()
