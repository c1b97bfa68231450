/* Faults at calls and at what streams execute. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

enum fault_kind { FAIL, SLOW, DIE, HANG, LOST, FAULT_KINDS };
static const char *const kind_names[FAULT_KINDS] = {"FAIL", "SLOW", "DIE", "HANG", "LOST"};
static const bool takes_value[FAULT_KINDS] = {true, true, false, false, true};

struct fault {
  enum fault_kind kind;
  char call[48];
  int device; /* ANY_DEVICE = all */
  uint64_t nth, seen;
  int value;
};

enum { MAX_FAULTS = 64 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static struct fault faults[MAX_FAULTS];
static _Atomic int n_faults;
static uint64_t releases;
static _Atomic uint64_t hanging;
static _Atomic int lost[MAX_DEVICES];
static pthread_once_t from_environment = PTHREAD_ONCE_INIT;

static int add(enum fault_kind kind, const char *spec, size_t length) {
  struct fault f = {.kind = kind};
  char text[96], rest[2];
  if (length >= sizeof text) return -1;
  memcpy(text, spec, length);
  text[length] = 0;
  unsigned long long nth;
  int fields = sscanf(text, "%47[^:]:%llu:%d%1s", f.call, &nth, &f.value, rest);
  if (fields != (takes_value[kind] ? 3 : 2) || n_faults == MAX_FAULTS) return -1;
  f.nth = nth;
  f.device = ANY_DEVICE;
  char *at = strchr(f.call, '@');
  if (at) {
    if (sscanf(at + 1, "%d%1s", &f.device, rest) != 1 || f.device < 0 || f.device >= MAX_DEVICES) return -1;
    *at = 0;
  }
  pthread_mutex_lock(&mutex);
  faults[n_faults] = f;
  n_faults++;
  pthread_mutex_unlock(&mutex);
  return 0;
}

static int add_all(enum fault_kind kind, const char *specs) {
  while (*specs) {
    size_t length = strcspn(specs, ",");
    if (add(kind, specs, length) != 0) return -1;
    specs += length;
    if (*specs == ',') specs++;
  }
  return 0;
}

static void read_environment(void) {
  for (int kind = 0; kind < FAULT_KINDS; kind++) {
    char variable[32];
    snprintf(variable, sizeof variable, "FAKECUDA_%s", kind_names[kind]);
    const char *specs = getenv(variable);
    if (specs && add_all(kind, specs) != 0) {
      fprintf(stderr, "fakecuda: %s=%s is not understood\n", variable, specs);
      abort();
    }
  }
}

static bool matches(const struct fault *f, const char *name, int device) {
  if (f->device != ANY_DEVICE && f->device != device) return false;
  bool run = strncmp(name, "run.", 4) == 0;
  if (strcmp(f->call, "*") == 0) return !run;
  if (strcmp(f->call, "run.*") == 0) return run;
  return strcmp(f->call, name) == 0;
}

/* What the faults that match say. */
struct verdict {
  bool die, hang;
  uint64_t micros;
  CUresult code, lost;
  int lost_on;
};

static struct verdict judge(const char *name, int device) {
  struct verdict v = {0};
  for (int i = 0; i < n_faults; i++) {
    struct fault *f = &faults[i];
    if (!matches(f, name, device)) continue;
    f->seen++;
    if (f->nth != 0 && f->seen != f->nth) continue;
    switch (f->kind) {
      case FAIL: v.code = f->value; break;
      case SLOW: v.micros += (uint64_t)f->value; break;
      case DIE: v.die = true; break;
      case HANG: v.hang = true; break;
      case LOST: v.lost = f->value, v.lost_on = f->device; break;
      default: break;
    }
  }
  return v;
}

static bool release_file_exists(void) {
  const char *dir = setting_text("DIR");
  if (!dir) return false;
  char path[4096];
  snprintf(path, sizeof path, "%s/release", dir);
  return access(path, F_OK) == 0;
}

static void hang(void) {
  pthread_mutex_lock(&mutex);
  uint64_t from = releases;
  hanging++;
  while (releases == from && !release_file_exists()) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 2000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&released, &mutex, &until);
  }
  hanging--;
  pthread_mutex_unlock(&mutex);
}

CUresult fault_point(struct call *call, int device) {
  pthread_once(&from_environment, read_environment);
  call_list(call);
  atomic_fetch_add(&call->count, 1);
  if (n_faults == 0) return CUDA_SUCCESS;
  pthread_mutex_lock(&mutex);
  struct verdict v = judge(call->name, device);
  pthread_mutex_unlock(&mutex);
  if (v.die) kill(getpid(), SIGKILL);
  if (v.micros) {
    struct timespec t = {(time_t)(v.micros / 1000000), (long)(v.micros % 1000000) * 1000};
    nanosleep(&t, NULL);
  }
  if (v.hang) hang();
  if (v.lost)
    for (int i = 0; i < MAX_DEVICES; i++)
      if (v.lost_on == ANY_DEVICE || v.lost_on == i) lost[i] = v.lost;
  return v.code;
}

CUresult lost_device(int device) { return lost[device]; }
uint64_t hanging_calls(void) { return hanging; }

EXPORT int fakecuda_fault(const char *kind, const char *spec) {
  pthread_once(&from_environment, read_environment);
  if (*spec == 0) return -1;
  for (int k = 0; k < FAULT_KINDS; k++)
    if (strcmp(kind, kind_names[k]) == 0) return add_all(k, spec);
  return -1;
}

EXPORT void fakecuda_release(void) {
  pthread_mutex_lock(&mutex);
  releases++;
  pthread_cond_broadcast(&released);
  pthread_mutex_unlock(&mutex);
}

EXPORT void fakecuda_clear(void) {
  pthread_once(&from_environment, read_environment);
  pthread_mutex_lock(&mutex);
  n_faults = 0;
  for (int i = 0; i < MAX_DEVICES; i++) lost[i] = 0;
  pthread_mutex_unlock(&mutex);
  fakecuda_release();
}
