# Writes FILE with the commit of SOURCE, if it has changed: cmake -DSOURCE=… -DFILE=… -P commit.cmake
# An unpacked tarball may be inside another repository.
set(commit "")
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(text "#define LKS_COMMIT \"${commit}\" /* empty: the sources are in no repository */\n")
set(before "")
if(EXISTS ${FILE})
  file(READ ${FILE} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${FILE} "${text}")
endif()
