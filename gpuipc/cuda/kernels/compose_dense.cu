// Composing running states by dense transitions, state = T*state + S (HYPIC Eq. 6), on the tensor
// cores, with F32's accuracy.
//
// Numbers. A state is the sum of two TF32 halves, hi = rna(x) and lo = rna(x - hi), which keep 22
// bits and more. fp16 and bf16 transitions are exact in TF32, so T*x = T*lo + T*hi; an F32 T has
// halves too, and lo*lo is left out. Tensor cores cut their sums instead of rounding them, which
// would cost a bit for every few products of a long sum, always towards zero (Ootomo and Yokota,
// Recovering single precision accuracy from Tensor Cores, 2022). So only 32 products of hi are
// summed there, from zero, and such sums are added in plain F32. A state that is not finite comes
// out as not finite, though an infinity may have become NaN, because inf - inf is.
//
// Columns of a state do not mix. A warp owns 16 of one head for all steps, in registers: it
// computes the transpose, state' = state * T', with its columns as the 16 rows of the product. The
// place of number (m = column, n = row of T) in the result of one product is then the place of
// (m, k) in the left operand of the next one, if its 8 columns k are taken in the order 0 2 4 6 1 3
// 5 7. Sums do not care for the order, so a result is the next step's operand where it stands:
// nothing goes through shared memory, no shuffle is needed. The order is chosen for four
// products at once, so that a lane's part of a row of T is 8 neighbouring numbers: within 32 rows
// (or columns) of T, slot s of product q stands for number 8*(s/2) + 2*q + s%2.
//
// T and S come in tiles of 32 rows of T and of S through a ring in shared memory, filled by
// asynchronous copies of 16 bytes, 2 to 3 tiles ahead: 16 bytes of T serve the warp four products
// and their halves. Rows of T lie with bit 6 (halves; bit 4 of F32) flipped in odd rows, rows of
// S with bits 5 and 6 flipped by bits 3 and 4 of the row: the eight (16) lanes that shared memory
// serves at once then touch different banks.
//
// What limits it, for [128, 128], T fp16, S F32, per head and step: 96 KiB of HBM, at 85 % of an
// H200's 4.8 TB/s 24 ns or, shared by 132 multiprocessors, 5,700 clocks each; 4,096 products of
// 16x8x8, 1.6 clocks each at the 62 % of the peak that mma.sync is known to reach on this
// generation, 6,600 clocks; 8 warps x 2,200 instructions on four schedulers, 4,400 clocks; shared
// memory about 2,600 clocks. So a long chain of steps is held by memory and tensor cores about alike, and one
// step with its From and Out (224 KiB) by memory. None of this was measured yet.
#include "compose_job.cu"

enum : u32 { TILE = 32 };  // rows of T and S in a tile; also columns of T in a block

struct DenseArgs {
  u64 tables;       // as of ComposeArgs
  u32 columns;      // of a block: 16 for each of its warps
  u32 sOffset;      // where in a slot of the ring S begins
  u32 slotBytes;
  u32 slots;        // 2 to 4
  u32 parkOffset;   // where warps keep a new state that registers do not
  u32 unused;
};
static_assert(sizeof(DenseArgs) == 32, "compose.go");

// Strip is a block's share of a job.
struct Strip {
  const ComposeJob &job;
  const ComposeStep *steps;
  u32 head, column, columns;
};

// Cursor walks over the tiles of all steps that have T and S.
struct Cursor {
  u32 step, tile;
};

FN void skipEmpty(const Strip &a, Cursor &c) {
  while (c.step < a.job.count && a.steps[c.step].s == 0) c.step++;
}

FN u32 sizeOf(u32 type) { return type == F32 ? 4 : 2; }

FN u32 tPlace(u32 row, u32 byte, u32 rowBytes, u32 type) {
  return row * rowBytes + (byte ^ ((row & 1) << (type == F32 ? 4 : 6)));
}
FN u32 sPlace(u32 row, u32 byte, u32 rowBytes) {
  return (row * rowBytes + byte) ^ ((row >> 3 & 3) << 5);
}

// copyRows begins to copy 32 rows: what lies behind the tensor's last row, or behind `have` bytes
// of a row, becomes zero. PLACE tells where a chunk goes.
template <class Place>
FN void copyRows(u32 to, const u8 *from, u64 stride, u32 rows, u32 have, u32 rowBytes, Place place) {
  const u32 across = rowBytes / 16;
  for (u32 i = again(threadIndex()); i < TILE * across; i += threads()) {
    const u32 row = i / across, byte = i % across * 16;
    const bool there = row < rows && byte < have;
    copyAsync16(shared<u8>(to + place(row, byte)), there ? from + row * stride + byte : from, there ? 16 : 0);
  }
}

// fetch begins to copy the tile at the cursor, if there is one, and moves on.
template <u32 DK>
FN void fetch(const Strip &a, const DenseArgs &args, Cursor &c, u32 slot) {
  skipEmpty(a, c);
  if (c.step < a.job.count) {
    const ComposeStep &st = a.steps[c.step];
    const u32 base = slot * args.slotBytes, row = c.tile * TILE;
    const u32 rows = row < a.job.dk ? a.job.dk - row : 0;
    const u64 first = (u64)a.head * a.job.dk + (rows ? row : 0);
    const u32 type = st.tType, tSize = sizeOf(type), sSize = sizeOf(st.sType);
    const u64 tStride = (u64)a.job.dk * tSize, sStride = (u64)a.job.dv * sSize;
    const u8 *t = at<const u8>(st.t) + first * tStride;
    const u8 *s = at<const u8>(st.s) + first * sStride + a.column * sSize;
    const u32 sBytes = a.columns * sSize, tHave = a.job.dk * tSize;
    const auto tAt = [=](u32 r, u32 b) { return tPlace(r, b, DK * tSize, type); };
    if (type == F32) copyRows(base, t, tStride, rows, tHave, DK * 4, tAt);
    else copyRows(base, t, tStride, rows, tHave, DK * 2, tAt);
    copyRows(base + args.sOffset, s, sStride, rows, (a.job.dv - a.column) * sSize, sBytes,
             [=](u32 r, u32 b) { return sPlace(r, b, sBytes); });
    if (++c.tile == DK / TILE) {
      c.tile = 0;
      c.step++;
    }
  }
  commitAsync();
}

FN void waitFor(u32 slots) {
  if (slots == 4) waitAsync<2>();
  else if (slots == 3) waitAsync<1>();
  else waitAsync<0>();
  blockBarrier();
}

// split makes halves by integer arithmetic: cvt.rna costs twice the instructions. hi is x to the
// nearest 11 bits; what is left of it has at most 12 bits, of which the last is cut from lo. A NaN
// stays one in lo.
FN void split(float x, u32 &hi, u32 &lo) {
  hi = (asBits(x) + 0x1000u) & 0xffffe000u;
  lo = asBits(x - asFloat(hi)) & 0xffffe000u;
}

// Row is a lane's 8 numbers of a row of T.
template <u32 TYPE>
struct Row;
template <>
struct Row<F32> {
  Word4 w[2];
  FN float get(const Row &r, u32 i) { return asFloat(r.w[i / 4].v[i % 4]); }
};
template <>
struct Row<F16> {
  Word4 w[1];
  FN float get(const Row &r, u32 i) { return halfToFloat((u16)(r.w[0].v[i / 2] >> (16 * (i & 1)))); }
};
template <>
struct Row<BF16> {
  Word4 w[1];
  FN float get(const Row &r, u32 i) {
    return asFloat(i & 1 ? r.w[0].v[i / 2] & 0xffff0000u : r.w[0].v[i / 2] << 16);
  }
};

// RowPlace is where a lane's part of a row lies: what tPlace says, as two sums, one for each of the
// bits that it flips.
template <u32 TYPE, u32 DK>
struct RowPlace {
  u32 base[2];
  FN RowPlace make(u32 tile) {
    const u32 lane = laneIndex(), g = lane >> 2, t = lane & 3;
    const u32 row = tile + (8 * (g >> 1) + (g & 1)) * DK * (TYPE == F32 ? 4 : 2);
    const u32 flip = TYPE == F32 ? 16 : 64, odd = flip * (g & 1);
    const u32 part = row + t * (TYPE == F32 ? 32 : 16);
    return {{part + odd, part + (flip - odd)}};
  }
  // read is row 2n of the lane's rows, 32 columns from 32*block on.
  FN Row<TYPE> read(const RowPlace &p, u32 n, u32 block) {
    Row<TYPE> r;
    if (TYPE == F32) {
      UNROLL
      for (u32 h = 0; h < sizeof(r.w) / 16; h++) r.w[h] = *shared<Word4>(p.base[h] + 128 * block + 2 * n * DK * 4);
    } else {
      r.w[0] = *shared<Word4>(p.base[block & 1] + 128 * (block / 2) + 2 * n * DK * 2);
    }
    return r;
  }
};

// A lane's part of a state's 32 rows: [q][0], [q][1] are rows 2q and 2q+1 of its 8, in its first
// column, [q][2] and [q][3] those in its second.
struct Part {
  float v[4][4];
};

// The same as operands: the order within [q] is that of multiplyTF32.
struct Halves {
  u32 hi[4][4], lo[4][4];
};

FN void halve(const float (&x)[4], u32 (&hi)[4], u32 (&lo)[4]) {
  split(x[0], hi[0], lo[0]);
  split(x[2], hi[1], lo[1]);
  split(x[1], hi[2], lo[2]);
  split(x[3], hi[3], lo[3]);
}

// State is a lane's part of a state. KEPT: its halves stay in registers for a step; else, where
// it is too large for that, they are made anew for each tile of T.
template <u32 DK, bool KEPT>
struct State {
  Halves h[DK / TILE];
};
template <u32 DK>
struct State<DK, false> {
  Part p[DK / TILE];
};

template <u32 DK>
FN void fill(State<DK, true> &s, const Part (&x)[DK / TILE]) {
  UNROLL
  for (u32 i = 0; i < DK / TILE * 4; i++) halve(x[i / 4].v[i % 4], s.h[i / 4].hi[i % 4], s.h[i / 4].lo[i % 4]);
}
template <u32 DK>
FN void fill(State<DK, false> &s, const Part (&x)[DK / TILE]) {
  UNROLL
  for (u32 i = 0; i < DK / TILE; i++) s.p[i] = x[i];
}

template <u32 DK>
FN void operand(const State<DK, true> &s, u32 block, u32 q, u32 (&hi)[4], u32 (&lo)[4]) {
  UNROLL
  for (u32 i = 0; i < 4; i++) {
    hi[i] = s.h[block].hi[q][i];
    lo[i] = s.h[block].lo[q][i];
  }
}
template <u32 DK>
FN void operand(const State<DK, false> &s, u32 block, u32 q, u32 (&hi)[4], u32 (&lo)[4]) {
  float x[4];
  UNROLL
  for (u32 i = 0; i < 4; i++) x[i] = again(s.p[block].v[q][i]);
  halve(x, hi, lo);
}

// multiplyTile is the tile's 32 rows of T times the state.
template <u32 TYPE, u32 DK, bool KEPT>
FN void multiplyTile(u32 tile, const State<DK, KEPT> &state, Part &sum) {
  const auto place = RowPlace<TYPE, DK>::make(tile);
  Part low = {};
  sum = {};
  UNROLL
  for (u32 block = 0; block < DK / TILE; block++) {
    Row<TYPE> rows[4];
    UNROLL
    for (u32 n = 0; n < 4; n++) rows[n] = RowPlace<TYPE, DK>::read(place, n, block);
    Part high = {};
    UNROLL
    for (u32 q = 0; q < 4; q++) {
      u32 hi[4], lo[4];
      operand(state, block, q, hi, lo);
      UNROLL
      for (u32 n = 0; n < 4; n++) {
        const float b0 = Row<TYPE>::get(rows[n], 2 * q), b1 = Row<TYPE>::get(rows[n], 2 * q + 1);
        u32 b[2] = {asBits(b0), asBits(b1)};
        if (TYPE == F32) {
          u32 rest[2];
          split(b0, b[0], rest[0]);
          split(b1, b[1], rest[1]);
          multiplyTF32(low.v[n], hi, rest);
        }
        multiplyTF32(low.v[n], lo, b);
        multiplyTF32(high.v[n], hi, b);
      }
    }
    UNROLL
    for (u32 i = 0; i < 16; i++) sum.v[i / 4][i % 4] += high.v[i / 4][i % 4];
  }
  UNROLL
  for (u32 i = 0; i < 16; i++) sum.v[i / 4][i % 4] += low.v[i / 4][i % 4];
}

template <bool WIDE>
FN void readPair(u32 place, u32 type, float &x, float &y) {
  if (WIDE) {
    const Word2 w = *shared<Word2>(place);
    x = asFloat(w.v[0]);
    y = asFloat(w.v[1]);
  } else {
    const u32 w = *shared<u32>(place);
    x = toFloat(w & 0xffff, type);
    y = toFloat(w >> 16, type);
  }
}

// addTile adds the tile's end-state.
template <bool WIDE>
FN void addTile(u32 tile, u32 type, u32 columns, Part &sum) {
  const u32 lane = again(laneIndex()), g = lane >> 2, t = lane & 3, size = WIDE ? 4 : 2;
  UNROLL
  for (u32 i = 0; i < 8; i++) {
    float x, y;
    readPair<WIDE>(tile + sPlace(8 * t + i, (16 * warpIndex() + 2 * g) * size, columns * size), type, x, y);
    sum.v[i / 2][i & 1] += x;
    sum.v[i / 2][2 + (i & 1)] += y;
  }
}

// clearBehind makes the rows behind the last one zero, whatever was computed for them.
FN void clearBehind(u32 rows, Part &sum) {
  const u32 t = laneIndex() & 3;
  UNROLL
  for (u32 i = 0; i < 8; i++) {
    if (8 * t + i >= rows) sum.v[i / 2][i & 1] = sum.v[i / 2][2 + (i & 1)] = 0;
  }
}

// moveState reads a lane's whole state from F32 [heads, dk, dv], or writes it there.
template <bool WRITE, u32 DK>
FN void moveState(u64 array, const Strip &a, Part (&state)[DK / TILE]) {
  const u32 lane = again(laneIndex()), g = lane >> 2, t = lane & 3;
  const u32 dv = again(a.job.dv), column = a.column + 16 * warpIndex() + 2 * g;
  float *p = at<float>(array) + (u64)a.head * a.job.dk * dv + column;
  UNROLL
  for (u32 i = 0; i < DK / TILE * 8; i++) {
    const u32 row = i / 8 * TILE + 8 * t + i % 8;
    float(&v)[4] = state[i / 8].v[i % 8 / 2];
    if (row >= a.job.dk || column >= dv) continue;
    float *here = p + (u64)row * dv;
    if (WRITE) {
      write8(here, {{asBits(v[i & 1]), asBits(v[2 + (i & 1)])}});
    } else {
      const Word2 w = read8(here);
      v[i & 1] = asFloat(w.v[0]);
      v[2 + (i & 1)] = asFloat(w.v[1]);
    }
  }
}

// park keeps a tile of the new state in the lane's own words of shared memory.
FN void park(u32 place, Part &p) {
  UNROLL
  for (u32 i = 0; i < 4; i++) {
    *shared<Word4>(place + 512 * i + 16 * laneIndex()) =
        {{asBits(p.v[i][0]), asBits(p.v[i][1]), asBits(p.v[i][2]), asBits(p.v[i][3])}};
  }
}
FN void unpark(u32 place, Part &p) {
  UNROLL
  for (u32 i = 0; i < 4; i++) {
    const Word4 w = *shared<Word4>(place + 512 * i + 16 * laneIndex());
    UNROLL
    for (u32 j = 0; j < 4; j++) p.v[i][j] = asFloat(w.v[j]);
  }
}

// newTile is 32 rows of the state after a step.
template <u32 DK, bool KEPT>
FN void newTile(u32 slot, const DenseArgs &args, const Strip &a, const ComposeStep &st, u32 row,
                const State<DK, KEPT> &state, Part &sum) {
  if (st.tType == F16) multiplyTile<F16>(slot, state, sum);
  else if (st.tType == BF16) multiplyTile<BF16>(slot, state, sum);
  else multiplyTile<F32>(slot, state, sum);
  const u32 end = slot + args.sOffset;
  if (st.sType == F32) addTile<true>(end, F32, args.columns, sum);
  else if (st.sType == F16) addTile<false>(end, F16, args.columns, sum);
  else addTile<false>(end, BF16, args.columns, sum);
  if (row + TILE > a.job.dk) clearBehind(row < a.job.dk ? a.job.dk - row : 0, sum);
}

// A new state waits in shared memory until the old one is not needed any more: registers do not
// hold both and the old one's halves.
template <u32 DK, bool KEPT>
FN void composeDense(const DenseArgs &args) {
  constexpr u32 tiles = DK / TILE;
  const ComposeJob &job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 strips = (job.dv + args.columns - 1) / args.columns;
  if (blockX() >= job.heads * strips) return;
  const Strip a = {job, stepsOf(args.tables, job), blockX() / strips, blockX() % strips * args.columns, args.columns};
  const bool busy = a.column + 16 * warpIndex() < a.job.dv;
  const u32 parked = args.parkOffset + warpIndex() * tiles * 2048;

  Cursor ahead = {0, 0};
  for (u32 i = 0; i + 1 < args.slots; i++) fetch<DK>(a, args, ahead, i);
  Part x[tiles] = {};
  if (a.job.from) moveState<false, DK>(a.job.from, a, x);

  u32 slot = 0;
  for (u32 n = 0; n < a.job.count; n++) {
    const ComposeStep &st = a.steps[n];
    if (st.before) moveState<true, DK>(st.before, a, x);
    if (st.s == 0) continue;
    State<DK, KEPT> state;
    fill(state, x);
    for (u32 tile = 0; tile < tiles; tile++) {
      waitFor(args.slots);
      fetch<DK>(a, args, ahead, slot == 0 ? args.slots - 1 : slot - 1);
      if (busy) {
        Part sum;
        newTile<DK>(slot * args.slotBytes, args, a, st, tile * TILE, state, sum);
        park(parked + tile * 2048, sum);
      }
      slot = slot + 1 == args.slots ? 0 : slot + 1;
    }
    UNROLL
    for (u32 i = 0; i < tiles; i++) unpark(parked + i * 2048, x[i]);
  }
  if (a.job.out) moveState<true, DK>(a.job.out, a, x);
}

KERNEL(spliced_compose_dense_64, DenseArgs, 128, 3) { composeDense<64, true>(args); }
KERNEL(spliced_compose_dense_128, DenseArgs, 128, 2) { composeDense<128, true>(args); }
KERNEL(spliced_compose_dense_192, DenseArgs, 128, 2) { composeDense<192, false>(args); }
