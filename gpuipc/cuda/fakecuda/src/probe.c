/*
 * Kernels of the fake's own tests, whose PTX is in probe.ptx:
 *
 *   probe_fill(u64 dst, u32 n, u32 value)  writes n words
 *   probe_add(u64 dst, u64 src, u32 n)     dst[i] += src[i], words
 */
#include <string.h>

#include "fake.h"

struct fill {
  uint64_t dst;
  uint32_t n, value;
};

struct add {
  uint64_t dst, src;
  uint32_t n;
};

int probe_launch(const char *name, const unsigned grid[3], const unsigned block[3],
                 const void *args, size_t n) {
  uint64_t threads = (uint64_t)grid[0] * block[0];
  if (strcmp(name, "probe_fill") == 0 && n == 16) {
    const struct fill *a = args;
    for (uint64_t i = 0; i < a->n && i < threads; i++) ((uint32_t *)a->dst)[i] = a->value;
    return 0;
  }
  if (strcmp(name, "probe_add") == 0 && n == 20) {
    const struct add *a = args;
    for (uint64_t i = 0; i < a->n && i < threads; i++) ((uint32_t *)a->dst)[i] += ((const uint32_t *)a->src)[i];
    return 0;
  }
  return -1;
}
