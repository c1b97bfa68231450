/*
 * Modules. The text of a module is PTX. A driver would compile it. Here only some
 * lines are read: the ISA, the processor, and the kernels with their parameters.
 * The kernels run as host code, see launch.c.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

struct module {
  struct object o;
  char *text; /* without comments */
};

/* Returns the text without comments. Line numbers stay the same. */
static char *strip(const char *from) {
  char *out = malloc(strlen(from) + 1), *to = out;
  while (*from) {
    if (from[0] == '/' && from[1] == '/') {
      while (*from && *from != '\n') from++;
    } else if (from[0] == '/' && from[1] == '*') {
      const char *end = strstr(from + 2, "*/");
      from = end ? end + 2 : from + strlen(from);
      *to++ = ' ';
    } else {
      *to++ = *from++;
    }
  }
  *to = 0;
  return out;
}

/* The newest ISA of a driver, times ten, by NVIDIA's release table of the PTX ISA. */
static int newest_isa(int driver) {
  static const struct {
    int driver, isa;
  } table[] = {{13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85}, {12040, 84},
               {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (driver >= table[i].driver) return table[i].isa;
  return 77;
}

struct complaint {
  CUresult result;
  char text[256];
};

static void complain(struct complaint *c, CUresult result, const char *text, int major, int minor) {
  c->result = result;
  snprintf(c->text, sizeof c->text, text, major, minor);
}

static void check(const char *text, struct complaint *c) {
  int major, minor, processor;
  const char *at = text + strspn(text, " \t\r\n");
  if (sscanf(at, ".version %d.%d", &major, &minor) != 2) {
    complain(c, CUDA_ERROR_INVALID_PTX, "the text does not begin with .version", 0, 0);
    return;
  }
  if (major * 10 + minor > newest_isa(settings.version)) {
    complain(c, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "unsupported .version %d.%d", major, minor);
    return;
  }
  if (strstr(at + 1, ".version ")) {
    complain(c, CUDA_ERROR_INVALID_PTX, "a second .version", 0, 0);
    return;
  }
  const char *target = strstr(at, ".target sm_");
  if (!target || sscanf(target, ".target sm_%d", &processor) != 1 || !strstr(at, ".address_size 64"))
    complain(c, CUDA_ERROR_INVALID_PTX, ".target or .address_size 64 is missing", 0, 0);
  else if (processor > 90 || isalpha((unsigned char)target[strlen(".target sm_80")]))
    complain(c, CUDA_ERROR_NO_BINARY_FOR_GPU, "made for sm_%d, this is sm_90", processor, 0);
}

enum { JIT_INFO_LOG = 3, JIT_INFO_BYTES = 4, JIT_ERROR_LOG = 5, JIT_ERROR_BYTES = 6 };

/* Writes the complaint to the caller's buffer for the compiler's log. */
static void report(const struct complaint *c, unsigned n, const int *options, void **values) {
  char *log = NULL;
  size_t room = 0;
  for (unsigned i = 0; i < n; i++) {
    if (options[i] == JIT_ERROR_LOG) log = values[i];
    if (options[i] == JIT_ERROR_BYTES) room = (size_t)values[i];
  }
  if (!log || room == 0) return;
  snprintf(log, room, "ptxas fatal: %s", c->text);
  for (unsigned i = 0; i < n; i++)
    if (options[i] == JIT_ERROR_BYTES) values[i] = (void *)(strlen(log) + 1);
}

static CUresult load(CUhandle *out, const void *image, unsigned n, const int *options, void **values) {
  if (!out || !image || (n && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
  char *text = strip(image);
  struct complaint c = {0};
  check(text, &c);
  if (c.result != CUDA_SUCCESS) {
    report(&c, n, options, values);
    free(text);
    return c.result;
  }
  struct module *m = calloc(1, sizeof *m);
  m->text = text;
  lock();
  object_add(&m->o, MODULE, current());
  *out = m->o.id;
  unlock();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadDataEx(CUhandle *out, const void *image, unsigned n, const int *options, void **values) {
  ENTER(NEEDS_CONTEXT);
  return load(out, image, n, options, values);
}

EXPORT CUresult cuModuleLoadData(CUhandle *out, const void *image) {
  ENTER(NEEDS_CONTEXT);
  return load(out, image, 0, NULL, NULL);
}

void module_drop(struct object *o) {
  struct module *m = (struct module *)o;
  struct object *f;
  for (size_t at = 0; (f = object_next(&at, FUNCTION, NULL));) {
    if (((struct function *)f)->module != o) continue;
    object_remove(f);
    free(((struct function *)f)->name);
    free(f);
    at = 0;
  }
  object_remove(o);
  free(m->text);
  free(m);
}

EXPORT CUresult cuModuleUnload(CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct object *o = object_find(id, MODULE);
  if (o) module_drop(o);
  unlock();
  return o ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Returns the text after ".entry name", or NULL. */
static const char *entry(const char *text, const char *name) {
  size_t n = strlen(name);
  while ((text = strstr(text, ".entry"))) {
    text += strlen(".entry");
    text += strspn(text, " \t\r\n");
    const char *behind = text + n;
    if (strncmp(text, name, n) == 0 && !isalnum((unsigned char)*behind) && !strchr("_$", *behind)) return behind;
  }
  return NULL;
}

static unsigned type_bytes(const char *declaration, size_t n) {
  for (const char *at = declaration; at + 2 < declaration + n; at++) {
    if (at[0] != '.' || !strchr("bsuf", at[1]) || !isdigit((unsigned char)at[2])) continue;
    return (unsigned)atoi(at + 2) / 8;
  }
  return 0;
}

/* Adds one parameter: ".param .align 8 .b8 name[24]" or ".param .u64 name". */
static bool add_param(struct function *f, const char *at, size_t n) {
  char text[512];
  if (n >= sizeof text || f->n_params == 32) return false;
  memcpy(text, at, n);
  text[n] = 0;
  unsigned bytes = type_bytes(text, n), align = bytes, of = 1;
  const char *said = strstr(text, ".align"), *array = strchr(text, '[');
  if (said && !strstr(text, ".ptr")) align = (unsigned)atoi(said + strlen(".align"));
  if (array) of = (unsigned)atoi(array + 1);
  if (bytes == 0 || align == 0) return false;
  unsigned off = (f->param_bytes + align - 1) / align * align;
  f->params[f->n_params].off = off;
  f->params[f->n_params++].bytes = bytes * of;
  f->param_bytes = off + bytes * of;
  return true;
}

static bool read_params(struct function *f, const char *at) {
  at += strspn(at, " \t\r\n");
  if (*at != '(') return true;
  const char *end = strchr(at, ')');
  for (at++; end && at < end;) {
    size_t n = strcspn(at, ",)");
    if (strspn(at, " \t\r\n") < n && !add_param(f, at, n)) return false;
    at += n + 1;
  }
  return end != NULL;
}

/* The most threads that the kernel was compiled for. */
static unsigned read_max_threads(const char *at) {
  const char *body = strchr(at, '{');
  static const char *const names[] = {".maxntid", ".reqntid"};
  for (int i = 0; i < 2; i++) {
    const char *said = strstr(at, names[i]);
    unsigned x = 1, y = 1, z = 1;
    if (said && (!body || said < body) && sscanf(said + strlen(names[i]), " %u , %u , %u", &x, &y, &z) >= 1)
      return x * y * z;
  }
  return 1024;
}

EXPORT CUresult cuModuleGetFunction(CUhandle *out, CUhandle module, const char *name) {
  ENTER(NEEDS_CONTEXT);
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct module *m = (struct module *)object_find(module, MODULE);
  const char *at = m ? entry(m->text, name) : NULL;
  CUresult result = !m ? CUDA_ERROR_INVALID_HANDLE : !at ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
  if (at) {
    struct function *f = calloc(1, sizeof *f);
    f->module = &m->o;
    f->name = strdup(name);
    f->max_threads = read_max_threads(at);
    f->max_shared = 48 << 10;
    if (!read_params(f, at)) {
      fprintf(stderr, "fakecuda: the parameters of %s are not understood\n", name);
      abort();
    }
    object_add(&f->o, FUNCTION, current());
    *out = f->o.id;
  }
  unlock();
  return result;
}

EXPORT CUresult cuFuncSetAttribute(CUhandle id, int attribute, int value) {
  ENTER(NEEDS_CONTEXT);
  lock();
  struct function *f = (struct function *)object_find(id, FUNCTION);
  CUresult result = f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  if (f && (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > 227 << 10))
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) f->max_shared = (unsigned)value;
  unlock();
  return result;
}

EXPORT CUresult cuFuncGetAttribute(int *out, int attribute, CUhandle id) {
  ENTER(NEEDS_CONTEXT);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  lock();
  struct function *f = (struct function *)object_find(id, FUNCTION);
  CUresult result = f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  if (f && attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) *out = (int)f->max_threads;
  else if (f && attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) *out = (int)f->max_shared;
  else if (f) result = CUDA_ERROR_NOT_SUPPORTED;
  unlock();
  return result;
}
