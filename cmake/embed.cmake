# A file as a C source: cmake -DFROM=FILE -DTO=FILE.c -P embed.cmake. Declared in src/server/page.h.
file(READ ${FROM} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],)" "\\1\n" bytes "${bytes}")
file(WRITE ${TO} "#include \"server/page.h\"\n\nconst unsigned char page[] = {\n${bytes}};\nconst size_t page_bytes = sizeof page;\n")
