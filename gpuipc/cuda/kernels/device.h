// What kernels need and no CUDA header is at hand to give: names for the grid, barriers, warp
// collectives, the asynchronous copy, the tensor core's product and conversions. Kernels include
// nothing else. Inline PTX stands in this file only, so that the same source compiles to PTX
// (clang, no SDK) and, with -DSPLICED_EMULATE, to host code that runs in emulate/emulate.cc.
//
// Rules for kernels, because the emulation relies on them:
//   - shared memory is dynamic, reached through shared<T>(byte offset), and starts undefined;
//   - every thread of a warp reaches a collective, every thread of a block blockBarrier(), or
//     none of them does;
//   - a copyAsync is seen after waitAsync by the thread that asked for it, and after a barrier
//     on top by the others;
//   - a*b+c rounds twice (contraction is off); fused() rounds once.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
#ifdef SPLICED_EMULATE
#include <cstdint>
typedef std::uint64_t u64;
typedef std::int64_t i64;
#else
typedef unsigned long long u64;
typedef long long i64;
#endif

static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(u16) == 2, "sizes of the wire");

// What one load or store of 8 or 16 bytes moves.
struct alignas(8) Word2 {
  u32 v[2];
};
struct alignas(16) Word4 {
  u32 v[4];
};

// gpuipc/kernel.DType
enum : u32 { F32 = 1, F16 = 2, BF16 = 3 };
constexpr u32 sizeOf(u32 type) { return type == F32 ? 4 : 2; }

#ifdef SPLICED_EMULATE
#include "emulate/emulate.h"
#else

#define FN static inline __attribute__((device, always_inline))
// KERNEL opens an entry that is launched with at most THREADS threads a block; the register
// budget is what lets BLOCKS of them share a multiprocessor.
#define KERNEL(NAME, ARGS, THREADS, BLOCKS)                                          \
  extern "C" __attribute__((global, launch_bounds(THREADS, BLOCKS))) void NAME(ARGS args)

// In front of a loop over registers, whose indices have to be constants.
#define UNROLL _Pragma("unroll")

FN u32 threadIndex() { return __nvvm_read_ptx_sreg_tid_x(); }
FN u32 threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
FN u32 blockX() { return __nvvm_read_ptx_sreg_ctaid_x(); }
FN u32 blockY() { return __nvvm_read_ptx_sreg_ctaid_y(); }
FN u32 blockZ() { return __nvvm_read_ptx_sreg_ctaid_z(); }

FN void blockBarrier() { __syncthreads(); }
FN void warpBarrier() { __nvvm_bar_warp_sync(0xffffffffu); }

FN u32 asBits(float v) { return __builtin_bit_cast(u32, v); }
FN float asFloat(u32 v) { return __builtin_bit_cast(float, v); }

// shuffle gives the value of another lane, shuffleXor that of lane ^ mask.
FN u32 shuffle(u32 v, u32 lane) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, v, lane, 31); }
FN u32 shuffleXor(u32 v, u32 mask) { return __nvvm_shfl_sync_bfly_i32(0xffffffffu, v, mask, 31); }

extern __attribute__((shared, aligned(128))) u8 splicedShared[];

template <class T>
using Shared = T *;

template <class T>
FN Shared<T> shared(u32 offset) {
  return (T *)(splicedShared + offset);
}

FN u32 sharedAddress(const void *p) {
  return (u32)(u64)(__attribute__((address_space(3))) const void *)p;
}
FN u64 globalAddress(const void *p) {
  return (u64)(__attribute__((address_space(1))) const void *)p;
}

// copyAsync16 begins to copy 16 bytes to shared memory; both sides are aligned to 16. Only the
// first `bytes` are read, the others become zero.
FN void copyAsync16(void *to, const void *from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(sharedAddress(to)), "l"(globalAddress(from)), "r"(bytes)
               : "memory");
}
// commitAsync closes a group of copies, waitAsync waits until at most LEFT groups are open.
FN void commitAsync() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <u32 LEFT>
FN void waitAsync() {
  asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory");
}

// readOnce loads what no other thread needs and nobody writes while the kernel runs.
FN Word4 readOnce16(const void *p) {
  Word4 w;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3])
      : "l"(globalAddress(p)));
  return w;
}
// readFixed loads what nobody writes while the kernel runs, and other threads need too.
FN Word4 readFixed16(const void *p) {
  Word4 w;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3])
      : "l"(globalAddress(p)));
  return w;
}
// readNumber is the bits of a number of 4 bytes, or of 2, that nobody writes meanwhile. It takes no
// branch, so that several are on their way at once.
FN u32 readNumber(u64 array, bool wide, u64 i) {
  u32 v;
  asm("{ .reg .pred p;\n\t"
      "setp.ne.u32 p, %2, 0;\n\t"
      "@p ld.global.nc.u32 %0, [%1];\n\t"
      "@!p ld.global.nc.u16 %0, [%1]; }"
      : "=r"(v)
      : "l"(globalAddress((const u8 *)array + (i << (wide ? 2 : 1)))), "r"((u32)wide));
  return v;
}
// readFixedIf is the number at an address, or the other one; it takes no branch.
FN u32 readFixedIf(bool there, u64 address, u32 other) {
  u32 v = other;
  asm("{ .reg .pred p;\n\t"
      "setp.ne.u32 p, %2, 0;\n\t"
      "@p ld.global.nc.u32 %0, [%1]; }"
      : "+r"(v)
      : "l"(globalAddress((const void *)address)), "r"((u32)there));
  return v;
}
FN u32 readFixed(const u32 *p) {
  u32 v;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(globalAddress(p)));
  return v;
}
FN Word2 readOnce8(const void *p) {
  Word2 w;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(w.v[0]), "=r"(w.v[1])
      : "l"(globalAddress(p)));
  return w;
}

// prefetch asks for the line around an address to come to the L2.
FN void prefetch(u64 address) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(globalAddress((const void *)address)));
}

// multiplyTF32 is c += a*b on [16, 8] x [8, 8] of one warp. Lane l = 4*g + t holds
//   a[0..3] = A[g][t], A[g+8][t], A[g][t+4], A[g+8][t+4]
//   b[0..1] = B[t][g], B[t+4][g]
//   c[0..3] = C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]
// Operands are TF32, 11 bits of mantissa and then zeros; the sum is not rounded to nearest.
FN void multiplyTF32(float c[4], const u32 a[4], const u32 b[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// multiplyF16 and multiplyBF16 are c += a*b on [16, 16] x [16, 8], two numbers a word, the lower bits
// first: with k = 2t and 2t+1
//   a[0..3] = A[g][k], A[g+8][k], A[g][k+8], A[g+8][k+8]
//   b[0..1] = B[k][g], B[k+8][g]
// and c as above.
FN void multiplyF16(float c[4], const u32 a[4], const u32 b[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FN void multiplyBF16(float c[4], const u32 a[4], const u32 b[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// multiplyS8 and multiplyU8 are c += a*b on [16, 32] x [32, 8], four integers of 8 bits a word, the lowest
// bits first: with k = 4t to 4t+3
//   a[0..3] = A[g][k], A[g+8][k], A[g][k+16], A[g+8][k+16]
//   b[0..1] = B[k][g], B[k+16][g]
// and c as above, of 32 bits. A has signs, B only that of multiplyS8.
FN void multiplyS8(i32 c[4], const u32 a[4], const u32 b[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FN void multiplyU8(i32 c[4], const u32 a[4], const u32 b[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// pack rounds two numbers to nearest even, the first to the lower bits.
FN u32 packF16(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
FN u32 packBF16(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// choose has the bits of a where those of `which` are set, else those of b.
FN u32 choose(u32 a, u32 b, u32 which) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
  return r;
}

// permute gives four of the eight bytes of b:a, of a those numbered 0 to 3, by the hexadecimal
// digits of which. shiftRight is the lower half of b:a, shifted by less than 32 bits.
FN u32 permute(u32 a, u32 b, u32 which) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
  return r;
}
FN u32 shiftRight(u32 a, u32 b, u32 bits) {
  u32 r;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(bits));
  return r;
}

FN float larger(float a, float b) { return __builtin_fmaxf(a, b); }
FN float magnitude(float v) { return __builtin_fabsf(v); }
// largerOrNaN is NaN if one of them is.
FN float largerOrNaN(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// nearest is the nearest integer, of a number from 0 to 2^24; of a NaN it is 0.
FN u32 nearest(float v) {
  u32 r;
  asm("cvt.rni.u32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}

// halfToFloat is exact; halfFromFloat rounds to nearest even.
FN float halfToFloat(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
FN u16 halfFromFloat(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

// again hides from the compiler that v is what it was, so that what is made of it in a loop is
// made anew and does not take registers for the whole loop.
FN float again(float v) {
  asm volatile("" : "+f"(v));
  return v;
}
FN u32 again(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}

FN float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// exponential2 is 2^v to 2^-22 of it; 2^-inf is 0.
FN float exponential2(float v) {
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
// quotient rounds to nearest.
FN float quotient(float a, float b) {
  float r;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

#endif

FN u32 laneIndex() { return threadIndex() & 31; }
FN u32 warpIndex() { return threadIndex() >> 5; }
FN float shuffle(float v, u32 lane) { return asFloat(shuffle(asBits(v), lane)); }
FN float shuffleXor(float v, u32 mask) { return asFloat(shuffleXor(asBits(v), mask)); }

FN float bfloatToFloat(u16 h) { return asFloat((u32)h << 16); }

// bfloatFromFloat rounds to nearest even; a NaN is cut and made quiet, as gpuipc/kernel does.
FN u16 bfloatFromFloat(float f) {
  u32 u = asBits(f);
  if (f != f) return (u16)(u >> 16 | 0x40);
  return (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// Words behind an address that came in a table. They are in device memory, which the compiler is
// told: an access that may be one of shared memory cannot pass those that are, and takes longer.
template <class T>
FN T *at(u64 address) {
#ifdef SPLICED_EMULATE
  return (T *)address;
#else
  return (T *)(__attribute__((address_space(1))) T *)address;
#endif
}
FN Word4 read16(const void *p) { return *(const Word4 *)p; }
FN Word2 read8(const void *p) { return *(const Word2 *)p; }
FN void write16(void *p, Word4 w) { *(Word4 *)p = w; }
FN void write8(void *p, Word2 w) { *(Word2 *)p = w; }
