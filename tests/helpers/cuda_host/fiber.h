// Fibers: each CUDA thread of a block has a stack, and switches are written by hand (a ucontext switch costs two system
// calls).
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cuda_host {

constexpr size_t kStack = 256 << 10;

#if defined(__x86_64__)
struct Context { void* sp = nullptr; };
extern "C" void cuda_host_switch(void** save, void* load);
asm(R"(
.text
.weak cuda_host_switch
.type cuda_host_switch, @function
cuda_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_host_switch, .-cuda_host_switch
)");
inline void switch_context(Context& from, Context& to) { cuda_host_switch(&from.sp, to.sp); }
inline void make_context(Context& c, char* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + kStack - 16);
  *--top = nullptr;  // the entry never returns
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  c.sp = top;
}
#else
struct Context { ucontext_t u; };
inline void switch_context(Context& from, Context& to) { swapcontext(&from.u, &to.u); }
inline void make_context(Context& c, char* stack, void (*entry)()) {
  getcontext(&c.u);
  c.u.uc_stack.ss_sp = stack, c.u.uc_stack.ss_size = kStack, c.u.uc_link = nullptr;
  makecontext(&c.u, entry, 0);
}
#endif

// Runs jobs one after the other on its own stack; each job returns before the next starts, so that the sanitizer's
// marks on the stack are removed.
class Fiber {
 public:
  Fiber() {
    const size_t guard = 4096;
    char* p = static_cast<char*>(
        mmap(nullptr, kStack + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED || mprotect(p, guard, PROT_NONE)) std::perror("fiber stack"), std::abort();
    stack_ = p + guard;
    make_context(own_, stack_, entry);
  }
  Fiber(const Fiber&) = delete;

  void start(std::function<void()> job) { job_ = std::move(job), done_ = false; }
  bool done() const { return done_; }

  // From the scheduler: runs until the job yields or ends.
  void resume() {
    current = this;
    start_switch(&caller_fake_, stack_, kStack);
    switch_context(caller_, own_);
    finish_switch(caller_fake_, nullptr, nullptr);
  }
  // From the job: back to the scheduler.
  void yield() {
    start_switch(&own_fake_, caller_bottom_, caller_size_);
    switch_context(own_, caller_);
    finish_switch(own_fake_, &caller_bottom_, &caller_size_);
  }

 private:
  static inline Fiber* current = nullptr;
  static void entry() {
    Fiber* self = current;
    self->finish_switch(nullptr, &self->caller_bottom_, &self->caller_size_);
    for (;;) {
      self->job_();
      self->done_ = true;
      self->yield();
    }
  }
#if defined(__SANITIZE_ADDRESS__)
  void start_switch(void** fake, const void* bottom, size_t size) {
    __sanitizer_start_switch_fiber(fake, bottom, size);
  }
  void finish_switch(void* fake, const void** bottom, size_t* size) {
    __sanitizer_finish_switch_fiber(fake, bottom, size);
  }
#else
  void start_switch(void**, const void*, size_t) {}
  void finish_switch(void*, const void**, size_t*) {}
#endif

  char* stack_;
  Context own_, caller_;
  void *own_fake_ = nullptr, *caller_fake_ = nullptr;
  const void* caller_bottom_ = nullptr;
  size_t caller_size_ = 0;
  std::function<void()> job_;
  bool done_ = true;
};

}  // namespace cuda_host
