/* Events: how often each was recorded, and which record streams have passed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

struct counters {
  _Atomic uint64_t recorded, done, nanos;
};

struct event {
  struct object o;
  unsigned flags;
  _Atomic int holders;
  struct counters *counters; /* in a page of a memfd between processes */
  struct counters own;
  int fd; /* -1 = within this process */
};

struct handle {
  uint32_t magic, shown_pid;
  int32_t pid, fd;
  uint64_t ino;
  uint32_t rest[10];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcHandle), "64 bytes");
enum { EVENT_MAGIC = 0x65766e31 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static _Atomic uint64_t descriptors;
uint64_t event_descriptors(void) { return descriptors; }

void event_retain(struct event *e) { atomic_fetch_add(&e->holders, 1); }

void event_release(struct event *e) {
  if (atomic_fetch_sub(&e->holders, 1) > 1) return;
  if (e->fd >= 0) {
    munmap(e->counters, PAGE);
    close(e->fd);
    descriptors--;
  }
  free(e);
}

void events_wake(void) {
  pthread_mutex_lock(&mutex);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

void event_done(struct event *e, uint64_t generation) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  e->counters->nanos = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  uint64_t seen = e->counters->done;
  while (seen < generation && !atomic_compare_exchange_weak(&e->counters->done, &seen, generation)) {
  }
  events_wake();
}

static bool reached(struct event *e, uint64_t generation) { return e->counters->done >= generation; }

/* s is NULL if a call waits, not a stream. */
void event_await(struct event *e, uint64_t generation, struct stream *s) {
  struct pause p = {0};
  while (!reached(e, generation) && !broken() && !(s && s->quit)) {
    if (e->fd >= 0) {
      pause_once(&p);
      continue;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 5000000; /* to look at what wakes nobody: a lost device */
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&mutex);
    if (!reached(e, generation)) pthread_cond_timedwait(&changed, &mutex, &until);
    pthread_mutex_unlock(&mutex);
  }
}

void event_drop(struct object *o) {
  object_remove(o);
  event_release((struct event *)o);
}

/* Takes over fd. */
static struct event *event_new(unsigned flags, int fd) {
  struct event *e = calloc(1, sizeof *e);
  e->flags = flags;
  e->holders = 1;
  e->fd = fd;
  e->counters = &e->own;
  if (fd >= 0) e->counters = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (e->counters == MAP_FAILED) {
    close(fd);
    free(e);
    return NULL;
  }
  if (fd >= 0) descriptors++;
  object_add(&e->o, EVENT, current());
  return e;
}

EXPORT CUresult cuEventCreate(CUhandle *out, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (!out || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  int fd = -1;
  if (flags & CU_EVENT_INTERPROCESS) {
    if (!(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    fd = memfd_create("fakecuda-event", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, PAGE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  lock();
  struct event *e = event_new(flags, fd);
  if (e) *out = e->o.id;
  unlock();
  return e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct event *find(CUhandle id) { return (struct event *)object_find(id, EVENT); }

EXPORT CUresult cuEventDestroy_v2(CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct event *e = find(id);
  if (e) event_drop(&e->o);
  unlock();
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventRecord(CUhandle id, CUhandle stream) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct event *e = find(id);
  struct stream *s;
  CUresult result = e ? stream_of(stream, &s) : CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS) {
    struct op *op = op_new(OP_RECORD);
    op->event = e;
    op->value = atomic_fetch_add(&e->counters->recorded, 1) + 1;
    event_retain(e);
    result = enqueue(s, op, NULL);
  }
  unlock();
  return result;
}

EXPORT CUresult cuEventQuery(CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct event *e = find(id);
  CUresult result = !e                                      ? CUDA_ERROR_INVALID_HANDLE
                    : reached(e, e->counters->recorded) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_NOT_READY;
  unlock();
  return result;
}

EXPORT CUresult cuEventSynchronize(CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct event *e = find(id);
  if (e) event_retain(e);
  unlock();
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  event_await(e, e->counters->recorded, NULL);
  event_release(e);
  return broken();
}

static CUresult elapsed(float *ms, CUhandle from, CUhandle to) {
  lock();
  struct event *a = find(from), *b = find(to);
  CUresult result = CUDA_SUCCESS;
  if (!ms) result = CUDA_ERROR_INVALID_VALUE;
  else if (!a || !b || (a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) result = CUDA_ERROR_INVALID_HANDLE;
  else if (!a->counters->recorded || !b->counters->recorded) result = CUDA_ERROR_INVALID_HANDLE;
  else if (!reached(a, a->counters->recorded) || !reached(b, b->counters->recorded)) result = CUDA_ERROR_NOT_READY;
  else *ms = (float)((double)(int64_t)(b->counters->nanos - a->counters->nanos) / 1e6);
  unlock();
  return result;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUhandle from, CUhandle to) {
  ENTER(NEEDS_CONTEXT);
  return elapsed(ms, from, to);
}

EXPORT CUresult cuStreamWaitEvent(CUhandle stream, CUhandle id, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct event *e = find(id);
  struct stream *s;
  CUresult result = e ? stream_of(stream, &s) : CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS && !reached(e, e->counters->recorded)) {
    struct op *op = op_new(OP_AWAIT);
    op->event = e;
    op->value = e->counters->recorded;
    event_retain(e);
    result = enqueue(s, op, NULL);
  }
  unlock();
  return result;
}

EXPORT CUresult cuIpcGetEventHandle(CUipcHandle *out, CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct event *e = find(id);
  struct stat st;
  bool ok = out && e && e->flags & CU_EVENT_INTERPROCESS && fstat(e->fd, &st) == 0;
  if (ok) {
    struct handle h = {.magic = EVENT_MAGIC, .shown_pid = shown_pid(), .pid = getpid(), .fd = e->fd, .ino = st.st_ino};
    memcpy(out, &h, sizeof h);
  }
  unlock();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuIpcOpenEventHandle(CUhandle *out, CUipcHandle handle) {
  ENTER(NEEDS_CONTEXT);
  struct handle h;
  memcpy(&h, &handle, sizeof h);
  if (!out || h.magic != EVENT_MAGIC) return CUDA_ERROR_INVALID_VALUE;
  if (h.shown_pid == shown_pid()) return CUDA_ERROR_INVALID_CONTEXT;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0 || st.st_ino != h.ino) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_INVALID_VALUE;
  }
  lock();
  struct event *e = event_new(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, fd);
  if (e) *out = e->o.id;
  unlock();
  return e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
