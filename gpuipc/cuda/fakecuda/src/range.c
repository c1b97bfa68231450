/*
 * Addresses. No address is used twice. So an access to freed memory meets an
 * unmapped address, not other memory. After each piece there is a gap that nothing
 * may access.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

struct ranges on_device, on_host;

/* Far from the addresses that the system, Go and its race detector use. */
static CUdeviceptr next_space = 0x100000000000;
static const CUdeviceptr last_space = 0x180000000000;

CUdeviceptr space_take(uint64_t bytes, uint64_t align) {
  if (align < GRANULE) align = GRANULE;
  for (;;) {
    CUdeviceptr at = (next_space + align - 1) / align * align;
    if (bytes > last_space || at > last_space - bytes) return 0;
    next_space = at + bytes + GRANULE;
    void *p = mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == (void *)at) return at;
    if (p != MAP_FAILED) munmap(p, bytes);
    else if (errno != EEXIST) return 0;
  }
}

void space_give(CUdeviceptr at, uint64_t bytes) { munmap((void *)at, bytes); }

bool space_map(CUdeviceptr at, uint64_t bytes, int fd, int access) {
  int protection = access == 0 ? PROT_NONE : access == 1 ? PROT_READ : PROT_READ | PROT_WRITE;
  int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED);
  return mmap((void *)at, bytes, protection, flags, fd, 0) != MAP_FAILED;
}

/* The index of the first range that ends after `at`. */
static size_t first_behind(const struct ranges *in, CUdeviceptr at) {
  size_t low = 0, high = in->n;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (in->list[middle].base + in->list[middle].bytes <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

struct range *range_add(struct ranges *in, struct range r) {
  if (in->n == in->room) {
    in->room = in->room ? 2 * in->room : 64;
    in->list = realloc(in->list, in->room * sizeof *in->list);
  }
  size_t i = first_behind(in, r.base);
  memmove(&in->list[i + 1], &in->list[i], (in->n - i) * sizeof *in->list);
  in->list[i] = r;
  in->n++;
  return &in->list[i];
}

struct range *range_find(struct ranges *in, CUdeviceptr at) {
  size_t i = first_behind(in, at);
  return i < in->n && in->list[i].base <= at ? &in->list[i] : NULL;
}

void range_remove(struct ranges *in, struct range *r) {
  size_t i = (size_t)(r - in->list);
  memmove(r, r + 1, (in->n - i - 1) * sizeof *r);
  in->n--;
}

/* Whether n bytes at `at` are in ranges without a gap, which all allow the access. */
bool range_covers(struct ranges *in, CUdeviceptr at, uint64_t n, int access) {
  if (at + n < at) return false;
  for (size_t i = first_behind(in, at); n > 0; i++) {
    if (i == in->n || in->list[i].base > at || (in->list[i].access & access) != access) return false;
    uint64_t here = in->list[i].base + in->list[i].bytes - at;
    if (here >= n) return true;
    at += here;
    n -= here;
  }
  return true;
}

bool range_touches(struct ranges *in, CUdeviceptr at, uint64_t n) {
  size_t i = first_behind(in, at);
  return i < in->n && in->list[i].base < at + n;
}

uint64_t range_count(enum range_kind kind) {
  uint64_t n = 0;
  struct ranges *in = kind == REGISTERED || kind == HOST_ALLOCATION ? &on_host : &on_device;
  for (size_t i = 0; i < in->n; i++)
    if (in->list[i].kind == kind) n += kind == IMPORT ? (uint64_t)in->list[i].repeats : 1;
  return n;
}
