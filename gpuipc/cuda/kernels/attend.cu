// Attention over runs of rows where they lie (MEPIC §4): a run is rows of keys and values in
// blocks, or behind each other, and the turn that queries take before they read it. Keys that were
// stored as if their run began at position 0 are read by queries turned by R(-start), which is
// exact, so one copy serves requests that have it at different places. attend.go builds the
// launches.
//
// Two kernels, as in flash decoding: spliced_attend_* reads an item, which is part of a run, for
// up to 8 queries that share a key head, and leaves its sums with their largest score;
// spliced_attend_join puts the items of a request together.
//
// A block goes through its item 64 keys at a time:
//   scores: 16 groups of 8 threads have 4 keys each; a thread has every eighth piece of 8 channels,
//           which it reads from memory once for all queries;
//   softmax: a warp has two queries, with the largest score so far (online softmax);
//   values: a thread has 8 columns of all queries, and rows some apart.
// Everything is F32 in between; 2^x is the device's ex2.approx, right to 2^-22.
#include "device.h"

namespace attending {

enum : u32 { THREADS = 128, QUERIES = 8, KEYS = 64, PIECE = 8, GROUPS = 16, LINE = 128, EACH = KEYS / GROUPS, BATCH = 4 };

// Job is one row of the launch's table, as attend.go writes it.
struct Job {
  u64 q;         // [rows, heads, keyDim] of qType
  u64 out;       // [rows, heads, valueDim] of qType
  u64 sums;      // F32 [items, rows, heads, valueDim]
  u64 scales;    // F32 [items, rows, heads, 2]: largest score, sum of weights
  u32 rows, heads, keyHeads, keyDim, valueDim;
  u32 type, qType;
  u32 firstItem, items;
  float scale;   // of scores, times log2(e)
};
static_assert(sizeof(Job) == 72, "attend.go writes rows of 72 bytes");

// Run is rows of keys and values. Strides in bytes.
struct Run {
  u64 k, v;                // block 0, or row 0
  u64 kBlock, kRow, kHead;
  u64 vBlock, vRow, vHead;
  u64 blocks;              // where in the tables: block numbers
  u64 turn;                // where in the tables: cosines, then sines of what keys are short of; 0: of nothing
  u32 blockRows;         // 0: no blocks, row after row
  u32 firstRow;
  u32 half;                // pairs that turn
  u32 interleaved;         // pairs (2i, 2i+1); else (i, i + half)
};
static_assert(sizeof(Run) == 96, "attend.go writes rows of 96 bytes");

// Item is what a block reads: rows [first, first+count) of a run.
struct Item {
  u32 job, run;
  u32 first, count;
  i32 seen;  // rows of the run that the first query row sees; the next one sees one more
  u32 unused;
};

// Piece is 8 numbers as they lie; T is 0 where they are not aligned or not whole.
template <u32 T>
struct Piece {
  u32 w[T == F16 || T == BF16 ? 4 : 8];
};

FN float loadAny(u32 type, u64 from) {
  if (type == F32) return *at<const float>(from);
  return type == F16 ? halfToFloat(*at<const u16>(from)) : bfloatToFloat(*at<const u16>(from));
}

template <u32 T>
FN Piece<T> loadPiece(const Job &job, u64 row, u32 first, u32 end) {
  Piece<T> p;
  constexpr u32 WORDS = sizeof(p.w) / 4;
  if (T == 0) {
    const u32 size = sizeOf(job.type);
UNROLL
    for (u32 i = 0; i < PIECE; i++) p.w[i % WORDS] = asBits(first + i < end ? loadAny(job.type, row + (u64)(first + i) * size) : 0.0f);
    return p;
  }
UNROLL
  for (u32 i = 0; i < WORDS; i += 4) {
    const Word4 w = readOnce16(at<u8>(row + first * (WORDS / 2) + i * 4));
UNROLL
    for (u32 j = 0; j < 4; j++) p.w[i + j] = w.v[j];
  }
  return p;
}

template <u32 T>
FN float number(const Piece<T> &p, u32 i) {
  constexpr u32 WORDS = sizeof(p.w) / 4;
  if (T == F16) return halfToFloat((u16)(p.w[i / 2] >> i % 2 * 16));
  if (T == BF16) return bfloatToFloat((u16)(p.w[i / 2] >> i % 2 * 16));
  return asFloat(p.w[i % WORDS]);
}

// Layout is where things lie in shared memory, in bytes. attend.go computes the same sum.
struct Layout {
  u32 channels;  // keyDim, to a multiple of 64
  u32 queries;   // [QUERIES][channels], see place
  u32 scores;    // [QUERIES][KEYS], then weights
  u32 decays;    // [QUERIES]: what a larger score leaves of the sums so far
  u32 sums;      // [QUERIES][valueDim]
  u32 rows;      // u64 [2 tiles][2][KEYS]: where keys and values lie
};

FN Layout layout(const Job &job) {
  Layout l;
  l.channels = (job.keyDim + 63) / 64 * 64;
  l.rows = 0;
  l.queries = 4 * KEYS * 8;
  l.scores = l.queries + QUERIES * l.channels * 4;
  l.decays = l.scores + QUERIES * KEYS * 4;
  l.sums = l.decays + QUERIES * 4;
  return l;
}

// place is where a channel of a query lies: the first halves of 8 pieces, then their second ones,
// so that eight threads read 128 bytes that lie together.
FN u32 place(u32 c) { return c / 64 * 64 + c % 8 / 4 * 32 + c / 8 % 8 * 4 + c % 4; }

// Reach is what a block has to do.
struct Reach {
  u32 key, query, queries;  // the first query of the key head and how many
  u32 group;                // query heads of a key head
};

// load turns and scales the queries.
FN void loadQueries(const Job &job, const Run &run, const Reach &r, const Layout &l, u64 tables) {
  const float *cosines = at<const float>(tables + run.turn), *sines = cosines + run.half;
  const u32 size = sizeOf(job.qType), turned = run.turn ? 2 * run.half : 0;
  for (u32 i = threadIndex(); i < QUERIES * l.channels; i += THREADS) {
    const u32 n = i / l.channels, c = i % l.channels;
    float v = 0;
    if (n < r.queries && c < job.keyDim) {
      const u32 row = (r.query + n) / r.group, head = r.key * r.group + (r.query + n) % r.group;
      const u64 q = job.q + ((u64)row * job.heads + head) * job.keyDim * size;
      v = loadAny(job.qType, q + c * size);
      if (c < turned) {
        const u32 pair = run.interleaved ? c / 2 : c % run.half;
        const bool second = run.interleaved ? c % 2 : c >= run.half;
        const u32 other = run.interleaved ? c ^ 1 : second ? c - run.half : c + run.half;
        const float o = loadAny(job.qType, q + other * size), s = o * sines[pair];
        v = fused(v, cosines[pair], second ? -s : s);
      }
    }
    shared<float>(l.queries)[n * l.channels + place(c)] = v * job.scale;
  }
}

// locate puts to shared memory where keys [first, first+KEYS) of the run lie, past `end` the last,
// and has them on their way to the L2 while the tile before is worked on.
FN void locate(const Job &job, const Run &run, const Reach &r, u32 rows, u64 tables, u32 first, u32 end) {
  const u32 i = threadIndex() % KEYS;
  const bool values = threadIndex() >= KEYS;
  const u32 row = first + i < end ? first + i : end - 1;
  u64 to = values ? run.v + r.key * run.vHead : run.k + r.key * run.kHead;
  const u64 rowStride = values ? run.vRow : run.kRow, blockStride = values ? run.vBlock : run.kBlock;
  if (run.blockRows == 0) {
    to += row * rowStride;
  } else {
    const u32 tableRow = run.firstRow + row, entry = tableRow / run.blockRows;
    to += at<const u32>(tables + run.blocks)[entry] * blockStride + (tableRow - entry * run.blockRows) * rowStride;
  }
  shared<u64>(rows)[threadIndex()] = to;
  if (first + i >= end) return;
  const u32 bytes = (values ? job.valueDim : job.keyDim) * sizeOf(job.type);
  for (u32 line = 0; line < bytes; line += LINE) prefetch(to + line);
}

// gatherSums adds up v of 8 threads that lie together: each gets the sum of one of its indices, the
// low three bits of the lane.
template <u32 HALF>
FN void gatherHalf(float (&v)[QUERIES]) {
  const bool high = laneIndex() & HALF;
UNROLL
  for (u32 i = 0; i < HALF; i++) {
    const float mine = high ? v[i + HALF] : v[i], others = high ? v[i] : v[i + HALF];
    v[i] = mine + shuffleXor(others, HALF);
  }
}
FN float gatherSums(float (&v)[QUERIES]) {
  gatherHalf<4>(v);
  gatherHalf<2>(v);
  gatherHalf<1>(v);
  return v[0];
}

// score leaves products of the queries with 64 keys, -inf where a query does not see one.
template <u32 T>
FN void score(const Job &job, const Item &item, const Reach &r, const Layout &l, u32 places, u32 first, u32 end) {
  const u32 group = threadIndex() / 8, part = threadIndex() % 8;
  float s[EACH][QUERIES];
  u64 rows[EACH];
UNROLL
  for (u32 i = 0; i < EACH; i++) {
    rows[i] = shared<u64>(places)[i * GROUPS + group];
UNROLL
    for (u32 n = 0; n < QUERIES; n++) s[i][n] = 0;
  }
  for (u32 c = part * PIECE; c < job.keyDim; c += 8 * PIECE) {
    Piece<T> k[EACH];
UNROLL
    for (u32 i = 0; i < EACH; i++) k[i] = loadPiece<T>(job, rows[i], c, job.keyDim);
UNROLL
    for (u32 n = 0; n < QUERIES; n++) {
UNROLL
      for (u32 h = 0; h < 2; h++) {
        const Word4 q = shared<Word4>(l.queries)[(n * l.channels + place(c + 4 * h)) / 4];
UNROLL
        for (u32 i = 0; i < EACH; i++) {
UNROLL
          for (u32 j = 0; j < 4; j++) s[i][n] = fused(asFloat(q.v[j]), number<T>(k[i], 4 * h + j), s[i][n]);
        }
      }
    }
  }
  const u32 row = (r.query + part) / r.group;  // of the query whose sum the thread gets
UNROLL
  for (u32 i = 0; i < EACH; i++) {
    const u32 key = i * GROUPS + group;
    const float sum = gatherSums(s[i]);
    const bool sees = first + key < end && (i32)(first + key) < item.seen + (i32)row && part < r.queries;
    shared<float>(l.scores)[part * KEYS + key] = sees ? sum : -__builtin_inff();
  }
}

// Largest is what a warp knows of two queries.
struct Largest {
  float score[2], weight[2];
};

// soften makes weights of scores, and tells what is left of the sums before.
FN void soften(const Layout &l, Largest &known) {
UNROLL
  for (u32 i = 0; i < 2; i++) {
    const u32 n = warpIndex() * 2 + i, at = n * KEYS + laneIndex();
    const float a = shared<float>(l.scores)[at], b = shared<float>(l.scores)[at + 32];
    float most = larger(a, b);
UNROLL
    for (u32 m = 16; m > 0; m /= 2) most = larger(most, shuffleXor(most, m));
    most = larger(most, known.score[i]);
    const bool none = most == -__builtin_inff();  // nothing was seen yet: all weights are 0
    const float base = none ? 0 : most, left = exponential2(known.score[i] - base);
    const float x = exponential2(a - base), y = exponential2(b - base);
    float sum = x + y;
UNROLL
    for (u32 m = 16; m > 0; m /= 2) sum += shuffleXor(sum, m);
    shared<float>(l.scores)[at] = x;
    shared<float>(l.scores)[at + 32] = y;
    if (laneIndex() == 0) shared<float>(l.decays)[n] = left;
    known.weight[i] = fused(known.weight[i], left, sum);
    known.score[i] = most;
  }
}

// Columns is which part of values a thread has.
struct Columns {
  u32 first, slot, slots;
  bool any;
};

FN Columns columnsOf(const Job &job) {
  const u32 pieces = (job.valueDim + PIECE - 1) / PIECE;
  u32 across = 1;
  while (across < pieces) across *= 2;
  Columns c;
  c.slots = THREADS / across;
  c.slot = threadIndex() / across;
  c.first = threadIndex() % across * PIECE;
  c.any = c.first < job.valueDim;
  return c;
}

// weigh adds weighted values of 64 keys.
template <u32 T>
FN void weigh(const Job &job, const Columns &c, const Layout &l, u32 places, u32 count, float (&sums)[QUERIES][PIECE]) {
UNROLL
  for (u32 n = 0; n < QUERIES; n++) {
    const float left = shared<float>(l.decays)[n];
UNROLL
    for (u32 j = 0; j < PIECE; j++) sums[n][j] = sums[n][j] * left;
  }
  if (!c.any) return;
  for (u32 first = c.slot; first < count; first += BATCH * c.slots) {
    Piece<T> v[BATCH];
UNROLL
    for (u32 i = 0; i < BATCH; i++) {
      const u32 key = first + i * c.slots;  // past the end one more of the tile, whose weight is 0
      v[i] = loadPiece<T>(job, shared<u64>(places)[KEYS + (key < KEYS ? key : KEYS - 1)], c.first, job.valueDim);
    }
UNROLL
    for (u32 i = 0; i < BATCH; i++) {
      const u32 key = first + i * c.slots;
      if (key >= count) continue;
UNROLL
      for (u32 n = 0; n < QUERIES; n++) {
        const float w = shared<float>(l.scores)[n * KEYS + key];
UNROLL
        for (u32 j = 0; j < PIECE; j++) sums[n][j] = fused(w, number<T>(v[i], j), sums[n][j]);
      }
    }
  }
}

// leave writes the item's sums: what threads of a column have is added slot by slot.
FN void leave(const Job &job, u32 index, const Reach &r, const Columns &c, const Layout &l, const Largest &known, const float (&sums)[QUERIES][PIECE]) {
  for (u32 slot = 0; slot < c.slots; slot++) {
    if (c.slot == slot && c.any) {
UNROLL
      for (u32 n = 0; n < QUERIES; n++) {
UNROLL
        for (u32 j = 0; j < PIECE; j++) {
          if (c.first + j >= job.valueDim) continue;
          Shared<float> to = shared<float>(l.sums) + (n * job.valueDim + c.first + j);
          *to = slot == 0 ? sums[n][j] : *to + sums[n][j];
        }
      }
    }
    blockBarrier();
  }
  const u64 all = (u64)job.rows * job.heads, item0 = (index - job.firstItem) * all;
  for (u32 n = 0; n < r.queries; n++) {
    const u32 row = (r.query + n) / r.group, head = r.key * r.group + (r.query + n) % r.group;
    float *to = at<float>(job.sums) + (item0 + (u64)row * job.heads + head) * job.valueDim;
    for (u32 j = threadIndex(); j < job.valueDim; j += THREADS) to[j] = shared<float>(l.sums)[n * job.valueDim + j];
  }
UNROLL
  for (u32 i = 0; i < 2; i++) {
    const u32 n = warpIndex() * 2 + i;
    if (laneIndex() != 0 || n >= r.queries) continue;
    const u32 row = (r.query + n) / r.group, head = r.key * r.group + (r.query + n) % r.group;
    float *to = at<float>(job.scales) + (item0 + (u64)row * job.heads + head) * 2;
    to[0] = known.score[i];
    to[1] = known.weight[i];
  }
}

struct Args {
  u64 tables;
  u64 runs, items;  // where in the tables
};

// attend is what a block does: grid.x counts items, grid.y key heads, grid.z eight queries each.
template <u32 T>
FN void attend(const Args &args) {
  const Item item = at<const Item>(args.tables + args.items)[blockX()];
  const Job job = at<const Job>(args.tables)[item.job];
  Reach r;
  r.key = blockY();
  if (r.key >= job.keyHeads) return;
  r.group = job.heads / job.keyHeads;
  r.query = blockZ() * QUERIES;
  const u32 all = r.group * job.rows;
  if (r.query >= all) return;
  r.queries = all - r.query < (u32)QUERIES ? all - r.query : (u32)QUERIES;
  const Run &run = at<const Run>(args.tables + args.runs)[item.run];
  const Layout l = layout(job);
  const u32 end = item.first + item.count;
  u32 places = l.rows, next = l.rows + 2 * KEYS * 8;
  locate(job, run, r, places, args.tables, item.first, end);
  loadQueries(job, run, r, l, args.tables);
  const Columns c = columnsOf(job);
  float sums[QUERIES][PIECE];
UNROLL
  for (u32 n = 0; n < QUERIES; n++) {
UNROLL
    for (u32 j = 0; j < PIECE; j++) sums[n][j] = 0;
  }
  Largest known = {{-__builtin_inff(), -__builtin_inff()}, {0, 0}};
  blockBarrier();
  for (u32 first = item.first; first < end; first += KEYS) {
    if (first + KEYS < end) locate(job, run, r, next, args.tables, first + KEYS, end);
    score<T>(job, item, r, l, places, first, end);
    blockBarrier();
    soften(l, known);
    blockBarrier();
    weigh<T>(job, c, l, places, end - first < (u32)KEYS ? end - first : (u32)KEYS, sums);
    blockBarrier();
    const u32 done = places;
    places = next;
    next = done;
  }
  leave(job, blockX(), r, c, l, known, sums);
}

// join puts items together: a block has one query head of one row of a job.
FN void join(const Args &args) {
  const Job job = at<const Job>(args.tables)[blockY()];
  const u32 all = job.rows * job.heads;
  if (blockX() >= all) return;
  const float *scales = at<const float>(job.scales) + (u64)blockX() * 2;
  float most = -__builtin_inff();
  for (u32 i = 0; i < job.items; i++) most = larger(most, scales[(u64)i * all * 2]);
  const float base = most == -__builtin_inff() ? 0 : most;
  float weight = 0;
  for (u32 i = 0; i < job.items; i++) {
    const float *s = scales + (u64)i * all * 2;
    weight = fused(s[1], exponential2(s[0] - base), weight);
  }
  for (u32 j = threadIndex(); j < job.valueDim; j += THREADS) {
    float v = 0;
    for (u32 i = 0; i < job.items; i++) {
      const float *sums = at<const float>(job.sums) + ((u64)i * all + blockX()) * job.valueDim;
      v = fused(sums[j], exponential2(scales[(u64)i * all * 2] - base), v);
    }
    v = weight > 0 ? quotient(v, weight) : 0;
    const u64 i = (u64)blockX() * job.valueDim + j;
    if (job.qType == F32) {
      at<float>(job.out)[i] = v;
    } else {
      at<u16>(job.out)[i] = job.qType == F16 ? halfFromFloat(v) : bfloatFromFloat(v);
    }
  }
}

}  // namespace attending

typedef attending::Args AttendArgs;

KERNEL(spliced_attend_f32, AttendArgs, 128, 2) { attending::attend<F32>(args); }
KERNEL(spliced_attend_f16, AttendArgs, 128, 2) { attending::attend<F16>(args); }
KERNEL(spliced_attend_bf16, AttendArgs, 128, 2) { attending::attend<BF16>(args); }
KERNEL(spliced_attend_any, AttendArgs, 128, 2) { attending::attend<0>(args); }
KERNEL(spliced_attend_join, AttendArgs, 128, 8) { attending::join(args); }
