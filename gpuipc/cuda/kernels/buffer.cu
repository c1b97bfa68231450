// Decodes rows beside a state (KVBuffer §3): a state is read once for all rows of a request and
// written only when rows are flushed into it. buffer.go builds the launch;
// solve in buffer_test.go is the meaning.
//
// A block has 32 columns of one head's state. It asks for them first, and works on the rows while
// they come:
//
//   1. rows that are new: their decays since the pending rows, and what they are to each other;
//   2. pending rows, 16 at a time: keys times the decays since (walk), their products with the
//      new rows' queries and keys (multiply), and the delta values that these weigh (gather);
//   3. the state, read with the queries and keys times all decays;
//   4. outputs and delta values of the new rows, one after the other;
//   5. with a flush, all rows into the columns that are at hand, S = g*S + k u^T (Eq. 5).
//
// Threads are 16 groups of 8. In 2 and 3 a group has one row of a chunk or every 16th of the
// state, a thread of it four columns (or every eighth four channels); sums over groups are formed
// once, behind 3.
#include "device.h"

namespace buffering {

enum : u32 { THREADS = 128, COLUMNS = 32, GROUPS = 16, HEIGHT = 4, AHEAD = 8 };

// Job is one row of the launch's table, as buffer.go writes it.
struct Job {
  u64 from;      // F32 [heads, dk, dv]; 0: zero states
  u64 out;       // where to flush to, may be from; 0: no flush
  u64 k;         // [pending.., keyHeads, dk] of type
  u64 u;         // [pending.., heads, dv] of type
  u64 g;         // F32 [pending.., heads] or [pending.., heads, dk]
  u64 newQ;      // [rows, keyHeads, dk] of newType
  u64 newK;      // [rows, keyHeads, dk] of newType
  u64 newV;      // [rows, heads, dv] of newType
  u64 newG;      // as a row of g
  u64 beta;      // F32 [rows, heads]
  u64 newE;    // [rows, heads, dk] of newType; 0: newK
  u64 outputs;   // [rows, heads, dv] of newType
  u64 passes;    // where in the tables: Pass, and one more of the rows that a flush takes; 0: all are a chain
  u64 ancestors; // where in the tables: a mask of new rows for each new row; 0: all before it
  u32 heads, keyHeads, dk, dv;
  u32 type, newType;
  u32 pending, rows, passCount;
  u32 perKey, delta;
  u32 wideState; // four columns of a state are 16 aligned bytes
  u32 wideRows;  // four columns of u are aligned
  u32 unused;
};
static_assert(sizeof(Job) == 168, "buffer.go writes rows of 168 bytes");

// Pass is pending rows that some of the new rows descend from, or all rows of a flush.
struct Pass {
  u32 members;  // mask of new rows
  u32 count;    // rows
  u32 path;     // where in the tables: their numbers, ascending
  u32 unused;
};

struct Four {
  float v[4];
};

// Nothing that a launch reads through these is written by it.
FN u32 bitsOf(u32 type, u64 base, u64 i) { return readNumber(base, type == F32, i); }
FN float meaning(u32 type, u32 bits) {
  const float half = halfToFloat((u16)bits);
  return asFloat(type == F32 ? bits : type == F16 ? asBits(half) : bits << 16);
}
FN float load(u32 type, u64 base, u64 i) { return meaning(type, bitsOf(type, base, i)); }
FN float loadSingle(u64 base, u64 i) { return asFloat(readFixed(at<const u32>(base) + i)); }

FN void store(u32 type, u64 base, u64 i, float v) {
  if (type == F32) {
    at<float>(base)[i] = v;
  } else {
    at<u16>(base)[i] = type == F16 ? halfFromFloat(v) : bfloatFromFloat(v);
  }
}

// kept is what a row of the type keeps of a number.
FN float kept(u32 type, float v) {
  if (type == F16) return halfToFloat(halfFromFloat(v));
  if (type == BF16) return bfloatToFloat(bfloatFromFloat(v));
  return v;
}

// loadFour is numbers [i, i+4), zero from `count` on.
FN Four loadFour(u32 type, u64 base, u64 i, u32 count, bool wide) {
  Four f;
  if (wide && count >= 4) {
    if (type == F32) {
      const Word4 w = read16(at<const float>(base) + i);
UNROLL
      for (u32 j = 0; j < 4; j++) f.v[j] = asFloat(w.v[j]);
      return f;
    }
    const Word2 w = read8(at<const u16>(base) + i);
UNROLL
    for (u32 j = 0; j < 4; j++) {
      const u16 h = (u16)(w.v[j / 2] >> j % 2 * 16);
      f.v[j] = type == F16 ? halfToFloat(h) : bfloatToFloat(h);
    }
    return f;
  }
UNROLL
  for (u32 j = 0; j < 4; j++) f.v[j] = j < count ? load(type, base, i + j) : 0;
  return f;
}

FN Four sharedFour(u32 offset, u32 i) {
  const Word4 w = shared<Word4>(offset)[i / 4];
  Four f;
UNROLL
  for (u32 j = 0; j < 4; j++) f.v[j] = asFloat(w.v[j]);
  return f;
}

FN float warpSum(float v) {
UNROLL
  for (u32 m = 16; m > 0; m /= 2) v += shuffleXor(v, m);
  return v;
}

// Layout is where things lie in shared memory, in bytes. M is the most new rows. buffer.go
// computes the same sum.
template <u32 M>
struct Layout {
  u32 channels;  // dk, to a multiple of four
  u32 state;     // [dk][COLUMNS]
  u32 left;      // [2][M][channels]: queries and keys, times decays
  u32 decays;    // [channels], of the rows that a walk has passed
  u32 keys;      // [GROUPS][channels]
  u32 values;    // [GROUPS][COLUMNS]
  u32 weights;   // [2][M][GROUPS]
  u32 pairs;     // [2][M][M], and the product of each row's query and key [M]
  u32 sums;      // [4 warps][2][M][COLUMNS]
  u32 own;       // [M][COLUMNS]
};

template <u32 M>
FN Layout<M> layout(const Job &job) {
  Layout<M> l;
  l.channels = (job.dk + 3) / 4 * 4;
  u32 end = 0;
  l.state = end, end += job.from || job.out ? job.dk * COLUMNS * 4 : 0;
  l.left = end, end += 2 * M * l.channels * 4;
  l.decays = end, end += l.channels * 4;
  l.keys = end, end += GROUPS * l.channels * 4;
  l.values = end, end += GROUPS * COLUMNS * 4;
  l.weights = end, end += 2 * M * GROUPS * 4;
  l.sums = end, end += 4 * 2 * M * COLUMNS * 4;
  l.own = end, end += M * COLUMNS * 4;
  l.pairs = end;
  return l;
}

// Place is which part of a job a block has.
struct Place {
  u32 head, key, column;  // the first of COLUMNS
};

// rowOf is row i of a path, of which 0 is that of all rows.
FN u32 rowOf(u64 path, u32 i) { return readFixedIf(path != 0, path + 4 * (u64)i, i); }

// fetch asks for the state's columns; they are there after waitAsync and a barrier.
FN void fetch(const Job &job, const Place &p, u32 state) {
  const u32 group = threadIndex() / 8, column = threadIndex() % 8 * 4;
  for (u32 d = group; d < job.dk; d += GROUPS) {
    const u32 to = d * COLUMNS + column, first = p.column + column;
    const u64 from = job.from + (((u64)p.head * job.dk + d) * job.dv + first) * 4;
    if (job.wideState && job.from) {
      const bool inside = first < job.dv;
      copyAsync16(shared<float>(state) + to, at<float>(inside ? from : job.from), inside ? 16 : 0);
      continue;
    }
UNROLL
    for (u32 j = 0; j < 4; j++) {
      const bool inside = job.from && first + j < job.dv;
      shared<float>(state)[to + j] = inside ? at<const float>(from)[j] : 0;
    }
  }
  commitAsync();
}

FN u32 ancestorsOf(const Job &job, u64 tables, u32 row) {
  return readFixedIf(job.ancestors != 0, tables + job.ancestors + 4 * (u64)row, (1u << row) - 1);
}

// take brings what is new to shared memory, all of it at once: queries and what reads to `left`, keys to
// the first rows of `keys`, decays to the rows from M on. What is not there has no effect.
template <u32 M>
FN void take(const Job &job, const Place &p, const Layout<M> &l) {
  const u32 decays = job.perKey ? job.dk : 1;
  for (u32 c = threadIndex(); c < l.channels; c += THREADS) {
    const u32 channel = c < job.dk ? c : job.dk - 1;
    u32 q[M], k[M], e[M];
    float g[M];
UNROLL
    for (u32 i = 0; i < M; i++) {  // past the end the last one once more: no branch lies between
      const u64 row = i < job.rows ? i : job.rows - 1;
      const u64 of = (row * job.keyHeads + p.key) * job.dk + channel, each = (row * job.heads + p.head) * job.dk + channel;
      q[i] = bitsOf(job.newType, job.newQ, of);
      k[i] = bitsOf(job.newType, job.newK, of);
      e[i] = bitsOf(job.newType, job.newE ? job.newE : job.newK, job.newE ? each : of);
      g[i] = loadSingle(job.newG, (row * job.heads + p.head) * decays + (job.perKey ? channel : 0));
    }
UNROLL
    for (u32 i = 0; i < M; i++) {
      const bool inside = i < job.rows && c < job.dk;
      shared<float>(l.left)[i * l.channels + c] = inside ? meaning(job.newType, q[i]) : 0;
      shared<float>(l.left)[(M + i) * l.channels + c] = inside ? meaning(job.newType, e[i]) : 0;
      shared<float>(l.keys)[i * l.channels + c] = inside ? meaning(job.newType, k[i]) : 0;
      shared<float>(l.keys)[(M + i) * l.channels + c] = inside ? g[i] : 1;
    }
  }
}

// begin does 1: a warp has every fourth new row. Behind it lie in `left` queries and keys times
// the decays since the pending rows, and in `pairs` what rows read of each other.
template <u32 M>
FN void begin(const Job &job, const Place &p, const Layout<M> &l, u64 tables) {
  take(job, p, l);
  blockBarrier();
  for (u32 i = warpIndex(); i < M; i += THREADS / 32) {
    const u32 mask = i < job.rows ? ancestorsOf(job, tables, i) : 0;
    float x[M], y[M], own = 0;
UNROLL
    for (u32 j = 0; j < M; j++) x[j] = y[j] = 0;
    for (u32 c = laneIndex(); c < l.channels; c += 32) {
      Shared<float> read = shared<float>(l.left) + (i * l.channels + c), key = shared<float>(l.keys) + c;
      float q = read[0], e = read[M * l.channels], w = key[(M + i) * l.channels];
      own = fused(q, key[i * l.channels], own);
UNROLL
      for (u32 back = 0; back < M; back++) {
        const u32 j = M - 1 - back;
        if (!(mask >> j & 1)) continue;
        const float carried = w * kept(job.type, key[j * l.channels]);
        x[j] = fused(q, carried, x[j]);
        y[j] = fused(e, carried, y[j]);
        w = w * key[(M + j) * l.channels];
      }
      read[0] = q * w;
      read[M * l.channels] = e * w;
    }
    own = warpSum(own);
UNROLL
    for (u32 j = 0; j < M; j++) {
      x[j] = warpSum(x[j]);
      y[j] = warpSum(y[j]);
    }
    if (laneIndex() != 0) continue;
UNROLL
    for (u32 j = 0; j < M; j++) {
      shared<float>(l.pairs)[i * M + j] = x[j];
      shared<float>(l.pairs)[(M + i) * M + j] = y[j];
    }
    shared<float>(l.pairs)[2 * M * M + i] = own;
  }
}

// Channel is where a channel's keys and decays lie: those of row r at base + r*stride, of one that is new
// at the new bases.
struct Channel {
  u64 k, newK, g, newG;
  u32 kStride, newStride, gStride;
};

FN Channel channelOf(const Job &job, const Place &p, u32 channel) {
  const u32 size = sizeOf(job.type), newSize = sizeOf(job.newType), decays = job.perKey ? job.dk : 1;
  const u64 k = (u64)p.key * job.dk + channel, g = 4 * ((u64)p.head * decays + (job.perKey ? channel : 0));
  return {job.k + k * size, job.newK + k * newSize, job.g + g, job.newG + g,
          job.keyHeads * job.dk * size, job.keyHeads * job.dk * newSize, job.heads * decays * 4};
}

// walk puts keys [first, first+count) of a path times the decays behind them to shared memory,
// from the last one on. AHEAD of them are asked for before the first is used. ALL: rows may be new.
template <bool ALL, u32 M>
FN void walk(const Job &job, const Place &p, const Layout<M> &l, u64 path, u32 first, u32 count) {
  for (u32 c = threadIndex(); c < l.channels; c += THREADS) {
    const bool inside = c < job.dk;
    const Channel at = channelOf(job, p, inside ? c : job.dk - 1);
    float w = shared<float>(l.decays)[c];
    for (u32 end = (count + AHEAD - 1) / AHEAD * AHEAD; end > 0; end -= AHEAD) {
      u32 key[AHEAD];
      float decay[AHEAD];
      bool fresh[AHEAD];
UNROLL
      for (u32 i = 0; i < AHEAD; i++) {  // past the end the last one once more: no branch lies between
        const u32 j = end - 1 - i, row = rowOf(path, first + (j < count ? j : count - 1));
        fresh[i] = ALL && row >= job.pending;
        const u32 r = fresh[i] ? row - job.pending : row, type = fresh[i] ? job.newType : job.type;
        key[i] = readNumber((fresh[i] ? at.newK : at.k) + (u64)r * (fresh[i] ? at.newStride : at.kStride), type == F32, 0);
        decay[i] = loadSingle((fresh[i] ? at.newG : at.g) + (u64)r * at.gStride, 0);
      }
UNROLL
      for (u32 i = 0; i < AHEAD; i++) {
        const u32 j = end - 1 - i;
        if (j >= count) continue;
        const float k = fresh[i] ? kept(job.type, meaning(job.newType, key[i])) : meaning(job.type, key[i]);
        shared<float>(l.keys)[j * l.channels + c] = inside ? w * k : 0;
        w = w * decay[i];
      }
    }
    shared<float>(l.decays)[c] = w;
  }
}

// multiply is the weights of a chunk's rows: a group of threads has one row.
template <u32 M>
FN void multiply(const Layout<M> &l, u32 members, u32 count) {
  const u32 group = threadIndex() / 8, part = threadIndex() % 8;
  float x[M], y[M];
UNROLL
  for (u32 i = 0; i < M; i++) x[i] = y[i] = 0;
  for (u32 c = part * 4; c < l.channels; c += 32) {
    const Four k = sharedFour(l.keys, group * l.channels + c);
UNROLL
    for (u32 i = 0; i < M; i++) {
      const Four q = sharedFour(l.left, i * l.channels + c), e = sharedFour(l.left, (M + i) * l.channels + c);
UNROLL
      for (u32 j = 0; j < 4; j++) {
        x[i] = fused(q.v[j], k.v[j], x[i]);
        y[i] = fused(e.v[j], k.v[j], y[i]);
      }
    }
  }
UNROLL
  for (u32 i = 0; i < M; i++) {
UNROLL
    for (u32 m = 4; m > 0; m /= 2) {
      x[i] += shuffleXor(x[i], m);
      y[i] += shuffleXor(y[i], m);
    }
    if (part == 0) {
      const bool member = (members >> i & 1) && group < count;
      shared<float>(l.weights)[i * GROUPS + group] = member ? x[i] : 0;
      shared<float>(l.weights)[(M + i) * GROUPS + group] = member ? y[i] : 0;
    }
  }
}

// Sums is what a thread has of four columns for each new row: of outputs, and of what the delta
// rule takes off.
template <u32 M>
struct Sums {
  float o[M][4], taken[M][4];
};

template <u32 M>
FN void add(Sums<M> &s, u32 i, float x, float y, const Four &f) {
UNROLL
  for (u32 j = 0; j < 4; j++) {
    s.o[i][j] = fused(x, f.v[j], s.o[i][j]);
    s.taken[i][j] = fused(y, f.v[j], s.taken[i][j]);
  }
}

// pendingRows does 2 for one pass, and then has the members read with all of its decays.
template <u32 M>
FN void pendingRows(const Job &job, const Place &p, const Layout<M> &l, const Pass &pass, u64 tables, Sums<M> &sums) {
  const u32 group = threadIndex() / 8, column = p.column + threadIndex() % 8 * 4;
  const u64 path = pass.path ? tables + pass.path : 0;
  for (u32 c = threadIndex(); c < l.channels; c += THREADS) shared<float>(l.decays)[c] = 1;
  for (u32 end = pass.count; end > 0;) {
    const u32 count = end < (u32)GROUPS ? end : (u32)GROUPS, first = end - count;
    Four u = {};
    if (group < count && column < job.dv) {  // on its way while the others work
      const u32 row = rowOf(path, first + group);
      u = loadFour(job.type, job.u, ((u64)row * job.heads + p.head) * job.dv + column, job.dv - column, job.wideRows);
    }
    walk<false>(job, p, l, path, first, count);
    blockBarrier();
    multiply(l, pass.members, count);
    warpBarrier();  // a group's weights are its warp's own
UNROLL
    for (u32 i = 0; i < M; i++) {
      add(sums, i, shared<float>(l.weights)[i * GROUPS + group], shared<float>(l.weights)[(M + i) * GROUPS + group], u);
    }
    blockBarrier();
    end = first;
  }
  for (u32 c = threadIndex(); c < l.channels; c += THREADS) {
    const float w = shared<float>(l.decays)[c];
UNROLL
    for (u32 i = 0; i < M; i++) {
      if (!(pass.members >> i & 1)) continue;
      Shared<float> q = shared<float>(l.left) + (i * l.channels + c), e = shared<float>(l.left) + ((M + i) * l.channels + c);
      *q = *q * w;
      *e = *e * w;
    }
  }
}

// readState does 3.
template <u32 M>
FN void readState(const Job &job, const Layout<M> &l, Sums<M> &sums) {
  const u32 group = threadIndex() / 8, column = threadIndex() % 8 * 4;
  for (u32 d = group; d < job.dk; d += GROUPS) {
    const Four s = sharedFour(l.state, d * COLUMNS + column);
UNROLL
    for (u32 i = 0; i < M; i++) {
      add(sums, i, shared<float>(l.left)[i * l.channels + d], shared<float>(l.left)[(M + i) * l.channels + d], s);
    }
  }
}

// share adds up what groups have.
template <u32 M>
FN void share(const Layout<M> &l, Sums<M> &sums) {
UNROLL
  for (u32 i = 0; i < M; i++) {
UNROLL
    for (u32 j = 0; j < 4; j++) {
      float o = sums.o[i][j], taken = sums.taken[i][j];
      o += shuffleXor(o, 8);
      taken += shuffleXor(taken, 8);
      o += shuffleXor(o, 16);
      taken += shuffleXor(taken, 16);
      if (laneIndex() < 8) {
        const u32 at = (warpIndex() * 2 * M + i) * COLUMNS + laneIndex() * 4 + j;
        shared<float>(l.sums)[at] = o;
        shared<float>(l.sums)[at + M * COLUMNS] = taken;
      }
    }
  }
}

// Late is what finish needs of memory, asked for before the state is read.
template <u32 M>
struct Late {
  u32 values[M];
  float betas[M];
};

template <u32 M>
FN void ask(const Job &job, const Place &p, Late<M> &late) {
  const u32 column = p.column + threadIndex();
  if (threadIndex() >= COLUMNS || column >= job.dv) return;
UNROLL
  for (u32 i = 0; i < M; i++) {
    const u64 row = i < job.rows ? i : job.rows - 1;
    late.values[i] = bitsOf(job.newType, job.newV, (row * job.heads + p.head) * job.dv + column);
    late.betas[i] = loadSingle(job.beta, row * job.heads + p.head);
  }
}

// finish does 4: one warp, a column a thread. Delta values stay in `own`, as rows keep them.
template <u32 M>
FN void finish(const Job &job, const Place &p, const Layout<M> &l, const Late<M> &late) {
  const u32 lane = threadIndex(), column = p.column + lane;
  if (lane >= COLUMNS || column >= job.dv) return;
UNROLL
  for (u32 i = 0; i < M; i++) {
    if (i >= job.rows) break;
    float o = 0, taken = 0;
UNROLL
    for (u32 w = 0; w < THREADS / 32; w++) {
      o += shared<float>(l.sums)[(w * 2 * M + i) * COLUMNS + lane];
      taken += shared<float>(l.sums)[(w * 2 * M + M + i) * COLUMNS + lane];
    }
    for (u32 j = 0; j < i; j++) {
      const float u = shared<float>(l.own)[j * COLUMNS + lane];
      o = fused(shared<float>(l.pairs)[i * M + j], u, o);
      taken = fused(shared<float>(l.pairs)[(M + i) * M + j], u, taken);
    }
    const u64 to = ((u64)i * job.heads + p.head) * job.dv + column;
    const float v = meaning(job.newType, late.values[i]);
    const float u = late.betas[i] * (job.delta ? v - taken : v);
    store(job.newType, job.outputs, to, fused(shared<float>(l.pairs)[2 * M * M + i], u, o));
    shared<float>(l.own)[i * COLUMNS + lane] = kept(job.type, u);
    if (!job.out) store(job.type, job.u, ((u64)(job.pending + i) * job.heads + p.head) * job.dv + column, u);
  }
}

// append writes keys and decays of the new rows; delta values are written by finish. A key head's
// keys are written by the first of its value heads.
FN void append(const Job &job, const Place &p) {
  if (p.column != 0) return;
  const u32 decays = job.perKey ? job.dk : 1, group = job.heads / job.keyHeads;
  for (u32 i = 0; i < job.rows; i++) {
    const u64 g = ((u64)i * job.heads + p.head) * decays, behind = (u64)job.pending * job.heads * decays;
    for (u32 c = threadIndex(); c < decays; c += THREADS) at<float>(job.g)[behind + g + c] = loadSingle(job.newG, g + c);
    if (p.head % group != 0) continue;
    const u64 k = ((u64)i * job.keyHeads + p.key) * job.dk, rows = (u64)job.pending * job.keyHeads * job.dk;
    for (u32 c = threadIndex(); c < job.dk; c += THREADS) store(job.type, job.k, rows + k + c, load(job.newType, job.newK, k + c));
  }
}

// stage puts keys of rows [first, first+count) of a path, times the decays behind them, and their delta
// values to shared memory, and to `decays` those of all of these rows.
template <u32 M>
FN void stage(const Job &job, const Place &p, const Layout<M> &l, u64 path, u32 first, u32 count) {
  for (u32 c = threadIndex(); c < l.channels; c += THREADS) shared<float>(l.decays)[c] = 1;
  walk<true>(job, p, l, path, first, count);
  const u32 j = threadIndex() / 8, column = threadIndex() % 8 * 4;
  if (j >= count) return;
  const u32 row = rowOf(path, first + j);
  Four u = {};
  if (row >= job.pending) {
    u = sharedFour(l.own, (row - job.pending) * COLUMNS + column);
  } else if (p.column + column < job.dv) {
    u = loadFour(job.type, job.u, ((u64)row * job.heads + p.head) * job.dv + p.column + column, job.dv - p.column - column, job.wideRows);
  }
UNROLL
  for (u32 i = 0; i < 4; i++) shared<float>(l.values)[j * COLUMNS + column + i] = u.v[i];
}

// flush does 5, a chunk of rows at a time: S = (g1 g2 ..)*S + sum of (k times the decays behind it) u^T. A
// thread has HEIGHT rows of four columns in registers; a state of more than 64 rows stays in shared
// memory between chunks.
template <u32 M>
FN void flush(const Job &job, const Place &p, const Layout<M> &l, u64 tables) {
  const u32 column = threadIndex() % 8 * 4;
  u32 rows = job.pending + job.rows;
  u64 path = 0;
  if (job.passes) {
    const Pass all = at<const Pass>(tables + job.passes)[job.passCount];
    rows = all.count;
    path = tables + all.path;
  }
  for (u32 first = 0; first < rows; first += GROUPS) {
    const u32 count = rows - first < (u32)GROUPS ? rows - first : (u32)GROUPS;
    blockBarrier();  // the chunk before has been read
    stage(job, p, l, path, first, count);
    blockBarrier();
    for (u32 d = threadIndex() / 8 * HEIGHT; d < job.dk; d += GROUPS * HEIGHT) {
      const Four g = sharedFour(l.decays, d);
      float s[HEIGHT][4];
UNROLL
      for (u32 i = 0; i < HEIGHT; i++) {
        const u32 row = d + i < job.dk ? d + i : job.dk - 1;  // past the end the last one, not stored
        const Four f = sharedFour(l.state, row * COLUMNS + column);
UNROLL
        for (u32 c = 0; c < 4; c++) s[i][c] = g.v[i] * f.v[c];
      }
      for (u32 j = 0; j < count; j++) {
        const Four k = sharedFour(l.keys, j * l.channels + d), u = sharedFour(l.values, j * COLUMNS + column);
UNROLL
        for (u32 i = 0; i < HEIGHT; i++) {
UNROLL
          for (u32 c = 0; c < 4; c++) s[i][c] = fused(k.v[i], u.v[c], s[i][c]);
        }
      }
UNROLL
      for (u32 i = 0; i < HEIGHT; i++) {
        if (d + i >= job.dk) continue;
        Word4 w;
UNROLL
        for (u32 c = 0; c < 4; c++) w.v[c] = asBits(s[i][c]);
        shared<Word4>(l.state)[((d + i) * COLUMNS + column) / 4] = w;
      }
    }
  }
}

// write stores the state's columns; each thread those that it flushed.
FN void write(const Job &job, const Place &p, u32 state) {
  const u32 column = threadIndex() % 8 * 4, first = p.column + column;
  if (first >= job.dv) return;
  for (u32 row = threadIndex() / 8 * HEIGHT; row < job.dk; row += GROUPS * HEIGHT) {
    for (u32 d = row; d < row + HEIGHT && d < job.dk; d++) {
      const u64 to = job.out + (((u64)p.head * job.dk + d) * job.dv + first) * 4;
      if (job.wideState) {
        write16(at<float>(to), shared<Word4>(state)[(d * COLUMNS + column) / 4]);
        continue;
      }
      for (u32 j = 0; j < 4 && first + j < job.dv; j++) {
        at<float>(to)[j] = shared<float>(state)[d * COLUMNS + column + j];
      }
    }
  }
}

// decode is what a block does: grid.y counts jobs, grid.x is heads times columns of the largest.
template <u32 M>
FN void decode(u64 tables) {
  // A copy: what is in registers cannot be what a store writes.
  const Job job = at<const Job>(tables)[blockY()];
  const u32 tiles = (job.dv - 1) / COLUMNS + 1;
  Place p;
  p.head = blockX() / tiles;
  p.column = blockX() % tiles * COLUMNS;
  if (p.head >= job.heads) return;
  p.key = p.head / (job.heads / job.keyHeads);
  const Layout<M> l = layout<M>(job);
  const bool state = job.from || job.out;
  if (state) fetch(job, p, l.state);
  if (job.rows > 0) {
    Sums<M> sums = {};
    begin(job, p, l, tables);
    blockBarrier();
    if (!job.passes) {
      pendingRows(job, p, l, Pass{(1u << job.rows) - 1, job.pending, 0, 0}, tables, sums);
    } else {
      for (u32 i = 0; i < job.passCount; i++) {
        pendingRows(job, p, l, at<const Pass>(tables + job.passes)[i], tables, sums);
      }
    }
    Late<M> late;
    ask(job, p, late);
    if (state) waitAsync<0>();
    blockBarrier();
    if (state) readState(job, l, sums);
    share(l, sums);
    blockBarrier();
    finish(job, p, l, late);
    if (!job.out) append(job, p);
  } else if (state) {
    waitAsync<0>();
  }
  if (job.out) {
    flush(job, p, l, tables);
    blockBarrier();
    write(job, p, l.state);
  }
}

}  // namespace buffering

struct BufferArgs {
  u64 tables;
};

KERNEL(spliced_buffer_1, BufferArgs, 128, 4) { buffering::decode<1>(args.tables); }
KERNEL(spliced_buffer_4, BufferArgs, 128, 3) { buffering::decode<4>(args.tables); }
KERNEL(spliced_buffer_8, BufferArgs, 128, 2) { buffering::decode<8>(args.tables); }
