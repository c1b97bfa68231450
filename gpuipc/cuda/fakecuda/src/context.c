/* Primary contexts. Each device has one for the life of the process. */
#include "fake.h"

static struct context primaries[MAX_DEVICES];
static __thread struct context *of_thread;
/* The contexts that cuCtxPushCurrent replaced, the latest last. */
static __thread struct context *below[16];
static __thread int depth;

/* A released context stays current. Later calls of enter refuse it. */
struct context *current(void) { return of_thread; }

static __thread int worked_on = ANY_DEVICE;
void work_on(int device) { worked_on = device; }
int device_here(void) { return of_thread ? of_thread->device : worked_on; }

uint64_t context_retains(void) {
  uint64_t n = 0;
  for (int i = 0; i < MAX_DEVICES; i++) n += (uint64_t)primaries[i].retains;
  return n;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUhandle *out, CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
  lock();
  struct context *context = &primaries[device];
  if (context->o.id == 0) {
    object_add(&context->o, CONTEXT, NULL);
    context->device = device;
  }
  context->retains++;
  *out = context->o.id;
  unlock();
  return CUDA_SUCCESS;
}

/* Ends everything that belongs to a context. The caller holds `big`, which is
 * released while destroy waits. */
static void destroy(struct context *context) {
  streams_stop(context);
  context->null_stream = NULL;
  struct object *o;
  size_t at = 0;
  while ((o = object_next(&at, EVENT, context))) event_drop(o), at = 0;
  at = 0;
  while ((o = object_next(&at, MODULE, context))) module_drop(o), at = 0;
  allocations_drop(context->device);
  if (context_retains() == 0) host_drop();
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
  lock();
  struct context *context = &primaries[device];
  CUresult result = context->retains > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS && --context->retains == 0) {
    if (streams_busy(context)) misuse("a context ends under queued operations", 0, 0);
    destroy(context);
  }
  unlock();
  return result;
}

void contexts_drop(void) {
  for (int i = 0; i < MAX_DEVICES; i++) {
    if (primaries[i].o.id == 0) continue;
    primaries[i].retains = 0;
    destroy(&primaries[i]);
  }
  of_thread = NULL;
  depth = 0;
}

EXPORT CUresult cuCtxSetCurrent(CUhandle id) {
  lock();
  struct context *context = id ? (struct context *)object_find(id, CONTEXT) : NULL;
  unlock();
  ENTER_ON(NEEDS_INIT, context ? context->device : device_here());
  if (id && !context) return CUDA_ERROR_INVALID_CONTEXT;
  of_thread = context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUhandle *out) {
  ENTER(NEEDS_INIT);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = of_thread ? of_thread->o.id : 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUhandle id) {
  ENTER(NEEDS_INIT);
  lock();
  struct context *context = (struct context *)object_find(id, CONTEXT);
  unlock();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (depth == 16) return CUDA_ERROR_INVALID_VALUE;
  below[depth++] = of_thread;
  of_thread = context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUhandle *out) {
  ENTER(NEEDS_INIT);
  if (!of_thread) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = of_thread->o.id;
  of_thread = depth > 0 ? below[--depth] : NULL;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *out) {
  ENTER(NEEDS_CONTEXT);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = of_thread->device;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
  ENTER(NEEDS_CONTEXT);
  streams_finish(of_thread);
  return broken();
}
