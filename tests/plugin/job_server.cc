// A server of a real job, or its scheduler role (DMLC_ROLE): what "import byteps.server" runs. It
// starts anew when the workers suspended.
#include <stdlib.h>
#include <unistd.h>

extern "C" bool byteps_server();

int main(int, char** arguments) {
  if (!byteps_server()) return 0;
  setenv("BYTEPROPHET_SUSPENDED", "1", 1);
  execv("/proc/self/exe", arguments);
  return 1;
}
