// Rows of keys or values on their way into an engine's blocks: copied, and keys turned, in one
// pass. rotate.go builds the launch.
//
// A thread keeps its place inside the row (a unit of a head) and walks down the rows, so that
// the cosines and sines of a turn that all rows share are read once, into registers.
// Neighbouring threads take neighbouring units: reads are whole lines, writes whole runs of a
// head.
#include "device.h"
#ifdef SPLICED_EMULATE
#define METHOD inline
#else
#define METHOD __attribute__((device, always_inline))
#endif

namespace rotation {

enum : u32 { THREADS = 256 };

enum : u32 { HALVES = 1, PAIRS };  // Job::form

// Part is the blocks for what turns, or for what does not: warps whose threads went both ways
// would wait for memory twice.
struct Part {
  u32 units;       // of a head
  u32 lanes;       // units of a row
  u32 groupLanes;  // of which a block takes so many
  u32 groups;      // blocks beside each other for a whole row
  u32 blocks;      // beside and below each other: a multiple of groups
};

// Job is one row of the launch's table, as rotate.go writes it. Sizes and strides in bytes.
struct Job {
  u64 src;          // [rows, heads, dim]
  u64 dst;          // block 0, or row 0
  u64 turns;        // where in the tables: cosines, then sines
  u64 blocks;       // where in the tables: block numbers
  u64 rowBytes;     // of src
  u64 headBytes;    // of src
  u64 blockStride;  // of dst
  u64 rowStride;
  u64 headStride;
  u32 rows;
  u32 blockRows;  // 0: no blocks, row after row at rowStride
  u32 firstRow;
  u32 half;         // pairs of a head
  u32 type;
  u32 form;
  u32 perRow;       // cosines and sines are [rows, half], else [half]
  u32 wide;         // what turns moves by 16 bytes, else by elements
  u32 copyBytes;    // of a unit of what does not: 16, 8, 4 or 2
  Part turned, copied;
  u32 unused;
};
static_assert(sizeof(Job) == 152, "rotate.go writes rows of 152 bytes");

struct Single {
  typedef u32 Raw;
  METHOD static float value(u32 raw) { return asFloat(raw); }
  METHOD static u32 raw(float v) { return asBits(v); }
};
struct Half {
  typedef u16 Raw;
  METHOD static float value(u32 raw) { return halfToFloat((u16)raw); }
  METHOD static u32 raw(float v) { return halfFromFloat(v); }
};
struct Bfloat {
  typedef u16 Raw;
  METHOD static float value(u32 raw) { return bfloatToFloat((u16)raw); }
  METHOD static u32 raw(float v) { return bfloatFromFloat(v); }
};

struct Long {  // only copied
  typedef u64 Raw;
};

// Wide is 16 bytes of elements, Narrow is N elements wherever they lie.
template <class T>
struct Wide {
  enum : u32 { COUNT = 16 / sizeof(typename T::Raw), EACH = COUNT / 4, BATCH = 6 };
  Word4 word;
  METHOD void load(u64 from) { word = readOnce16(at<u8>(from)); }
  METHOD void store(u64 to) const { write16(at<u8>(to), word); }
  METHOD void get(float (&v)[COUNT]) const {
UNROLL
    for (u32 i = 0; i < COUNT; i++) v[i] = T::value(word.v[i / EACH] >> i % EACH * 16);
  }
  METHOD void set(const float (&v)[COUNT]) {
UNROLL
    for (u32 i = 0; i < 4; i++) {
      word.v[i] = T::raw(v[i * EACH]);
      if (EACH == 2) word.v[i] |= T::raw(v[i * EACH + 1]) << 16;
    }
  }
};
template <class T, u32 N>
struct Narrow {
  enum : u32 { COUNT = N, BATCH = 1 };
  typedef typename T::Raw Raw;
  Raw raw[N];
  METHOD void load(u64 from) {
UNROLL
    for (u32 i = 0; i < N; i++) raw[i] = at<Raw>(from)[i];
  }
  METHOD void store(u64 to) const {
UNROLL
    for (u32 i = 0; i < N; i++) at<Raw>(to)[i] = raw[i];
  }
  METHOD void get(float (&v)[N]) const {
UNROLL
    for (u32 i = 0; i < N; i++) v[i] = T::value(raw[i]);
  }
  METHOD void set(const float (&v)[N]) {
UNROLL
    for (u32 i = 0; i < N; i++) raw[i] = (Raw)T::raw(v[i]);
  }
};

FN u32 min(u32 a, u32 b) { return a < b ? a : b; }

// turnPair rounds as the host's turnPair: the product with the sine, and then, once, the
// multiply-add.
FN void turnPair(float &x, float &y, float c, float s) {
  float turned = fused(x, c, -(y * s));
  y = fused(y, c, x * s);
  x = turned;
}

// Turns is the cosines and sines of the N pairs of a unit. Where N is a multiple of four they
// lie on 16 bytes: then half is one too.
template <u32 N>
struct Turns {
  float cosines[N], sines[N];
  METHOD void read(const float *c, const float *s) {
    if (N % 4 == 0) {
UNROLL
      for (u32 i = 0; i < N; i += 4) {
        Word4 a = read16(c + i), b = read16(s + i);
UNROLL
        for (u32 j = 0; j < 4; j++) {
          cosines[(i + j) % N] = asFloat(a.v[j]);
          sines[(i + j) % N] = asFloat(b.v[j]);
        }
      }
      return;
    }
UNROLL
    for (u32 i = 0; i < N; i++) {
      cosines[i] = c[i];
      sines[i] = s[i];
    }
  }
};

// Halves, Pairs and Copied are what a thread does with its unit of a row: load takes it up,
// store turns it and puts it down. BATCH rows are on their way at once.
template <class U>
struct Halves {
  enum : u32 { COUNT = U::COUNT, TURNS = COUNT, BATCH = (U::BATCH + 1) / 2 };
  struct Held {
    U x, y;
  };
  u64 far;  // from x to y
  METHOD void load(Held &h, u64 from) const {
    h.x.load(from);
    h.y.load(from + far);
  }
  METHOD void store(Held &h, u64 to, const Turns<TURNS> &t) const {
    float x[COUNT], y[COUNT];
    h.x.get(x);
    h.y.get(y);
UNROLL
    for (u32 i = 0; i < COUNT; i++) turnPair(x[i], y[i], t.cosines[i], t.sines[i]);
    h.x.set(x);
    h.y.set(y);
    h.x.store(to);
    h.y.store(to + far);
  }
};
template <class U>
struct Pairs {
  enum : u32 { TURNS = U::COUNT / 2, BATCH = U::BATCH };
  typedef U Held;
  METHOD void load(Held &h, u64 from) const { h.load(from); }
  METHOD void store(Held &h, u64 to, const Turns<TURNS> &t) const {
    float v[U::COUNT];
    h.get(v);
UNROLL
    for (u32 i = 0; i < TURNS; i++) turnPair(v[2 * i], v[2 * i + 1], t.cosines[i], t.sines[i]);
    h.set(v);
    h.store(to);
  }
};
template <class U>
struct Copied {
  enum : u32 { TURNS = 0, BATCH = U::BATCH };
  typedef U Held;
  METHOD void load(Held &h, u64 from) const { h.load(from); }
  METHOD void store(Held &h, u64 to, const Turns<1> &) const { h.store(to); }
};

// Span is which rows are a thread's own: of the pass that its block takes at once it is in row
// slot; the block is one of columns below each other.
struct Span {
  u32 slot, pass, column, columns;
};

// Place is where a thread's unit lies.
struct Place {
  u64 src, dst;   // in row 0, in row 0 of block 0
  u32 firstPair;

  METHOD u64 target(const Job &job, u64 tables, u32 row) const {
    if (job.blockRows == 0) return dst + row * job.rowStride;
    u32 tableRow = job.firstRow + row, entry = tableRow / job.blockRows;
    u64 block = readFixed(at<const u32>(tables + job.blocks) + entry);
    return dst + block * job.blockStride + (tableRow - entry * job.blockRows) * job.rowStride;
  }
};

// walk moves one unit of each row that is the thread's. BATCH of them are on their way: where one has
// been put down the next is asked for, with the place that it goes to.
template <class M>
FN void walk(const Job &job, u64 tables, const Span &span, Place p, const M &move) {
  constexpr u32 BATCH = M::BATCH, PAIRS_HELD = M::TURNS > 0 ? (u32)M::TURNS : 1;
  const float *cosines = at<const float>(tables + job.turns) + p.firstPair;
  const float *sines = cosines + (u64)job.half * (job.perRow ? job.rows : 1);
  Turns<PAIRS_HELD> turns;
  const u32 step = span.columns * span.pass * BATCH;
  u32 row = span.column * span.pass * BATCH + span.slot;
  typename M::Held held[BATCH];
  u64 to[BATCH];
UNROLL
  for (u32 i = 0; i < BATCH; i++) {
    const u32 r = row + i * span.pass;
    if (r >= job.rows) break;
    move.load(held[i], p.src + r * job.rowBytes);
    to[i] = p.target(job, tables, r);
  }
  if (M::TURNS > 0 && !job.perRow) turns.read(cosines, sines);
  for (; row < job.rows; row += step) {
UNROLL
    for (u32 i = 0; i < BATCH; i++) {
      const u32 r = row + i * span.pass;
      if (r >= job.rows) break;
      const u64 angles = (u64)r * job.half;
      if (M::TURNS > 0 && job.perRow) turns.read(cosines + angles, sines + angles);
      move.store(held[i], to[i], turns);
      if (r + step >= job.rows) continue;
      move.load(held[i], p.src + (r + step) * job.rowBytes);
      to[i] = p.target(job, tables, r + step);
    }
  }
}

template <class T>
FN void turn(const Job &job, u64 tables, const Span &span, u64 src, u64 dst, u32 unit) {
  const u32 size = sizeof(typename T::Raw);
  bool halves = job.form == HALVES;
  u32 elements = job.wide ? 16 / size : halves ? 1 : 2;
  u64 from = (u64)unit * elements * size, far = (u64)job.half * size;
  Place p{src + from, dst + from, halves ? unit * elements : unit * elements / 2};
  if (job.wide && halves) {
    walk(job, tables, span, p, Halves<Wide<T>>{far});
  } else if (job.wide) {
    walk(job, tables, span, p, Pairs<Wide<T>>{});
  } else if (halves) {
    walk(job, tables, span, p, Halves<Narrow<T, 1>>{far});
  } else {
    walk(job, tables, span, p, Pairs<Narrow<T, 2>>{});
  }
}

FN void copy(const Job &job, u64 tables, const Span &span, u64 src, u64 dst, u32 unit) {
  u64 from = (u64)job.half * (job.type == F32 ? 8 : 4) + (u64)unit * job.copyBytes;
  Place p{src + from, dst + from, 0};
  switch (job.copyBytes) {
    case 16:
      return walk(job, tables, span, p, Copied<Wide<Single>>{});
    case 8:
      return walk(job, tables, span, p, Copied<Narrow<Long, 1>>{});
    case 4:
      return walk(job, tables, span, p, Copied<Narrow<Single, 1>>{});
    default:
      walk(job, tables, span, p, Copied<Narrow<Half, 1>>{});
  }
}

// rotate is what a thread does: grid.y counts jobs; of grid.x a job's first blocks turn, the next ones copy,
// others have nothing to do. A block is groupLanes units wide and as many rows high as its
// threads reach.
FN void rotate(u64 tables) {
  // A copy: what is in registers cannot be what a store writes.
  const Job job = at<const Job>(tables)[blockY()];
  const bool turns = blockX() < job.turned.blocks;
  const Part part = turns ? job.turned : job.copied;
  const u32 block = turns ? blockX() : blockX() - job.turned.blocks;
  if (block >= part.blocks) return;
  Span span;
  span.columns = part.blocks / part.groups;
  span.column = block / part.groups;
  span.pass = THREADS / part.groupLanes;
  span.slot = threadIndex() / part.groupLanes;
  const u32 lane = block % part.groups * part.groupLanes + threadIndex() % part.groupLanes;
  if (span.slot >= span.pass || lane >= part.lanes) return;
  const u32 head = lane / part.units, unit = lane % part.units;
  const u64 src = job.src + head * job.headBytes, dst = job.dst + head * job.headStride;
  if (!turns) {
    copy(job, tables, span, src, dst, unit);
  } else if (job.type == F32) {
    turn<Single>(job, tables, span, src, dst, unit);
  } else if (job.type == F16) {
    turn<Half>(job, tables, span, src, dst, unit);
  } else {
    turn<Bfloat>(job, tables, span, src, dst, unit);
  }
}

}  // namespace rotation

struct RotateArgs {
  u64 tables;
};

KERNEL(spliced_rotate, RotateArgs, 256, 3) { rotation::rotate(args.tables); }
