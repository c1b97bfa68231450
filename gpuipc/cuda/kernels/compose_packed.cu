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
// read by one lane each number and made F32 on the way. A T of zeros is neither read nor multiplied, and
// steps before it are left out.
//
// By counting, of 8 bit T and S, [128, 128], per head and step: 36 KiB of HBM in place of 96, and some 3,300
// instructions of a warp in place of 2,500, with two barriers a tile in place of one. 12 bits take 300
// more in T and 100 more in S.
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

// Behind those, the job, which is needed once a step and would take registers, and its first step.
enum : u32 { JOB = 2 * sizeof(Found), FIRST = JOB + sizeof(ComposeJob) };

// lasting is the first step that counts for a head: what was before one whose T is zeros is forgotten,
// unless the state before a step is asked for. It is for whole warps.
FN u32 lasting(const ComposeJob &job, u64 steps, u32 head) {
  u32 from = 0, asked = job.count;
  for (u32 first = 0; first < asked; first += 32) {
    const u32 n = first + laneIndex();
    u32 forgets = 0;
    if (n < job.count) {
      const ComposeStep st = readStep(steps, n);
      if (st.before) asked = n;
      if (st.s && st.tPart && at<const u8>(st.t)[head] == 1) forgets = n;
    }
    UNROLL
    for (u32 mask = 16; mask > 0; mask /= 2) {
      const u32 other = shuffleXor(asked, mask);
      if (other < asked) asked = other;
    }
    if (forgets >= asked) forgets = 0;
    UNROLL
    for (u32 mask = 16; mask > 0; mask /= 2) {
      const u32 other = shuffleXor(forgets, mask);
      if (other > forgets) forgets = other;
    }
    if (forgets > 0) from = forgets;
  }
  return from;
}

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

// copyRun copies the pieces of 16 bytes that n bytes lie in, by one warp.
FN void copyRun(u32 to, const u8 *from, u32 n) {
  constexpr u32 all = 16 * 32, atOnce = 4;
  const u32 lane = again(laneIndex()), shift = (u32)(u64)from & 15, end = shift + n;
  const u8 *p = from - shift + 16 * lane;
  u32 i = 16 * lane;
  to += i;
  for (; i + (atOnce - 1) * all < end; i += atOnce * all) {
    UNROLL
    for (u32 k = 0; k < atOnce; k++) copyAsync16(shared<u8>(to + k * all), p + k * all, 16);
    to += atOnce * all;
    p += atOnce * all;
  }
  for (; i < end; i += all) {
    copyAsync16(shared<u8>(to), p, 16);
    to += all;
    p += all;
  }
}

// packedPlace is where a row of packed S begins in its tile, with room for 64 numbers of 16 bits that
// begin anywhere: eight rows further other banks serve it.
enum : u32 { PIECES = 144, PIECES_OF_8 = 8 * PIECES + 32 };
FN u32 packedPlace(u32 row) { return row * PIECES + row / 8 * 32; }

// copyPieces is copyRun of s.have bytes of each row, at most 64 numbers. Rows are words, and four of
// them a multiple of 16 bytes: those of a thread begin as far behind one.
FN void copyPieces(u32 to, const Tile &s) {
  const u32 lane = again(laneIndex()), part = lane % 8 * 16;
  const u8 *p = s.from + lane / 8 * s.stride;
  const u32 shift = (u32)(u64)p & 15, end = shift + s.have;
  p = p - shift + part;
  to += packedPlace(lane / 8) + part;
  for (u32 row = lane / 8; row < s.rows; row += 8) {
    UNROLL
    for (u32 k = 0; k < 2; k++) {
      if (part < end && row + 4 * k < s.rows) copyAsync16(shared<u8>(to + k * 4 * PIECES), p, 16);
      if (part + 128 < end && row + 4 * k < s.rows) copyAsync16(shared<u8>(to + k * 4 * PIECES + 128), p + 128, 16);
      p += 4 * s.stride;
    }
    to += PIECES_OF_8;
  }
}

// Scales of a tile: 16 bytes that begin with g, then those from 4 bytes before the first scale on.
enum : u32 { SCALES_OF_S = 160 };

FN void copyScales(u32 to, u64 head, u32 row, u32 rows) {
  const u32 i = laneIndex();
  if (i >= 10) return;
  const u32 from = i == 0 ? 0 : 4 * row + 16 * (i - 1);
  if (from < 4 * (row + rows) + 4) copyAsync16(shared<u8>(to + 16 * i), at<const u8>(head) + from, 16);
}

// Scales are those of a lane's eight rows.
struct Scales {
  float of[8];
  FN Scales read(u32 from) {
    Word4 w[3];
    UNROLL
    for (u32 i = 0; i < 3; i++) w[i] = *shared<Word4>(from + 16 + 32 * (laneIndex() & 3) + 16 * i);
    Scales s;
    UNROLL
    for (u32 i = 0; i < 8; i++) s.of[i] = asFloat(w[(i + 1) / 4].v[(i + 1) % 4]);
    return s;
  }
};

// integersAt is where a row's integers begin in a head. The head lies at a multiple of 16, so that
// copyRun puts them (integersAt & 15) bytes behind a slot's beginning.
FN u32 integersAt(u32 rows, u32 row, u32 bytes) { return 4 + 4 * rows + row * bytes; }

template <u32 DK>
FN void fetchT(const Strip &a, u32 slot, const PackedCursor &c, u32 row, u32 rows) {
  const u32 kind = Kinds::t(c.kinds), stride = a.job.dk * sizeOf(kind);
  const Tile t = {at<const u8>(c.t) + (u64)row * stride, stride, rows, stride};
  if (kind == F32) copyT<DK * 4>(slot, t, 16);
  else copyT<DK * 2>(slot, t, 64);
}

FN void fetchS(const Strip &a, u32 slot, const PackedCursor &c, u32 row, u32 rows) {
  const u32 kind = Kinds::s(c.kinds), dv = a.job.dv, size = sizeOf(kind), stride = dv * size;
  const Tile s = {at<const u8>(c.s) + ((u64)row * dv + a.column) * size, stride, rows, (dv - a.column) * size};
  if (kind == F32) copyS<true>(slot, s);
  else copyS<false>(slot, s);
}

FN void fetchIntegersOfT(const Strip &a, u32 slot, u32 scales, const PackedCursor &c, u32 row, u32 rows) {
  const u32 dk = a.job.dk, stride = rowBytes(Kinds::t(c.kinds), dk);
  copyRun(slot, at<const u8>(c.t) + integersAt(dk, row, stride), rows * stride);
  copyScales(scales, c.t, row, rows);
}

FN void fetchIntegersOfS(const Strip &a, u32 columns, u32 slot, u32 scales, const PackedCursor &c, u32 row, u32 rows) {
  const u32 kind = Kinds::s(c.kinds), across = a.job.dv - a.column < columns ? a.job.dv - a.column : columns;
  const u32 stride = rowBytes(kind, a.job.dv), from = integersAt(a.job.dk, row, stride) + rowBytes(kind, a.column);
  copyPieces(slot, {at<const u8>(c.s) + from, stride, rows, rowBytes(kind, across)});
  copyScales(scales, c.s, row, rows);
}

// fetchTile begins to copy the rows that there are of a tile. Integers take one warp for T and one for
// S, others with each tile: it takes longer to work out where they lie than to copy them.
template <u32 DK>
FN void fetchTile(const Strip &a, const PackedArgs &args, const PackedCursor &c, u32 base, u32 row, u32 rows) {
  const u32 slotOfS = base + args.sOffset, scales = base + args.scaleOffset, t = Kinds::t(c.kinds), s = Kinds::s(c.kinds);
  const u32 turn = (warpIndex() + c.tile) & (threads() / 32 - 1);  // of two warps, or four
  if (t >= INT8) {
    if (turn == 0) fetchIntegersOfT(a, base, scales, c, row, rows);
  } else if (t != ZERO) {
    fetchT<DK>(a, base, c, row, rows);
  }
  if (s >= INT8) {
    if (turn == 1) fetchIntegersOfS(a, args.columns, slotOfS, scales + SCALES_OF_S, c, row, rows);
  } else if (s != ZERO) {
    fetchS(a, slotOfS, c, row, rows);
  }
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
      // All have read what lies there: that was a step ago, and barriers are between.
      look(args, *shared<ComposeJob>(args.headsOffset + JOB), a.head, c.next, f.step + 1);
    }
  }
  if (c.step < a.job.count) {
    const u32 base = slot * args.slotBytes, row = c.tile * TILE;
    if (row < a.job.dk) fetchTile<DK>(a, args, c, base, row, a.job.dk - row < TILE ? a.job.dk - row : TILE);
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

// expand lays a tile of integers out as copyT<DK * 2> does fp16. Some threads take a row, and all of
// them an even number of rows at once, some of which a thread has under way together. What lies behind
// the last row is some numbers, whose sums are cleared.
template <u32 KIND, u32 DK>
FN void expand(u32 to, u32 from, u32 stride, u32 columns, u32 pass) {
  constexpr u32 across = DK == 128 ? 16 : 8, atOnce = DK == 128 ? 4 : 2;
  const u32 id = again(threadIndex()), rows = threads() / across, group = id % across;
  const u32 row = id / across;
  from += row * stride + group * bitsOf(KIND);
  to += row * DK * 2 + (16 * group ^ (row & 1) * 64);
  for (u32 left = TILE * across / 64 >> threads() / 128; left > 0; left -= atOnce) {  // 64 threads, or 128
    UNROLL
    for (u32 part = 0; part < DK / 8; part += across) {
      Word4 w[atOnce] = {};
      if (8 * (group + part) < columns) {
        UNROLL
        for (u32 k = 0; k < atOnce; k++) w[k] = halves<KIND>(from + k * rows * stride + part * bitsOf(KIND), pass);
      }
      UNROLL
      for (u32 k = 0; k < atOnce; k++) *shared<Word4>(to + k * rows * DK * 2 + 16 * part) = w[k];
    }
    from += atOnce * rows * stride;
    to += atOnce * rows * DK * 2;
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
FN void scaleRows(u32 scales, float times, float more, u32 before, Part &sum) {
  const Scales s = Scales::read(scales);
  UNROLL
  for (u32 i = 0; i < 16; i++) sum.v[i / 4][i % 4] *= s.of[i / 4 * 2 + i % 2];
  if (times != 1) {
    UNROLL
    for (u32 i = 0; i < 16; i++) sum.v[i / 4][i % 4] *= times;
  }
  if (more == 0) return;
  Part old;
  unpark(before, old);
  UNROLL
  for (u32 i = 0; i < 16; i++) sum.v[i / 4][i % 4] = fused(more, old.v[i / 4][i % 4], sum.v[i / 4][i % 4]);
}

// readIntegers are two neighbouring ones, from a place that is a multiple of 4 and `odd` bytes on.
template <u32 BITS>
FN u32 readIntegers(u32 place, u32 odd) {
  if (BITS == 8) return *shared<u16>(place + odd);
  const u32 word = *shared<u32>(place);
  return BITS == 16 ? word : shiftRight(word, *shared<u32>(place + 4), 8 * odd);
}

// addRows adds eight rows of a tile's end-state to a lane's. Their numbers begin `shift` bytes behind
// multiples of 16, in the first row and, if all are as long as multiples of 16 (EVEN), in all.
template <u32 BITS, bool EVEN>
FN void addRows(u32 place, u32 odd, u32 shift, u32 stride, const Scales &s, Part &sum) {
  if (EVEN) place += shift;
  UNROLL
  for (u32 i = 0; i < 8; i++) {
    u32 pair;
    if (EVEN) pair = readIntegers<BITS>(place + i * PIECES, odd);
    else pair = readIntegers<BITS>(place + i * PIECES + (shift + i * stride & 15), odd);
    float &x = sum.v[i / 2][i & 1], &y = sum.v[i / 2][2 + (i & 1)];
    x = fused(s.of[i], integer<BITS>(pair), x);
    y = fused(s.of[i], integer<BITS>(pair >> BITS), y);
  }
}

// addIntegers adds the tile's end-state.
template <u32 BITS>
FN void addIntegers(const Strip &a, u32 kind, u32 slot, u32 scales, u32 row, Part &sum) {
  const u32 lane = again(laneIndex()), t = lane & 3, column = 16 * warpIndex() + 2 * (lane >> 2);
  const u32 stride = rowBytes(kind, a.job.dv), byte = column * BITS / 8;
  const u32 shift = integersAt(a.job.dk, row + 8 * t, stride) + rowBytes(kind, a.column) & 15;
  const u32 place = slot + t * PIECES_OF_8 + (byte & ~3u);
  const Scales s = Scales::read(scales);
  if (stride % 16 == 0) addRows<BITS, true>(place, byte & 3, shift, stride, s, sum);
  else addRows<BITS, false>(place, byte & 3, shift, stride, s, sum);
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
  if (kind == INT8) addIntegers<8>(a, INT8, slot, scales, row, sum);
  else if (kind == INT12) addIntegers<12>(a, INT12, slot, scales, row, sum);
  else if (kind == INT16) addIntegers<16>(a, INT16, slot, scales, row, sum);
  else if (kind == F32) addTile<true>(slot, F32, args.columns, sum);
  else if (kind == F16) addTile<false>(slot, F16, args.columns, sum);
  else if (kind == BF16) addTile<false>(slot, BF16, args.columns, sum);
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
    const u32 base = nextTile<DK>(args, a, w), row = tile * TILE;
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
      // Places are made anew in each pass: the compiler would keep all of them in registers.
      const u32 place = again(parked + tile * 2048), scales = again(base) + args.scaleOffset;
      multiplyTile<TYPE, DK>(again(integers ? args.expandedOffset : base), state, sum);
      if (integers) {
        const float more = pass > 0 ? 1 : *shared<float>(scales);
        scaleRows(scales, passes > 1 && pass == 0 ? 64 : 1, more, place, sum);
      }
      if (pass == 0) addEnd(args, a, Kinds::s(kinds), again(base), row, sum);
      keep(a, place, row, sum);
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
  if (warpIndex() == 0) {
    const u32 from = lasting(job, a.steps, a.head);
    if (laneIndex() == 0) {
      *shared<ComposeJob>(args.headsOffset + JOB) = job;
      *shared<u32>(args.headsOffset + FIRST) = from;
    }
  }
  blockBarrier();
  const u32 first = *shared<u32>(args.headsOffset + FIRST);
  look(args, job, a.head, args.headsOffset, first);
  blockBarrier();
  for (u32 i = 0; i + 1 < args.slots; i++) fetchPacked<DK>(a, args, w.ahead, i);
  Part x[DK / TILE] = {};
  if (job.from && first == 0) moveState<false, DK>(job.from, a, x);
  UNROLL
  for (u32 i = 0; i < DK / TILE; i++) park(parked + i * 2048, x[i]);
  for (u32 left = job.count - first; left > 0; left--) {
    const auto here = shared<ComposeJob>(args.headsOffset + JOB);
    const ComposeStep st = readStep(args.tables + here[0].steps, here[0].count - left);
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
