/* Launches: checked as a driver checks them, then run by name as host code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* The emulation of the kernels. A library built without it has only the probe kernels. */
extern int emulate_launch(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared,
                          const void *args, size_t n) __attribute__((weak));
extern const char *emulate_error(void) __attribute__((weak));

struct shape {
  unsigned grid[3], block[3], shared;
};

struct launch {
  char *name;
  struct shape shape;
  size_t n;
  uint64_t args[]; /* aligned as parameters are */
};

void launch_free(struct launch *l) {
  free(l->name);
  free(l);
}

enum { EMULATION_ILLEGAL = 4 };

CUresult launch_run(struct launch *l) {
  const struct shape *shape = &l->shape;
  int answer = probe_launch(l->name, shape->grid, shape->block, l->args, l->n);
  if (answer == 0) return CUDA_SUCCESS;
  if (!emulate_launch) {
    fprintf(stderr, "fakecuda: no host code for kernel %s\n", l->name);
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  answer = emulate_launch(l->name, shape->grid, shape->block, shape->shared, l->args, l->n);
  if (answer == 0) return CUDA_SUCCESS;
  fprintf(stderr, "fakecuda: %s\n", emulate_error());
  return answer == EMULATION_ILLEGAL ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_LAUNCH_FAILED;
}

static CUresult check_shape(const struct function *f, const struct shape *shape) {
  const unsigned *grid = shape->grid, *block = shape->block;
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || threads == 0) return CUDA_ERROR_INVALID_VALUE;
  if (grid[0] > 2147483647 || grid[1] > 65535 || grid[2] > 65535) return CUDA_ERROR_INVALID_VALUE;
  if (block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (shape->shared > f->max_shared) return CUDA_ERROR_INVALID_VALUE;
  return threads > f->max_threads ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS;
}

/* Arguments in one buffer. It must be as large as the parameters, except for padding
 * at the end. */
static bool from_buffer(struct launch *l, const struct function *f, void **extra) {
  const void *buffer = NULL;
  size_t n = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
    else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) n = *(const size_t *)extra[1];
    else return false;
  }
  if (n < f->param_bytes || n > (f->param_bytes + 7) / 8 * 8 || (n && !buffer)) return false;
  memcpy(l->args, buffer, f->param_bytes);
  return true;
}

static void from_list(struct launch *l, const struct function *f, void **params) {
  for (int i = 0; i < f->n_params; i++)
    memcpy((char *)l->args + f->params[i].off, params[i], f->params[i].bytes);
}

static struct launch *launch_new(const struct function *f, void **params, void **extra) {
  struct launch *l = calloc(1, sizeof *l + f->param_bytes + 8);
  l->n = f->param_bytes;
  bool ok = extra ? from_buffer(l, f, extra) : params || f->n_params == 0;
  if (!ok) {
    free(l);
    return NULL;
  }
  if (!extra) from_list(l, f, params);
  l->name = strdup(f->name);
  return l;
}

static CUresult launch(CUhandle function, struct shape shape, CUhandle stream, void **params, void **extra) {
  struct function *f = (struct function *)object_find(function, FUNCTION);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  struct stream *s;
  CUresult result = stream_of(stream, &s);
  if (result == CUDA_SUCCESS) result = check_shape(f, &shape);
  if (result != CUDA_SUCCESS) return result;
  struct launch *l = params && extra ? NULL : launch_new(f, params, extra);
  if (!l) return CUDA_ERROR_INVALID_VALUE;
  l->shape = shape;
  struct op *op = op_new(OP_LAUNCH);
  op->launch = l;
  return enqueue(s, op, NULL);
}

EXPORT CUresult cuLaunchKernel(CUhandle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUhandle stream, void **params, void **extra) {
  ENTER(NEEDS_CONTEXT);
  lock();
  CUresult result = launch(function, (struct shape){.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared},
                           stream, params, extra);
  unlock();
  return result;
}
