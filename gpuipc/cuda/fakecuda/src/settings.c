/* Settings, from the environment or set at run time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

struct settings settings;

static char *texts[2]; /* DIR, DEVICES */
static const char *const text_names[2] = {"DIR", "DEVICES"};
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static const struct {
  const char *name;
  _Atomic int *to;
  int unset;
} numbers[] = {
    {"DELAY", &settings.delay, 0}, {"POISON", &settings.poison, 1},
    {"VERSION", &settings.version, 12040}, {"PID", &settings.pid, 0},
    {"MPS", &settings.mps, 0},
    {"NOVMM", &settings.no_vmm, 0}, {"NOWAITVALUE", &settings.no_wait_value, 0},
    {"ONEQUEUE", &settings.one_queue, 0}, {"PRIORITIES", &settings.priorities, 6},
};

static bool parse_number(const char *text, uint64_t *out) {
  char *end;
  uint64_t n = strtoull(text, &end, 10);
  if (end == text) return false;
  switch (*end) {
    case 'G': n <<= 10; /* fall through */
    case 'M': n <<= 10; /* fall through */
    case 'K': n <<= 10; end++;
  }
  *out = n;
  return *end == 0;
}

static int set(const char *name, const char *value) {
  for (int i = 0; i < 2; i++) {
    if (strcmp(name, text_names[i]) != 0) continue;
    free(texts[i]);
    texts[i] = value ? strdup(value) : NULL;
    return 0;
  }
  uint64_t n = 0;
  if (value && !parse_number(value, &n)) return -1;
  if (strcmp(name, "MEM") == 0) {
    settings.memory = value ? n : 1 << 30;
    return 0;
  }
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    if (strcmp(name, numbers[i].name) != 0) continue;
    *numbers[i].to = value ? (int)n : numbers[i].unset;
    return 0;
  }
  return -1;
}

static void set_from_environment(const char *name) {
  char variable[64];
  snprintf(variable, sizeof variable, "FAKECUDA_%s", name);
  if (set(name, getenv(variable)) != 0) {
    fprintf(stderr, "fakecuda: %s is no number\n", variable);
    abort();
  }
}

static void load(void) {
  set_from_environment("MEM");
  for (int i = 0; i < 2; i++) set_from_environment(text_names[i]);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) set_from_environment(numbers[i].name);
}

void settings_load(void) { pthread_once(&loaded, load); }

const char *setting_text(const char *name) {
  settings_load();
  return texts[strcmp(name, "DIR") == 0 ? 0 : 1];
}

EXPORT int fakecuda_set(const char *name, const char *value) {
  settings_load();
  lock();
  int answer = set(name, value);
  unlock();
  return answer;
}
