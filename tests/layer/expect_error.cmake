# Compiles SOURCE with COMPILER and INCLUDES and fails unless that gives exactly one error, which matches MESSAGE.
list(TRANSFORM INCLUDES PREPEND -I)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${INCLUDES} ${SOURCE}
                ERROR_VARIABLE output OUTPUT_QUIET RESULT_VARIABLE result)
string(REGEX MATCHALL "error: [^\n]*" errors "${output}")
list(LENGTH errors count)
if(result EQUAL 0 OR NOT count EQUAL 1 OR NOT errors MATCHES "${MESSAGE}")
  message(FATAL_ERROR "expected one error that says '${MESSAGE}', got ${count}:\n${output}")
endif()
