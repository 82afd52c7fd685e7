// What the sanitizers are told when the C++ tests are built with one: every report ends
// the program, and the list of what is not reported, each by name and with its reason. Nothing of
// ours is ever on it. Without a sanitizer nobody calls these.
extern "C" {

const char* __asan_default_options() { return "halt_on_error=1:detect_stack_use_after_return=1"; }

const char* __lsan_default_options() { return "print_suppressions=0"; }

const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1:suppressions=" UBSAN_SUPPRESSIONS;
}

// ZeroMQ is not built with the sanitizer: what it hands from thread to thread looks unguarded, so
// that its own reads and writes are not looked at.
const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1";
}

// Once per process or per connection, of a few bytes, until the process ends.
const char* __lsan_default_suppressions() {
  return
      // The engine's threads and queues are never deleted.
      "leak:byteps_server\n"
      // Nor is the thread object of a socket, when it has been joined.
      "leak:ps::ZMQVan::Bind\n"
      "leak:ps::ZMQVan::Connect\n"
      // What a receive thread holds that is told to stop.
      "leak:ps::ZMQVan::CallZmqRecvThread\n"
      // One of the two buffers of a key is not freed when the server ends.
      "leak:byteps::server::PageAlignedMalloc\n"
      // A pull that is not answered when the worker shuts down.
      "leak:byteps::common::RunPullLoopOnce\n"
      // Streams, communicators and the thread objects of local sockets are never deleted.
      "leak:byteps::common::BytePSGlobal::Init\n"
      "leak:byteps::common::NcclManager::ConstructRings\n"
      "leak:byteps::common::BytePSCommSocket\n";
}

const char* __tsan_default_suppressions() {
  return
      // For the same reason: its thread releases what a message was sent from.
      "race:libzmq.so\n"
      // A volatile flag that loops look at until it is set; what is read after it has been joined.
      "race:byteps::common::BytePSGlobal::ShouldShutdown\n"
      "race:byteps::common::BytePSGlobal::_should_shutdown\n";
}

}  // extern "C"
