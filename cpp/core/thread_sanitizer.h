// What ThreadSanitizer has to be told. An OpenMP library that was built without it waits where it
// cannot see, so that every variable two threads share would look like a race. Said is what a
// parallel region guarantees, and no more. Nothing of this is left in other builds.
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
// For a function whose own variables OpenMP hands to its threads; what it calls is watched.
#define NTK_ALIBI_NOT_WATCHED __attribute__((no_sanitize("thread")))
#else
#define NTK_ALIBI_NOT_WATCHED
#endif

namespace ntk_alibi {

// What precedes a release happens before what follows an acquire of the same edge, in any thread.
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
