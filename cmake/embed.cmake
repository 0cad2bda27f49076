# Writes the bytes of SOURCE as a C array: cmake -DSOURCE=… -DFILE=… -DNAME=… -DHEADER=… -P embed.cmake
file(READ ${SOURCE} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${FILE} "#include \"${HEADER}\"\n\nconst char ${NAME}[] = {\n${bytes}0};\nconst size_t ${NAME}_bytes = sizeof ${NAME} - 1;\n")
