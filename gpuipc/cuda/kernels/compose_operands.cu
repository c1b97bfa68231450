// A state as operands of tensor cores, and T times it, with F32's accuracy.
//
// An F32 state is the sum of short numbers of the type that T has, so that T is used as it
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
#pragma once
#include "compose_job.cu"

enum : u32 { TILE = 32 };  // rows of T and S in a tile; also columns of T in a block

// A lane's part of a state's 32 rows: [q][0], [q][1] are rows 2q and 2q+1 of its 8, in its first
// column, [q][2] and [q][3] those in its second.
struct Part {
  float v[4][4];
};

// RowPlace is where a lane's part of a row lies, as two sums: the bit that copyT flips is set in
// one of two neighbouring blocks (of two words of F32) and not in the other.
template <u32 TYPE, u32 DK>
struct RowPlace {
  u32 base[2];
  FN RowPlace make(u32 tile) {
    const u32 lane = laneIndex(), g = lane >> 2, t = lane & 3;
    const u32 row = tile + (8 * (g >> 1) + (g & 1)) * DK * sizeOf(TYPE);
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

  // The halves would not fit registers, so they are made anew for each tile of T. A product takes
  // its 8 columns k in the order 0 2 4 6 1 3 5 7: slots t and t+4 are neighbours here.
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
