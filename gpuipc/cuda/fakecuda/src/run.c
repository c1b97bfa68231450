/* Operations, as the thread of their stream executes them. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "fake.h"

static struct call points[OP_KINDS] = {
    [OP_COPY] = {.name = "run.copy"},     [OP_MEMSET] = {.name = "run.memset"}, [OP_LAUNCH] = {.name = "run.launch"},
    [OP_WRITE] = {.name = "run.write"},   [OP_WAIT] = {.name = "run.wait"},     [OP_RECORD] = {.name = "run.record"},
    [OP_AWAIT] = {.name = "run.await"},   [OP_BEHIND] = {.name = "run.behind"},
};

static __thread sigjmp_buf *guarded; /* set while this thread touches device memory */
static struct sigaction before[NSIG];

extern int emulate_illegal(const void *at) __attribute__((weak));

static void on_fault(int signal, siginfo_t *info, void *at) {
  if (emulate_illegal) emulate_illegal(info->si_addr); /* comes back from no kernel */
  if (guarded) siglongjmp(*guarded, 1);
  const struct sigaction *old = &before[signal];
  if (old->sa_flags & SA_SIGINFO) {
    old->sa_sigaction(signal, info, at);
  } else if (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN) {
    /* The access happens again, now with the system's answer. */
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(signal, &plain, NULL);
  } else {
    old->sa_handler(signal);
  }
}

/* Handles bad accesses of streams. Bad accesses of other threads get their usual
 * treatment. */
void guard_install(void) {
  static _Atomic bool installed;
  if (atomic_exchange(&installed, true)) return;
  struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  sigfillset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, &before[SIGSEGV]);
  sigaction(SIGBUS, &ours, &before[SIGBUS]);
}

static void sleep_micros(long micros) {
  struct timespec t = {micros / 1000000, micros % 1000000 * 1000};
  nanosleep(&t, NULL);
}

/* The first pauses are short: another thread or process may be about to write. */
void pause_once(struct pause *p) {
  p->tries++;
  if (p->tries < 64) sched_yield();
  else sleep_micros(p->tries < 2000 ? 20 : 500);
}

static void set(struct op *op) {
  if (op->width == 1) {
    memset((void *)op->dst, (int)op->value, op->dst_bytes);
    return;
  }
  for (uint64_t i = 0; i < op->dst_bytes / 4; i++) ((uint32_t *)op->dst)[i] = (uint32_t)op->value;
}

static void write_value(struct op *op) {
  /* A process that sees the value may free the memory at once. */
  __atomic_store_n(&op->dst_bytes, 0, __ATOMIC_RELAXED);
  if (op->width == 8) atomic_store((_Atomic uint64_t *)op->dst, op->value);
  else atomic_store((_Atomic uint32_t *)op->dst, (uint32_t)op->value);
}

static bool reached(const struct op *op) {
  /* Cyclic: the difference is compared with zero as a signed number. */
  if (op->width == 8) {
    uint64_t now = atomic_load((_Atomic uint64_t *)op->src), want = op->value;
    switch (op->flags) {
      case CU_STREAM_WAIT_GEQ: return (int64_t)(now - want) >= 0;
      case CU_STREAM_WAIT_EQ: return now == want;
      case CU_STREAM_WAIT_AND: return (now & want) != 0;
      default: return ~(now | want) != 0;
    }
  }
  uint32_t now = atomic_load((_Atomic uint32_t *)op->src), want = (uint32_t)op->value;
  switch (op->flags) {
    case CU_STREAM_WAIT_GEQ: return (int32_t)(now - want) >= 0;
    case CU_STREAM_WAIT_EQ: return now == want;
    case CU_STREAM_WAIT_AND: return (now & want) != 0;
    default: return ~(now | want) != 0;
  }
}

static void wait_value(struct stream *s, const struct op *op) {
  struct pause p = {0};
  while (!s->quit && !broken() && !reached(op)) pause_once(&p);
}

static CUresult execute(struct stream *s, struct op *op) {
  switch (op->kind) {
    case OP_COPY: memmove((void *)op->dst, (const void *)op->src, op->dst_bytes); break;
    case OP_MEMSET: set(op); break;
    case OP_LAUNCH: return launch_run(op->launch);
    case OP_WRITE: write_value(op); break;
    case OP_WAIT: wait_value(s, op); break;
    case OP_AWAIT: event_await(op->event, op->value, s); break;
    case OP_BEHIND: finish(op->behind, op->value); break;
    default: break;
  }
  return CUDA_SUCCESS;
}

static CUresult execute_guarded(struct stream *s, struct op *op) {
  sigjmp_buf here;
  volatile CUresult result = CUDA_ERROR_ILLEGAL_ADDRESS;
  if (sigsetjmp(here, 1) == 0) {
    guarded = &here;
    result = execute(s, op);
  }
  guarded = NULL;
  return result;
}

/* Returns false if the operation was skipped, because the context is broken or ends. */
bool run_op(struct stream *s, struct op *op) {
  if (s->quit || broken()) return false;
  if (settings.delay && op->kind != OP_BEHIND) sleep_micros(settings.delay);
  CUresult result = fault_point(&points[op->kind], device_here());
  if (s->quit || lost_device(device_here())) return false;
  if (result == CUDA_SUCCESS) result = execute_guarded(s, op);
  if (result != CUDA_SUCCESS) break_context(result);
  return result == CUDA_SUCCESS;
}
