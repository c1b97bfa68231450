/*
 * What the fake libcuda.so.1 offers beside the functions of a driver: settings,
 * faults and counts of everything that is live. Tests reach it in the same
 * library that the code under test has loaded, or by the environment.
 *
 * Settings (fakecuda_set, or FAKECUDA_<name> in the environment; read when they
 * are used, so a later set counts for what follows):
 *
 *   DIR      folder that the processes sharing the devices have in common. It
 *            holds one file for each process, with what that process keeps alive.
 *            Unset: a process counts only itself against MEM.
 *   MEM      bytes of each device, with K, M or G; default 1G.
 *   DEVICES  number of devices (default 1, 0 = none), or their UUIDs in this
 *            process' order: 32 hexadecimal digits each, with commas. Read by cuInit
 *            while no context is retained.
 *   VERSION  what cuDriverGetVersion answers, default 12040. PTX of an ISA that
 *            is newer than this driver is refused.
 *   PID      the process id that this process shows to others, for containers in
 *            which both sides have the same.
 *   DELAY    microseconds that each operation of a stream waits before it begins.
 *   POISON   1 (default): fresh memory is all ones (a NaN, and no valid index) in
 *            its first 16 MiB. 0: it is zero.
 *   NOVMM, NOWAITVALUE  1: the device lacks this, as its attributes then say.
 *   MPS      1: the attribute for it says that the process runs under MPS.
 *   ONEQUEUE 1: streams of one priority share a hardware queue, in which one that
 *            waits holds up all that was enqueued behind it. Read at each operation.
 *   PRIORITIES  levels of stream priorities, 1 to 6 (default).
 *
 * Faults (fakecuda_fault(kind, spec), or FAKECUDA_<KIND> with commas between
 * specs). CALL is a function's exported name, "*" for all of them, or what a
 * stream executes: run.copy, run.memset, run.launch, run.write, run.wait,
 * run.record; "run.*" for all of these. With "@N" behind it, it is only that on
 * device N: with a context of it current, on a stream of it, or with it as an
 * argument. NTH counts calls from the moment that the fault was set, from 1; 0 =
 * every one.
 *
 *   FAIL  CALL:NTH:CODE    answers CODE and does nothing. In a stream the context
 *                          is broken from there on, as by a kernel that failed.
 *   SLOW  CALL:NTH:MICROS  waits first.
 *   DIE   CALL:NTH         the process ends by SIGKILL.
 *   HANG  CALL:NTH         blocks until fakecuda_release(), or until a file named
 *                          "release" is in DIR.
 *   LOST  CALL:NTH:CODE    from there on every call answers CODE (999, 46, ...)
 *                          and streams execute nothing more; with @N those on
 *                          that device.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

/* Counts of what is live in this process, unless it says "so far". Fields are
 * only ever added at the end. */
struct fakecuda_stats {
  uint64_t contexts;       /* retains of primary contexts */
  uint64_t allocations;    /* cuMemAlloc */
  uint64_t physical;       /* cuMemCreate and imports: handles not released */
  uint64_t reservations;   /* address ranges */
  uint64_t mappings;       /* cuMemMap */
  uint64_t imports;        /* legacy memory handles opened, with their repeats */
  uint64_t memory_objects; /* pieces of memory that anything here keeps alive */
  uint64_t memory_bytes;
  uint64_t streams;        /* not destroyed */
  uint64_t workers;        /* threads of streams; some may outlive their stream */
  uint64_t queued;         /* operations that no stream has finished */
  uint64_t events;
  uint64_t modules;
  uint64_t registered;     /* host ranges */
  uint64_t registered_bytes;
  uint64_t host_allocations; /* cuMemHostAlloc */
  uint64_t descriptors;    /* open descriptors of the library's own */
  uint64_t calls;          /* of all functions, so far */
  uint64_t executed;       /* operations of streams, so far */
  uint64_t misuses;        /* so far: memory taken away under queued operations,
                              writes behind an allocation, memory of one device in
                              work of another; stderr says which */
  uint64_t hanging;        /* calls that a HANG holds now */
};

/* Fills the first n bytes of the counts. */
void fakecuda_stats(struct fakecuda_stats *s, size_t n);

/* Writes a line for each live object into text and answers the length that all
 * of it has, like snprintf. */
size_t fakecuda_live(char *text, size_t n);

/* These answer 0, or -1 for a name or spec that is not understood. A NULL value
 * takes a setting back to its default. */
int fakecuda_set(const char *name, const char *value);
int fakecuda_fault(const char *kind, const char *spec);

/* Ends all faults, a lost device included. Calls that hang go on. */
void fakecuda_clear(void);

/* Lets the calls that hang go on, once. */
void fakecuda_release(void);

/* Calls of a function so far; "*" for all. */
uint64_t fakecuda_calls(const char *name);

/* Ends what a lost or broken device left behind: streams stop, all objects and
 * memory go. Handles from before are invalid. Nothing else may be calling. */
void fakecuda_reset(void);

#endif
