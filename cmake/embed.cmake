# Writes the bytes of SOURCE as a C array: cmake -DSOURCE=… -DFILE=… -DNAME=… -DHEADER=… -P embed.cmake
# A comment /* NAME */ in it, with the name of a file next to SOURCE that PARTS lists, becomes that file.
file(READ ${SOURCE} hex HEX)
separate_arguments(PARTS)
get_filename_component(folder ${SOURCE} DIRECTORY)
foreach(part ${PARTS})
  file(READ ${folder}/${part} contents HEX)
  string(HEX "/* ${part} */" comment)
  string(REPLACE ${comment} ${contents} hex ${hex})
endforeach()
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${FILE} "#include \"${HEADER}\"\n\nconst char ${NAME}[] = {\n${bytes}0};\nconst size_t ${NAME}_bytes = sizeof ${NAME} - 1;\n")
