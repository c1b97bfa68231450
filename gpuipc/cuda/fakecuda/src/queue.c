/*
 * Hardware queues. A GPU has only a few. Operations of streams that share a queue
 * are executed in the order in which they were enqueued, so an operation that waits
 * delays all later operations of the queue. Streams of different priorities never
 * share a queue. With ONEQUEUE all streams of one priority share a queue; otherwise
 * each stream has its own.
 */
#include "fake.h"

enum { LEAST = 0, MOST_LEVELS = 6 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
  uint64_t issued, served;
} queues[MOST_LEVELS];

static int levels(void) {
  int n = settings.priorities;
  return n < 1 ? 1 : n > MOST_LEVELS ? MOST_LEVELS : n;
}

/* Higher priorities are smaller numbers. A number out of range becomes the nearest
 * one in range. */
int priority_clamp(int priority) {
  int greatest = LEAST - (levels() - 1);
  return priority > LEAST ? LEAST : priority < greatest ? greatest : priority;
}

void queue_issue(struct stream *s, struct op *op) {
  if (!settings.one_queue) return;
  pthread_mutex_lock(&mutex);
  op->turn = ++queues[-s->priority].issued;
  pthread_mutex_unlock(&mutex);
}

/* Waits until all operations that were enqueued before have been executed. */
void queue_wait(struct stream *s, struct op *op) {
  if (!op->turn) return;
  pthread_mutex_lock(&mutex);
  while (queues[-s->priority].served + 1 < op->turn && !s->quit && !broken()) {
    pthread_mutex_unlock(&mutex);
    struct pause p = {.tries = 64}; /* what ends a stream signals nothing here */
    pause_once(&p);
    pthread_mutex_lock(&mutex);
  }
  pthread_mutex_unlock(&mutex);
}

void queue_leave(struct stream *s, struct op *op) {
  if (!op->turn) return;
  pthread_mutex_lock(&mutex);
  uint64_t *served = &queues[-s->priority].served;
  if (*served < op->turn) *served = op->turn;
  pthread_mutex_unlock(&mutex);
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER(NEEDS_CONTEXT);
  if (least) *least = LEAST;
  if (greatest) *greatest = priority_clamp(-MOST_LEVELS);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUhandle id, int *priority) {
  ENTER(NEEDS_CONTEXT);
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct stream *s;
  CUresult result = stream_of(id, &s);
  if (result == CUDA_SUCCESS) *priority = s->priority;
  unlock();
  return result;
}
