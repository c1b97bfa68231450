/*
 * Streams that capture. The fake makes no graphs: operations that are enqueued on
 * such a stream are refused and counted as misuses. It only imitates what a capture
 * forbids to other threads. While a capture in the global mode is running, a call
 * that might wait for it or for the whole device is refused on every thread whose
 * own mode is not relaxed, and the capture is invalidated.
 */
#include <string.h>

#include "fake.h"

enum { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };

static __thread int mode_of_thread = MODE_GLOBAL;
static struct stream *capturing; /* in the global mode: one at a time; guarded by `big` */
static _Atomic bool forbidding;

/* Whether a call might wait. A guess from the API reference and from reports of
 * broken captures. */
static bool might_wait(const char *call) {
  static const char *const names[] = {
      "cuCtxSynchronize", "cuStreamSynchronize", "cuStreamQuery", "cuEventSynchronize", "cuEventQuery",
      "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostRegister_v2", "cuMemHostUnregister",
      "cuModuleLoadDataEx", "cuModuleUnload",
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(call, names[i]) == 0) return true;
  return false;
}

CUresult capture_forbids(const char *call) {
  if (!forbidding || mode_of_thread == MODE_RELAXED || !might_wait(call)) return CUDA_SUCCESS;
  lock();
  bool refused = capturing != NULL;
  if (refused) capturing->capture = CAPTURE_INVALIDATED;
  unlock();
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

void capture_end(struct stream *s) {
  s->capture = CAPTURE_NONE;
  if (capturing != s) return;
  capturing = NULL;
  forbidding = false;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUhandle id, int mode) {
  ENTER(NEEDS_CONTEXT);
  if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s;
  CUresult result = id <= 2 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : stream_of(id, &s);
  if (result == CUDA_SUCCESS && (s->capture || (capturing && mode == MODE_GLOBAL))) result = CUDA_ERROR_ILLEGAL_STATE;
  if (result == CUDA_SUCCESS) {
    s->capture = CAPTURE_ACTIVE;
    if (mode == MODE_GLOBAL) capturing = s, forbidding = true;
  }
  unlock();
  return result;
}

/* The graph is always NULL. */
EXPORT CUresult cuStreamEndCapture(CUhandle id, CUhandle *graph) {
  ENTER(NEEDS_CONTEXT);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  if (result == CUDA_SUCCESS && s->capture == CAPTURE_NONE) result = CUDA_ERROR_ILLEGAL_STATE;
  if (result == CUDA_SUCCESS) {
    if (s->capture == CAPTURE_INVALIDATED) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture_end(s);
    *graph = 0;
  }
  unlock();
  return result;
}

EXPORT CUresult cuStreamIsCapturing(CUhandle id, int *status) {
  ENTER(NEEDS_CONTEXT);
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  if (result == CUDA_SUCCESS) *status = s->capture;
  unlock();
  return result;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  ENTER(NEEDS_CONTEXT);
  if (!mode || *mode < MODE_GLOBAL || *mode > MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  int before = mode_of_thread;
  mode_of_thread = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
