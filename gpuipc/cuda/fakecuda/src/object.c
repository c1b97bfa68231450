/* Handles are numbers that are never used twice, so that a stale handle is noticed. */
#include <stdlib.h>

#include "fake.h"

static struct object **slots; /* open addressing; NULL = free */
static size_t room, used;
static uint64_t counts[KINDS];
static CUhandle last = 0x7f0000000000;

static size_t home(CUhandle id) { return (id * 0x9e3779b97f4a7c15u) >> 20 & (room - 1); }

static void place(struct object *o) {
  size_t i = home(o->id);
  while (slots[i]) i = (i + 1) & (room - 1);
  slots[i] = o;
}

static void grow(void) {
  struct object **old = slots;
  size_t n = room;
  room = room ? room * 2 : 256;
  slots = calloc(room, sizeof *slots);
  for (size_t i = 0; i < n; i++)
    if (old[i]) place(old[i]);
  free(old);
}

void object_add(struct object *o, enum kind kind, struct context *context) {
  if (used * 2 >= room) grow();
  last += 16;
  o->id = last;
  o->kind = kind;
  o->context = context;
  place(o);
  used++;
  counts[kind]++;
}

static size_t slot_of(CUhandle id) {
  for (size_t i = home(id);; i = (i + 1) & (room - 1))
    if (!slots[i] || slots[i]->id == id) return i;
}

struct object *object_find(CUhandle id, enum kind kind) {
  if (room == 0) return NULL;
  struct object *o = slots[slot_of(id)];
  return o && o->kind == kind ? o : NULL;
}

void object_remove(struct object *o) {
  size_t i = slot_of(o->id);
  slots[i] = NULL;
  used--;
  counts[o->kind]--;
  /* Entries that collisions moved past the hole must still be found. */
  for (size_t j = (i + 1) & (room - 1); slots[j]; j = (j + 1) & (room - 1)) {
    struct object *moved = slots[j];
    slots[j] = NULL;
    place(moved);
  }
}

uint64_t object_count(enum kind kind) { return counts[kind]; }

/* Returns the next object of a kind, of any context if context is NULL. After a
 * removal the caller must start again with *at = 0. */
struct object *object_next(size_t *at, enum kind kind, struct context *context) {
  for (; *at < room; ++*at) {
    struct object *o = slots[*at];
    if (o && o->kind == kind && (!context || o->context == context)) {
      ++*at;
      return o;
    }
  }
  return NULL;
}
