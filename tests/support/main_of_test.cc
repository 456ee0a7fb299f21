#include "files_of_test.h"

int main(int argument_count, char** arguments) { return cairnfs::RunTests(argument_count, arguments); }
