/*
 * Streams: a queue and a thread each. A call puts an operation into the queue and
 * returns; the thread executes the operations in order.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake.h"

static struct stream *workers; /* streams whose thread lives, destroyed ones too */
static pthread_cond_t worker_gone = PTHREAD_COND_INITIALIZER;
static _Atomic uint64_t executed, misuses;

struct op *op_new(enum op_kind kind) {
  struct op *op = calloc(1, sizeof *op);
  op->kind = kind;
  return op;
}

static void op_free(struct op *op) {
  free(op->owned);
  if (op->event) event_release(op->event);
  if (op->behind) stream_release(op->behind);
  if (op->launch) launch_free(op->launch);
  free(op);
}

void stream_retain(struct stream *s) { atomic_fetch_add(&s->holders, 1); }

void stream_release(struct stream *s) {
  if (atomic_fetch_sub(&s->holders, 1) > 1) return;
  pthread_cond_destroy(&s->more);
  pthread_cond_destroy(&s->done);
  pthread_mutex_destroy(&s->queue);
  free(s);
}

/* Returns the next operation, or NULL if the thread must end. The caller holds the
 * queue's lock. */
static struct op *take(struct stream *s) {
  while (!s->first && !s->stop) pthread_cond_wait(&s->more, &s->queue);
  struct op *op = s->first;
  if (!op) return NULL;
  s->first = op->next;
  if (!s->first) s->last = NULL;
  s->running = op;
  return op;
}

static void worker_end(struct stream *s) {
  lock();
  struct stream **at = &workers;
  while (*at != s) at = &(*at)->next_worker;
  *at = s->next_worker;
  pthread_cond_broadcast(&worker_gone);
  unlock();
  stream_release(s);
}

static void *work(void *arg) {
  struct stream *s = arg;
  pthread_mutex_lock(&s->queue);
  for (struct op *op; (op = take(s));) {
    pthread_mutex_unlock(&s->queue);
    work_on(s->o.context->device); /* set before the first operation comes */
    queue_wait(s, op);
    bool ran = run_op(s, op);
    queue_leave(s, op);
    pthread_mutex_lock(&s->queue);
    s->running = NULL;
    s->completed++;
    atomic_fetch_add(&executed, 1);
    pthread_cond_broadcast(&s->done);
    pthread_mutex_unlock(&s->queue);
    /* Not earlier: a thread that sees the event must also see that the stream has
     * passed it. */
    if (ran && op->kind == OP_RECORD) event_done(op->event, op->value);
    op_free(op);
    pthread_mutex_lock(&s->queue);
  }
  pthread_mutex_unlock(&s->queue);
  worker_end(s);
  return NULL;
}

/* Signals of the process must go to its own threads: signal handlers of Go or Python
 * must not run on a thread that they do not know. Only bad accesses of this thread
 * are delivered to it. */
static int start(struct stream *s) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_t thread;
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&thread, NULL, work, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!failed) pthread_detach(thread);
  return failed;
}

static struct stream *stream_new(unsigned flags, int priority, struct context *context) {
  struct stream *s = calloc(1, sizeof *s);
  s->flags = flags;
  s->priority = priority_clamp(priority);
  s->holders = 2;
  pthread_mutex_init(&s->queue, NULL);
  pthread_cond_init(&s->more, NULL);
  pthread_cond_init(&s->done, NULL);
  if (start(s) != 0) {
    free(s);
    return NULL;
  }
  object_add(&s->o, STREAM, context);
  s->next_worker = workers;
  workers = s;
  return s;
}

/* The default stream has no handle of its own and is created at its first use. */
static struct stream *null_stream(struct context *context) {
  if (!context->null_stream) context->null_stream = stream_new(0, 0, context);
  return context->null_stream;
}

CUresult stream_of(CUhandle id, struct stream **out) {
  struct context *context = current();
  if (id == 2) return CUDA_ERROR_NOT_SUPPORTED; /* a default stream per thread */
  *out = id <= 1 ? null_stream(context) : (struct stream *)object_find(id, STREAM);
  if (!*out) return id <= 1 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
  return (*out)->o.context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static uint64_t append(struct stream *s, struct op *op) {
  queue_issue(s, op);
  pthread_mutex_lock(&s->queue);
  if (s->last) s->last->next = op;
  else s->first = op;
  s->last = op;
  uint64_t number = ++s->submitted;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->queue);
  return number;
}

/* The number of the last operation enqueued on other if it is not finished; else 0. */
static uint64_t ahead(struct stream *other) {
  pthread_mutex_lock(&other->queue);
  uint64_t upto = other->completed < other->submitted ? other->submitted : 0;
  pthread_mutex_unlock(&other->queue);
  return upto;
}

static void append_behind(struct stream *s, struct stream *other) {
  uint64_t upto = ahead(other);
  if (upto == 0) return;
  struct op *op = op_new(OP_BEHIND);
  op->behind = other;
  op->value = upto;
  stream_retain(other);
  append(s, op);
}

/* The default stream and all other streams wait for each other, except streams that
 * were created as non-blocking. */
static void order_with_null(struct stream *s) {
  struct stream *null = s->o.context->null_stream;
  if (!null || s->flags & CU_STREAM_NON_BLOCKING) return;
  if (s != null) {
    append_behind(s, null);
    return;
  }
  for (struct stream *other = workers; other; other = other->next_worker)
    if (other != s && other->o.context == s->o.context && !(other->flags & CU_STREAM_NON_BLOCKING))
      append_behind(s, other);
}

/* A driver copies between devices and may refuse other work on memory of another
 * device. Our code must do neither, so both count as misuses. */
static void check_device(struct stream *s, CUdeviceptr at, uint64_t n) {
  struct range *r = n ? range_find(&on_device, at) : NULL;
  if (r && r->memory && r->memory->device != s->o.context->device) misuse("memory of another device", at, n);
}

CUresult enqueue(struct stream *s, struct op *op, uint64_t *number) {
  check_device(s, op->dst, op->dst_bytes);
  check_device(s, op->src, op->src_bytes);
  if (s->capture) { /* there are no graphs here */
    misuse("an operation of a stream that captures", s->o.id, 0);
    op_free(op);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  order_with_null(s);
  uint64_t n = append(s, op);
  if (number) *number = n;
  return CUDA_SUCCESS;
}

CUresult finish(struct stream *s, uint64_t number) {
  pthread_mutex_lock(&s->queue);
  while (s->completed < number) pthread_cond_wait(&s->done, &s->queue);
  pthread_mutex_unlock(&s->queue);
  return broken();
}

static void stream_end(struct stream *s, bool quit) {
  capture_end(s);
  object_remove(&s->o);
  pthread_mutex_lock(&s->queue);
  s->stop = true;
  if (quit) s->quit = true;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->queue);
  stream_release(s);
}

static bool any_worker(struct context *context) {
  for (struct stream *s = workers; s; s = s->next_worker)
    if (s->o.context == context) return true;
  return false;
}

void streams_stop(struct context *context) {
  size_t at = 0;
  for (struct object *o; (o = object_next(&at, STREAM, context)); at = 0) stream_end((struct stream *)o, true);
  for (struct stream *s = workers; s; s = s->next_worker)
    if (s->o.context == context) s->quit = true;
  events_wake();
  while (any_worker(context)) pthread_cond_wait(&worker_gone, &big);
}

static bool overlap(const struct op *op, CUdeviceptr at, uint64_t n) {
  if (!op) return false;
  uint64_t dst_bytes = __atomic_load_n(&op->dst_bytes, __ATOMIC_RELAXED);
  return (op->dst < at + n && at < op->dst + dst_bytes) || (op->src < at + n && at < op->src + op->src_bytes);
}

/* Whether an operation that has not ended uses [at, at+n). Kernels do not count,
 * because nobody knows what memory they use. */
bool streams_use(CUdeviceptr at, uint64_t n) {
  bool found = false;
  for (struct stream *s = workers; s && !found; s = s->next_worker) {
    pthread_mutex_lock(&s->queue);
    found = overlap(s->running, at, n);
    for (struct op *op = s->first; op && !found; op = op->next) found = overlap(op, at, n);
    pthread_mutex_unlock(&s->queue);
  }
  return found;
}

/* Whether work is running. Two operations do not count: a write of a value that is
 * being executed, because its waiter may have seen the value already, and the record
 * of an event with nothing before it, because it uses no memory. */
bool streams_busy(struct context *context) {
  bool busy = false;
  for (struct stream *s = workers; s && !busy; s = s->next_worker) {
    if (s->o.context != context) continue;
    pthread_mutex_lock(&s->queue);
    busy = s->running && s->running->kind != OP_WRITE && s->running->kind != OP_RECORD;
    for (struct op *op = s->first; op && !busy; op = op->next) busy = op->kind != OP_RECORD;
    pthread_mutex_unlock(&s->queue);
  }
  return busy;
}

/* Waits for all operations that are queued now in the streams of a context. */
void streams_finish(struct context *context) {
  enum { MOST = 1024 };
  struct stream *waiting[MOST];
  uint64_t upto[MOST];
  int n = 0;
  lock();
  for (struct stream *s = workers; s && n < MOST; s = s->next_worker) {
    if (s->o.context != context || !(upto[n] = ahead(s))) continue;
    stream_retain(s);
    waiting[n++] = s;
  }
  unlock();
  for (int i = 0; i < n; i++) {
    finish(waiting[i], upto[i]);
    stream_release(waiting[i]);
  }
}

uint64_t worker_count(void) {
  uint64_t n = 0;
  for (struct stream *s = workers; s; s = s->next_worker) n++;
  return n;
}

uint64_t queued_count(void) {
  uint64_t n = 0;
  for (struct stream *s = workers; s; s = s->next_worker) {
    pthread_mutex_lock(&s->queue);
    n += s->submitted - s->completed;
    pthread_mutex_unlock(&s->queue);
  }
  return n;
}

uint64_t executed_count(void) { return executed; }

void misuse(const char *what, CUdeviceptr at, uint64_t n) {
  atomic_fetch_add(&misuses, 1);
  fprintf(stderr, "fakecuda: %s: %#llx, %llu bytes\n", what, (unsigned long long)at, (unsigned long long)n);
}

uint64_t misuse_count(void) { return misuses; }

EXPORT CUresult cuStreamCreate(CUhandle *out, unsigned flags) {
  ENTER(NEEDS_CONTEXT);
  if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s = stream_new(flags, 0, current());
  if (s) *out = s->o.id;
  unlock();
  return s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamCreateWithPriority(CUhandle *out, unsigned flags, int priority) {
  ENTER(NEEDS_CONTEXT);
  if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s = stream_new(flags, priority, current());
  if (s) *out = s->o.id;
  unlock();
  return s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Operations that are queued already are still executed. */
EXPORT CUresult cuStreamDestroy_v2(CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct stream *s = NULL;
  CUresult result = id <= 2 ? CUDA_ERROR_INVALID_HANDLE : stream_of(id, &s);
  if (result == CUDA_SUCCESS) stream_end(s, false);
  unlock();
  return result;
}

EXPORT CUresult cuStreamSynchronize(CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  uint64_t upto = 0;
  if (result == CUDA_SUCCESS) {
    if (s == s->o.context->null_stream) order_with_null(s);
    upto = ahead(s);
    stream_retain(s);
  }
  unlock();
  if (result != CUDA_SUCCESS) return result;
  result = finish(s, upto);
  stream_release(s);
  return result;
}

EXPORT CUresult cuStreamQuery(CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  if (result == CUDA_SUCCESS && ahead(s)) result = CUDA_ERROR_NOT_READY;
  unlock();
  return result;
}
