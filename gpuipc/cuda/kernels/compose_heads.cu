// Heads of packed parts, as gpuipc/kernel.Form says: integers with a scale for each row, or products of
// a column and a row. A part begins with the forms of its heads; where one lies is the sum of what those before it take.
//
// Memory that clients map is read here, so what a part says of itself is not believed: a head that
// would end behind its part, or is in a form that is not known, is all zeros.
#pragma once
#include "compose_job.cu"

// How the numbers of a head are kept: F32, F16, BF16, or
enum : u32 { ZERO = 0, INT8 = 4, INT12 = 5, INT16 = 6, RANK = 16 };  // those above RANK are of rank 2, 3 and so on
FN constexpr bool areIntegers(u32 kind) { return kind >= INT8 && kind <= INT16; }
FN constexpr u32 rankOf(u32 kind) { return kind - RANK + 1; }
FN constexpr u32 bitsOf(u32 kind) { return kind == INT8 ? 8 : kind == INT12 ? 12 : 16; }
FN constexpr u32 rowBytes(u32 kind, u32 columns) { return (columns * bitsOf(kind) + 7) / 8; }

// Matrices are those of a step, [heads, rows, columns]; part = 0 says that they are plain numbers.
struct Matrices {
  u64 at;
  u32 part, type;
  u32 heads, rows, columns;
};

FN Matrices transitions(const ComposeJob &job, const ComposeStep &st) {
  return {st.t, st.tPart, st.tType, job.heads, job.dk, job.dk};
}
FN Matrices endStates(const ComposeJob &job, const ComposeStep &st) {
  return {st.s, st.sPart, st.sType, job.heads, job.dk, job.dv};
}

struct Head {
  u64 at;
  u32 kind;
};

FN u64 padded(u64 n) { return (n + 63) / 64 * 64; }

// headBytes is what a head in a form of gpuipc/kernel takes without padding.
FN u64 headBytes(const Matrices &m, u32 form) {
  if (form == 0) return (u64)m.rows * m.columns * sizeOf(m.type);
  if (form == 1) return 0;
  if (form >= RANK) return (u64)rankOf(form) * (m.columns + m.rows + 4);
  if (form > 4) return (u64)1 << 32;  // more than any part
  return 4 + (u64)m.rows * (4 + rowBytes(form + 2, m.columns));
}

// headIn is the head at `place` bytes of a part.
FN Head headIn(const Matrices &m, u64 place, u32 form) {
  if (form == 1 || place + padded(headBytes(m, form)) > m.part) return {m.at, ZERO};
  return {m.at + place, form == 0 ? m.type : form < RANK ? form + 2 : form};
}

// findHead is for whole warps.
FN Head findHead(const Matrices &m, u32 head) {
  if (m.part == 0) return {m.at + (u64)head * m.rows * m.columns * sizeOf(m.type), m.type};
  const u8 *forms = at<const u8>(m.at);
  const u32 form = forms[head];
  u64 place = 0;
  for (u32 i = laneIndex(); i < head; i += 32) place += padded(headBytes(m, forms[i]));
  UNROLL
  for (u32 mask = 16; mask > 0; mask /= 2) {
    place += (u64)shuffleXor((u32)(place >> 32), mask) << 32 | shuffleXor((u32)place, mask);
  }
  return headIn(m, place + padded((u64)9 * m.heads), form);
}

// findHeadAlone is for one thread, of a part at a multiple of 16. The header has room for whole 16 bytes of forms.
FN Head findHeadAlone(const Matrices &m, u32 head) {
  if (m.part == 0) return {m.at + (u64)head * m.rows * m.columns * sizeOf(m.type), m.type};
  u32 units[5], before = 0, form = 0;  // of 64 bytes, which no part has 2^32 of
  bool known = true;
  UNROLL
  for (u32 k = 0; k < 5; k++) units[k] = (u32)(padded(headBytes(m, k)) / 64);
  for (u32 i = 0; i <= head; i += 16) {
    const Word4 forms = read16(at<const u8>(m.at) + i);
    UNROLL
    for (u32 k = 0; k < 16; k++) {
      const u32 f = forms.v[k / 4] >> 8 * (k % 4) & 255;
      if (i + k == head) form = f;
      if (i + k >= head) continue;
      known &= f < 5 || f >= RANK;
      before += f == 0 ? units[0] : f == 2 ? units[2] : f == 3 ? units[3] : f == 4 ? units[4] : 0;
      if (f >= RANK) before += (rankOf(f) * (m.columns + m.rows + 4) + 63) / 64;
    }
  }
  if (!known) return {m.at, ZERO};
  return headIn(m, (u64)before * 64 + padded((u64)9 * m.heads), form);
}

// integer is the number that some lowest bits of a word are, as F32: 2^23 and more as a float has a
// place of one, and the bits of what is more below the exponent.
template <u32 BITS>
FN float integer(u32 word) {
  constexpr u32 sign = 1u << (BITS - 1);
  return asFloat(((word & (2 * sign - 1)) ^ sign) | 0x4b000000u) - asFloat(0x4b000000u | sign);
}

// readBytes is a word of at most four bytes, wherever it lies.
FN u32 readBytes(u64 from, u32 bytes) {
  u32 word = 0;
  for (u32 i = 0; i < bytes; i++) word |= (u32)at<const u8>(from)[i] << 8 * i;
  return word;
}

// sumOfProducts is a number of a head of some rank.
FN float sumOfProducts(u64 head, u32 rank, u32 rows, u32 columns, u32 row, u32 column) {
  const u64 left = head + (u64)rank * columns, scales = left + (u64)rank * rows;
  float sum = 0;
  for (u32 k = 0; k < rank; k++) {
    const float a = asFloat(readBytes(scales + 4 * k, 4)) * integer<8>(readBytes(left + (u64)k * rows + row, 1));
    sum += a * integer<8>(readBytes(head + (u64)k * columns + column, 1));
  }
  return sum;
}

// headNumber is one number of a head of [rows, columns], rounded as gpuipc/kernel does.
FN float headNumber(const Head &h, u32 rows, u32 columns, u32 row, u32 column) {
  if (h.kind == ZERO) return 0;
  if (h.kind < INT8) {
    const u32 size = sizeOf(h.kind);
    return toFloat(readBytes(h.at + ((u64)row * columns + column) * size, size), h.kind);
  }
  if (h.kind >= RANK) return sumOfProducts(h.at, rankOf(h.kind), rows, columns, row, column);
  const u64 q = h.at + 4 + (u64)4 * rows + (u64)row * rowBytes(h.kind, columns);
  const float scale = asFloat(readBytes(h.at + 4 + (u64)4 * row, 4));
  float v;
  if (h.kind == INT8) v = scale * integer<8>(readBytes(q + column, 1));
  else if (h.kind == INT16) v = scale * integer<16>(readBytes(q + (u64)2 * column, 2));
  else v = scale * integer<12>(readBytes(q + (u64)column * 3 / 2, 2) >> 4 * (column & 1));
  return row == column ? v + asFloat(readBytes(h.at, 4)) : v;
}
