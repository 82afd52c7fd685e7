// A server of a real job, or its scheduler role (DMLC_ROLE): what "import byteps.server" runs.
extern "C" void byteps_server();

int main() { byteps_server(); }
