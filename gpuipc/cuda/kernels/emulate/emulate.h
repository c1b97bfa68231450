// The emulation's side of device.h: the same kernels as host code, one fiber for each thread of a
// block. Compile spliced.cu and emulate/emulate.cc together:
//
//   c++ -std=c++17 -O2 -fPIC -pthread -ffp-contract=off -fno-strict-aliasing
//       -DSPLICED_EMULATE -x c++ spliced.cu emulate/emulate.cc
//
// It tests a kernel's arithmetic, indices, barriers and use of shared memory. It says nothing
// about time. emulate_launch returns faults as results, not as signals. An access outside global
// memory, or more than a page outside shared memory, does raise a signal; the handler of that
// signal must call emulate_illegal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cmath>
#include <cstring>

extern "C" {
// emulate_launch runs a whole grid and returns when it has ended. It returns 0, or 1 for a kernel
// or a launch that does not exist, 2 for arguments of another size, 3 for a fault inside a kernel,
// and 4 for an access to memory that does not exist (see emulate_illegal).
// Several calls may run at once.
int emulate_launch(const char *name, const unsigned grid[3], const unsigned block[3],
                   unsigned shared, const void *args, size_t n);
// emulate_error returns the text of the calling thread's last result that was not 0.
const char *emulate_error(void);
// emulate_kernel returns the name of kernel i, or NULL after the last kernel.
// emulate_argument_bytes returns the size of a kernel's arguments, or 0 for an unknown kernel.
const char *emulate_kernel(unsigned i);
size_t emulate_argument_bytes(const char *name);
// emulate_illegal is called by a handler of SIGSEGV and SIGBUS. If the calling thread runs a
// kernel, the launch fails with 4 and emulate_illegal does not return. Otherwise it returns 0.
int emulate_illegal(const void *at);
}

namespace emulate {

struct Position {
  u32 thread, threads;
  u32 block[3];
};
const Position &position();

enum Collective : u32 { NONE, BLOCK_BARRIER, WARP_BARRIER, SHUFFLE, SHUFFLE_XOR, MULTIPLY };
// collect waits until all threads of the warp (for BLOCK_BARRIER, of the block) have called it for
// the same reason. Then it exchanges their words.
void collect(Collective what, void *words);
enum : u32 { BYTES = 8, SIGNED_BYTES = 9 };
struct Multiply {
  u32 type;  // of the operands; F32 stands for TF32, BYTES and SIGNED_BYTES say what b is, c is then i32
  float c[4];
  u32 a[4], b[2];
};
struct Shuffle {
  u32 value, lane;
};

u8 *sharedMemory(u32 offset, size_t align);
void sharedCheck(const void *p, size_t bytes);
[[noreturn]] void fault(const char *format, ...);

void copyAsync(void *to, const void *from, u32 bytes, u32 size);
void commitAsync();
void waitAsync(u32 left);

struct Registration {
  Registration(const char *name, size_t argumentBytes, u32 threads, void (*run)(const void *));
};

}  // namespace emulate

#define FN [[maybe_unused]] static inline
#define KERNEL(NAME, ARGS, THREADS, BLOCKS)                                     \
  static void NAME(ARGS args);                                                  \
  static const emulate::Registration NAME##Registration(                        \
      #NAME, sizeof(ARGS), THREADS, [](const void *p) {                         \
        ARGS args;                                                              \
        memcpy(&args, p, sizeof args);                                          \
        NAME(args);                                                             \
      });                                                                       \
  static void NAME(ARGS args)

#define UNROLL

FN u32 threadIndex() { return emulate::position().thread; }
FN u32 threads() { return emulate::position().threads; }
FN u32 blockX() { return emulate::position().block[0]; }
FN u32 blockY() { return emulate::position().block[1]; }
FN u32 blockZ() { return emulate::position().block[2]; }

FN void blockBarrier() { emulate::collect(emulate::BLOCK_BARRIER, nullptr); }
FN void warpBarrier() { emulate::collect(emulate::WARP_BARRIER, nullptr); }

FN u32 asBits(float v) {
  u32 r;
  memcpy(&r, &v, 4);
  return r;
}
FN float asFloat(u32 v) {
  float r;
  memcpy(&r, &v, 4);
  return r;
}

FN u32 shuffle(u32 v, u32 lane) {
  emulate::Shuffle s{v, lane};
  emulate::collect(emulate::SHUFFLE, &s);
  return s.value;
}
FN u32 shuffleXor(u32 v, u32 mask) {
  emulate::Shuffle s{v, mask};
  emulate::collect(emulate::SHUFFLE_XOR, &s);
  return s.value;
}

// Shared checks every access by index; on the device it is a plain pointer.
template <class T>
struct Shared {
  T *p;
  T &operator[](size_t i) const {
    emulate::sharedCheck(p + i, sizeof(T));
    return p[i];
  }
  T &operator*() const { return (*this)[0]; }
  Shared operator+(size_t i) const { return {p + i}; }
  operator T *() const { return p; }
};
template <class T>
FN Shared<T> shared(u32 offset) {
  return {(T *)emulate::sharedMemory(offset, alignof(T))};
}

FN void copyAsync16(void *to, const void *from, u32 bytes) {
  emulate::copyAsync(to, from, bytes, 16);
}
FN void commitAsync() { emulate::commitAsync(); }
template <u32 LEFT>
FN void waitAsync() {
  emulate::waitAsync(LEFT);
}

FN Word4 readOnce16(const void *p) { return *(const Word4 *)p; }
FN Word2 readOnce8(const void *p) { return *(const Word2 *)p; }
FN u32 readNumber(u64 array, bool wide, u64 i) { return wide ? ((const u32 *)array)[i] : ((const u16 *)array)[i]; }
FN u32 readFixedIf(bool there, u64 address, u32 other) { return there ? *(const u32 *)address : other; }
FN u32 readFixed(const u32 *p) { return *p; }
FN Word4 readFixed16(const void *p) { return *(const Word4 *)p; }

FN void prefetch(u64 address) { (void)*(const volatile u8 *)address; }  // it has to be there

template <class T>
FN void multiplyAs(u32 type, T c[4], const u32 a[4], const u32 b[2]) {
  emulate::Multiply m;
  m.type = type;
  memcpy(m.c, c, sizeof m.c);
  memcpy(m.a, a, sizeof m.a);
  memcpy(m.b, b, sizeof m.b);
  emulate::collect(emulate::MULTIPLY, &m);
  memcpy(c, m.c, sizeof m.c);
}
FN void multiplyTF32(float c[4], const u32 a[4], const u32 b[2]) { multiplyAs(F32, c, a, b); }
FN void multiplyF16(float c[4], const u32 a[4], const u32 b[2]) { multiplyAs(F16, c, a, b); }
FN void multiplyBF16(float c[4], const u32 a[4], const u32 b[2]) { multiplyAs(BF16, c, a, b); }
FN void multiplyS8(i32 c[4], const u32 a[4], const u32 b[2]) { multiplyAs(emulate::SIGNED_BYTES, c, a, b); }
FN void multiplyU8(i32 c[4], const u32 a[4], const u32 b[2]) { multiplyAs(emulate::BYTES, c, a, b); }

FN float halfToFloat(u16 h) {
  u32 sign = (u32)(h & 0x8000) << 16, m = h & 0x7fff;
  if (m > 0x7c00) return asFloat(0x7fffffffu);  // cvt gives one NaN
  if (m == 0x7c00) return asFloat(sign | 0x7f800000u);
  if (m < 0x0400) return asFloat(sign | asBits((float)m * 0x1p-24f));
  return asFloat(sign | ((m << 13) + ((127 - 15) << 23)));
}
FN u16 halfFromFloat(float f) {
  u32 u = asBits(f);
  u16 sign = u >> 16 & 0x8000;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return 0x7fff;  // cvt gives one NaN
  if (u >= 0x477ff000u) return sign | 0x7c00;
  if (u < 0x38800000u) return sign | (u16)(asBits(asFloat(u) + 0.5f) - 0x3f000000u);
  u -= (127 - 15) << 23;
  return sign | (u16)((u + 0x0fff + (u >> 13 & 1)) >> 13);
}

FN float again(float v) { return v; }
FN u32 again(u32 v) { return v; }

FN float fused(float a, float b, float c) { return std::fma(a, b, c); }
FN float exponential2(float v) { return std::exp2(v); }
FN float quotient(float a, float b) { return a / b; }

FN u32 packF16(float low, float high) { return halfFromFloat(low) | (u32)halfFromFloat(high) << 16; }

FN u32 choose(u32 a, u32 b, u32 which) { return (a & which) | (b & ~which); }

FN u32 permute(u32 a, u32 b, u32 which) {
  const u64 from = (u64)b << 32 | a;
  u32 r = 0;
  for (u32 i = 0; i < 4; i++) r |= (u32)(from >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}
FN u32 shiftRight(u32 a, u32 b, u32 bits) { return (u32)(((u64)b << 32 | a) >> (bits & 31)); }

// roundBF16 gives one NaN, as cvt does.
FN u32 roundBF16(float f) {
  const u32 u = asBits(f);
  return f != f ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
FN u32 packBF16(float low, float high) { return roundBF16(low) | roundBF16(high) << 16; }

FN float larger(float a, float b) { return std::fmax(a, b); }
FN float magnitude(float v) { return std::fabs(v); }
FN float largerOrNaN(float a, float b) { return a != a ? a : b != b ? b : std::fmax(a, b); }
FN u32 nearest(float v) { return v > 0 ? (u32)std::nearbyint(std::fmin(v, 0x1p24f)) : 0; }
