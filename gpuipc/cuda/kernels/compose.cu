// Composing running states whose transitions are one factor per head (scalar) or per row
// (diagonal): state = t*state + S, number by number (HYPIC Eq. 6), with S turned on the key axis
// first where asked (HYPIC Eq. 7). A number meets no other one but its pair of the turn, so each
// thread keeps its own few in registers over all steps; S and T pass once.
//
// These are streams: a step moves 16 bytes a thread (8 with 16-bit S) for a dozen instructions,
// so what counts is how much is on its way. A thread asks for AHEAD end-states before it uses the
// first. HBM of an H200 needs about 4.8 TB/s x 0.8 us / 132 = 29 KiB under way on each
// multiprocessor; 1,024 threads with 4 loads of 16 bytes have 64 KiB.
#include "compose_job.cu"

enum : u32 { AHEAD = 4 };

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

// composeStream gives a thread four neighbouring numbers, which have one factor, or, with EACH,
// four neighbouring factors.
template <bool EACH>
FN void composeStream(u64 tables, const ComposeJob &job) {
  const u64 first = 4 * ((u64)blockX() * threads() + threadIndex());
  if (first >= (u64)job.heads * job.dk * job.dv) return;
  const u64 factor = EACH ? first : (u32)first / job.span;
  const ComposeStep *steps = stepsOf(tables, job);
  Four state = readState(job.from, first);
  for (u32 n = 0; n < job.count; n += AHEAD) {
    Word4 s[AHEAD], t[AHEAD];
    UNROLL
    for (u32 i = 0; i < AHEAD; i++) {
      if (n + i >= job.count || steps[n + i].s == 0) continue;
      const ComposeStep &st = steps[n + i];
      s[i] = readFour(st.s, st.sType, first);
      if (EACH) t[i] = readFour(st.t, st.tType, factor);
      else t[i].v[0] = readOne(st.t, st.tType, factor);
    }
    UNROLL
    for (u32 i = 0; i < AHEAD; i++) {
      if (n + i >= job.count) break;
      const ComposeStep &st = steps[n + i];
      writeState(st.before, first, state);
      if (st.s == 0) continue;
      Four factors;
      if (EACH) {
        factors = toFloats(t[i], st.tType);
      } else {
        const float f = toFloat(t[i].v[0], st.tType);
        factors = {{f, f, f, f}};
      }
      scaleAdd(state, factors, toFloats(s[i], st.sType));
    }
  }
  writeState(job.out, first, state);
}

KERNEL(spliced_compose_rows, ComposeArgs, 256, 4) {
  composeStream<false>(args.tables, at<const ComposeJob>(args.tables)[blockY()]);
}

KERNEL(spliced_compose_numbers, ComposeArgs, 256, 4) {
  composeStream<true>(args.tables, at<const ComposeJob>(args.tables)[blockY()]);
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
  const ComposeStep *steps = stepsOf(args.tables, job);

  Four x = readState(job.from, atP), y = {};
  if (both) y = readState(job.from, atQ);
  for (u32 n = 0; n < job.count; n += AHEAD) {
    Word4 a[AHEAD], b[AHEAD];
    float t[AHEAD];
    UNROLL
    for (u32 i = 0; i < AHEAD; i++) {
      if (n + i >= job.count || steps[n + i].s == 0) continue;
      const ComposeStep &st = steps[n + i];
      a[i] = readFour(st.s, st.sType, atP);
      if (both) b[i] = readFour(st.s, st.sType, atQ);
      t[i] = number(st.t, st.tType, head);
    }
    UNROLL
    for (u32 i = 0; i < AHEAD; i++) {
      if (n + i >= job.count) break;
      const ComposeStep &st = steps[n + i];
      writeState(st.before, atP, x);
      if (both) writeState(st.before, atQ, y);
      if (st.s == 0) continue;
      Four f = toFloats(a[i], st.sType), g = {};
      if (both) g = toFloats(b[i], st.sType);
      if (2 * pair < st.dims) {
        const float *angle = at<const float>(args.tables + st.angles) + pair;
        const float c = angle[0], sine = angle[st.dims / 2];
        UNROLL
        for (u32 j = 0; j < 4; j++) turn(f.v[j], g.v[j], c, sine);
      }
      const Four factor = {{t[i], t[i], t[i], t[i]}};
      scaleAdd(x, factor, f);
      if (both) scaleAdd(y, factor, g);
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
