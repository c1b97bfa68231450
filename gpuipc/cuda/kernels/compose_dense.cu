// Composing running states by dense transitions, state = T*state + S (HYPIC Eq. 6), on the tensor
// cores, with F32's accuracy.
//
// Numbers. An F32 state is the sum of short numbers of the type that T has, so that T is used as it
// is and all products are exact:
//   fp16  two halves, hi and 2^11 times what is left, after each column was scaled by a power of
//         two to fit fp16's exponents: 22 bits, for numbers down to 2^-29 of the column's largest;
//   bf16  three parts, which keep all 24 bits;
//   F32   two TF32 halves of T and of the state, 22 bits; lo*lo is left out.
// fp16 and bf16 are exact in TF32 too, but products of 16 bit operands take half the time and T
// needs no conversion. Tensor cores cut their sums instead of rounding them, which would cost a bit for
// every few products of a long sum, always towards zero (Ootomo and Yokota, Recovering single
// precision accuracy from Tensor Cores, 2022). So only 32 products of hi are summed there, from
// zero, and such sums are added in plain F32. A column that has a number which is not finite comes
// out as not finite, though an infinity may have become NaN, because inf - inf is.
//
// Columns of a state do not mix. A warp owns 16 of one head for all steps, in registers: it
// computes the transpose, state' = state' * T', with its columns as the 16 rows of the product. The
// place of number (m = column, n = row of T) in the result of one product is then the place of
// (m, k) in the left operand of the next one. Sums do not care for the order of k, so a result is the
// next step's operand where it stands: no shuffle is needed. The order is chosen for four results
// at once, so that a lane's part of a row of T is 8 neighbouring numbers: within 32 rows (or columns)
// of T, slot s of result q stands for number 8*(s/2) + 2*q + s%2.
//
// T and S come in tiles of 32 rows of T and of S through a ring in shared memory, filled by
// asynchronous copies of 16 bytes, 1 to 2 tiles ahead. Rows of T lie with bit 6 (bit 4 of F32) flipped
// in odd rows, rows of S with bits 5 and 6 flipped by bits 3 and 4 of the row: the eight (16) lanes
// that shared memory serves at once then touch different banks.
//
// What limits it, for [128, 128], T fp16, S F32, per head and step: 96 KiB of HBM, at 85 % of an
// H200's 4.8 TB/s 24 ns or, shared by 132 multiprocessors, 5,700 clocks each of 1.75 GHz; 2,048
// products of 16x8x16 in 2,048 clocks at the rated peak, 3,300 at the 62 % of it that mma.sync reaches on
// this generation (Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, 2024); 2,500
// instructions of each of 8 warps (counted in ptxas' output) on four schedulers, 5,000 clocks; shared
// memory, 3,600 clocks. So memory should hold it, by a small margin, and clearly where a job is one
// step with its From and Out, 224 KiB. T is read by each strip of columns, by all but one from L2.
// None of this was measured yet.
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
  u32 head, column;
};

// Cursor walks over the tiles of all steps that have T and S.
struct Cursor {
  u32 step, tile;
};

FN const ComposeStep &stepAt(const Strip &a, const DenseArgs &args, u32 n) { return stepsOf(args.tables, a.job)[n]; }

FN u32 sizeOf(u32 type) { return type == F32 ? 4 : 2; }

FN u32 sPlace(u32 row, u32 byte, u32 rowBytes) {
  return (row * rowBytes + byte) ^ ((row >> 3 & 3) << 5);
}

FN void copyChunk(u32 to, const u8 *from, bool there) { copyAsync16(shared<u8>(to), from, there ? 16 : 0); }

// Tile is where a tile comes from. Rows and bytes of a row that the tensor does not have become zero.
struct Tile {
  const u8 *from;
  u32 stride, rows, have;
};

// copyT: eight threads copy 128 bytes of a row, and all of them as many rows at once. That is an even
// number of rows, so that a thread flips the same bit always.
template <u32 ROW_BYTES>
FN void copyT(u32 to, const Tile &t, u32 flip) {
  const u32 id = again(threadIndex()), byte = id % 8 * 16, rows = threads() / 8;
  u32 row = id / 8, place = to + row * ROW_BYTES + (byte ^ (row & 1) * flip);
  const u8 *from = t.from + (u64)row * t.stride + byte;
  for (; row < TILE; row += rows) {
    UNROLL
    for (u32 part = 0; part < ROW_BYTES; part += 128) {
      copyChunk(place + part, from + part, row < t.rows && byte + part < t.have);
    }
    place += rows * ROW_BYTES;
    from += (u64)rows * t.stride;
  }
}

// copyS: with two threads for each column, all of them copy 8 rows of F32 at once, or 16 of half the
// size, so that the bits to flip differ between passes by a constant.
template <bool WIDE>
FN void copyS(u32 to, const Tile &s) {
  constexpr u32 rows = WIDE ? 8 : 16;
  const u32 id = again(threadIndex()), across = threads() / rows, rowBytes = 16 * across;
  const u32 row = threads() == 128 ? id / (128 / rows) : id / (64 / rows), byte = (id & (across - 1)) * 16;
  const u32 place = to + sPlace(row, byte, rowBytes);
  const u8 *from = s.from + (u64)row * s.stride + byte;
  UNROLL
  for (u32 pass = 0; pass < TILE / rows; pass++) {
    const u32 flip = (pass * rows / 8 & 3) << 5;
    copyChunk((place ^ flip) + pass * rows * rowBytes, from, row + pass * rows < s.rows && byte < s.have);
    from += (u64)rows * s.stride;
  }
}

// fetch begins to copy the tile at the cursor, if there is one, and moves on.
template <u32 DK>
FN void fetch(const Strip &a, const DenseArgs &args, Cursor &c, u32 slot) {
  while (c.step < a.job.count && stepAt(a, args, c.step).s == 0) c.step++;
  if (c.step < a.job.count) {
    const ComposeStep &st = stepAt(a, args, c.step);
    const u32 base = slot * args.slotBytes, row = c.tile * TILE;
    const u32 rows = row < a.job.dk ? a.job.dk - row : 0;
    const u64 first = (u64)a.head * a.job.dk + (rows ? row : 0);
    const u32 tSize = sizeOf(st.tType), sSize = sizeOf(st.sType);
    Tile t = {nullptr, a.job.dk * tSize, rows, a.job.dk * tSize};
    Tile s = {nullptr, a.job.dv * sSize, rows, (a.job.dv - a.column) * sSize};
    t.from = at<const u8>(st.t) + first * t.stride;
    s.from = at<const u8>(st.s) + first * s.stride + a.column * sSize;
    if (st.tType == F32) copyT<DK * 4>(base, t, 16);
    else copyT<DK * 2>(base, t, 64);
    if (st.sType == F32) copyS<true>(base + args.sOffset, s);
    else copyS<false>(base + args.sOffset, s);
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

// RowPlace is where a lane's part of a row lies, as two sums: the bit that copyT flips is set in
// one of two neighbouring blocks (of two words of F32) and not in the other.
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
  // read is of row 2n of the lane's rows, of 32 columns from 32*block on the lane's 8, or of those
  // in F32 the first (h = 0) or last four.
  FN Word4 read(const RowPlace &p, u32 n, u32 block, u32 h) {
    if (TYPE == F32) return *shared<Word4>(p.base[h] + 128 * block + 2 * n * DK * 4);
    return *shared<Word4>(p.base[block & 1] + 128 * (block / 2) + 2 * n * DK * 2);
  }
};

// A lane's part of a state's 32 rows: [q][0], [q][1] are rows 2q and 2q+1 of its 8, in its first
// column, [q][2] and [q][3] those in its second.
struct Part {
  float v[4][4];
};

// State is a lane's part of a state as operands. addProducts adds to high and low what 32
// rows of T make of block b of it: rows[n] is the lane's part of the rows of result n.
template <u32 TYPE, u32 DK>
struct State;

// split makes halves by integer arithmetic: cvt.rna costs twice the instructions. hi is x to the
// nearest 11 bits; what is left of it has at most 12 bits, of which the last is cut from lo. A NaN
// stays one in lo.
FN void split(float x, u32 &hi, u32 &lo) {
  hi = (asBits(x) + 0x1000u) & 0xffffe000u;
  lo = asBits(x - asFloat(hi)) & 0xffffe000u;
}

template <u32 DK>
struct State<F32, DK> {
  Part p[DK / TILE];

  FN void fill(State &s, const Part (&x)[DK / TILE]) {
    UNROLL
    for (u32 i = 0; i < DK / TILE; i++) s.p[i] = x[i];
  }

  // The halves would not fit registers, so they are made anew for each tile of T.
  FN void addProducts(const State &s, const RowPlace<F32, DK> &place, u32 block, Part &high, Part &low) {
    Word4 rows[4];
    UNROLL
    for (u32 q = 0; q < 4; q++) {
      const float(&x)[4] = s.p[block].v[q];
      u32 hi[4], lo[4];
      split(again(x[0]), hi[0], lo[0]);
      split(again(x[2]), hi[1], lo[1]);
      split(again(x[1]), hi[2], lo[2]);
      split(again(x[3]), hi[3], lo[3]);
      UNROLL
      for (u32 n = 0; n < 4; n++) {
        if (q % 2 == 0) rows[n] = place.read(place, n, block, q / 2);
        u32 b[2], rest[2];
        split(asFloat(rows[n].v[q % 2 * 2]), b[0], rest[0]);
        split(asFloat(rows[n].v[q % 2 * 2 + 1]), b[1], rest[1]);
        multiplyTF32(low.v[n], hi, rest);
        multiplyTF32(low.v[n], lo, b);
        multiplyTF32(high.v[n], hi, b);
      }
    }
  }

  FN void finish(const State &, const Part &low, Part &sum) {
    UNROLL
    for (u32 i = 0; i < 16; i++) sum.v[i / 4][i % 4] += low.v[i / 4][i % 4];
  }
};

// pairAt is where word i of 16 rows' operand comes from: numbers [r][e] and [r][e+1] of a part.
struct PairAt {
  u32 r, e;
};
FN PairAt pairAt(u32 half, u32 i) { return {2 * half + i / 2, i % 2 * 2}; }

template <u32 DK>
struct State<BF16, DK> {
  u32 hi[DK / 16][4], mid[DK / 16][4], lo[DK / 16][4];

  FN void cut(float &x, float &y, u32 &word) {
    word = packBF16(x, y);
    x -= asFloat(word << 16);
    y -= asFloat(word & 0xffff0000u);
  }

  FN void fill(State &s, const Part (&p)[DK / TILE]) {
    UNROLL
    for (u32 i = 0; i < DK / 4; i++) {
      const PairAt from = pairAt(i / 4 % 2, i % 4);
      float x = p[i / 8].v[from.r][from.e], y = p[i / 8].v[from.r][from.e + 1];
      cut(x, y, s.hi[i / 4][i % 4]);
      cut(x, y, s.mid[i / 4][i % 4]);
      s.lo[i / 4][i % 4] = packBF16(x, y);
    }
  }

  // The small products are summed first: low is not needed for them.
  FN void addProducts(const State &s, const RowPlace<BF16, DK> &place, u32 block, Part &high, Part &) {
    Word4 rows[4];
    UNROLL
    for (u32 i = 0; i < 16; i++) {
      const u32 n = i % 4, half = i / 4 % 2, at = 2 * block + half;
      if (i < 4) rows[n] = place.read(place, n, block, 0);
      const u32 b[2] = {rows[n].v[2 * half], rows[n].v[2 * half + 1]};
      if (i < 8) {
        multiplyBF16(high.v[n], s.lo[at], b);
        multiplyBF16(high.v[n], s.mid[at], b);
      } else {
        multiplyBF16(high.v[n], s.hi[at], b);
      }
    }
  }

  FN void finish(const State &, const Part &, Part &) {}
};

// scaleOf is the power of two that brings numbers up to `largest` below 2^15, and its inverse. Both
// are normal numbers; an infinity is not scaled.
FN void scaleOf(float largest, float &scale, float &inverse) {
  u32 exponent = asBits(largest) >> 23;
  if (exponent == 255) exponent = 127 + 14;
  if (exponent < 16) exponent = 16;
  scale = asFloat((127 + 14 + 127 - exponent) << 23);
  inverse = asFloat((exponent - 14) << 23);
}

template <u32 DK>
struct State<F16, DK> {
  u32 hi[DK / 16][4], lo[DK / 16][4];
  float inverse[2];  // of the scales of the lane's two columns

  FN void fill(State &s, const Part (&p)[DK / TILE]) {
    float scale[2];
    UNROLL
    for (u32 c = 0; c < 2; c++) {
      float most = 0;
      UNROLL
      for (u32 i = 0; i < DK / 4; i++) most = larger(most, magnitude(p[i / 8].v[i / 2 % 4][2 * c + i % 2]));
      most = larger(most, shuffleXor(most, 1));
      most = larger(most, shuffleXor(most, 2));
      scaleOf(most, scale[c], s.inverse[c]);
    }
    UNROLL
    for (u32 i = 0; i < DK / 4; i++) {
      const PairAt from = pairAt(i / 4 % 2, i % 4);
      const float x = p[i / 8].v[from.r][from.e] * scale[i % 2], y = p[i / 8].v[from.r][from.e + 1] * scale[i % 2];
      const u32 word = packF16(x, y);
      s.hi[i / 4][i % 4] = word;
      s.lo[i / 4][i % 4] = packF16((x - halfToFloat((u16)word)) * 2048, (y - halfToFloat((u16)(word >> 16))) * 2048);
    }
  }

  FN void addProducts(const State &s, const RowPlace<F16, DK> &place, u32 block, Part &high, Part &low) {
    Word4 rows[4];
    UNROLL
    for (u32 i = 0; i < 8; i++) {
      const u32 n = i % 4, half = i / 4, at = 2 * block + half;
      if (half == 0) rows[n] = place.read(place, n, block, 0);
      const u32 b[2] = {rows[n].v[2 * half], rows[n].v[2 * half + 1]};
      multiplyF16(low.v[n], s.lo[at], b);
      multiplyF16(high.v[n], s.hi[at], b);
    }
  }

  FN void finish(const State &s, const Part &low, Part &sum) {
    UNROLL
    for (u32 i = 0; i < 16; i++) {
      float &v = sum.v[i / 4][i % 4];
      v = fused(low.v[i / 4][i % 4], 1.0f / 2048, v) * s.inverse[i / 2 % 2];
    }
  }
};

// multiplyTile is the tile's 32 rows of T times the state.
template <u32 TYPE, u32 DK>
FN void multiplyTile(u32 tile, const State<TYPE, DK> &state, Part &sum) {
  const auto place = RowPlace<TYPE, DK>::make(tile);
  Part low = {};
  sum = {};
  UNROLL
  for (u32 block = 0; block < DK / TILE; block++) {
    Part high = {};
    state.addProducts(state, place, block, high, low);
    UNROLL
    for (u32 i = 0; i < 16; i++) sum.v[i / 4][i % 4] += high.v[i / 4][i % 4];
  }
  state.finish(state, low, sum);
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

// moveState reads a lane's whole state from F32 [heads, dk, dv], or writes it there. Places are made
// one from the other, as many addresses at once would not leave registers for the state.
template <bool WRITE, u32 DK>
FN void moveState(u64 array, const Strip &a, Part (&state)[DK / TILE]) {
  const u32 lane = again(laneIndex()), dv = a.job.dv, column = a.column + 16 * warpIndex() + 2 * (lane >> 2);
  if (column >= dv) return;
  float *p = at<float>(array) + (u64)a.head * a.job.dk * dv + column;
  u32 row = 8 * (lane & 3), place = row * dv;
  UNROLL
  for (u32 i = 0; i < DK / TILE * 8; i++) {
    float(&v)[4] = state[i / 8].v[i % 8 / 2];
    place = again(place);
    if (row < a.job.dk) {
      if (WRITE) {
        write8(p + place, {{asBits(v[i & 1]), asBits(v[2 + (i & 1)])}});
      } else {
        const Word2 w = read8(p + place);
        v[i & 1] = asFloat(w.v[0]);
        v[2 + (i & 1)] = asFloat(w.v[1]);
      }
    }
    const u32 on = i % 8 == 7 ? TILE - 7 : 1;
    row += on;
    place += on * dv;
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

// Walk is how far a block has come.
struct Walk {
  Cursor ahead;  // the next tile to ask for
  u32 slot;      // of the ring, whose tile is the next to use
};

// newTile adds S to 32 rows of T*state, from row on.
FN void newTile(u32 end, const DenseArgs &args, const Strip &a, const ComposeStep &st, u32 row, Part &sum) {
  if (st.sType == F32) addTile<true>(end, F32, args.columns, sum);
  else if (st.sType == F16) addTile<false>(end, F16, args.columns, sum);
  else addTile<false>(end, BF16, args.columns, sum);
  if (row + TILE > a.job.dk) clearBehind(row < a.job.dk ? a.job.dk - row : 0, sum);
}

// step moves the state by one step. The new state waits in shared memory until the old one is not
// needed any more: registers do not hold both and the old one's operands.
template <u32 TYPE, u32 DK>
FN void step(const DenseArgs &args, const Strip &a, const ComposeStep &st, Walk &w, Part (&x)[DK / TILE]) {
  const u32 parked = args.parkOffset + warpIndex() * (DK / TILE) * 2048;
  const bool busy = a.column + 16 * warpIndex() < a.job.dv;
  State<TYPE, DK> state;
  state.fill(state, x);
  for (u32 tile = 0; tile < DK / TILE; tile++) {
    waitFor(args.slots);
    fetch<DK>(a, args, w.ahead, w.slot == 0 ? args.slots - 1 : w.slot - 1);
    if (busy) {
      Part sum;
      multiplyTile<TYPE, DK>(w.slot * args.slotBytes, state, sum);
      newTile(w.slot * args.slotBytes + args.sOffset, args, a, st, tile * TILE, sum);
      park(parked + tile * 2048, sum);
    }
    w.slot = w.slot + 1 == args.slots ? 0 : w.slot + 1;
  }
  UNROLL
  for (u32 i = 0; i < DK / TILE; i++) unpark(parked + i * 2048, x[i]);
}

template <u32 DK>
FN void composeDense(const DenseArgs &args) {
  const ComposeJob &job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 strips = (job.dv + args.columns - 1) / args.columns;
  if (blockX() >= job.heads * strips) return;
  const Strip a = {job, blockX() / strips, blockX() % strips * args.columns};
  Walk w = {};
  for (u32 i = 0; i + 1 < args.slots; i++) fetch<DK>(a, args, w.ahead, i);
  Part x[DK / TILE] = {};
  if (job.from) moveState<false, DK>(job.from, a, x);
  for (u32 n = 0; n < job.count; n++) {
    const ComposeStep &st = stepAt(a, args, n);
    if (st.before) moveState<true, DK>(st.before, a, x);
    if (st.s == 0) continue;
    if (st.tType == F16) step<F16, DK>(args, a, st, w, x);
    else if (st.tType == BF16) step<BF16, DK>(args, a, st, w, x);
    else step<F32, DK>(args, a, st, w, x);
  }
  if (job.out) moveState<true, DK>(job.out, a, x);
}

KERNEL(spliced_compose_dense_64, DenseArgs, 128, 3) { composeDense<64>(args); }
KERNEL(spliced_compose_dense_128, DenseArgs, 128, 2) { composeDense<128>(args); }
KERNEL(spliced_compose_dense_192, DenseArgs, 128, 2) { composeDense<192>(args); }
