/*
 * Pieces of memory. Each is a memfd. Its name says the kind of memory and the
 * device, so that a process that gets the descriptor knows both.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

static uint64_t n_objects, n_bytes;

enum { POISONED = 16 << 20, TAIL = 0x5c };

static const char *prefix(bool vmm) { return vmm ? "fakecuda-vmm-" : "fakecuda-alloc-"; }

static uint64_t whole(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* On a GPU, fresh memory has what its last user left. Here it is all ones, which is
 * no valid number or index. The bytes after the end are checked by allocation_end. */
static bool fill(int fd, uint64_t bytes) {
  uint64_t span = whole(bytes);
  uint64_t n = settings.poison ? (span < POISONED ? span : POISONED) : 0;
  if (n) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return false;
    memset(p, 0xff, n);
    munmap(p, n);
  }
  unsigned char tail[PAGE];
  memset(tail, TAIL, sizeof tail);
  return pwrite(fd, tail, span - bytes, (off_t)bytes) == (ssize_t)(span - bytes);
}

static void keep(struct memory *m) {
  m->refs = 1;
  n_objects++;
  n_bytes += m->bytes;
}

CUresult memory_new(uint64_t bytes, int device, bool vmm, struct memory **out) {
  struct memory *m = calloc(1, sizeof *m);
  *m = (struct memory){.bytes = bytes, .device = device, .vmm = vmm, .slot = -1, .fd = -1};
  char name[80];
  snprintf(name, sizeof name, "%s%s", prefix(vmm), devices[device].hex);
  struct stat st;
  /* Sealed, so that no holder of the descriptor can remove pages that others use. */
  m->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (m->fd < 0 || fstat(m->fd, &st) != 0) goto failed;
  m->ino = st.st_ino;
  if (!account_add(m, true)) goto failed;
  if (ftruncate(m->fd, (off_t)whole(bytes)) != 0 || fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
      !fill(m->fd, bytes))
    goto failed;
  keep(m);
  *out = m;
  return CUDA_SUCCESS;
failed:
  if (m->slot >= 0) account_remove(m);
  if (m->fd >= 0) close(m->fd);
  free(m);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The device of a descriptor of this library. -1: another descriptor; -2: a device
 * that this process does not have. */
static int device_of(int fd, bool vmm) {
  char link[64], to[256];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, to, sizeof to - 1);
  if (n < 0) return -1;
  to[n] = 0;
  char start[32];
  int length = snprintf(start, sizeof start, "/memfd:%s", prefix(vmm));
  if (strncmp(to, start, (size_t)length) != 0 || n < length + 32) return -1;
  int device = device_by_hex(to + length);
  return device < 0 ? -2 : device;
}

CUresult memory_adopt(int fd, bool vmm, struct memory **out) {
  struct stat st;
  int device = device_of(fd, vmm);
  if (device < 0 || fstat(fd, &st) != 0) {
    close(fd);
    return device == -2 ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
  }
  struct memory *m = calloc(1, sizeof *m);
  *m = (struct memory){.fd = fd, .ino = st.st_ino, .bytes = (uint64_t)st.st_size, .device = device, .vmm = vmm,
                       .exportable = vmm};
  if (!account_add(m, false)) {
    close(fd);
    free(m);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  keep(m);
  *out = m;
  return CUDA_SUCCESS;
}

void memory_drop(struct memory *m) {
  if (--m->refs > 0) return;
  n_objects--;
  n_bytes -= m->bytes;
  account_remove(m);
  close(m->fd);
  free(m);
}

void memory_totals(uint64_t *objects, uint64_t *bytes) {
  *objects = n_objects;
  *bytes = n_bytes;
}
