# What `make install` and `cmake --install` put where. Component "core" is ebb-core alone; "models" is the library ebb, the
# program and its manual page. Nothing is compiled for it: the libraries are those that were built and tested.
include(GNUInstallDirs)

# The pkg-config files say where they lie relative to themselves, so that a tree installed under any prefix or DESTDIR, or
# moved later, is found.
set(PC_DIR ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH PC_LIBDIR ${PC_DIR} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH PC_INCLUDEDIR ${PC_DIR} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
string(REPLACE ";" " " PC_REQUIRES "${EBB_REQUIRES}")

set(MODEL_HEADERS ebb.h engine.h measure.h model.h scheduler.h) # the others are ebb-core's
file(GLOB CORE_HEADERS CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include/ebb include/ebb/*.h)
list(REMOVE_ITEM CORE_HEADERS ${MODEL_HEADERS})

function(install_library component name headers)
  install(TARGETS ${name} ${name}-shared COMPONENT ${component}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_COMPONENT ${component})
  foreach(header ${headers})
    install(FILES include/ebb/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ebb COMPONENT ${component})
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${component})
endfunction()

install_library(core ebb-core "${CORE_HEADERS}")
if(EBB_MODELS)
  install_library(models ebb "${MODEL_HEADERS}")
  install(TARGETS ebb-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT models)
  # The manual page: a frame written by hand, and the commands and options as the program's own help prints them.
  set(MANUAL ${PROJECT_BINARY_DIR}/man/ebb.1)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
  add_custom_command(OUTPUT ${MANUAL}
    COMMAND sh ${PROJECT_SOURCE_DIR}/man/make.sh $<TARGET_FILE:ebb-cli> ${PROJECT_SOURCE_DIR}/man/ebb.1.in ${MANUAL}
    DEPENDS ebb-cli man/make.sh man/ebb.1.in VERBATIM)
  add_custom_target(manual ALL DEPENDS ${MANUAL})
  install(FILES ${MANUAL} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT models)
elseif(TARGET ebb-check)
  # Without models there is no program; ebb-check tells which kernels serve this machine, and whether they are right.
  install(TARGETS ebb-check RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT core)
endif()
