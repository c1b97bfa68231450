/* Host memory that a device may reach: registered, or allocated for it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

/* Whether all of [at, at+n) is mapped, and writable if asked for. */
static bool is_mapped(uint64_t at, uint64_t n, bool writable) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return false;
  char line[8192];
  uint64_t end = at + n;
  while (at < end && fgets(line, sizeof line, maps)) {
    unsigned long long from, to;
    char rights[8];
    if (sscanf(line, "%llx-%llx %7s", &from, &to, rights) != 3 || to <= at) continue;
    if (from > at || rights[0] != 'r' || (writable && rights[1] != 'w')) break;
    at = to;
  }
  fclose(maps);
  return at >= end;
}

EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  CUdeviceptr at = (CUdeviceptr)p;
  if (!p || bytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  bool read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
  if (!is_mapped(at, bytes, !read_only)) return CUDA_ERROR_INVALID_VALUE;
  lock();
  bool free_of_others = !range_touches(&on_host, at, bytes);
  if (free_of_others)
    range_add(&on_host, (struct range){.base = at, .bytes = bytes, .span = bytes, .kind = REGISTERED,
                                       .access = read_only ? 1 : 3});
  unlock();
  return free_of_others ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

EXPORT CUresult cuMemHostUnregister(void *p) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct range *r = range_find(&on_host, (CUdeviceptr)p);
  bool ok = r && r->base == (CUdeviceptr)p && r->kind == REGISTERED;
  if (ok) {
    if (streams_use(r->base, r->bytes)) misuse("host memory is unregistered under queued operations", r->base, r->bytes);
    range_remove(&on_host, r);
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (!out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  lock();
  bool ok = range_find(&on_host, (CUdeviceptr)p) != NULL;
  unlock();
  if (ok) *out = (CUdeviceptr)p;
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (!out || bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  uint64_t span = (bytes + PAGE - 1) / PAGE * PAGE;
  void *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  lock();
  range_add(&on_host, (struct range){.base = (CUdeviceptr)p, .bytes = bytes, .span = span, .kind = HOST_ALLOCATION,
                                     .access = 3});
  unlock();
  *out = p;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *p) {
  ENTER(NEEDS_CONTEXT);
  if (!p) return CUDA_SUCCESS;
  lock();
  struct range *r = range_find(&on_host, (CUdeviceptr)p);
  bool ok = r && r->base == (CUdeviceptr)p && r->kind == HOST_ALLOCATION;
  if (ok) {
    if (streams_use(r->base, r->bytes)) misuse("host memory is freed under queued operations", r->base, r->bytes);
    munmap(p, r->span);
    range_remove(&on_host, r);
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

uint64_t registered_bytes(void) {
  uint64_t n = 0;
  for (size_t i = 0; i < on_host.n; i++)
    if (on_host.list[i].kind == REGISTERED) n += on_host.list[i].bytes;
  return n;
}

void host_drop(void) {
  while (on_host.n) {
    struct range *r = &on_host.list[on_host.n - 1];
    if (r->kind == HOST_ALLOCATION) munmap((void *)r->base, r->span);
    range_remove(&on_host, r);
  }
}
