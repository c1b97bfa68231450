// Packed heads' integers in shared memory: T times a state by products of 8 bit integers, and end-states.
//
// An F32 state is, column by column, a factor times integers of 24 bits: three digits of 8 bits with
// signs, for the largest number of a column and all others alike. T's integers are one digit, of 8
// bits, or two: the upper 8 bits and, without a sign, the lower ones. Products of digits and their sums are exact, so
// that T needs nothing but its bytes in place, and what is rounded is the state, to 2^-24 of the column's largest
// number, and each row's sum once. A column that has a number which is not finite comes out as NaN.
//
// Rows lie as they came, 16 bytes further apart than they are long and each eight 32 bytes more: words that
// lanes read at once are then of different banks, or of two rows each where rows are of 8 bits.
#pragma once
#include "compose_heads.cu"
#include "compose_strips.cu"

// wholeRow is rowBytes of a multiple of 8 columns.
FN constexpr u32 wholeRow(u32 kind, u32 columns) { return columns / 2 * (kind - 2); }
static_assert(wholeRow(INT8, 8) == 8 && wholeRow(INT12, 8) == 12 && wholeRow(INT16, 8) == 16, "4 bits more each");

FN u32 rowPlace(u32 row, u32 pitch) { return row * pitch + (row >> 3) * 32; }
FN constexpr u32 rowsBytes(u32 pitch) { return TILE * pitch + 128; }

// pitchOfT is how far rows of T lie apart, pitchOfS those of a strip of S: by a multiple of 16 more or less than in the part.
FN u32 pitchOfT(u32 kind, u32 dk) { return wholeRow(kind, dk) + 16; }
FN u32 pitchOfS(u32 kind, u32 dv, u32 columns) { return wholeRow(kind, columns) + 16 + (wholeRow(kind, dv) & 15); }

// integersAt is where a row's integers begin in a head. Heads begin at multiples of 16.
FN u32 integersAt(u32 rows, u32 row, u32 bytes) { return 4 + 4 * rows + row * bytes; }

// Run is what a thread copies of a step's rows of integers, tile after tile: pieces of 16 bytes, every fourth
// of its row, which begins as far behind a multiple of 16 there as here. Four threads copy a row.
struct Run {
  u64 from;      // the first piece of the next tile
  u32 to, left;  // where it goes in a slot, and the bytes from there on

  // `row` is where row 0 of the first tile begins, of which `bytes` are copied.
  FN Run make(u64 row, u32 stride, u32 pitch, u32 bytes) {
    const u32 id = again(threadIndex()), first = id % 4 * 16;
    const u64 at = row + id / 4 * stride;
    const u32 skip = (u32)(at & 15), end = skip + bytes;
    return {at - skip + first, (((u32)(row & 15) + rowPlace(id / 4, pitch)) & ~15u) + first, first < end ? end - first : 0};
  }

  FN void pieces(u32 to, u64 from, u32 left) {
    const auto place = shared<u8>(to);
    const u8 *p = at<const u8>(from);
    UNROLL
    for (u32 i = 0; i < 256; i += 64) {
      if (i < left) copyAsync16(place + i, p + i, 16);
    }
    for (u32 i = 256; i < left; i += 64) copyAsync16(place + i, p + i, 16);
  }

  // copy does so of a tile that has so many rows, and moves on. Half as many threads as usual copy two rows each.
  FN void copy(Run &r, u32 slot, u32 rows, u32 stride, u32 pitch) {
    const u32 row = again(threadIndex()) / 4;
    if (row < rows) pieces(slot + r.to, r.from, r.left);
    if (threads() < 128 && row + 16 < rows) pieces(slot + r.to + rowPlace(16, pitch), r.from + 16 * stride, r.left);
    r.from += TILE * stride;
  }
};

// Scales of a tile: 16 bytes that begin with g, then those from 4 bytes before the first scale on. Threads of
// a warp copy those of T, others those of S.
enum : u32 { SCALES = 16, SCALES_OF_S = 160, SCALES_BYTES = 384 };

FN void copyScales(u32 to, u64 head, u32 row, u32 rows, u32 i) {
  const u8 *p = at<const u8>(head);
  if (i > 0) p += 4 * row + 16 * i - 16;
  if (i == 0 || (i < 10 && 16 * i < 20 + 4 * rows)) copyAsync16(shared<u8>(to + 16 * i), p, 16);
}

// Scales are those of a lane's 8 rows of a tile.
struct Scales {
  float v[8];
  FN Scales read(u32 scales) {
    const auto p = shared<Word4>(scales + SCALES + 32 * (laneIndex() & 3));
    const Word4 a = p[0], b = p[1];
    return {{asFloat(a.v[1]), asFloat(a.v[2]), asFloat(a.v[3]), asFloat(b.v[0]), asFloat(b.v[1]), asFloat(b.v[2]),
             asFloat(b.v[3]), asFloat(p[2].v[0])}};
  }
};

// digitScale is what makes of numbers up to `largest` ones up to 0x7f7f7f, and its inverse: NaN if `largest` is not
// finite. Columns smaller than 2^-100 are zeros to some of their bits.
FN void digitScale(float largest, float &scale, float &inverse) {
  const float most = largerOrNaN(largest, 0x1p-100f);
  scale = quotient(0x7f7f7e, most);
  inverse = asBits(most) < 0x7f800000u ? most * (1.0f / 0x7f7f7e) : asFloat(0x7fc00000u);
}

// A lane's eight integers of a row come as two words of digits, in an order that costs the fewest
// instructions. Those of 12 bits are of 16 here, the lowest four zeros.
template <u32 KIND>
struct Integers {
  static constexpr bool wide = KIND != INT8;
  u32 high[2], low[2];

  // numberAt is which one of the eight byte i is.
  FN constexpr u32 numberAt(u32 i) {
    constexpr u32 order[8] = {0, 6, 4, 2, 5, 3, 1, 7};
    return KIND == INT12 ? order[i] : i;
  }

  // read takes them from word n of a row on.
  FN Integers read(Shared<u32> row, u32 n) {
    if (KIND == INT8) return {{row[n], row[n + 1]}, {}};
    const u32 a = row[n], b = row[n + 1], c = row[n + 2];
    if (KIND == INT16) {
      const u32 d = row[n + 3];
      return {{permute(a, b, 0x7531), permute(c, d, 0x7531)}, {permute(a, b, 0x6420), permute(c, d, 0x6420)}};
    }
    // Of each number the upper 8 bits lie in a place of their own, but for a rotation; so do the lower 4.
    const u32 even = choose(choose(a, b, 0xf0000ff0u), c, 0xfff00fffu);
    const u32 odd = choose(choose(a, b, 0x00ff0000u), c, 0x00ffff00u);
    const u32 lower = choose(choose(a, b, 0x0f00f00fu), c, 0xff0ff0ffu), oddLower = lower & 0xf0f0f0f0u;
    return {{shiftRight(even, even, 4), odd}, {lower << 4 & 0xf0f0f0f0u, shiftRight(oddLower, oddLower, 24)}};
  }
};

// Digits is a lane's part of a state as operands.
template <u32 KIND, u32 DK>
struct Digits {
  u32 d[3][DK / TILE][4];  // the lowest last
  float inverse[2];        // what makes of sums numbers of the lane's two columns

  FN void fill(Digits &s, const Part (&p)[DK / TILE]) {
    float scale[2];
    UNROLL
    for (u32 c = 0; c < 2; c++) {
      float most = 0;
      UNROLL
      for (u32 i = 0; i < DK / 4; i++) most = largerOrNaN(most, magnitude(p[i / 8].v[i / 2 % 4][2 * c + i % 2]));
      most = largerOrNaN(most, shuffleXor(most, 1));
      most = largerOrNaN(most, shuffleXor(most, 2));
      digitScale(most, scale[c], s.inverse[c]);
      s.inverse[c] *= KIND == INT8 ? 1 : KIND == INT12 ? 32 : 512;  // the unit of finish, over T's
    }
    UNROLL
    for (u32 i = 0; i < DK / TILE * 4; i++) {
      const u32 block = i / 4, half = i / 2 % 2, c = i % 2;
      u32 w[4];
      UNROLL
      for (u32 e = 0; e < 4; e++) {
        const u32 row = Integers<KIND>::numberAt(4 * half + e);
        w[e] = nearest(fused(p[block].v[row / 2][2 * c + row % 2], scale[c], 0x808080));
      }
      const u32 x = permute(w[0], w[1], 0x5140), y = permute(w[2], w[3], 0x5140);
      s.d[2][block][i % 4] = permute(x, y, 0x5410) ^ 0x80808080u;
      s.d[1][block][i % 4] = permute(x, y, 0x7632) ^ 0x80808080u;
      s.d[0][block][i % 4] = permute(permute(w[0], w[1], 0x0062), permute(w[2], w[3], 0x6200), 0x7610) ^ 0x80808080u;
    }
  }

  // Sums of products of digits: sum[0] of the highest ones, each other one of 2^-8 of those before. The first one
  // begins at the bits of 3*2^22, so that a subtraction makes it F32.
  static constexpr u32 sums = Integers<KIND>::wide ? 4 : 3;
  FN float finish(const i32 (&sum)[sums][4], u32 i) {
    const float top = asFloat((u32)sum[0][i]) - 12582912;
    if (!Integers<KIND>::wide) return fused(top, 65536, (float)(sum[1][i] * 256 + sum[2][i]));
    const i32 rest = sum[2][i] + (sum[sums - 1][i] >> 8);
    return fused(top, 32768, (float)(sum[1][i] * 128 + (rest >> 1)));
  }

  // multiply is T's 32 rows times the state, without scales.
  FN void multiply(const Digits &s, u32 slot, u32 pitch, Part &result) {
    const u32 lane = again(laneIndex()), g = lane >> 2, t = lane & 3;
    const u32 place = slot + rowPlace(8 * (g >> 1) + (g & 1), pitch) + t * bitsOf(KIND);
    UNROLL
    for (u32 n = 0; n < 4; n++) {
      const auto row = shared<u32>(place + 2 * n * pitch);
      i32 sum[sums][4] = {};
      UNROLL
      for (u32 i = 0; i < 4; i++) sum[0][i] = 0x4b400000;
      UNROLL
      for (u32 block = 0; block < DK / TILE; block++) {
        const auto rows = Integers<KIND>::read(row, bitsOf(KIND) * block);
        UNROLL
        for (u32 i = 0; i < 3; i++) {
          multiplyS8(sum[i], s.d[i][block], rows.high);
          if (Integers<KIND>::wide) multiplyU8(sum[(i + 1) % sums], s.d[i][block], rows.low);
        }
      }
      UNROLL
      for (u32 i = 0; i < 4; i++) result.v[n][i] = finish(sum, i);
    }
  }
};

// addIntegers adds 32 rows' end-states, of which row 0 lies at `place`.
template <u32 KIND>
FN void addIntegers(u32 place, u32 pitch, u32 scales, Part &sum) {
  const u32 lane = again(laneIndex()), g = lane >> 2, t = lane & 3;
  place += rowPlace(8 * t, pitch) + (16 * warpIndex() + 2 * g) * bitsOf(KIND) / 8;
  const u32 shift = 8 * (place & 3);
  const Scales scale = Scales::read(scales);
  UNROLL
  for (u32 i = 0; i < 8; i++, place += pitch) {
    u32 pair;
    if (KIND == INT8) pair = *shared<u16>(place);
    else if (KIND == INT16) pair = *shared<u32>(place);
    else pair = shiftRight(shared<u32>(place & ~3u)[0], shared<u32>(place & ~3u)[1], shift);
    float &x = sum.v[i / 2][i & 1], &y = sum.v[i / 2][2 + (i & 1)];
    x = fused(scale.v[i], integer<bitsOf(KIND)>(pair), x);
    y = fused(scale.v[i], integer<bitsOf(KIND)>(pair >> bitsOf(KIND)), y);
  }
}
