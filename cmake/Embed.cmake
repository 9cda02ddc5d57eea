# Puts files of csrc into a layer's library, as text (csrc/base/embedded.h):
#   theseus_embed(<layer> <file relative to csrc>...)   defines theseus::embedded_<layer>()
# The layer must have a source of its own. This file is also the script that the build runs for it.

if(CMAKE_SCRIPT_MODE_FILE)
  set(rows "")
  foreach(file IN LISTS FILES)
    file(READ "${ROOT}/${file}" text)
    string(APPEND rows "    {\"${file}\", R\"THESEUS(${text})THESEUS\"},\n")
  endforeach()
  file(WRITE "${OUTPUT}" "#include \"base/embedded.h\"\n\nnamespace theseus {\n"
    "std::span<const EmbeddedText> embedded_${LAYER}();\n"
    "std::span<const EmbeddedText> embedded_${LAYER}() {\n  static constexpr EmbeddedText texts[] = {\n" "${rows}"
    "  };\n  return texts;\n}\n}  // namespace theseus\n")
  return()
endif()

set(theseus_embed_script "${CMAKE_CURRENT_LIST_FILE}")
function(theseus_embed layer)
  set(output "${CMAKE_BINARY_DIR}/embedded/${layer}.cc")
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/csrc/" OUTPUT_VARIABLE paths)
  list(JOIN ARGN "$<SEMICOLON>" files)
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}/csrc" "-DLAYER=${layer}" "-DOUTPUT=${output}" "-DFILES=${files}"
      -P "${theseus_embed_script}"
    DEPENDS ${paths} "${theseus_embed_script}" VERBATIM)
  target_sources(theseus_${layer} PRIVATE "${output}")
endfunction()
