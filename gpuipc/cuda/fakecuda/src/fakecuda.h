/*
 * What the fake libcuda.so.1 has in addition to the functions of a driver:
 * settings, faults, and counts of all live objects. Tests use it through the
 * library that the code under test has loaded, or through the environment.
 *
 * Settings (fakecuda_set, or FAKECUDA_<name> in the environment). They are read
 * when they are used, so a later fakecuda_set affects later calls:
 *
 *   DIR      folder that all processes share which use the same devices. It has
 *            one file for each process, with the memory that the process keeps
 *            alive. Unset: a process counts only its own memory against MEM.
 *   MEM      bytes of each device, with K, M or G; default 1G.
 *   DEVICES  number of devices (default 1, 0 = none), or the devices' UUIDs in the
 *            order of this process: 32 hexadecimal digits each, separated by
 *            commas. Read by cuInit, if no context is retained.
 *   VERSION  result of cuDriverGetVersion, default 12040. PTX of an ISA that is
 *            newer than this driver is refused.
 *   PID      the process id that this process shows to others. For tests of
 *            containers in which both sides have the same id.
 *   DELAY    microseconds that each operation of a stream waits before it begins.
 *   POISON   1 (default): the first 16 MiB of fresh memory are all ones (a NaN,
 *            and no valid index). 0: fresh memory is zero.
 *   NOVMM, NOWAITVALUE  1: the device lacks this feature, and its attributes say so.
 *   MPS      1: the device's attribute says that the process runs under MPS.
 *   ONEQUEUE 1: all streams of one priority share a hardware queue. A stream that
 *            waits delays everything that was enqueued after the wait. Read at
 *            each operation.
 *   PRIORITIES  number of levels of stream priorities, 1 to 6 (default).
 *
 * Faults (fakecuda_fault(kind, spec), or FAKECUDA_<KIND> with commas between
 * specs). CALL is the exported name of a function, "*" for all functions, or an
 * operation of a stream: run.copy, run.memset, run.launch, run.write, run.wait,
 * run.record; "run.*" for all operations. With "@N" after it, the fault happens
 * only on device N: when a context of the device is current, on a stream of the
 * device, or when the device is an argument. NTH counts calls after the fault was
 * set, from 1; 0 = every call.
 *
 *   FAIL  CALL:NTH:CODE    the call returns CODE and does nothing. An operation of
 *                          a stream breaks the context, as a failed kernel does.
 *   SLOW  CALL:NTH:MICROS  the call waits first.
 *   DIE   CALL:NTH         the process ends by SIGKILL.
 *   HANG  CALL:NTH         the call blocks until fakecuda_release(), or until a
 *                          file named "release" is in DIR.
 *   LOST  CALL:NTH:CODE    from this call on, every call returns CODE (999, 46,
 *                          ...) and streams execute nothing more; with @N, only
 *                          calls and streams of that device.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

/* Counts of live objects in this process. Counts marked "so far" began at the
 * start of the process. New fields are only added at the end. */
struct fakecuda_stats {
  uint64_t contexts;       /* retains of primary contexts */
  uint64_t allocations;    /* cuMemAlloc */
  uint64_t physical;       /* cuMemCreate and imports: handles that were not released */
  uint64_t reservations;   /* address ranges */
  uint64_t mappings;       /* cuMemMap */
  uint64_t imports;        /* opened IPC handles of memory, repeated opens included */
  uint64_t memory_objects; /* pieces of memory that some object of this process keeps alive */
  uint64_t memory_bytes;
  uint64_t streams;        /* not destroyed */
  uint64_t workers;        /* threads of streams; some may outlive their stream */
  uint64_t queued;         /* operations that no stream has finished */
  uint64_t events;
  uint64_t modules;
  uint64_t registered;     /* host ranges */
  uint64_t registered_bytes;
  uint64_t host_allocations; /* cuMemHostAlloc */
  uint64_t descriptors;    /* open descriptors that belong to the library */
  uint64_t calls;          /* calls of all functions, so far */
  uint64_t executed;       /* operations of streams, so far */
  uint64_t misuses;        /* so far: memory freed while queued operations use it,
                              writes past the end of an allocation, memory of one
                              device in work of another; stderr says which */
  uint64_t hanging;        /* calls that a HANG stops now */
};

/* Fills the first n bytes of the counts. */
void fakecuda_stats(struct fakecuda_stats *s, size_t n);

/* Writes a line for each live object to text, at most n bytes. Returns the length
 * of the complete text, like snprintf. */
size_t fakecuda_live(char *text, size_t n);

/* These return 0, or -1 for a name or spec that is not understood. A NULL value
 * resets a setting to its default. */
int fakecuda_set(const char *name, const char *value);
int fakecuda_fault(const char *kind, const char *spec);

/* Ends all faults, including a lost device. Calls that hang continue. */
void fakecuda_clear(void);

/* Lets the calls that hang now continue. */
void fakecuda_release(void);

/* Returns the number of calls of a function so far; "*" counts all functions. */
uint64_t fakecuda_calls(const char *name);

/* Removes everything that a lost or broken device left: streams stop, and all
 * objects and memory are freed. Earlier handles become invalid. No other call may
 * be running. */
void fakecuda_reset(void);

#endif
