/* Stream writes and waits of values in memory. */
#include "fake.h"

/* Device memory, or registered host memory, which has the same addresses here. */
static bool reachable(CUdeviceptr at, unsigned width, int access) {
  return range_covers(&on_device, at, width, access) || range_covers(&on_host, at, width, access);
}

static CUresult value_op(enum op_kind kind, CUhandle id, CUdeviceptr at, uint64_t value, unsigned flags, unsigned width) {
  if (settings.no_wait_value && width == 8) return CUDA_ERROR_NOT_SUPPORTED;
  if (at % width != 0) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  if (result == CUDA_SUCCESS && !reachable(at, width, kind == OP_WRITE ? 3 : 1)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    struct op *op = op_new(kind);
    if (kind == OP_WRITE) op->dst = at, op->dst_bytes = width;
    else op->src = at, op->src_bytes = width;
    op->value = value;
    op->flags = flags;
    op->width = width;
    result = enqueue(s, op, NULL);
  }
  unlock();
  return result;
}

enum { NO_MEMORY_BARRIER = 1 };

EXPORT CUresult cuStreamWriteValue64_v2(CUhandle stream, CUdeviceptr at, uint64_t value, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (flags & ~(unsigned)NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
  return value_op(OP_WRITE, stream, at, value, 0, 8);
}

EXPORT CUresult cuStreamWaitValue64_v2(CUhandle stream, CUdeviceptr at, uint64_t value, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (flags > CU_STREAM_WAIT_NOR) return CUDA_ERROR_INVALID_VALUE;
  return value_op(OP_WAIT, stream, at, value, flags, 8);
}

EXPORT CUresult cuStreamWriteValue32_v2(CUhandle stream, CUdeviceptr at, uint32_t value, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (flags & ~(unsigned)NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
  return value_op(OP_WRITE, stream, at, value, 0, 4);
}

EXPORT CUresult cuStreamWaitValue32_v2(CUhandle stream, CUdeviceptr at, uint32_t value, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (flags > CU_STREAM_WAIT_NOR) return CUDA_ERROR_INVALID_VALUE;
  return value_op(OP_WAIT, stream, at, value, flags, 4);
}

/* The names without _v2 belong to an older interface. A driver refuses it unless an
 * option of the kernel module turns it on. */
EXPORT CUresult cuStreamWriteValue64(CUhandle stream, CUdeviceptr at, uint64_t value, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  (void)stream, (void)at, (void)value, (void)flags;
  return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuStreamWaitValue64(CUhandle stream, CUdeviceptr at, uint64_t value, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  (void)stream, (void)at, (void)value, (void)flags;
  return CUDA_ERROR_NOT_SUPPORTED;
}
