// Annotations for ThreadSanitizer. It cannot see the waiting of an OpenMP library that was built
// without it, so that every variable which two threads share would look like a race. We annotate
// only what an OpenMP parallel region guarantees. Other builds contain none of this.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NTK_ALIBI_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define NTK_ALIBI_THREAD_SANITIZER
#endif

#ifdef NTK_ALIBI_THREAD_SANITIZER
extern "C" {
void __tsan_acquire(void* edge);
void __tsan_release(void* edge);
}
// Marks a function with local variables that OpenMP passes to its threads. The functions that it
// calls are still watched.
#define NTK_ALIBI_NOT_WATCHED __attribute__((no_sanitize("thread")))
#else
#define NTK_ALIBI_NOT_WATCHED
#endif

namespace ntk_alibi {

// Code before a release happens before code after an acquire of the same edge, in any thread.
class ThreadEdge {
 public:
  void release() {
#ifdef NTK_ALIBI_THREAD_SANITIZER
    __tsan_release(this);
#endif
  }
  void acquire() {
#ifdef NTK_ALIBI_THREAD_SANITIZER
    __tsan_acquire(this);
#endif
  }
};

}  // namespace ntk_alibi
