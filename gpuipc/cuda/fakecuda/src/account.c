/*
 * The memory of each device that all processes together keep alive.
 *
 * A process lists the memfds that it holds in a file of DIR, and holds a lock on
 * this file as long as it lives. Memory is in use as long as it is in the list of
 * a living process. A file whose lock is free belongs to a dead process and is
 * removed. Without DIR a process counts only its own memory.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

enum { ENTRIES = 8192 };

struct entry {
  uint64_t ino, bytes;
  char device[32];
};

static struct entry *table;
static int top; /* entries from here on were never used */
static char dir[2048];
static int dir_lock = -1;

uint32_t shown_pid(void) { return settings.pid ? (uint32_t)settings.pid : (uint32_t)getpid(); }

static bool hold(int fd, int command) {
  struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return fcntl(fd, command, &l) == 0 && l.l_type != F_UNLCK;
}

static bool dir_enter(void) { return dir[0] == 0 || flock(dir_lock, LOCK_EX) == 0; }
static void dir_leave(void) {
  if (dir[0]) flock(dir_lock, LOCK_UN);
}

static bool open_dir(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/lock", dir);
  dir_lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (dir_lock < 0 || !dir_enter()) return false;
  snprintf(path, sizeof path, "%s/process-%d", dir, getpid());
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  /* The descriptor stays open: it holds the lock. */
  bool ok = fd >= 0 && ftruncate(fd, ENTRIES * sizeof *table) == 0 && hold(fd, F_OFD_SETLK);
  if (ok) table = mmap(NULL, ENTRIES * sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  dir_leave();
  return ok && table != MAP_FAILED;
}

static bool open_table(void) {
  if (table) return true;
  const char *asked = setting_text("DIR");
  if (!asked || asked[0] == 0) {
    table = calloc(ENTRIES, sizeof *table);
    return true;
  }
  snprintf(dir, sizeof dir, "%s", asked);
  if (open_dir()) return true;
  fprintf(stderr, "fakecuda: DIR=%s cannot be used\n", dir);
  abort();
}

static int by_ino(const void *a, const void *b) {
  uint64_t x = ((const struct entry *)a)->ino, y = ((const struct entry *)b)->ino;
  return x < y ? -1 : x > y;
}

/* Entries of one device, of any process; grows as it is filled. */
struct gathered {
  struct entry *list;
  size_t n, room;
};

static void gather(struct gathered *g, const struct entry *from, const char *device) {
  for (int i = 0; i < ENTRIES; i++) {
    if (from[i].ino == 0 || memcmp(from[i].device, device, 32) != 0) continue;
    if (g->n == g->room) {
      g->room = g->room ? 2 * g->room : 64;
      g->list = realloc(g->list, g->room * sizeof *g->list);
    }
    g->list[g->n++] = from[i];
  }
}

static void gather_process(struct gathered *g, const char *path, const char *device) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  if (hold(fd, F_OFD_GETLK)) {
    const struct entry *theirs = mmap(NULL, ENTRIES * sizeof *theirs, PROT_READ, MAP_SHARED, fd, 0);
    if (theirs != MAP_FAILED) {
      gather(g, theirs, device);
      munmap((void *)theirs, ENTRIES * sizeof *theirs);
    }
  } else {
    unlink(path);
  }
  close(fd);
}

static void gather_others(struct gathered *g, const char *device) {
  DIR *d = opendir(dir);
  if (!d) return;
  char own[32], path[4096];
  snprintf(own, sizeof own, "process-%d", getpid());
  for (struct dirent *e; (e = readdir(d));) {
    if (strncmp(e->d_name, "process-", 8) != 0 || strcmp(e->d_name, own) == 0) continue;
    snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    gather_process(g, path, device);
  }
  closedir(d);
}

/* Holds the lock of DIR. */
static uint64_t used(int device) {
  struct gathered g = {0};
  gather(&g, table, devices[device].hex);
  if (dir[0]) gather_others(&g, devices[device].hex);
  if (g.n) qsort(g.list, g.n, sizeof *g.list, by_ino);
  uint64_t sum = 0;
  for (size_t i = 0; i < g.n; i++)
    if (i == 0 || g.list[i].ino != g.list[i - 1].ino) sum += g.list[i].bytes;
  free(g.list);
  return sum;
}

uint64_t account_used(int device) {
  if (!open_table() || !dir_enter()) return 0;
  uint64_t n = used(device);
  dir_leave();
  return n;
}

bool account_add(struct memory *m, bool within_budget) {
  if (!open_table() || !dir_enter()) return false;
  bool fits = !within_budget || used(m->device) + m->bytes <= settings.memory;
  int slot = 0;
  while (slot < top && table[slot].ino != 0) slot++;
  fits = fits && slot < ENTRIES;
  if (fits) {
    if (slot == top) top++;
    table[slot].bytes = m->bytes;
    memcpy(table[slot].device, devices[m->device].hex, 32);
    table[slot].ino = m->ino;
    m->slot = slot;
  }
  dir_leave();
  return fits;
}

void account_remove(struct memory *m) {
  table[m->slot].ino = 0;
  m->slot = -1;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  ENTER(NEEDS_CONTEXT);
  if (!available || !total) return CUDA_ERROR_INVALID_VALUE;
  lock();
  uint64_t n = account_used(current()->device);
  unlock();
  *total = settings.memory;
  *available = n < settings.memory ? settings.memory - n : 0;
  return CUDA_SUCCESS;
}
