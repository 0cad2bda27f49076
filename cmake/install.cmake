# What `cmake --install` copies, by component: each is a package of cmake/packages.cmake, too. The library's
# files are in library.cmake, and those of modules in lks_module(). Nothing in them holds a path of this
# machine, so the installed folder can be moved as a whole.
set(lks_doc_dir ${CMAKE_INSTALL_DATADIR}/doc/lockstep)
install(TARGETS lockstep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT lockstep)
install(DIRECTORY config DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep COMPONENT lockstep
  FILES_MATCHING PATTERN *.conf)
install(FILES README.md CONTRIBUTING.md CHANGELOG.md LICENSE DESTINATION ${lks_doc_dir} COMPONENT lockstep)
install(DIRECTORY docs DESTINATION ${lks_doc_dir} COMPONENT lockstep)
install(PROGRAMS scripts/to_wandb.py DESTINATION ${lks_doc_dir}/scripts COMPONENT lockstep)
install(DIRECTORY examples DESTINATION ${lks_doc_dir} COMPONENT dev
  PATTERN build EXCLUDE PATTERN *.egg-info EXCLUDE PATTERN __pycache__ EXCLUDE
  REGEX "[.](sh|sbatch)$" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# Man pages and completions, from the settings table. Not with sanitizers, nor for another architecture
# without an emulator: the program would have to run while it is built.
include(cmake/identity.cmake)
if(NOT LKS_SANITIZE AND (NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR))
  set(pages ${PROJECT_BINARY_DIR}/pages)
  file(GLOB makers CONFIGURE_DEPENDS cmake/pages/*)
  add_custom_command(OUTPUT ${pages}/table
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${pages} # also the pages of commands that are gone
    COMMAND ${CMAKE_COMMAND} -E make_directory ${pages}
    COMMAND lockstep help --table > ${pages}/table
    COMMAND ${PROJECT_SOURCE_DIR}/cmake/pages/make.sh ${PROJECT_SOURCE_DIR}/docs/reference/formats.md "${LKS_DATE}" ${pages}
    DEPENDS lockstep ${makers} docs/reference/formats.md VERBATIM)
  add_custom_target(pages ALL DEPENDS ${pages}/table)
  install(DIRECTORY ${pages}/man DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT lockstep)
  install(FILES ${pages}/bash/lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    COMPONENT lockstep)
  install(FILES ${pages}/zsh/_lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions
    COMPONENT lockstep)
  install(FILES ${pages}/fish/lockstep.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
    COMPONENT lockstep)
endif()

# The same place for the program in the build's folder: recipes are found by name there, too.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/lockstep)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/config ${PROJECT_BINARY_DIR}/share/lockstep/config SYMBOLIC)

configure_file(${CMAKE_CURRENT_LIST_DIR}/uninstall.cmake.in ${PROJECT_BINARY_DIR}/uninstall.cmake @ONLY)
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -P ${PROJECT_BINARY_DIR}/uninstall.cmake VERBATIM)

include(cmake/packages.cmake)
