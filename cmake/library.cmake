# liblockstep for other programs: exactly the functions that include/lockstep/ declares. The linker takes what
# they need from the archive; a function that a header declares and no file defines is an error.
include(CMakePackageConfigHelpers)

file(GLOB public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/lockstep/*.h)
set(public_functions)
foreach(header ${public_headers})
  file(READ ${header} text)
  string(REGEX MATCHALL "lks_[a-z][a-z0-9_]*\\(" names "${text}")
  string(REPLACE "(" "" names "${names}")
  list(APPEND public_functions ${names})
endforeach()
list(REMOVE_DUPLICATES public_functions)
# Each has the version of the library's name, so that a program is bound to the functions of that library.
string(REPLACE ";" ";\n        " exported "${public_functions}")
file(WRITE ${PROJECT_BINARY_DIR}/library.map
  "LOCKSTEP_${PROJECT_VERSION_MAJOR} {\n    global:\n        ${exported};\n    local:\n        *;\n};\n")
list(TRANSFORM public_functions PREPEND "--undefined=")

file(WRITE ${PROJECT_BINARY_DIR}/library.c "/* All of the library comes from its archive. */\n")
add_library(liblockstep SHARED ${PROJECT_BINARY_DIR}/library.c)
set_target_properties(liblockstep PROPERTIES
  OUTPUT_NAME lockstep EXPORT_NAME lockstep
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_include_directories(liblockstep INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
list(TRANSFORM public_functions PREPEND "LINKER:" OUTPUT_VARIABLE linker_functions)
# It stays loaded after dlclose(): Jansson keeps its allocator (base/text/jsontext.c).
target_link_options(liblockstep PRIVATE ${linker_functions} LINKER:--as-needed LINKER:-z,nodelete
  LINKER:--version-script=${PROJECT_BINARY_DIR}/library.map)
set_target_properties(liblockstep PROPERTIES LINK_DEPENDS ${PROJECT_BINARY_DIR}/library.map)
if(NOT LKS_SANITIZE) # whose own functions come with the program
  target_link_options(liblockstep PRIVATE LINKER:--no-undefined)
endif()
target_link_libraries(liblockstep PRIVATE lockstep_core)
add_library(lockstep::lockstep ALIAS liblockstep)

# The same in a static library: one object, in which everything but these functions is local. The compiler
# calls the linker, because LLVM's (CMAKE_LINKER with clang) needs to be told the processor.
list(TRANSFORM public_functions PREPEND "-Wl," OUTPUT_VARIABLE driver_functions)
set(static ${PROJECT_BINARY_DIR}/static)
file(MAKE_DIRECTORY ${static})
add_custom_command(OUTPUT ${static}/liblockstep.a
  COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${static}/lockstep.o ${driver_functions} $<TARGET_FILE:lockstep_core>
  COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${static}/lockstep.o
  COMMAND ${CMAKE_COMMAND} -E rm -f ${static}/liblockstep.a
  COMMAND ${CMAKE_AR} qcs ${static}/liblockstep.a ${static}/lockstep.o
  COMMAND ${CMAKE_COMMAND} -E rm ${static}/lockstep.o
  DEPENDS lockstep_core VERBATIM)
add_custom_target(liblockstep_static ALL DEPENDS ${static}/liblockstep.a)
install(FILES ${static}/liblockstep.a DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)

install(TARGETS liblockstep EXPORT lockstep LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT library NAMELINK_COMPONENT dev)
install(FILES ${public_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep COMPONENT dev)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(EXPORT lockstep NAMESPACE lockstep:: FILE lockstep-config.cmake DESTINATION ${package_dir} COMPONENT dev)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstep-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstep-config-version.cmake DESTINATION ${package_dir} COMPONENT dev)
# The folder can be moved as a whole: all paths begin with that of the .pc file.
file(RELATIVE_PATH PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" PC_TO_PREFIX "${PC_TO_PREFIX}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
