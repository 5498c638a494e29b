# Compiles SOURCE, behind HEADER if that is set, with COMPILER, INCLUDES and DEFINE. Fails unless the first error matches
# MESSAGE and, if ONE is set, is the only one.
list(TRANSFORM INCLUDES PREPEND -I)
if(HEADER)
  list(PREPEND INCLUDES -include ${HEADER})
endif()
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -D${DEFINE} ${INCLUDES} ${SOURCE}
                ERROR_VARIABLE output OUTPUT_QUIET RESULT_VARIABLE result)
string(REPLACE ";" "," lines "${output}")  # a list would end there
string(REGEX MATCHALL "error: [^\n]*" errors "${lines}")
list(LENGTH errors count)
set(first "")
if(count GREATER 0)
  list(GET errors 0 first)
endif()
if(result EQUAL 0 OR NOT first MATCHES "${MESSAGE}" OR (ONE AND NOT count EQUAL 1))
  message(FATAL_ERROR "expected an error that says '${MESSAGE}', got ${count}:\n${output}")
endif()
