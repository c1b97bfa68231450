// What kernels of dense transitions do to a strip of columns of one head: tiles of plain numbers on
// their way to shared memory, end-states from there, states from and to device memory.
// compose_dense.cu says where tiles lie.
#pragma once
#include "compose_operands.cu"

// Strip is a block's share of a job.
struct Strip {
  ComposeJob job;
  u64 steps;
  u32 head, column;
};

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

FN void waitFor(u32 slots) {
  if (slots == 3) waitAsync<1>();
  else waitAsync<0>();
  blockBarrier();
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
