/* What every exported function does first, and errors that break a context. */
#include <string.h>
#include <unistd.h>

#include "fake.h"

pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;

static _Atomic bool initialised, forked;
static _Atomic int sticky[MAX_DEVICES];
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

CUresult enter(struct call *call, enum needs needs, int device) {
  settings_load();
  atomic_fetch_add(&total, 1);
  CUresult injected = fault_point(call, device);
  if (injected != CUDA_SUCCESS) return injected;
  if (needs == NEEDS_NOTHING) return CUDA_SUCCESS;
  /* A driver does not work after a fork: the child has none of the threads. */
  if (!initialised || forked) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult code = broken_on(device);
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
  atomic_compare_exchange_strong(&sticky[device_here()], &expected, code);
}

static CUresult broken_one(int device) {
  CUresult lost = lost_device(device);
  return lost != CUDA_SUCCESS ? lost : atomic_load(&sticky[device]);
}

CUresult broken_on(int device) {
  if (device >= 0 && device < MAX_DEVICES) return broken_one(device);
  CUresult code = CUDA_SUCCESS;
  for (int i = 0; i < device_count; i++)
    if ((code = broken_one(i)) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return code;
}

CUresult broken(void) { return broken_on(device_here()); }

void mend(void) {
  for (int i = 0; i < MAX_DEVICES; i++) sticky[i] = 0;
}

EXPORT uint64_t fakecuda_calls(const char *name) {
  if (strcmp(name, "*") == 0) return total;
  for (struct call *c = atomic_load(&calls); c; c = c->next)
    if (strcmp(c->name, name) == 0) return c->count;
  return 0;
}
