# Before the first file is installed: make the folders that others must be able to read whatever the umask
# is, and add them to a list, which uninstall.cmake reads. Include this before all other install rules.
set(lks_shared_folders ${CMAKE_INSTALL_INCLUDEDIR}/lockstep lib/lockstep ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep
    ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(NOT LKS_LIBRARY_ONLY)
  list(APPEND lks_shared_folders ${CMAKE_INSTALL_BINDIR})
  foreach(folder doc/lockstep doc/lockstep/scripts man/man1 man/man5 lockstep bash-completion/completions zsh/vendor-completions
          fish/vendor_completions.d)
    list(APPEND lks_shared_folders ${CMAKE_INSTALL_DATADIR}/${folder})
  endforeach()
endif()
install(CODE "set(shared \"${lks_shared_folders}\")\nset(list \"${PROJECT_BINARY_DIR}/install_folders.txt\")")
install(CODE [[
  set(made)
  if(EXISTS "${list}")
    file(STRINGS "${list}" made)
  endif()
  foreach(folder ${shared})
    get_filename_component(folder "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${folder}" ABSOLUTE)
    set(new "${folder}")
    while(NOT EXISTS "${folder}")
      list(APPEND made "${folder}")
      get_filename_component(folder "${folder}" DIRECTORY)
    endwhile()
    file(MAKE_DIRECTORY "${new}")
    while(NOT new STREQUAL folder)
      file(CHMOD "${new}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
        WORLD_EXECUTE)
      get_filename_component(new "${new}" DIRECTORY)
    endwhile()
  endforeach()
  list(REMOVE_DUPLICATES made)
  list(JOIN made "\n" made)
  # Another user may have installed before: root, by sudo.
  get_filename_component(build "${list}" DIRECTORY)
  file(REMOVE "${list}" "${build}/install_manifest.txt")
  file(WRITE "${list}" "${made}\n")
]])
