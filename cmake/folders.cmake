# Before the first file is installed: add the folders that the install is about to make to a list, which
# uninstall.cmake reads. Include this before all other install rules.
set(lks_shared_folders ${CMAKE_INSTALL_BINDIR} ${CMAKE_INSTALL_INCLUDEDIR} lib ${CMAKE_INSTALL_LIBDIR}/cmake
    ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
foreach(folder doc man/man1 man/man5 bash-completion/completions zsh/vendor-completions fish/vendor_completions.d)
  list(APPEND lks_shared_folders ${CMAKE_INSTALL_DATADIR}/${folder})
endforeach()
install(CODE "set(shared \"${lks_shared_folders}\")\nset(list \"${CMAKE_BINARY_DIR}/install_folders.txt\")")
install(CODE [[
  set(made)
  if(EXISTS "${list}")
    file(STRINGS "${list}" made)
  endif()
  foreach(folder ${shared})
    get_filename_component(folder "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${folder}" ABSOLUTE)
    while(NOT EXISTS "${folder}")
      list(APPEND made "${folder}")
      get_filename_component(folder "${folder}" DIRECTORY)
    endwhile()
  endforeach()
  list(REMOVE_DUPLICATES made)
  list(JOIN made "\n" made)
  file(WRITE "${list}" "${made}\n")
]])
