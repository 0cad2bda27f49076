# Who maintains this, and when it was last changed: the last commit's author and date. A source tarball
# has them in identity.txt, where git archive writes them. Sets LKS_MAINTAINER, LKS_DATE (YYYY-MM-DD)
# and LKS_EPOCH (seconds), all empty if neither is there.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/identity.txt)
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/identity.txt identity)
if(identity MATCHES "Format:")
  set(identity "")
  execute_process(COMMAND git log -1 "--format=%an <%ae>%n%cs%n%ct" WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    OUTPUT_VARIABLE identity OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REPLACE "\n" ";" identity "${identity}")
endif()
list(APPEND identity "" "" "")
list(GET identity 0 LKS_MAINTAINER)
list(GET identity 1 LKS_DATE)
list(GET identity 2 LKS_EPOCH)
