/* Counts of live objects, and a reset of everything. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

static void count(struct fakecuda_stats *s) {
  s->contexts = context_retains();
  s->allocations = range_count(ALLOCATION);
  s->physical = physical_count();
  s->reservations = reservation_count();
  s->mappings = range_count(MAPPING);
  s->imports = range_count(IMPORT);
  memory_totals(&s->memory_objects, &s->memory_bytes);
  s->streams = object_count(STREAM);
  s->workers = worker_count();
  s->queued = queued_count();
  s->events = object_count(EVENT);
  s->modules = object_count(MODULE);
  s->registered = range_count(REGISTERED);
  s->registered_bytes = registered_bytes();
  s->host_allocations = range_count(HOST_ALLOCATION);
  s->descriptors = s->memory_objects + event_descriptors();
  s->calls = fakecuda_calls("*");
  s->executed = executed_count();
  s->misuses = misuse_count();
  s->hanging = hanging_calls();
}

EXPORT void fakecuda_stats(struct fakecuda_stats *out, size_t n) {
  struct fakecuda_stats s = {0};
  lock();
  count(&s);
  unlock();
  memset(out, 0, n);
  memcpy(out, &s, n < sizeof s ? n : sizeof s);
}

/* A text. Bytes that do not fit are still counted. */
struct page {
  char *text;
  size_t room, n;
};

__attribute__((format(printf, 2, 3))) static void print(struct page *p, const char *format, ...) {
  va_list list;
  va_start(list, format);
  size_t left = p->n < p->room ? p->room - p->n : 0;
  int n = vsnprintf(left ? p->text + p->n : NULL, left, format, list);
  va_end(list);
  if (n > 0) p->n += (size_t)n;
}

static const char *const range_names[RANGE_KINDS] = {"allocation", "import", "mapping", "host allocation", "registered"};

static void print_ranges(struct page *p, const struct ranges *in) {
  for (size_t i = 0; i < in->n; i++) {
    const struct range *r = &in->list[i];
    print(p, "%s %#" PRIx64 " %" PRIu64 " bytes\n", range_names[r->kind], r->base, r->bytes);
  }
}

EXPORT size_t fakecuda_live(char *text, size_t n) {
  static const char *const names[KINDS] = {"", "context", "stream", "event", "module", "function", "physical"};
  struct page p = {.text = text, .room = n};
  lock();
  print_ranges(&p, &on_device);
  print_ranges(&p, &on_host);
  for (enum kind kind = STREAM; kind < KINDS; kind++) {
    struct object *o;
    for (size_t at = 0; kind != FUNCTION && (o = object_next(&at, kind, NULL));)
      print(&p, "%s %#" PRIx64 "\n", names[kind], o->id);
  }
  unlock();
  return p.n;
}

EXPORT void fakecuda_reset(void) {
  fakecuda_clear();
  lock();
  contexts_drop();
  vmm_drop();
  host_drop();
  mend();
  unlock();
}
