/* Copies and memsets. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* Which sides of a copy are device memory. */
enum direction { TO_DEVICE, TO_HOST, ON_DEVICE };

struct copy {
  enum direction direction;
  CUdeviceptr dst, src;
  size_t n;
};

static bool on_its_device(const struct copy *c) {
  bool to = c->direction == TO_HOST || range_covers(&on_device, c->dst, c->n, 3);
  bool from = c->direction == TO_DEVICE || range_covers(&on_device, c->src, c->n, 1);
  return to && from;
}

/* Registered host memory is copied when the operation is executed, so its owner
 * must wait. Other host memory is copied through a buffer: a source may be changed
 * as soon as the call returns, and a destination is complete by then. */
static struct op *copy_op(const struct copy *c, bool *wait) {
  struct op *op = op_new(OP_COPY);
  op->dst = c->dst;
  op->src = c->src;
  op->dst_bytes = op->src_bytes = c->n;
  *wait = false;
  if (c->direction == TO_DEVICE && !range_covers(&on_host, c->src, c->n, 1)) {
    op->owned = malloc(c->n);
    memcpy(op->owned, (const void *)c->src, c->n);
    op->src = (CUdeviceptr)op->owned;
  }
  if (c->direction == TO_HOST && !range_covers(&on_host, c->dst, c->n, 3)) *wait = true;
  return op;
}

static CUresult copy(struct copy c, CUhandle id, bool wait) {
  if (c.n == 0) return CUDA_SUCCESS;
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  if (result == CUDA_SUCCESS && !on_its_device(&c)) result = CUDA_ERROR_INVALID_VALUE;
  uint64_t number = 0;
  bool pageable = false;
  if (result == CUDA_SUCCESS) {
    struct op *op = copy_op(&c, &pageable);
    stream_retain(s);
    result = enqueue(s, op, &number);
  }
  unlock();
  if (number == 0) return result;
  if (wait || pageable) result = finish(s, number);
  stream_release(s);
  return result;
}

static CUdeviceptr address(const void *p) { return (CUdeviceptr)p; }

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUhandle stream) {
  ENTER(NEEDS_CONTEXT);
  return copy((struct copy){TO_DEVICE, dst, address(src), n}, stream, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUhandle stream) {
  ENTER(NEEDS_CONTEXT);
  return copy((struct copy){TO_HOST, address(dst), src, n}, stream, false);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUhandle stream) {
  ENTER(NEEDS_CONTEXT);
  return copy((struct copy){ON_DEVICE, dst, src, n}, stream, false);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n) {
  ENTER(NEEDS_CONTEXT);
  return copy((struct copy){TO_DEVICE, dst, address(src), n}, 0, true);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) {
  ENTER(NEEDS_CONTEXT);
  return copy((struct copy){TO_HOST, address(dst), src, n}, 0, true);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  ENTER(NEEDS_CONTEXT);
  return copy((struct copy){ON_DEVICE, dst, src, n}, 0, true);
}

static CUresult fill(CUdeviceptr dst, uint32_t value, unsigned width, size_t n, CUhandle id) {
  if (n == 0) return CUDA_SUCCESS;
  if (dst % width != 0 || n > SIZE_MAX / width) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  if (result == CUDA_SUCCESS && !range_covers(&on_device, dst, n * width, 3)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    struct op *op = op_new(OP_MEMSET);
    op->dst = dst;
    op->dst_bytes = n * width;
    op->value = value;
    op->width = width;
    result = enqueue(s, op, NULL);
  }
  unlock();
  return result;
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUhandle stream) {
  ENTER(NEEDS_CONTEXT);
  return fill(dst, value, 1, n, stream);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n, CUhandle stream) {
  ENTER(NEEDS_CONTEXT);
  return fill(dst, value, 4, n, stream);
}

/* For device memory, these functions also return before the work is done. */
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n) {
  ENTER(NEEDS_CONTEXT);
  return fill(dst, value, 1, n, 0);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned value, size_t n) {
  ENTER(NEEDS_CONTEXT);
  return fill(dst, value, 4, n, 0);
}
