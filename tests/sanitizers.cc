// What the sanitizers are told when the C++ tests are built with one: every report ends
// the program, and the list of what is not reported, each by name and with its reason. Nothing of
// ours is ever on it. Without a sanitizer nobody calls these.
extern "C" {

const char* __asan_default_options() { return "halt_on_error=1:detect_stack_use_after_return=1"; }

const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1:suppressions=" UBSAN_SUPPRESSIONS;
}

const char* __tsan_default_options() { return "halt_on_error=1:second_deadlock_stack=1"; }

const char* __lsan_default_suppressions() { return ""; }

const char* __tsan_default_suppressions() { return ""; }

}  // extern "C"
