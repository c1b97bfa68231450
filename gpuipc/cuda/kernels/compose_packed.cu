// Composing running states by dense transitions of packed parts (compose_heads.cu) as they are, so
// that a third of the bytes come from HBM. Otherwise as compose_dense.cu, whose plain T and S may be
// of steps between. compose_integers.cu says how integers are multiplied and added.
//
// Heads and steps have forms of their own. Threads look up where the heads of 32 steps lie, one head each, and
// leave it in shared memory for all: a block does one thing, whatever becomes of the part meanwhile. Steps that a
// later T of zeros forgets are left out. Slots of the ring are as large as the forms of those steps ask for, so
// that there are up to four.
//
// By counting in ptxas' output, of [128, 128] in 8 bits, per head and step: 32 KiB of HBM in place of 96; each of 8 warps
// takes 2,500 instructions, as many as of plain numbers, and 3,800 where T and S have 12 bits.
#include "compose_integers.cu"

struct PackedArgs {
  u64 tables;        // as of ComposeArgs
  u32 columns;       // of a block: 16 for each of its warps
  u32 ringBytes;     // two slots of whatever forms at least, a multiple of 128
  u32 batchOffset;   // where a Batch lies
  u32 parkOffset;    // and the states of warps
};
static_assert(sizeof(PackedArgs) == 24, "compose.go");

enum : u32 { BATCH = 32, NOTHING = 15 };  // steps looked up at once; the kind of a step that changes nothing
static_assert(INT16 < NOTHING && NOTHING < RANK, "kinds of tiles");

// Found says where a step's heads lie.
struct alignas(16) Found {
  u64 t, s, before;
  u32 tKind, sKind;
};
struct alignas(16) Batch {
  Found steps[BATCH];
  u32 tBytes, sBytes;  // that tiles take at most
};
static_assert(sizeof(Batch) == 1040, "compose.go");

// tileOfT and tileOfS are the bytes that a tile takes.
template <u32 DK>
FN u32 tileOfT(u32 kind) {
  if (kind == ZERO || kind == NOTHING) return 0;
  return kind < INT8 ? TILE * DK * sizeOf(kind) : rowsBytes(pitchOfT(kind, DK));
}
FN u32 tileOfS(u32 kind, u32 dv, u32 columns) {
  if (kind == ZERO || kind >= NOTHING) return 0;
  return kind < INT8 ? TILE * columns * sizeOf(kind) : rowsBytes(pitchOfS(kind, dv, columns));
}

FN u32 allOf(u32 bits) {
  UNROLL
  for (u32 mask = 16; mask > 0; mask /= 2) bits |= shuffleXor(bits, mask);
  return bits;
}
FN u32 mostOf(u32 n) {
  UNROLL
  for (u32 mask = 16; mask > 0; mask /= 2) {
    const u32 other = shuffleXor(n, mask);
    n = n > other ? n : other;
  }
  return n;
}

// forgotten tells whether a later step's T is zeros and nobody wants the states between.
FN bool forgotten(u32 kind, u64 before) {
  const u32 lane = laneIndex(), zeros = allOf(kind == ZERO ? 1u << lane : 0), wanted = allOf(before ? 1u << lane : 0);
  const u32 later = 0xfffffffeu << lane, next = later & wanted;
  return zeros & (next ? later & ((next & -next) - 1) : later);
}

// look finds the heads of a batch of steps, those of T by the first warp, those of S by the second.
template <u32 DK>
FN void look(const PackedArgs &args, const ComposeJob &job, u32 head, u32 first) {
  const u32 warp = warpIndex(), lane = laneIndex();
  if (warp > 1) return;
  ComposeStep st = {};
  if (first + lane < job.count) st = readStep(args.tables + job.steps, first + lane);
  Head h = {0, NOTHING};
  if (st.s) h = findHeadAlone(warp == 0 ? transitions(job, st) : endStates(job, st), head);
  Batch &b = *shared<Batch>(args.batchOffset);
  Found &f = b.steps[lane];
  if (warp == 0) {
    if (h.kind >= RANK) h.kind = ZERO;  // nobody packs transitions so
    if (forgotten(h.kind, st.before)) h.kind = NOTHING;
    f.t = h.at;
    f.tKind = h.kind;
    f.before = st.before;
    const u32 most = mostOf(tileOfT<DK>(h.kind));
    if (lane == 0) b.tBytes = most;
  } else {
    f.s = h.at;
    f.sKind = h.kind;
    const u32 most = mostOf(tileOfS(h.kind, job.dv, args.columns));
    if (lane == 0) b.sBytes = most;
  }
}

// Ring is how a batch uses its shared memory: S of a tile and its scales lie behind T.
struct Ring {
  u32 slots, slotBytes, sOffset, scaleOffset;
  FN Ring make(const PackedArgs &args) {
    const auto batch = shared<Batch>(args.batchOffset);
    const u32 t = (batch[0].tBytes + 127) / 128 * 128, s = (batch[0].sBytes + 127) / 128 * 128;
    const u32 bytes = t + s + SCALES_BYTES, slots = args.ringBytes / bytes;
    return {slots < 4 ? slots : 4, bytes, t, t + s};
  }
};

// Kinds are those of a step's heads and which step it is, in one register.
struct Kinds {
  u32 all;
  FN Kinds make(const Found &f, u32 step) { return {f.tKind | f.sKind << 4 | step << 12}; }
  FN u32 s(Kinds k) { return k.all >> 4 & 255; }
  FN u32 step(Kinds k) { return k.all >> 12; }
};

// PackedCursor walks over the tiles of a batch's steps that change something.
struct PackedCursor {
  u32 step, steps, tile;
  Run t, s;  // of the step, if they are integers
};

template <u32 DK>
FN void beginStep(const Strip &a, u32 columns, const Found &f, PackedCursor &c) {
  const u32 dk = a.job.dk, dv = a.job.dv, across = dv - a.column < columns ? dv - a.column : columns;
  if (f.tKind >= INT8) {
    const u32 stride = wholeRow(f.tKind, dk);
    c.t = Run::make(f.t + integersAt(dk, 0, stride), stride, pitchOfT(f.tKind, dk), stride);
  }
  if (areIntegers(f.sKind)) {
    const u32 stride = wholeRow(f.sKind, dv), first = integersAt(dk, 0, stride) + wholeRow(f.sKind, a.column);
    c.s = Run::make(f.s + first, stride, pitchOfS(f.sKind, dv, columns), wholeRow(f.sKind, across));
  }
}

template <u32 DK>
FN void fetchT(const Strip &a, u32 slot, u32 scales, const Found &f, Run &run, u32 row, u32 rows) {
  const u32 dk = a.job.dk;
  if (f.tKind == ZERO) return;
  if (f.tKind >= INT8) {
    Run::copy(run, slot, rows, wholeRow(f.tKind, dk), pitchOfT(f.tKind, dk));
    copyScales(scales, f.t, row, rows, threadIndex());
    return;
  }
  const u32 stride = dk * sizeOf(f.tKind);
  const Tile t = {at<const u8>(f.t) + (u64)row * stride, stride, rows, stride};
  if (f.tKind == F32) copyT<DK * 4>(slot, t, 16);
  else copyT<DK * 2>(slot, t, 64);
}

FN void fetchS(const Strip &a, u32 columns, u32 slot, u32 scales, const Found &f, Run &run, u32 row, u32 rows) {
  const u32 dv = a.job.dv;
  if (f.sKind == ZERO) return;
  if (f.sKind >= RANK) {  // read where it lies, by all tiles
    const u32 line = 128 * again(threadIndex());
    if (row == 0 && line < rankOf(f.sKind) * (a.job.dk + dv + 4)) prefetch(f.s + line);
    return;
  }
  if (f.sKind >= INT8) {
    Run::copy(run, slot, rows, wholeRow(f.sKind, dv), pitchOfS(f.sKind, dv, columns));
    copyScales(scales + SCALES_OF_S, f.s, row, rows, threadIndex() - 32);
    return;
  }
  const u32 size = sizeOf(f.sKind), stride = dv * size;
  const Tile s = {at<const u8>(f.s) + ((u64)row * dv + a.column) * size, stride, rows, (dv - a.column) * size};
  if (f.sKind == F32) copyS<true>(slot, s);
  else copyS<false>(slot, s);
}

// fetchPacked begins to copy the tile at the cursor, if there is one, and moves on. Behind the last
// row nothing is copied.
template <u32 DK>
FN void fetchPacked(const Strip &a, const PackedArgs &args, const Ring &r, PackedCursor &c, u32 base) {
  const auto found = shared<Found>(args.batchOffset);
  if (c.tile == 0) {
    while (c.step < c.steps && found[c.step].tKind == NOTHING) c.step++;
    if (c.step < c.steps) beginStep<DK>(a, args.columns, found[c.step], c);
  }
  if (c.step < c.steps) {
    const u32 row = c.tile * TILE;
    if (row < a.job.dk) {
      const u32 rows = a.job.dk - row < TILE ? a.job.dk - row : TILE;
      const Found f = found[c.step];
      fetchT<DK>(a, base, base + r.scaleOffset, f, c.t, row, rows);
      fetchS(a, args.columns, base + r.sOffset, base + r.scaleOffset, f, c.s, row, rows);
    }
    if (++c.tile == DK / TILE) {
      c.tile = 0;
      c.step++;
    }
  }
  commitAsync();
}

// addDiagonal adds more to where row and column are the same.
FN void addDiagonal(float more, const Strip &a, u32 row, Part &sum) {
  const u32 lane = again(laneIndex()), column = a.column + 16 * warpIndex();
  if (more == 0 || column / TILE != row / TILE) return;
  UNROLL
  for (u32 i = 0; i < 8; i++) {
    const u32 from = row + 8 * (lane & 3) + i - column - 2 * (lane >> 2);
    if (from == 0) sum.v[i / 2][i & 1] += more;
    if (from == 1) sum.v[i / 2][2 + (i & 1)] += more;
  }
}

template <u32 KIND>
FN void addPacked(const PackedArgs &args, const Strip &a, u32 slot, u32 scales, u32 row, Part &sum) {
  const u32 from = integersAt(a.job.dk, row, wholeRow(KIND, a.job.dv)) + wholeRow(KIND, a.column);
  addIntegers<KIND>(slot + (from & 15), pitchOfS(KIND, a.job.dv, args.columns), scales, sum);
  addDiagonal(*shared<float>(scales), a, row, sum);
}

// addProducts adds a head of some rank, which lies at a multiple of 64: a lane has eight rows of two columns.
FN void addProducts(const Strip &a, u64 head, u32 rank, u32 row, Part &sum) {
  const u32 lane = again(laneIndex()), dk = a.job.dk, dv = a.job.dv;
  row += 8 * (lane & 3);
  if (row >= dk) return;
  u64 right = head + a.column + 16 * warpIndex() + 2 * (lane >> 2), left = head + rank * dv + row, scale = head + rank * (dv + dk);
  for (u32 k = 0; k < rank; k++) {
    const u32 pair = *at<const u16>(right), words[2] = {readFixed(at<const u32>(left)), readFixed(at<const u32>(left + 4))};
    const float unit = asFloat(readFixed(at<const u32>(scale))), b[2] = {integer<8>(pair), integer<8>(pair >> 8)};
    UNROLL
    for (u32 i = 0; i < 8; i++) {
      const float x = unit * integer<8>(words[i / 4] >> 8 * (i & 3));
      sum.v[i / 2][i & 1] = fused(x, b[0], sum.v[i / 2][i & 1]);
      sum.v[i / 2][2 + (i & 1)] = fused(x, b[1], sum.v[i / 2][2 + (i & 1)]);
    }
    right += dv;
    left += dk;
    scale += 4;
  }
}

// addEnd adds S to 32 rows of T*state, from row on.
FN void addEnd(const PackedArgs &args, const Strip &a, Kinds kinds, const Ring &r, u32 base, u32 row, Part &sum) {
  const u32 slot = base + r.sOffset, scales = base + r.scaleOffset + SCALES_OF_S, kind = Kinds::s(kinds);
  if (kind >= RANK) addProducts(a, shared<Found>(args.batchOffset)[Kinds::step(kinds)].s, rankOf(kind), row, sum);
  else if (kind == INT8) addPacked<INT8>(args, a, slot, scales, row, sum);
  else if (kind == INT12) addPacked<INT12>(args, a, slot, scales, row, sum);
  else if (kind == INT16) addPacked<INT16>(args, a, slot, scales, row, sum);
  else if (kind == F32) addTile<true>(slot, F32, args.columns, sum);
  else if (kind != ZERO) addTile<false>(slot, kind, args.columns, sum);
}

// parkedAt is where a lane's four pieces of 16 bytes lie, 32 of them apart.
FN Shared<Word4> parkedAt(u32 place) { return shared<Word4>(place + 16 * laneIndex()); }

FN void take(u32 place, Part &p) {
  const auto from = parkedAt(place);
  UNROLL
  for (u32 i = 0; i < 4; i++) {
    const Word4 w = from[32 * i];
    UNROLL
    for (u32 j = 0; j < 4; j++) p.v[i][j] = asFloat(w.v[j]);
  }
}

// keep parks rows of the new state, zeros behind the last one whatever was computed for them.
FN void keep(const Strip &a, u32 place, u32 row, Part &sum) {
  if (row + TILE > a.job.dk) clearBehind(a.job.dk - row, sum);
  const auto to = parkedAt(place);
  UNROLL
  for (u32 i = 0; i < 4; i++) {
    const float(&v)[4] = sum.v[i];
    to[32 * i] = {{asBits(v[0]), asBits(v[1]), asBits(v[2]), asBits(v[3])}};
  }
}

// PackedWalk is how far a block has come in a batch.
struct PackedWalk {
  Ring ring;
  PackedCursor ahead;  // the next tile to ask for
  u32 base;            // of the slot whose tile is the next to use
};

// nextTile waits for a tile, asks for another one and gives the slot.
template <u32 DK>
FN u32 nextTile(const PackedArgs &args, const Strip &a, PackedWalk &w) {
  if (w.ring.slots == 4) waitAsync<2>();
  else if (w.ring.slots == 3) waitAsync<1>();
  else waitAsync<0>();
  blockBarrier();
  const u32 base = w.base, behind = w.ring.slots * w.ring.slotBytes;
  fetchPacked<DK>(a, args, w.ring, w.ahead, (base == 0 ? behind : base) - w.ring.slotBytes);
  w.base = base + w.ring.slotBytes == behind ? 0 : base + w.ring.slotBytes;
  return base;
}

// A step goes over tiles, of which all threads reach the barriers, those without columns too. multiplyPlain is that of
// plain T, multiplyPacked of integers, forget of zeros: what is left is S, whatever the state was.
template <u32 TYPE, u32 DK>
FN void multiplyPlain(const PackedArgs &args, const Strip &a, Kinds kinds, PackedWalk &w, u32 parked, bool busy,
                      const Part (&x)[DK / TILE]) {
  State<TYPE, DK> state;
  state.fill(state, x);
  for (u32 tile = 0; tile < DK / TILE; tile++) {
    const u32 base = nextTile<DK>(args, a, w), row = tile * TILE;
    if (!busy || row >= a.job.dk) continue;  // rows behind the last one are zeros already
    warpBarrier();  // copies took threads different ways, products want the warp together
    Part sum;
    multiplyTile<TYPE, DK>(base, state, sum);
    addEnd(args, a, kinds, w.ring, base, row, sum);
    keep(a, parked + tile * 2048, row, sum);
  }
}

template <u32 KIND, u32 DK>
FN void multiplyPacked(const PackedArgs &args, const Strip &a, Kinds kinds, PackedWalk &w, u32 parked, bool busy,
                       const Part (&x)[DK / TILE]) {
  Digits<KIND, DK> state;
  state.fill(state, x);
  for (u32 tile = 0; tile < DK / TILE; tile++) {
    const u32 base = nextTile<DK>(args, a, w), row = tile * TILE, scales = base + w.ring.scaleOffset;
    if (!busy || row >= a.job.dk) continue;
    warpBarrier();
    Part sum, rest = {};
    state.multiply(state, base + (integersAt(a.job.dk, row, wholeRow(KIND, a.job.dk)) & 15), pitchOfT(KIND, a.job.dk), sum);
    const float g = *shared<float>(scales);
    if (g != 0) take(parked + tile * 2048, rest);
    const Scales scale = Scales::read(scales);
    UNROLL
    for (u32 i = 0; i < 16; i++) {
      float &v = sum.v[i / 4][i % 4];
      v = fused(v, scale.v[i / 4 * 2 + i % 2] * state.inverse[i / 2 % 2], g * rest.v[i / 4][i % 4]);
    }
    addEnd(args, a, kinds, w.ring, base, row, sum);
    keep(a, parked + tile * 2048, row, sum);
  }
}

template <u32 DK>
FN void forget(const PackedArgs &args, const Strip &a, Kinds kinds, PackedWalk &w, u32 parked, bool busy) {
  for (u32 tile = 0; tile < DK / TILE; tile++) {
    const u32 base = nextTile<DK>(args, a, w), row = tile * TILE;
    if (!busy || row >= a.job.dk) continue;
    Part sum = {};
    addEnd(args, a, kinds, w.ring, base, row, sum);
    keep(a, parked + tile * 2048, row, sum);
  }
}

// composeBatch moves the state by the steps that were looked up.
template <u32 DK>
FN void composeBatch(const PackedArgs &args, const Strip &a, u32 steps, u32 parked, Part (&x)[DK / TILE]) {
  const bool busy = a.column + 16 * warpIndex() < a.job.dv;
  PackedWalk w = {};
  w.ring = Ring::make(args);
  w.ahead.steps = steps;
  for (u32 i = 0; i + 1 < w.ring.slots; i++) fetchPacked<DK>(a, args, w.ring, w.ahead, i * w.ring.slotBytes);
  for (u32 n = 0; n < steps; n++) {
    const Found f = shared<Found>(args.batchOffset)[n];
    if (f.before) moveState<true, DK>(f.before, a, x);
    const Kinds kinds = Kinds::make(f, n);
    if (f.tKind == NOTHING) continue;
    if (f.tKind == ZERO) forget<DK>(args, a, kinds, w, parked, busy);
    else if (f.tKind == INT8) multiplyPacked<INT8, DK>(args, a, kinds, w, parked, busy, x);
    else if (f.tKind == INT12) multiplyPacked<INT12, DK>(args, a, kinds, w, parked, busy, x);
    else if (f.tKind == INT16) multiplyPacked<INT16, DK>(args, a, kinds, w, parked, busy, x);
    else if (f.tKind == F16) multiplyPlain<F16, DK>(args, a, kinds, w, parked, busy, x);
    else if (f.tKind == BF16) multiplyPlain<BF16, DK>(args, a, kinds, w, parked, busy, x);
    else multiplyPlain<F32, DK>(args, a, kinds, w, parked, busy, x);
    UNROLL
    for (u32 i = 0; i < DK / TILE; i++) take(parked + i * 2048, x[i]);
  }
}

template <u32 DK>
FN void composePacked(const PackedArgs &args) {
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 strips = (job.dv + args.columns - 1) / args.columns;
  if (blockX() >= job.heads * strips) return;
  const Strip a = {job, args.tables + job.steps, blockX() / strips, blockX() % strips * args.columns};
  const u32 parked = args.parkOffset + warpIndex() * (DK / TILE) * 2048;
  Part x[DK / TILE] = {};
  if (job.from) moveState<false, DK>(job.from, a, x);
  UNROLL
  for (u32 i = 0; i < DK / TILE; i++) park(parked + i * 2048, x[i]);
  for (u32 first = 0; first < job.count; first += BATCH) {
    if (first > 0) blockBarrier();  // nobody reads any more what is found of other steps
    look<DK>(args, at<const ComposeJob>(args.tables)[blockY()], a.head, first);
    blockBarrier();
    composeBatch<DK>(args, a, job.count - first < BATCH ? job.count - first : BATCH, parked, x);
  }
  const u64 out = at<const ComposeJob>(args.tables)[blockY()].out;
  if (out) moveState<true, DK>(out, a, x);
}

KERNEL(spliced_compose_packed_64, PackedArgs, 128, 3) { composePacked<64>(args); }
KERNEL(spliced_compose_packed_128, PackedArgs, 128, 3) { composePacked<128>(args); }
KERNEL(spliced_compose_packed_192, PackedArgs, 128, 2) { composePacked<192>(args); }
