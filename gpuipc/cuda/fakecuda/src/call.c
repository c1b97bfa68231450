/* What every exported function does first, and errors that stick. */
#include <string.h>
#include <unistd.h>

#include "fake.h"

pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;

static _Atomic bool initialised, forked;
static _Atomic int sticky;
static _Atomic uint64_t total;
static _Atomic(struct call *) calls;

static void in_child(void) { forked = true; }

void require_init(void) {
  if (!initialised) pthread_atfork(NULL, NULL, in_child);
  initialised = true;
}

void call_list(struct call *call) {
  int expected = 0;
  if (!atomic_compare_exchange_strong(&call->listed, &expected, 1)) return;
  call->next = atomic_load(&calls);
  while (!atomic_compare_exchange_weak(&calls, &call->next, call)) {
  }
}

CUresult enter(struct call *call, enum needs needs) {
  settings_load();
  atomic_fetch_add(&total, 1);
  CUresult injected = fault_point(call);
  if (injected != CUDA_SUCCESS) return injected;
  if (needs == NEEDS_NOTHING) return CUDA_SUCCESS;
  /* A driver does not survive fork: its child has none of the threads. */
  if (!initialised || forked) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult code = broken();
  if (code != CUDA_SUCCESS) return code;
  if (needs == NEEDS_CONTEXT) {
    lock();
    struct context *context = current();
    unlock();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->retains == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return capture_forbids(call->name);
  }
  return CUDA_SUCCESS;
}

void break_context(CUresult code) {
  int expected = 0;
  atomic_compare_exchange_strong(&sticky, &expected, code);
}

CUresult broken(void) {
  CUresult lost = lost_device();
  return lost != CUDA_SUCCESS ? lost : atomic_load(&sticky);
}

void mend(void) { sticky = 0; }

EXPORT uint64_t fakecuda_calls(const char *name) {
  if (strcmp(name, "*") == 0) return total;
  for (struct call *c = atomic_load(&calls); c; c = c->next)
    if (strcmp(c->name, name) == 0) return c->count;
  return 0;
}
