// A server of a real job, or its scheduler role (DMLC_ROLE): what "import byteps.server" runs. It
// starts anew when the workers suspended. What it serves and its messages are recorded, and taken
// meanwhile.
#include <stdlib.h>
#include <unistd.h>

#include "messages.h"
#include "served.h"
#include "tests/plugin/record_taker.h"

extern "C" bool byteps_server();

namespace {

bool Serve() {
  byteps_record_served(1);
  byteps_record_messages(1);
  const byteprophet::RecordTaker<byteprophet::Served> served(byteps_take_served);
  const byteprophet::RecordTaker<byteprophet::Message> messages(byteps_take_messages);
  return byteps_server();
}

}  // namespace

int main(int, char** arguments) {
  if (!Serve()) return 0;
  setenv("BYTEPROPHET_SUSPENDED", "1", 1);
  execv("/proc/self/exe", arguments);
  return 1;
}
