# Makes all libraries use the system's shared C++ library.
#
# BytePS' libraries and the plug-in call each other with C++ streams. If each had a copy of the C++ library, a job would
# crash in the first number that is printed: each copy numbers the parts of a locale by itself. Some compilers link it
# statically unless they are told otherwise.

# Sets `out` to whether a program that is linked with `libraries` needs a shared C++ library.
function(byteprophet_needs_shared_cxx_library out libraries)
  set(probe ${CMAKE_BINARY_DIR}/cxx-library-probe)
  try_compile(compiled
    SOURCE_FROM_CONTENT probe.cc "#include <iostream>\nint main() { std::cout << 1; }\n"
    LINK_LIBRARIES ${libraries}
    COPY_FILE ${probe}
    NO_CACHE)
  set(needed "")
  if(compiled)
    execute_process(COMMAND ${CMAKE_READELF} -d ${probe} OUTPUT_VARIABLE needed)
  endif()
  string(REGEX MATCH "NEEDED[^\n]*lib(std)?c[+][+][.]so" found "${needed}")
  if(found)
    set(${out} TRUE PARENT_SCOPE)
  else()
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()

if(CMAKE_READELF)
  byteprophet_needs_shared_cxx_library(is_shared "")
  if(NOT is_shared)
    message(STATUS "This compiler links the C++ library statically: libstdc++.so.6 is linked by name")
    byteprophet_needs_shared_cxx_library(is_shared -l:libstdc++.so.6)
    if(NOT is_shared)
      message(FATAL_ERROR " byteprophet: error: ${CMAKE_CXX_COMPILER} puts a copy of the C++ library into every library, "
        "and BytePS needs a shared one: install libstdc++.so.6 for this compiler, or set CXX to another one")
    endif()
    link_libraries(-l:libstdc++.so.6)
  endif()
endif()
