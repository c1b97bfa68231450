// What all compose kernels are given. compose.go writes the same structs.
#pragma once
#include "device.h"

struct ComposeStep {
  u64 t, s, before;  // device addresses; without t and s the step only writes before
  u32 tType, sType;
  union {
    u32 angles;  // where in the tables dims/2 cosines and then the sines lie
    u32 tPart;   // dense, which do not turn: bytes of the packed part that t is of, 0 = plain numbers
  };
  u32 dims;  // leading rows of S that turn, 0 = none
  u32 interleaved;
  u32 sPart;  // as tPart
};
static_assert(sizeof(ComposeStep) == 48, "compose.go");

struct ComposeJob {
  u64 from, out;  // 0 = zero state, 0 = not wanted
  u32 steps;      // where in the tables they lie
  u32 count;
  u32 heads, dk, dv;
  u32 span;  // neighbouring numbers of the state that one factor of T multiplies
  u32 dims;  // the pairs of every turn of the job, for composeTurned
  u32 interleaved;
};
static_assert(sizeof(ComposeJob) == 48, "compose.go");

// A block's job is the one of its y among those that the tables begin with. Jobs of a launch need
// not have as many blocks: those behind a job's last one leave at once.
struct ComposeArgs {
  u64 tables;
};
static_assert(sizeof(ComposeArgs) == 8, "compose.go");

FN const ComposeStep *stepsOf(u64 tables, const ComposeJob &job) {
  return at<const ComposeStep>(tables + job.steps);
}

// readStep reads a step whole, of which nothing changes while the kernel runs: what a thread writes
// meanwhile does not make it read again.
FN ComposeStep readStep(u64 steps, u32 n) {
  union {
    Word4 words[sizeof(ComposeStep) / 16];
    ComposeStep step;
  } u;
  UNROLL
  for (u32 i = 0; i < sizeof(ComposeStep) / 16; i++) u.words[i] = readFixed16(at<const u8>(steps) + (u64)n * sizeof(ComposeStep) + 16 * i);
  return u.step;
}

// readOne is number i of an array as its bits, toFloat what they mean.
FN u32 readOne(u64 array, u32 type, u64 i) {
  return type == F32 ? at<const u32>(array)[i] : at<const u16>(array)[i];
}
FN float toFloat(u32 bits, u32 type) {
  return type == F32 ? asFloat(bits) : type == F16 ? halfToFloat((u16)bits) : bfloatToFloat((u16)bits);
}
FN float number(u64 array, u32 type, u64 i) { return toFloat(readOne(array, type, i), type); }

// turn is what gpuipc/kernel does to a pair: the product with the sine is rounded and then, once,
// the multiply-add.
FN void turn(float &x, float &y, float c, float s) {
  const float a = fused(x, c, -(y * s));
  y = fused(y, c, x * s);
  x = a;
}
