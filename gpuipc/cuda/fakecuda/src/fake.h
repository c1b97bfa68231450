/*
 * What the parts of the fake driver share. One lock, `big`, guards everything except
 * the queues of streams, which have a lock each. `big` is taken before the lock of a
 * queue. No thread waits for a stream while it holds `big`.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "abi.h"
#include "fakecuda.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 16, PAGE = 4096, GRANULE = 2 << 20 };

extern pthread_mutex_t big;
static inline void lock(void) { pthread_mutex_lock(&big); }
static inline void unlock(void) { pthread_mutex_unlock(&big); }

/* settings.c */
struct settings {
  _Atomic uint64_t memory;
  _Atomic int delay, poison, version, pid, mps, no_vmm, no_wait_value, one_queue, priorities;
};
extern struct settings settings;
void settings_load(void);              /* reads the environment, once */
const char *setting_text(const char *name); /* DIR, DEVICES; NULL = unset */

/* call.c: what every exported function does first */
enum needs { NEEDS_NOTHING, NEEDS_INIT, NEEDS_CONTEXT };
struct call {
  const char *name;
  _Atomic uint64_t count;
  _Atomic int listed;
  struct call *next;
};
CUresult enter(struct call *call, enum needs needs, int device);
void call_list(struct call *call); /* for fakecuda_calls */
#define ENTER_ON(needs, device)                       \
  static struct call call_ = {.name = __func__};      \
  CUresult entered_ = enter(&call_, needs, device);   \
  if (entered_ != CUDA_SUCCESS) return entered_
#define ENTER(needs) ENTER_ON(needs, device_here())
void require_init(void);           /* cuInit succeeded */
void break_context(CUresult code); /* what a failed kernel does: sticky */
CUresult broken(void);             /* that code, or that of a lost device, or 0: of device_here() */
CUresult broken_on(int device);    /* ANY_DEVICE: when all are */
void mend(void);

/* fault.c */
CUresult fault_point(struct call *call, int device); /* counts, and does what a fault says */
CUresult lost_device(int device);
uint64_t hanging_calls(void);
const char *release_file(void);

/* object.c: handles */
enum kind { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION, PHYSICAL, KINDS };
struct object {
  CUhandle id;
  enum kind kind;
  struct context *context; /* NULL: belongs to the process */
};
void object_add(struct object *o, enum kind kind, struct context *context);
struct object *object_find(CUhandle id, enum kind kind);
void object_remove(struct object *o);
uint64_t object_count(enum kind kind);
struct object *object_next(size_t *at, enum kind kind, struct context *context);

/* device.c */
struct device {
  CUuuid uuid;
  char hex[33];
};
extern struct device devices[MAX_DEVICES];
extern int device_count;
int device_by_hex(const char *hex); /* -1 = not ours */

/* context.c */
struct context {
  struct object o;
  int device;
  int retains;
  struct stream *null_stream;
};
struct context *current(void); /* of this thread; NULL = none */
enum { ANY_DEVICE = -1 };
int device_here(void); /* of the context that is current, or of this stream's thread; or ANY_DEVICE */
void work_on(int device);
uint64_t context_retains(void);
void contexts_drop(void);

/* memory.c: pieces of memory, each one a memfd */
struct memory {
  int fd;
  uint64_t ino;
  uint64_t bytes;
  int device;
  bool vmm;        /* else for cuMemAlloc */
  bool exportable; /* as a descriptor */
  int refs;
  int slot; /* in the table of account.c */
};
CUresult memory_new(uint64_t bytes, int device, bool vmm, struct memory **out);
CUresult memory_adopt(int fd, bool vmm, struct memory **out); /* takes over fd */
void memory_drop(struct memory *m);                           /* one reference */
void memory_totals(uint64_t *objects, uint64_t *bytes);

/* account.c: what all processes keep alive */
bool account_add(struct memory *m, bool within_budget);
void account_remove(struct memory *m);
uint64_t account_used(int device);
uint32_t shown_pid(void);

/* range.c: addresses with memory behind them */
enum range_kind { ALLOCATION, IMPORT, MAPPING, HOST_ALLOCATION, REGISTERED, RANGE_KINDS };
struct range {
  CUdeviceptr base;
  uint64_t bytes; /* as asked for */
  uint64_t span;  /* of address space, guard included */
  enum range_kind kind;
  int access; /* 1 = read, 3 = also write */
  int repeats;
  struct memory *memory;
};
struct ranges {
  struct range *list; /* by address, apart from each other */
  size_t n, room;
};
extern struct ranges on_device, on_host;
struct range *range_add(struct ranges *in, struct range r);
struct range *range_find(struct ranges *in, CUdeviceptr at); /* containing at */
void range_remove(struct ranges *in, struct range *r);
bool range_covers(struct ranges *in, CUdeviceptr at, uint64_t n, int access);
bool range_touches(struct ranges *in, CUdeviceptr at, uint64_t n);
uint64_t range_count(enum range_kind kind);
CUdeviceptr space_take(uint64_t bytes, uint64_t align); /* address space, no access; 0 = none */
void space_give(CUdeviceptr at, uint64_t bytes);
bool space_map(CUdeviceptr at, uint64_t bytes, int fd, int access);

/* alloc.c, vmm.c, host.c */
void allocation_end(struct range *r);
void allocations_drop(int device);
void vmm_drop(void);
uint64_t reservation_count(void), physical_count(void);
void host_drop(void);
uint64_t registered_bytes(void);

/* stream.c */
enum op_kind { OP_COPY, OP_MEMSET, OP_LAUNCH, OP_WRITE, OP_WAIT, OP_RECORD, OP_AWAIT, OP_BEHIND, OP_KINDS };
struct op {
  struct op *next;
  enum op_kind kind;
  CUdeviceptr dst, src; /* addresses that it touches; 0 = none */
  uint64_t dst_bytes, src_bytes;
  void *owned; /* freed with it: staged bytes, launch arguments */
  uint64_t value;
  unsigned flags, width;
  uint64_t turn; /* in a queue that streams share; 0 = none */
  struct event *event;
  struct stream *behind;
  struct launch *launch;
};
struct stream {
  struct object o;
  unsigned flags;
  int priority;
  int capture;         /* enum of capture.c; guarded by `big` */
  _Atomic int holders; /* its handle, its thread, and who waits for it */
  _Atomic bool quit;   /* nothing more is executed, and waits inside operations end */
  struct stream *next_worker;
  pthread_mutex_t queue; /* guards what follows */
  pthread_cond_t more, done;
  struct op *first, *last, *running;
  uint64_t submitted, completed;
  bool stop; /* the thread ends when the queue is empty */
};
CUresult stream_of(CUhandle id, struct stream **out); /* holds `big` */
CUresult enqueue(struct stream *s, struct op *op, uint64_t *number); /* takes over op; holds `big` */
CUresult finish(struct stream *s, uint64_t number);   /* waits for that operation; without `big` */
struct op *op_new(enum op_kind kind);
void streams_stop(struct context *context); /* NULL = all; gives up `big` meanwhile */
bool streams_use(CUdeviceptr at, uint64_t n);
bool streams_busy(struct context *context);
void streams_finish(struct context *context);
uint64_t worker_count(void), queued_count(void), executed_count(void);
void misuse(const char *what, CUdeviceptr at, uint64_t n);
uint64_t misuse_count(void);
void stream_retain(struct stream *s), stream_release(struct stream *s);

/* queue.c: streams that share a queue */
int priority_clamp(int priority);
void queue_issue(struct stream *s, struct op *op); /* holds `big` */
void queue_wait(struct stream *s, struct op *op);
void queue_leave(struct stream *s, struct op *op);

/* capture.c: streams that record a graph */
CUresult capture_forbids(const char *call);
void capture_end(struct stream *s); /* holds `big` */

/* run.c: operations, on the thread of their stream */
bool run_op(struct stream *s, struct op *op);
void guard_install(void);
struct pause {
  unsigned tries;
};
void pause_once(struct pause *p); /* waits between looks at memory of others */

/* event.c */
void event_retain(struct event *e), event_release(struct event *e);
void event_done(struct event *e, uint64_t generation);
void event_await(struct event *e, uint64_t generation, struct stream *s);
void events_wake(void);
void event_drop(struct object *o);
uint64_t event_descriptors(void);

/* module.c, launch.c */
void module_drop(struct object *o);
CUresult launch_run(struct launch *l);
void launch_free(struct launch *l);
struct function {
  struct object o;
  struct object *module;
  char *name;
  unsigned max_threads, max_shared;
  int n_params;
  struct {
    unsigned off, bytes;
  } params[32];
  unsigned param_bytes;
};

/* probe.c: kernels of the fake's own tests */
int probe_launch(const char *name, const unsigned grid[3], const unsigned block[3],
                 const void *args, size_t n);

#endif
