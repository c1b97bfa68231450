/* Memory, address ranges and mappings as separate things (cuMemCreate and on). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake.h"

/* A handle of cuMemCreate or of an import, with its own count of uses. */
struct physical {
  struct object o;
  struct memory *memory;
  int handles;
};

struct reservation {
  CUdeviceptr base;
  uint64_t bytes;
  struct reservation *next;
};

static struct reservation *reservations;

uint64_t reservation_count(void) {
  uint64_t n = 0;
  for (struct reservation *r = reservations; r; r = r->next) n++;
  return n;
}

/* The number of handles. An import of the same memory counts again. */
uint64_t physical_count(void) { return object_count(PHYSICAL); }

static struct reservation *reservation_of(CUdeviceptr at, uint64_t n) {
  for (struct reservation *r = reservations; r; r = r->next)
    if (at >= r->base && n <= r->bytes && at - r->base <= r->bytes - n) return r;
  return NULL;
}

static bool granular(uint64_t n) { return n > 0 && n % GRANULE == 0; }

static CUresult check_prop(const CUmemAllocationProp *p) {
  if (!p || p->type != 1 || p->location.type != 1) return CUDA_ERROR_INVALID_VALUE;
  if (p->location.id < 0 || p->location.id >= device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (p->requestedHandleTypes & ~1) return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option) {
  ENTER(NEEDS_INIT);
  if (settings.no_vmm) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = check_prop(prop);
  if (!out || option < 0 || option > 1) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) *out = GRANULE;
  return result;
}

static CUhandle handle_for(struct memory *m) {
  struct physical *p = calloc(1, sizeof *p);
  p->memory = m;
  p->handles = 1;
  object_add(&p->o, PHYSICAL, NULL);
  return p->o.id;
}

EXPORT CUresult cuMemCreate(CUhandle *out, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags) {
  ENTER(NEEDS_INIT);
  if (settings.no_vmm) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = check_prop(prop);
  if (result != CUDA_SUCCESS) return result;
  if (!out || flags != 0 || !granular(bytes)) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct memory *m;
  result = memory_new(bytes, prop->location.id, true, &m);
  if (result == CUDA_SUCCESS) {
    m->exportable = prop->requestedHandleTypes & 1;
    *out = handle_for(m);
  }
  unlock();
  return result;
}

static void release(struct physical *p) {
  if (--p->handles > 0) return;
  object_remove(&p->o);
  memory_drop(p->memory);
  free(p);
}

EXPORT CUresult cuMemRelease(CUhandle id) {
  ENTER(NEEDS_INIT);
  lock();
  struct physical *p = (struct physical *)object_find(id, PHYSICAL);
  if (p) release(p);
  unlock();
  return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Returns another handle of the memory that is mapped at an address. A driver may
 * return the handle that exists. Here it is a new one, so that nobody relies on that. */
EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *out, void *at) {
  ENTER(NEEDS_INIT);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct range *r = range_find(&on_device, (CUdeviceptr)at);
  bool ok = r && r->kind == MAPPING;
  if (ok) {
    r->memory->refs++;
    *out = handle_for(r->memory);
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUhandle id) {
  ENTER(NEEDS_INIT);
  lock();
  struct physical *p = (struct physical *)object_find(id, PHYSICAL);
  bool ok = p && out;
  if (ok)
    *out = (CUmemAllocationProp){.type = 1, .requestedHandleTypes = p->memory->exportable,
                                 .location = {.type = 1, .id = p->memory->device}};
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t align, CUdeviceptr hint,
                                    unsigned long long flags) {
  ENTER(NEEDS_INIT);
  (void)hint;
  if (settings.no_vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (!out || flags != 0 || !granular(bytes) || (align & (align - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  lock();
  CUdeviceptr at = space_take(bytes, align);
  if (at) {
    struct reservation *r = malloc(sizeof *r);
    *r = (struct reservation){.base = at, .bytes = bytes, .next = reservations};
    reservations = r;
    *out = at;
  }
  unlock();
  return at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void unreserve(struct reservation *gone) {
  struct reservation **at = &reservations;
  while (*at != gone) at = &(*at)->next;
  *at = gone->next;
  space_give(gone->base, gone->bytes);
  free(gone);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
  ENTER(NEEDS_INIT);
  lock();
  struct reservation *r = reservation_of(at, bytes);
  bool ok = r && r->base == at && r->bytes == bytes && !range_touches(&on_device, at, bytes);
  if (ok) unreserve(r);
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUhandle id, unsigned long long flags) {
  ENTER(NEEDS_INIT);
  if (offset != 0 || flags != 0 || !granular(bytes) || at % GRANULE != 0) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct physical *p = (struct physical *)object_find(id, PHYSICAL);
  bool ok = p && bytes <= p->memory->bytes && reservation_of(at, bytes) && !range_touches(&on_device, at, bytes) &&
            space_map(at, bytes, p->memory->fd, 0);
  if (ok) {
    p->memory->refs++;
    range_add(&on_device, (struct range){.base = at, .bytes = bytes, .span = bytes, .kind = MAPPING,
                                         .memory = p->memory});
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Whether [at, at+bytes) consists of whole mappings. */
static bool whole_mappings(CUdeviceptr at, uint64_t bytes) {
  while (bytes > 0) {
    struct range *r = range_find(&on_device, at);
    if (!r || r->kind != MAPPING || r->base != at || r->bytes > bytes) return false;
    at += r->bytes;
    bytes -= r->bytes;
  }
  return true;
}

static void unmap(struct range *r) {
  space_map(r->base, r->bytes, -1, 0);
  memory_drop(r->memory);
  range_remove(&on_device, r);
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  ENTER(NEEDS_INIT);
  lock();
  bool ok = bytes > 0 && whole_mappings(at, bytes);
  if (ok && streams_use(at, bytes)) misuse("memory is unmapped under queued operations", at, bytes);
  for (uint64_t left = bytes; ok && left > 0;) {
    struct range *r = range_find(&on_device, at);
    uint64_t here = r->bytes;
    unmap(r);
    at += here;
    left -= here;
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t n) {
  ENTER(NEEDS_INIT);
  if (!desc || n == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; i++) {
    if (desc[i].location.type != 1 || (desc[i].flags != 0 && desc[i].flags != 1 && desc[i].flags != 3))
      return CUDA_ERROR_INVALID_VALUE;
    if (desc[i].location.id < 0 || desc[i].location.id >= device_count) return CUDA_ERROR_INVALID_DEVICE;
  }
  lock();
  bool ok = whole_mappings(at, bytes);
  for (uint64_t left = bytes; ok && left > 0;) {
    struct range *r = range_find(&on_device, at);
    /* Here all devices get the access of one, because they share one memory. Our code
     * must not request access for another device, so this counts as a misuse. */
    for (size_t i = 0; i < n; i++) {
      r->access = desc[i].flags;
      if (desc[i].location.id != r->memory->device) misuse("access of another device", at, r->bytes);
    }
    ok = space_map(r->base, r->bytes, r->memory->fd, r->access);
    at += r->bytes;
    left -= r->bytes;
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, CUhandle id, int type, unsigned long long flags) {
  ENTER(NEEDS_INIT);
  if (!out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != 1) return CUDA_ERROR_NOT_SUPPORTED;
  lock();
  struct physical *p = (struct physical *)object_find(id, PHYSICAL);
  int fd = p && p->memory->exportable ? fcntl(p->memory->fd, F_DUPFD_CLOEXEC, 3) : -1;
  if (fd >= 0) *(int *)out = fd;
  unlock();
  return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *out, void *handle, int type) {
  ENTER(NEEDS_INIT);
  if (settings.no_vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (!out || type != 1) return CUDA_ERROR_INVALID_VALUE;
  /* The caller keeps its descriptor. */
  int fd = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct memory *m;
  CUresult result = memory_adopt(fd, true, &m);
  if (result == CUDA_SUCCESS) *out = handle_for(m);
  unlock();
  return result;
}

void vmm_drop(void) {
  for (size_t i = on_device.n; i-- > 0;)
    if (on_device.list[i].kind == MAPPING) unmap(&on_device.list[i]);
  while (reservations) unreserve(reservations);
  struct object *o;
  for (size_t at = 0; (o = object_next(&at, PHYSICAL, NULL)); at = 0) {
    struct physical *p = (struct physical *)o;
    p->handles = 1;
    release(p);
  }
}
