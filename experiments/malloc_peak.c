// Counts the live bytes of a process, and their peak, by taking the place of malloc (LD_PRELOAD).
//
// A block counts with what malloc_usable_size says. Counters are atomic; the peak may miss what two
// threads allocate at the same instant. Needs glibc, whose __libc_ functions do the work.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static long long live, peak;

static void* taken(void* block) {
  if (block == NULL) return block;
  const long long size = (long long)malloc_usable_size(block);
  const long long now = __atomic_add_fetch(&live, size, __ATOMIC_RELAXED);
  long long most = __atomic_load_n(&peak, __ATOMIC_RELAXED);
  while (now > most && !__atomic_compare_exchange_n(&peak, &most, now, 0, __ATOMIC_RELAXED,
                                                    __ATOMIC_RELAXED)) {
  }
  return block;
}

static void given_back(void* block) {
  if (block != NULL)
    __atomic_sub_fetch(&live, (long long)malloc_usable_size(block), __ATOMIC_RELAXED);
}

long long malloc_live_bytes(void) { return __atomic_load_n(&live, __ATOMIC_RELAXED); }
long long malloc_peak_bytes(void) { return __atomic_load_n(&peak, __ATOMIC_RELAXED); }
void malloc_reset_peak(void) { __atomic_store_n(&peak, malloc_live_bytes(), __ATOMIC_RELAXED); }

void* malloc(size_t size) { return taken(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return taken(__libc_calloc(count, size)); }

void* realloc(void* block, size_t size) {
  given_back(block);
  void* moved = __libc_realloc(block, size);
  if (moved == NULL && size != 0) {
    taken(block);
    return NULL;
  }
  return taken(moved);
}

void* memalign(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size)); }
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = memalign(alignment, size);
  return *block == NULL ? ENOMEM : 0;
}

void free(void* block) {
  given_back(block);
  __libc_free(block);
}
