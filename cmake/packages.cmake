# Debian packages, by CPack: scripts/package.sh makes, checks and tries them. One package for each component of
# install.cmake, library.cmake and lks_module(). With LKS_PACKAGES the files that Debian wants of a package
# (copyright, changelog) are installed, too.
option(LKS_PACKAGES "Install what Debian packages have in addition: scripts/package.sh" OFF)
if(NOT LKS_PACKAGES)
  return()
endif()
if(NOT LKS_MAINTAINER)
  message(FATAL_ERROR "A package names its maintainer, and neither git nor cmake/identity.txt gives one")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_CONTACT "${LKS_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# "0.2.0~dev" sorts before "0.2.0", so the release replaces a package of its development version.
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
if(NOT lks_is_dev EQUAL -1)
  string(APPEND CPACK_DEBIAN_PACKAGE_VERSION "~dev")
endif()
set(lks_version "${CPACK_DEBIAN_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")

execute_process(COMMAND date -u -R -d @${LKS_EPOCH} OUTPUT_VARIABLE lks_when OUTPUT_STRIP_TRAILING_WHITESPACE)
file(READ ${PROJECT_SOURCE_DIR}/LICENSE lks_license)
string(REGEX REPLACE "^[^\n]*\n+" "" lks_license_text "${lks_license}")
string(REGEX MATCH "Copyright[^\n]*" lks_copyright "${lks_license}")
string(REGEX REPLACE "^Copyright *(\\([cC]\\))? *" "" lks_copyright "${lks_copyright}")
string(REGEX REPLACE "\n\n" "\n.\n" lks_license_text "${lks_license_text}")
string(REGEX REPLACE "\n([^\n])" "\n \\1" lks_license_text "\n${lks_license_text}")
string(STRIP "${lks_license_text}" lks_license_text)
file(WRITE ${PROJECT_BINARY_DIR}/debian/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: lockstep

Files: *
Copyright: ${lks_copyright}
License: Expat
 ${lks_license_text}
")

# lks_package(COMPONENT NAME SECTION DEPENDS SUMMARY DESCRIPTION): what dpkg-shlibdeps finds is added to DEPENDS.
function(lks_package component name section depends summary description)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  # CPack writes the first line as the summary.
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  set(doc ${PROJECT_BINARY_DIR}/debian/${name})
  file(WRITE ${doc}/changelog
"${name} (${lks_version}) unstable; urgency=medium

  * See the file CHANGELOG.md of the package lockstep.

 -- ${LKS_MAINTAINER}  ${lks_when}
")
  execute_process(COMMAND gzip -9nf ${doc}/changelog)
  install(FILES ${doc}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name}
    RENAME changelog.Debian.gz COMPONENT ${component})
  install(FILES ${PROJECT_BINARY_DIR}/debian/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name}
    COMPONENT ${component})
endfunction()

set(either "lockstep (= ${lks_version}) | liblockstep0 (= ${lks_version})")
set(CPACK_COMPONENTS_ALL lockstep library dev)
lks_package(lockstep lockstep science ""
  "data-parallel training of GPT language models"
  "Starts the ranks, splits the batch, sums gradients while backward still runs,\nupdates, evaluates, checkpoints and samples. The run is the same, byte for\nbyte, on any number of ranks and threads.")
set(CPACK_DEBIAN_LOCKSTEP_PACKAGE_RECOMMENDS "libdnnl2 | libdnnl3.6, lockstep-zip")
set(CPACK_DEBIAN_LOCKSTEP_PACKAGE_SUGGESTS "lockstep-gloo, lockstep-mpi, lockstep-sentencepiece, liblockstep-dev")
lks_package(library liblockstep0 libs ""
  "data-parallel training for C programs (shared library)"
  "Groups of ranks, their collectives, gradients summed in an order that no\nnumber of ranks changes, samplers and checkpoints.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "lockstep-gloo, lockstep-mpi")
# What a program that is linked with it depends on, and the loader's cache.
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs
  "liblockstep ${PROJECT_VERSION_MAJOR} liblockstep0 (>= ${CPACK_DEBIAN_PACKAGE_VERSION})\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA
  "${PROJECT_BINARY_DIR}/debian/shlibs;${PROJECT_BINARY_DIR}/debian/triggers")
lks_package(dev liblockstep-dev libdevel
  "liblockstep0 (= ${lks_version}), libjansson-dev, libxxhash-dev, libmd-dev"
  "data-parallel training for C programs (headers)"
  "Headers, files for CMake and pkg-config, and examples of liblockstep. The\nlauncher, lockstep run, is in the package lockstep.")
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS lockstep)

# Modules; the names of lks_module().
set(lks_about_gloo "Gloo's collectives between hosts: --backend=gloo.")
set(lks_about_mpi "Open MPI's collectives between hosts: --backend=mpi.")
set(lks_about_mpich "MPICH's collectives for ranks that its mpiexec starts.")
set(lks_about_sentencepiece "SentencePiece tokens: lockstep prep sentencepiece, and bits per byte.")
set(lks_about_http "The live page of lockstep watch.")
set(lks_about_curl "Downloads of lockstep fetch.")
set(lks_about_png "Drawings of lockstep plot as PNG.")
set(lks_about_tty "The view of lockstep watch in a terminal.")
set(lks_about_hwloc "Binding of ranks to cores on machines with several memory nodes.")
set(lks_about_zip "Files of PyTorch's (ckpt.pt), which are zip archives.")
set(lks_needs_mpi ", openmpi-bin")
set(lks_needs_mpich ", mpich")
get_property(modules GLOBAL PROPERTY LKS_MODULES)
foreach(module ${modules})
  string(REPLACE lockstep_ "" word ${module})
  if(NOT lks_about_${word})
    set(lks_about_${word} "The module ${module}.so.")
  endif()
  lks_package(${module} lockstep-${word} science "${either}${lks_needs_${word}}"
    "data-parallel training of GPT language models (${word})" "${lks_about_${word}}\nlockstep and programs that use liblockstep load this module when they need it.")
  list(APPEND CPACK_COMPONENTS_ALL ${module})
endforeach()
include(CPack)
