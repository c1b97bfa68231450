/* cuMemAlloc, and handles of its memory for other processes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

/* The contents of a 64-byte handle. It names a descriptor of the memory's owner,
 * which other processes of the same user open through /proc. */
struct handle {
  uint32_t magic;
  uint32_t shown_pid;
  int32_t pid, fd;
  uint64_t ino, bytes;
  CUuuid device;
  uint32_t rest[4];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcHandle), "64 bytes");
enum { MEMORY_MAGIC = 0x6d656d31 };

static CUresult map(struct memory *m, enum range_kind kind, uint64_t bytes, CUdeviceptr *out) {
  uint64_t span = (bytes + PAGE - 1) / PAGE * PAGE;
  CUdeviceptr at = space_take(span, GRANULE);
  if (at == 0 || !space_map(at, span, m->fd, 3)) return CUDA_ERROR_OUT_OF_MEMORY;
  range_add(&on_device, (struct range){.base = at, .bytes = bytes, .span = span, .kind = kind, .access = 3,
                                       .repeats = 1, .memory = m});
  *out = at;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  ENTER(NEEDS_CONTEXT);
  if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct memory *m;
  CUresult result = memory_new(bytes, current()->device, false, &m);
  if (result == CUDA_SUCCESS) {
    result = map(m, ALLOCATION, bytes, out);
    if (result != CUDA_SUCCESS) memory_drop(m);
  }
  unlock();
  return result;
}

/* Whether something wrote between the end of an allocation and the end of its page. */
static bool overrun(const struct range *r) {
  const unsigned char *tail = (const unsigned char *)(r->base + r->bytes);
  for (uint64_t i = 0; i < r->span - r->bytes; i++)
    if (tail[i] != 0x5c) return true;
  return false;
}

void allocation_end(struct range *r) {
  if (streams_use(r->base, r->bytes)) misuse("memory is freed under queued operations", r->base, r->bytes);
  if (r->kind == ALLOCATION && overrun(r)) misuse("something wrote behind an allocation", r->base, r->bytes);
  space_give(r->base, r->span);
  memory_drop(r->memory);
  range_remove(&on_device, r);
}

/* Frees the allocations and imports of a context that ends. Mappings of cuMemMap stay. */
void allocations_drop(int device) {
  for (size_t i = on_device.n; i-- > 0;) {
    struct range *r = &on_device.list[i];
    if (r->kind != MAPPING && r->memory->device == device) allocation_end(r);
  }
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
  ENTER(NEEDS_CONTEXT);
  if (at == 0) return CUDA_SUCCESS;
  lock();
  struct range *r = range_find(&on_device, at);
  bool ok = r && r->base == at && r->kind == ALLOCATION;
  if (ok) allocation_end(r);
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct range *r = range_find(&on_device, at);
  if (r && base) *base = r->base;
  if (r && bytes) *bytes = r->bytes;
  unlock();
  return r ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Returns the handle of the whole allocation, wherever in it `at` points. */
EXPORT CUresult cuIpcGetMemHandle(CUipcHandle *out, CUdeviceptr at) {
  ENTER(NEEDS_CONTEXT);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct range *r = range_find(&on_device, at);
  /* Memory of cuMemCreate has no such handle, and an import is not ours to pass on. */
  bool ok = r && r->kind == ALLOCATION;
  if (ok) {
    struct memory *m = r->memory;
    struct handle h = {.magic = MEMORY_MAGIC, .shown_pid = shown_pid(), .pid = getpid(), .fd = m->fd, .ino = m->ino,
                       .bytes = m->bytes, .device = devices[m->device].uuid};
    memcpy(out, &h, sizeof h);
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Opens the descriptor that a handle names. -1: its owner freed the memory or ended. */
static int follow(const struct handle *h) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_ino != h->ino)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static CUresult import(const struct handle *h, CUdeviceptr *out) {
  for (size_t i = 0; i < on_device.n; i++) {
    struct range *r = &on_device.list[i];
    if (r->kind != IMPORT || r->memory->ino != h->ino) continue;
    r->repeats++;
    *out = r->base;
    return CUDA_SUCCESS;
  }
  int fd = follow(h);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  struct memory *m;
  CUresult result = memory_adopt(fd, false, &m);
  if (result != CUDA_SUCCESS) return result;
  result = m->device == current()->device ? map(m, IMPORT, h->bytes, out) : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (result != CUDA_SUCCESS) memory_drop(m);
  return result;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcHandle handle, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  struct handle h;
  memcpy(&h, &handle, sizeof h);
  if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || h.magic != MEMORY_MAGIC) return CUDA_ERROR_INVALID_VALUE;
  /* A driver returns this for handles of the same process, and for handles of a
   * process in another container that has the same id. */
  if (h.shown_pid == shown_pid()) return CUDA_ERROR_INVALID_CONTEXT;
  lock();
  CUresult result = import(&h, out);
  unlock();
  return result;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct range *r = range_find(&on_device, at);
  bool ok = r && r->base == at && r->kind == IMPORT;
  if (ok && --r->repeats == 0) allocation_end(r);
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

enum {
  POINTER_MEMORY_TYPE = 2,
  POINTER_DEVICE_POINTER = 3,
  POINTER_DEVICE_ORDINAL = 9,
  POINTER_IS_LEGACY_IPC_CAPABLE = 10,
  POINTER_RANGE_START = 11,
  POINTER_RANGE_SIZE = 12,
};

static CUresult pointer_attribute(void *out, int name, CUdeviceptr at, const struct range *r) {
  switch (name) {
    case POINTER_MEMORY_TYPE: *(unsigned *)out = 2; break;
    case POINTER_DEVICE_POINTER: *(CUdeviceptr *)out = at; break;
    case POINTER_DEVICE_ORDINAL: *(int *)out = r->memory->device; break;
    case POINTER_IS_LEGACY_IPC_CAPABLE: *(int *)out = r->kind == ALLOCATION; break;
    case POINTER_RANGE_START: *(CUdeviceptr *)out = r->base; break;
    case POINTER_RANGE_SIZE: *(size_t *)out = r->bytes; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *out, int name, CUdeviceptr at) {
  ENTER(NEEDS_CONTEXT);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct range *r = range_find(&on_device, at);
  CUresult result = r ? pointer_attribute(out, name, at, r) : CUDA_ERROR_INVALID_VALUE;
  unlock();
  return result;
}
