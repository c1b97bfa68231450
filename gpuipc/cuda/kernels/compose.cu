// Composing running states whose transitions are one factor per head (scalar) or per row
// (diagonal): state = t*state + S, number by number (HYPIC Eq. 6), with S turned on the key axis
// first where asked (HYPIC Eq. 7). A number meets no other one but its pair of the turn, so each
// thread keeps its own few in registers over all steps; S and T pass once.
//
// These are streams: a step moves 16 bytes a thread (8 with 16-bit S) for a dozen instructions,
// so what counts is how much is on its way. A thread has asked for AHEAD end-states before it uses
// the first, and asks for one more whenever it has used one. HBM of an H200 needs about
// 4.8 TB/s x 0.8 us / 132 = 29 KiB under way on each multiprocessor; 768 threads with 6 loads of
// 16 bytes have 72 KiB.
#include "compose_heads.cu"

enum : u32 { AHEAD = 6, AHEAD_PAIRS = 4 };  // 6 was faster than 4 and 8 on an H200; the 4 is a guess

struct Four {
  float v[4];
};

// Loads are kept as they come and converted when they are used: a conversion would wait for them.
FN Word4 readFour(u64 array, u32 type, u64 first) {
  if (type == F32) return readOnce16(at<const float>(array) + first);
  const Word2 w = readOnce8(at<const u16>(array) + first);
  return {{w.v[0], w.v[1], 0, 0}};
}

FN Four toFloats(const Word4 &w, u32 type) {
  if (type == F32) return {{asFloat(w.v[0]), asFloat(w.v[1]), asFloat(w.v[2]), asFloat(w.v[3])}};
  Four f;
  UNROLL
  for (u32 i = 0; i < 4; i++) f.v[i] = toFloat(w.v[i / 2] >> (16 * (i & 1)), type);
  return f;
}

FN Four readState(u64 array, u64 first) {
  if (array == 0) return {{0, 0, 0, 0}};
  return toFloats(read16(at<const float>(array) + first), F32);
}

FN void writeState(u64 array, u64 first, const Four &f) {
  if (array == 0) return;
  write16(at<float>(array) + first, {{asBits(f.v[0]), asBits(f.v[1]), asBits(f.v[2]), asBits(f.v[3])}});
}

FN void scaleAdd(Four &y, const Four &t, const Four &s) {
  UNROLL
  for (u32 i = 0; i < 4; i++) y.v[i] = t.v[i] * y.v[i] + s.v[i];
}

// Asked is what a thread reads of a step: its numbers of S, and their factors.
struct Asked {
  Word4 s, t;
};

template <bool EACH>
FN void ask(Asked &a, const ComposeStep &st, u64 first, u64 factor) {
  if (st.s == 0) return;
  a.s = readFour(st.s, st.sType, first);
  if (EACH) a.t = readFour(st.t, st.tType, factor);
  else a.t.v[0] = readOne(st.t, st.tType, factor);
}

// composeStream gives a thread four neighbouring numbers, which have one factor, or, with EACH,
// four neighbouring factors.
template <bool EACH>
FN void composeStream(u64 tables, const ComposeJob &job) {
  const u64 first = 4 * ((u64)blockX() * threads() + threadIndex());
  if (first >= (u64)job.heads * job.dk * job.dv) return;
  const u64 factor = EACH ? first : (u32)first / job.span;
  const u32 count = job.count;
  const u64 steps = tables + job.steps;
  Asked asked[AHEAD];
  UNROLL
  for (u32 i = 0; i < AHEAD; i++) {
    if (i < count) ask<EACH>(asked[i], readStep(steps, i), first, factor);
  }
  Four state = readState(job.from, first);
  for (u32 n = 0; n < count; n += AHEAD) {
    UNROLL
    for (u32 i = 0; i < AHEAD; i++) {
      if (n + i >= count) break;
      const ComposeStep st = readStep(steps, n + i);
      writeState(st.before, first, state);
      if (st.s != 0) {
        Four factors;
        if (EACH) {
          factors = toFloats(asked[i].t, st.tType);
        } else {
          const float f = toFloat(asked[i].t.v[0], st.tType);
          factors = {{f, f, f, f}};
        }
        scaleAdd(state, factors, toFloats(asked[i].s, st.sType));
      }
      if (n + i + AHEAD < count) ask<EACH>(asked[i], readStep(steps, n + i + AHEAD), first, factor);
    }
  }
  writeState(job.out, first, state);
}

KERNEL(spliced_compose_rows, ComposeArgs, 256, 3) {
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  composeStream<false>(args.tables, job);
}

KERNEL(spliced_compose_numbers, ComposeArgs, 256, 3) {
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  composeStream<true>(args.tables, job);
}

// rowsOf are the two rows of pair i: those that turn together, then the rest two by two. The last
// row of an odd number has no partner: q is dk then.
FN void rowsOf(const ComposeJob &job, u32 i, u32 &p, u32 &q) {
  if (2 * i >= job.dims || job.interleaved) {
    p = 2 * i;
    q = p + 1;
  } else {
    p = i;
    q = i + job.dims / 2;
  }
}

// AskedPair is what a thread reads of a step: its numbers in both rows of S, and the head's factor.
struct AskedPair {
  Word4 p, q;
  u32 t;
};

FN void askPair(AskedPair &a, const ComposeStep &st, u32 head, u64 atP, u64 atQ, bool both) {
  if (st.s == 0) return;
  a.p = readFour(st.s, st.sType, atP);
  if (both) a.q = readFour(st.s, st.sType, atQ);
  a.t = readOne(st.t, st.tType, head);
}

// A thread has four neighbouring columns of two rows, so that a turn finds both ends of a pair in
// registers and S is read once. Scalar transitions only: the others do not commute with a turn.
KERNEL(spliced_compose_turned, ComposeArgs, 256, 2) {
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 across = job.dv / 4, pairs = (job.dk + 1) / 2;
  const u32 unit = blockX() * threads() + threadIndex();
  const u32 head = unit / (pairs * across), pair = unit / across % pairs;
  if (head >= job.heads) return;
  u32 p, q;
  rowsOf(job, pair, p, q);
  const u64 origin = (u64)head * job.dk * job.dv + 4 * (unit % across);
  const u64 atP = origin + (u64)p * job.dv, atQ = origin + (u64)q * job.dv;
  const bool both = q < job.dk;
  const u64 steps = args.tables + job.steps;
  AskedPair asked[AHEAD_PAIRS];
  UNROLL
  for (u32 i = 0; i < AHEAD_PAIRS; i++) {
    if (i < job.count) askPair(asked[i], readStep(steps, i), head, atP, atQ, both);
  }
  Four x = readState(job.from, atP), y = {};
  if (both) y = readState(job.from, atQ);
  for (u32 n = 0; n < job.count; n += AHEAD_PAIRS) {
    UNROLL
    for (u32 i = 0; i < AHEAD_PAIRS; i++) {
      if (n + i >= job.count) break;
      const ComposeStep st = readStep(steps, n + i);
      writeState(st.before, atP, x);
      if (both) writeState(st.before, atQ, y);
      if (st.s != 0) {
        Four f = toFloats(asked[i].p, st.sType), g = {};
        if (both) g = toFloats(asked[i].q, st.sType);
        if (2 * pair < st.dims) {
          const float *angle = at<const float>(args.tables + st.angles) + pair;
          const float c = angle[0], sine = angle[st.dims / 2];
          UNROLL
          for (u32 j = 0; j < 4; j++) turn(f.v[j], g.v[j], c, sine);
        }
        const float t = toFloat(asked[i].t, st.tType);
        const Four factor = {{t, t, t, t}};
        scaleAdd(x, factor, f);
        if (both) scaleAdd(y, factor, g);
      }
      if (n + i + AHEAD_PAIRS < job.count) askPair(asked[i], readStep(steps, n + i + AHEAD_PAIRS), head, atP, atQ, both);
    }
  }
  writeState(job.out, atP, x);
  if (both) writeState(job.out, atQ, y);
}

// partner is the row that turns with row r, and the pair they are.
FN u32 partner(const ComposeStep &st, u32 r, u32 &pair) {
  const u32 half = st.dims / 2;
  pair = st.interleaved ? r / 2 : r % half;
  return st.interleaved ? r ^ 1 : r < half ? r + half : r - half;
}

// What the kernels above cannot take: rows that are no multiple of 4 numbers, tensors off their
// alignment, turns of different pairs in one job. One number a thread; a number that turns reads
// its partner's end-state too.
KERNEL(spliced_compose_single, ComposeArgs, 256, 4) {
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  const u64 index = (u64)blockX() * threads() + threadIndex();
  if (index >= (u64)job.heads * job.dk * job.dv) return;
  const u64 factor = (u32)index / job.span;
  const u32 row = (u32)index / job.dv % job.dk;
  const ComposeStep *steps = stepsOf(args.tables, job);
  float state = job.from ? at<const float>(job.from)[index] : 0;
  for (u32 n = 0; n < job.count; n++) {
    const ComposeStep st = steps[n];
    if (st.before) at<float>(st.before)[index] = state;
    if (st.s == 0) continue;
    float s = number(st.s, st.sType, index);
    if (row < st.dims) {
      u32 pair;
      const u32 other = partner(st, row, pair);
      float o = number(st.s, st.sType, index + ((i64)other - row) * (i64)job.dv);
      const float *angle = at<const float>(args.tables + st.angles) + pair;
      if (other > row) turn(s, o, angle[0], angle[st.dims / 2]);
      else turn(o, s, angle[0], angle[st.dims / 2]);
    }
    state = number(st.t, st.tType, factor) * state + s;
  }
  if (job.out) at<float>(job.out)[index] = state;
}

// Packed end-states of any shape: a block has 256 numbers of one head, one a thread.
KERNEL(spliced_compose_packed_single, ComposeArgs, 256, 4) {
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 numbers = job.dk * job.dv, blocks = (numbers + threads() - 1) / threads();
  const u32 head = blockX() / blocks, inHead = blockX() % blocks * threads() + threadIndex();
  if (head >= job.heads) return;
  const bool inside = inHead < numbers;  // others look for heads with the rest of their warp
  const u64 index = (u64)head * numbers + inHead, factor = index / job.span;
  const u32 row = inHead / job.dv, column = inHead % job.dv;
  const ComposeStep *steps = stepsOf(args.tables, job);
  float state = inside && job.from ? at<const float>(job.from)[index] : 0;
  for (u32 n = 0; n < job.count; n++) {
    const ComposeStep st = steps[n];
    if (st.before && inside) at<float>(st.before)[index] = state;
    if (st.s == 0) continue;
    const Head h = findHead(endStates(job, st), head);
    if (!inside) continue;
    float s = headNumber(h, job.dk, job.dv, row, column);
    if (row < st.dims) {
      u32 pair;
      const u32 other = partner(st, row, pair);
      float o = headNumber(h, job.dk, job.dv, other, column);
      const float *angle = at<const float>(args.tables + st.angles) + pair;
      if (other > row) turn(s, o, angle[0], angle[st.dims / 2]);
      else turn(o, s, angle[0], angle[st.dims / 2]);
    }
    state = number(st.t, st.tType, factor) * state + s;
  }
  if (job.out && inside) at<float>(job.out)[index] = state;
}
