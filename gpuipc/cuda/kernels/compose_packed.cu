// Composing running states by dense transitions of packed parts (compose_heads.cu) as they are, so
// that a third of the bytes come from HBM. Otherwise as compose_dense.cu, whose plain T and S may be
// of steps between.
//
// Heads and steps have forms of their own. Two warps look up where the next step's heads lie and leave
// it in shared memory for all: a block does one thing, whatever becomes of the part meanwhile.
//
// A slot of the ring takes a tile's bytes as they lie in the part, from the multiple of 16 before them.
// T's integers are made fp16 once for all warps, behind the barrier that says they are there: a tile
// laid out as one of plain fp16, with a barrier of its own. They are exact, so that two products do;
// each row of the result takes its scale, and g times the old state, which still lies where warps
// park the new one. Integers of 16 bits are two tiles one after the other, of 10 and 6 bits. S is
// read by one lane each number and made F32 on the way. A T of zeros is neither read nor multiplied.
//
// By counting, of 8 bit T and S, [128, 128], per head and step: 32 KiB of HBM in place of 96; a warp
// takes 600 instructions more than the 2,500 of plain ones.
#include "compose_heads.cu"
#include "compose_strips.cu"

struct PackedArgs {
  u64 tables;          // as of ComposeArgs
  u32 columns;         // of a block: 16 for each of its warps
  u32 sOffset;         // where in a slot of the ring S begins,
  u32 scaleOffset;     // and scales, 320 bytes
  u32 slotBytes;       // a multiple of 128, as sOffset
  u32 slots;           // 2 or 3
  u32 expandedOffset;  // where a tile of T lies as fp16,
  u32 headsOffset;     // two Found and the job, from a multiple of 64 on,
  u32 parkOffset;      // and the states of warps
};
static_assert(sizeof(PackedArgs) == 40, "compose.go");

// Found says where a step's heads lie.
struct alignas(16) Found {
  u64 t, s;
  u32 tKind, sKind;
  u32 step;  // that of them; the job's count if there are no more
  u32 unused;
};
static_assert(sizeof(Found) == 32, "one of two is the other's place ^ 32");

// Kinds are those of a step's heads, in one register.
struct Kinds {
  u32 both;
  FN u32 t(Kinds k) { return k.both & 15; }
  FN u32 s(Kinds k) { return k.both >> 4; }
};

enum : u32 { JOB = 2 * sizeof(Found) };  // behind those, what is needed once a step and would take registers

// PackedCursor walks over the tiles of all steps that have T and S.
struct PackedCursor {
  u32 step, tile;
  u64 t, s;  // heads of the step
  Kinds kinds;
  u32 next;  // where the next step's Found lies
};

// look finds the heads of the first step from `step` on that has any. They can be read behind a barrier.
FN void look(const PackedArgs &args, const ComposeJob &job, u32 head, u32 to, u32 step) {
  const u32 warp = warpIndex();
  if (warp > 1) return;
  ComposeStep st = {};
  for (; step < job.count; step++) {
    st = readStep(args.tables + job.steps, step);
    if (st.s) break;
  }
  Head h = {};
  if (step < job.count) h = findHead(warp == 0 ? transitions(job, st) : endStates(job, st), head);
  if (laneIndex() != 0) return;
  Found &f = *shared<Found>(to);
  if (warp == 0) {
    f.t = h.at;
    f.tKind = h.kind;
    f.step = step;
  } else {
    f.s = h.at;
    f.sKind = h.kind;
  }
}

// copyRun copies the pieces of 16 bytes that n bytes lie in.
FN void copyRun(u32 to, u64 from, u32 n) {
  const u32 end = (u32)(from & 15) + n;
  const u8 *p = at<const u8>(from & ~(u64)15);
  for (u32 i = 16 * again(threadIndex()); i < end; i += 16 * threads()) copyAsync16(shared<u8>(to + i), p + i, 16);
}

// packedPlace is where a row of packed S begins in its tile: eight rows further other banks serve it.
FN u32 packedPlace(u32 row, u32 columns) { return row * (2 * columns + 16) + (row >> 3) * 32; }

// copyPieces is copyRun of n bytes of each row.
FN void copyPieces(u32 to, u32 columns, const Tile &s) {
  const u32 id = again(threadIndex());
  for (u32 row = id / 8; row < s.rows; row += threads() / 8) {
    const u64 from = (u64)s.from + (u64)row * s.stride;
    const u32 end = (u32)(from & 15) + s.have, place = to + packedPlace(row, columns);
    const u8 *p = at<const u8>(from & ~(u64)15);
    for (u32 i = id % 8 * 16; i < end; i += 128) copyAsync16(shared<u8>(place + i), p + i, 16);
  }
}

// Scales of a tile: 16 bytes that begin with g, then those from 4 bytes before the first scale on.
enum : u32 { SCALES = 20, SCALES_OF_S = 160 };

FN void copyScales(u32 to, u64 head, u32 row, u32 rows, u32 i) {
  const u8 *p = at<const u8>(head);
  if (i == 0) copyAsync16(shared<u8>(to), p, 16);
  else if (i < 10 && 16 * (i - 1) < 4 + 4 * rows) copyAsync16(shared<u8>(to + 16 * i), p + 4 * row + 16 * (i - 1), 16);
}

// integersAt is where a row's integers begin in a head. That is at a multiple of 16, so that copyRun puts
// them (integersAt & 15) bytes behind a slot's beginning.
FN u32 integersAt(u32 rows, u32 row, u32 bytes) { return 4 + 4 * rows + row * bytes; }

template <u32 DK>
FN void fetchT(const Strip &a, u32 slot, u32 scales, const PackedCursor &c, u32 row, u32 rows) {
  const u32 dk = a.job.dk, kind = Kinds::t(c.kinds);
  if (kind == ZERO) return;
  if (kind >= INT8) {
    const u32 stride = rowBytes(kind, dk);
    copyRun(slot, c.t + integersAt(dk, row, stride), rows * stride);
    copyScales(scales, c.t, row, rows, threadIndex());
    return;
  }
  const u32 stride = dk * sizeOf(kind);
  const Tile t = {at<const u8>(c.t) + (u64)row * stride, stride, rows, stride};
  if (kind == F32) copyT<DK * 4>(slot, t, 16);
  else copyT<DK * 2>(slot, t, 64);
}

FN void fetchS(const Strip &a, u32 columns, u32 slot, u32 scales, const PackedCursor &c, u32 row, u32 rows) {
  const u32 dk = a.job.dk, dv = a.job.dv, across = dv - a.column < columns ? dv - a.column : columns;
  const u32 kind = Kinds::s(c.kinds);
  if (kind == ZERO) return;
  if (kind >= INT8) {
    const u32 stride = rowBytes(kind, dv), from = integersAt(dk, row, stride) + rowBytes(kind, a.column);
    copyPieces(slot, columns, {at<const u8>(c.s) + from, stride, rows, rowBytes(kind, across)});
    copyScales(scales + SCALES_OF_S, c.s, row, rows, threadIndex() - 32);
    return;
  }
  const u32 size = sizeOf(kind), stride = dv * size;
  const Tile s = {at<const u8>(c.s) + ((u64)row * dv + a.column) * size, stride, rows, (dv - a.column) * size};
  if (kind == F32) copyS<true>(slot, s);
  else copyS<false>(slot, s);
}

// fetchPacked begins to copy the tile at the cursor, if there is one, and moves on. Behind the last
// row nothing is copied.
template <u32 DK>
FN void fetchPacked(const Strip &a, const PackedArgs &args, PackedCursor &c, u32 slot) {
  if (c.tile == 0 && c.step < a.job.count) {
    const Found f = *shared<Found>(c.next);
    c.step = f.step;
    if (f.step < a.job.count) {
      c.t = f.t;
      c.s = f.s;
      c.kinds = {f.tKind | f.sKind << 4};
      c.next ^= sizeof(Found);
      look(args, *shared<ComposeJob>(args.headsOffset + JOB), a.head, c.next, f.step + 1);  // nobody needs any more what lies there: a barrier is between
    }
  }
  if (c.step < a.job.count) {
    const u32 base = slot * args.slotBytes, row = c.tile * TILE;
    if (row < a.job.dk) {
      const u32 rows = a.job.dk - row < TILE ? a.job.dk - row : TILE;
      fetchT<DK>(a, base, base + args.scaleOffset, c, row, rows);
      fetchS(a, args.columns, base + args.sOffset, base + args.scaleOffset, c, row, rows);
    }
    if (++c.tile == DK / TILE) {
      c.tile = 0;
      c.step++;
    }
  }
  commitAsync();
}

// halves are eight neighbouring integers as fp16, of those with 16 bits the upper 10 bits, or the
// lower 6 in the second pass. fp16 has a place of one from 1024 on: bits below its exponent are that
// number more.
template <u32 KIND>
FN Word4 halves(u32 place, u32 pass) {
  Word4 w;
  if (KIND == INT8) {
    UNROLL
    for (u32 i = 0; i < 2; i++) {
      const u32 bytes = *shared<u32>(place + 4 * i) ^ 0x80808080u;
      w.v[2 * i] = addF16(permute(bytes, 0x64646464u, 0x4140), 0xe480e480u);  // -(1024 + 128)
      w.v[2 * i + 1] = addF16(permute(bytes, 0x64646464u, 0x4342), 0xe480e480u);
    }
  } else if (KIND == INT12) {
    const u32 a = *shared<u32>(place), b = *shared<u32>(place + 4), c = *shared<u32>(place + 8);
    const u32 pairs[4] = {a, shiftRight(a, b, 24), shiftRight(b, c, 16), c >> 8};
    UNROLL
    for (u32 i = 0; i < 4; i++) {
      // Ten bits of each, and the upper two, with their sign turned, as 1024 + 256 times them.
      const u32 both = (pairs[i] & 0xffffu) | (pairs[i] << 4 & 0xffff0000u);
      const u32 lower = (both & 0x03ff03ffu) | 0x64006400u, upper = (both >> 2 & 0x03000300u) ^ 0x66006600u;
      w.v[i] = addF16(fusedF16(upper, 0x44004400u, 0xef00ef00u), lower);  // upper*4 - 7168
    }
  } else {
    UNROLL
    for (u32 i = 0; i < 4; i++) {
      const u32 both = *shared<u32>(place + 4 * i) ^ 0x80008000u;
      if (pass == 0) w.v[i] = addF16((both >> 6 & 0x03ff03ffu) | 0x64006400u, 0xe600e600u);  // -(1024 + 512)
      else w.v[i] = addF16((both & 0x003f003fu) | 0x64006400u, 0xe400e400u);                 // -1024
    }
  }
  return w;
}

// expand lays a tile of integers out as copyT<DK * 2> does fp16. A thread has some groups of eight under way at
// once. What lies behind the last row is some numbers, whose sums are cleared.
template <u32 KIND, u32 DK>
FN void expand(u32 to, u32 from, u32 stride, u32 columns, u32 pass) {
  constexpr u32 across = DK / 8, atOnce = DK == 192 ? 3 : DK / 32;
  for (u32 first = again(threadIndex()); first < TILE * across; first += atOnce * threads()) {
    Word4 w[atOnce];
    UNROLL
    for (u32 k = 0; k < atOnce; k++) {
      const u32 i = first + k * threads(), row = i / across, group = i % across;
      w[k] = halves<KIND>(from + row * stride + group * bitsOf(KIND), pass);
      if (8 * group >= columns) w[k] = {};
    }
    UNROLL
    for (u32 k = 0; k < atOnce; k++) {
      const u32 i = first + k * threads(), row = i / across, group = i % across;
      *shared<Word4>(to + row * DK * 2 + (16 * group ^ (row & 1) * 64)) = w[k];
    }
  }
}

template <u32 DK>
FN void expandTile(const PackedArgs &args, u32 kind, u32 slot, u32 dk, u32 row, u32 pass) {
  const u32 stride = rowBytes(kind, dk);
  const u32 from = slot + (integersAt(dk, row, stride) & 15);
  if (kind == INT8) expand<INT8, DK>(args.expandedOffset, from, stride, dk, pass);
  else if (kind == INT12) expand<INT12, DK>(args.expandedOffset, from, stride, dk, pass);
  else expand<INT16, DK>(args.expandedOffset, from, stride, dk, pass);
}

// scaleRows gives each row of a product of integers its scale, and adds more times the numbers before.
FN void scaleRows(u32 scales, float times, float more, const Part &before, Part &sum) {
  const u32 t = laneIndex() & 3;
  UNROLL
  for (u32 i = 0; i < 8; i++) {
    const float scale = *shared<float>(scales + SCALES + 4 * (8 * t + i)) * times;
    UNROLL
    for (u32 column = 0; column < 2; column++) {
      float &v = sum.v[i / 2][2 * column + (i & 1)];
      v *= scale;
      if (more != 0) v = fused(more, before.v[i / 2][2 * column + (i & 1)], v);
    }
  }
}

// addIntegers adds the tile's end-state.
template <u32 BITS>
FN void addIntegers(const PackedArgs &args, const Strip &a, u32 kind, u32 slot, u32 scales, u32 row, Part &sum) {
  const u32 lane = again(laneIndex()), g = lane >> 2, t = lane & 3, column = 16 * warpIndex() + 2 * g;
  const u32 stride = rowBytes(kind, a.job.dv);
  const u32 begin = integersAt(a.job.dk, row + 8 * t, stride) + rowBytes(kind, a.column);
  UNROLL
  for (u32 i = 0; i < 8; i++) {
    const u32 place = slot + packedPlace(8 * t + i, args.columns) + (begin + i * stride & 15) + column * BITS / 8;
    const u32 word = *shared<u32>(place & ~3u), shift = 8 * (place & 3);
    u32 pair = word >> shift;
    if (BITS == 12) pair = shiftRight(word, *shared<u32>((place & ~3u) + 4), shift);
    const float scale = *shared<float>(scales + SCALES + 4 * (8 * t + i));
    float &x = sum.v[i / 2][i & 1], &y = sum.v[i / 2][2 + (i & 1)];
    x = fused(scale, integer<BITS>(pair), x);
    y = fused(scale, integer<BITS>(pair >> BITS), y);
  }
  const float diagonal = *shared<float>(scales);
  if (diagonal == 0) return;
  UNROLL
  for (u32 i = 0; i < 8; i++) {
    const u32 from = row + 8 * t + i - a.column - column;
    if (from == 0) sum.v[i / 2][i & 1] += diagonal;
    if (from == 1) sum.v[i / 2][2 + (i & 1)] += diagonal;
  }
}

// addEnd adds S to 32 rows of T*state, from row on.
FN void addEnd(const PackedArgs &args, const Strip &a, u32 kind, u32 base, u32 row, Part &sum) {
  const u32 slot = base + args.sOffset, scales = base + args.scaleOffset + SCALES_OF_S;
  if (kind == INT8) addIntegers<8>(args, a, INT8, slot, scales, row, sum);
  else if (kind == INT12) addIntegers<12>(args, a, INT12, slot, scales, row, sum);
  else if (kind == INT16) addIntegers<16>(args, a, INT16, slot, scales, row, sum);
  else if (kind == F32) addTile<true>(slot, F32, args.columns, sum);
  else if (kind != ZERO) addTile<false>(slot, kind, args.columns, sum);
}

// keep parks rows of the new state, zeros behind the last one whatever was computed for them.
FN void keep(const Strip &a, u32 place, u32 row, Part &sum) {
  if (row + TILE > a.job.dk) clearBehind(a.job.dk - row, sum);
  park(place, sum);
}

// PackedWalk is how far a block has come.
struct PackedWalk {
  PackedCursor ahead;  // the next tile to ask for
  u32 slot;            // of the ring, whose tile is the next to use
};

// nextTile waits for a tile and asks for another one.
template <u32 DK>
FN u32 nextTile(const PackedArgs &args, const Strip &a, PackedWalk &w) {
  waitFor(args.slots);
  fetchPacked<DK>(a, args, w.ahead, w.slot == 0 ? args.slots - 1 : w.slot - 1);
  const u32 base = w.slot * args.slotBytes;
  w.slot = w.slot + 1 == args.slots ? 0 : w.slot + 1;
  return base;
}

// multiplyTiles is the step's product and sum by tiles: of TYPE, or for F16 also of integers. All
// threads reach the same barriers, those without columns too.
template <u32 TYPE, u32 DK>
FN void multiplyTiles(const PackedArgs &args, const Strip &a, Kinds kinds, PackedWalk &w, u32 parked, bool busy,
                      const Part (&x)[DK / TILE]) {
  const bool integers = TYPE == F16 && Kinds::t(kinds) >= INT8;
  const u32 passes = TYPE == F16 && Kinds::t(kinds) == INT16 ? 2 : 1;
  State<TYPE, DK> state;
  state.fill(state, x);
  for (u32 tile = 0; tile < DK / TILE; tile++) {
    const u32 base = nextTile<DK>(args, a, w), row = tile * TILE, scales = base + args.scaleOffset;
    if (row >= a.job.dk) continue;  // those are zeros already
    for (u32 pass = 0; pass < passes; pass++) {
      if (integers) {
        if (pass > 0) blockBarrier();
        expandTile<DK>(args, Kinds::t(kinds), base, a.job.dk, row, pass);
        blockBarrier();
      }
      if (!busy) continue;
      warpBarrier();  // copies took threads different ways, products want the warp together
      Part sum;
      multiplyTile<TYPE, DK>(integers ? args.expandedOffset : base, state, sum);
      if (integers) {
        const float more = pass > 0 ? 1 : *shared<float>(scales);
        Part before = {};
        if (more != 0) unpark(parked + tile * 2048, before);
        scaleRows(scales, passes > 1 && pass == 0 ? 64 : 1, more, before, sum);
      }
      if (pass == 0) addEnd(args, a, Kinds::s(kinds), base, row, sum);
      keep(a, parked + tile * 2048, row, sum);
    }
  }
}

// forget is a step whose T is zeros: what is left is S, whatever the state was.
template <u32 DK>
FN void forget(const PackedArgs &args, const Strip &a, Kinds kinds, PackedWalk &w, u32 parked, bool busy) {
  for (u32 tile = 0; tile < DK / TILE; tile++) {
    const u32 base = nextTile<DK>(args, a, w), row = tile * TILE;
    if (!busy || row >= a.job.dk) continue;
    Part sum = {};
    addEnd(args, a, Kinds::s(kinds), base, row, sum);
    keep(a, parked + tile * 2048, row, sum);
  }
}

template <u32 DK>
FN void composePacked(const PackedArgs &args) {
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 strips = (job.dv + args.columns - 1) / args.columns;
  if (blockX() >= job.heads * strips) return;
  const Strip a = {job, args.tables + job.steps, blockX() / strips, blockX() % strips * args.columns};
  const u32 parked = args.parkOffset + warpIndex() * (DK / TILE) * 2048;
  const bool busy = a.column + 16 * warpIndex() < job.dv;
  PackedWalk w = {};
  w.ahead.next = args.headsOffset;
  look(args, job, a.head, args.headsOffset, 0);
  if (threadIndex() == 0) *shared<ComposeJob>(args.headsOffset + JOB) = job;
  blockBarrier();
  for (u32 i = 0; i + 1 < args.slots; i++) fetchPacked<DK>(a, args, w.ahead, i);
  Part x[DK / TILE] = {};
  if (job.from) moveState<false, DK>(job.from, a, x);
  UNROLL
  for (u32 i = 0; i < DK / TILE; i++) park(parked + i * 2048, x[i]);
  for (u32 n = 0; n < job.count; n++) {
    const ComposeStep st = readStep(args.tables + shared<ComposeJob>(args.headsOffset + JOB)[0].steps, n);
    if (st.before) moveState<true, DK>(st.before, a, x);
    if (st.s == 0) continue;
    // The cursor is ahead of here by less than a step.
    const Kinds now = w.ahead.kinds;
    const u32 kind = Kinds::t(now);
    if (kind == ZERO) forget<DK>(args, a, now, w, parked, busy);
    else if (kind == BF16) multiplyTiles<BF16, DK>(args, a, now, w, parked, busy, x);
    else if (kind == F32) multiplyTiles<F32, DK>(args, a, now, w, parked, busy, x);
    else multiplyTiles<F16, DK>(args, a, now, w, parked, busy, x);
    UNROLL
    for (u32 i = 0; i < DK / TILE; i++) unpark(parked + i * 2048, x[i]);
  }
  const u64 out = shared<ComposeJob>(args.headsOffset + JOB)[0].out;
  if (out) moveState<true, DK>(out, a, x);
}

KERNEL(spliced_compose_packed_64, PackedArgs, 128, 3) { composePacked<64>(args); }
KERNEL(spliced_compose_packed_128, PackedArgs, 128, 3) { composePacked<128>(args); }
KERNEL(spliced_compose_packed_192, PackedArgs, 128, 2) { composePacked<192>(args); }
