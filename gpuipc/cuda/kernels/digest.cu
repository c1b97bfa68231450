// XXH3-64 with seed 0 of chunks of up to 1 MiB, one block of threads for each. digest.go builds
// the launch. The hash is that of Yann Collet's xxHash, described in its
// doc/xxhash_spec.md.
//
// XXH3 goes through 64-byte stripes with eight 64-bit sums and scrambles these after every 1024
// bytes. What a stripe adds depends on its bytes and its place in the 1024, not on the sums; and
// additions may come in any order. So eight warps add up runs of 1024 bytes, all stripes at once
// and at the pace of memory, and leave eight numbers for each run in shared memory. A ninth warp,
// a buffer behind them, does what has to be done in order: add and scramble, some 1000 times in
// a chunk. Its time is hidden behind that of the memory, and no scratch memory is needed.
#include "device.h"

namespace digests {

enum : u32 {
  ADDERS = 8,                     // warps that add
  THREADS = 32 * (ADDERS + 1),    // warp 0 scrambles
  BATCH = 4,                      // runs that a warp adds up at once
  ROUND = ADDERS * 2 * BATCH,     // runs of one buffer
  RUN = 1024,
  STRIPE = 64,
  SHORT = 240,                    // up to here XXH3 does something else
};

// Chunk is one row of the launch's table, as digest.go writes it.
struct Chunk {
  u64 src;
  u64 out;  // where its digest goes
  u64 bytes;
};
static_assert(sizeof(Chunk) == 24, "digest.go writes rows of 24 bytes");

constexpr u64 PRIME32_1 = 0x9e3779b1u, PRIME32_2 = 0x85ebca77u, PRIME32_3 = 0xc2b2ae3du;
constexpr u64 PRIME64_1 = 0x9e3779b185ebca87u, PRIME64_2 = 0xc2b2ae3d27d4eb4fu,
              PRIME64_3 = 0x165667b19e3779f9u, PRIME64_4 = 0x85ebca77c2b2ae63u,
              PRIME64_5 = 0x27d4eb2f165667c5u;

// The 192 bytes of XXH3's default secret.
#ifdef SPLICED_EMULATE
static const u64 SECRET[24] = {
#else
static __attribute__((constant)) const u64 SECRET[24] = {
#endif
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
    0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u,
    0xcb00c391bb52283cu, 0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,
    0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au, 0x647378d9c97e9fc8u,
    0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
};

// secret is the 8 bytes at offset of the secret.
FN u64 secret(u32 offset) {
  const u32 i = offset / 8, bits = offset % 8 * 8;
  return bits ? SECRET[i] >> bits | SECRET[i + 1] << (64 - bits) : SECRET[i];
}

// Bytes from any address on come in aligned words of four; what is read beside them belongs to a
// word of which at least a byte was asked for.
template <u32 N>
FN void readWords(u32 (&v)[N], u64 from) {
  const u32 bits = (u32)from % 4 * 8;
  const u32 *p = at<const u32>(from - from % 4);
  u32 w[N + 1];
UNROLL
  for (u32 i = 0; i < N; i++) w[i] = p[i];
  w[N] = p[bits ? N : N - 1];
UNROLL
  for (u32 i = 0; i < N; i++) v[i] = bits ? w[i] >> bits | w[i + 1] << (32 - bits) : w[i];
}
FN u32 read32(u64 from) {
  u32 v[1];
  readWords(v, from);
  return v[0];
}
FN u64 read64(u64 from) {
  u32 v[2];
  readWords(v, from);
  return v[0] | (u64)v[1] << 32;
}

// product is of a number's two halves, fold the two halves of a product of 128 bits.
FN u64 product(u64 v) { return (v & 0xffffffffu) * (v >> 32); }
FN u64 fold(u64 a, u64 b) {
  const unsigned __int128 p = (unsigned __int128)a * b;
  return (u64)p ^ (u64)(p >> 64);
}

FN u64 avalanche(u64 x) {
  x = (x ^ x >> 37) * 0x165667919e3779f9u;
  return x ^ x >> 32;
}

FN u64 shuffleXor64(u64 v, u32 mask) {
  const u32 low = shuffleXor((u32)v, mask), high = shuffleXor((u32)(v >> 32), mask);
  return low | (u64)high << 32;
}

// ---- up to 240 bytes

FN u64 hash1(u64 p, u64 n) {
  const u32 a = *at<const u8>(p), b = *at<const u8>(p + n / 2), c = *at<const u8>(p + n - 1);
  u64 x = (a << 16 | b << 24 | c | (u32)n << 8) ^ (u32)(SECRET[0] ^ SECRET[0] >> 32);
  x = (x ^ x >> 33) * PRIME64_2;
  x = (x ^ x >> 29) * PRIME64_3;
  return x ^ x >> 32;
}

FN u64 hash4(u64 p, u64 n) {
  u64 x = (read32(p + n - 4) + ((u64)read32(p) << 32)) ^ SECRET[1] ^ SECRET[2];
  x ^= (x << 49 | x >> 15) ^ (x << 24 | x >> 40);
  x *= 0x9fb21c651e98df25u;
  x ^= (x >> 35) + n;
  x *= 0x9fb21c651e98df25u;
  return x ^ x >> 28;
}

FN u64 hash9(u64 p, u64 n) {
  const u64 low = read64(p) ^ SECRET[3] ^ SECRET[4], high = read64(p + n - 8) ^ SECRET[5] ^ SECRET[6];
  return avalanche(n + __builtin_bswap64(low) + high + fold(low, high));
}

FN u64 mix16(u64 p, u32 offset) {
  return fold(read64(p) ^ secret(offset), read64(p + 8) ^ secret(offset + 8));
}

FN u64 hash17(u64 p, u64 n) {
  u64 x = n * PRIME64_1;
  for (u32 i = 0; i <= (u32)(n - 1) / 32; i++) {
    x += mix16(p + 16 * i, 32 * i) + mix16(p + n - 16 * (i + 1), 32 * i + 16);
  }
  return avalanche(x);
}

FN u64 hash129(u64 p, u64 n) {
  u64 x = n * PRIME64_1;
  for (u32 i = 0; i < 8; i++) x += mix16(p + 16 * i, 16 * i);
  x = avalanche(x);
  for (u32 i = 8; i < (u32)n / 16; i++) x += mix16(p + 16 * i, 16 * (i - 8) + 3);
  return avalanche(x + mix16(p + n - 16, 119));
}

FN u64 hashShort(u64 p, u64 n) {
  if (n <= 3) return hash1(p, n);
  if (n <= 8) return hash4(p, n);
  if (n <= 16) return hash9(p, n);
  if (n <= 128) return hash17(p, n);
  return hash129(p, n);
}

// ---- longer

// Pair is two neighbouring numbers of a stripe, or what they add to the sums of their places.
struct Pair {
  u64 a, b;
};

template <bool ALIGNED>
FN Pair readPair(u64 from) {
  if (ALIGNED) {
    const Word4 w = readOnce16(at<const u8>(from));
    return {w.v[0] | (u64)w.v[1] << 32, w.v[2] | (u64)w.v[3] << 32};
  }
  u32 w[4];
  readWords(w, from);
  return {w[0] | (u64)w[1] << 32, w[2] | (u64)w[3] << 32};
}

// gather adds up the 32 lanes' contributions to four runs: a lane holds two places of all four,
// and keeps one place of one. Lanes give away what they do not keep, so each step halves it.
// Returns place 2*(lane%4) + lane/4%2 of run 2*(lane/8%2) + lane/16.
FN u64 gather(const Pair (&held)[BATCH], u32 lane) {
  const bool second = lane & 4, upper = lane & 8, odd = lane & 16;
  u64 r[BATCH];
UNROLL
  for (u32 i = 0; i < BATCH; i++) {
    const u64 keep = second ? held[i].b : held[i].a, give = second ? held[i].a : held[i].b;
    r[i] = keep + shuffleXor64(give, 4);
  }
UNROLL
  for (u32 i = 0; i < 2; i++) {
    const u64 keep = upper ? r[i + 2] : r[i], give = upper ? r[i] : r[i + 2];
    r[i] = keep + shuffleXor64(give, 8);
  }
  const u64 keep = odd ? r[1] : r[0], give = odd ? r[0] : r[1];
  return keep + shuffleXor64(give, 16);
}

// addRuns leaves the sums of up to BATCH runs from src on in sums. A lane reads 16 bytes of a
// stripe; the warp reads 512 bytes side by side.
template <bool ALIGNED>
FN void addRuns(u64 src, u32 runs, Shared<u64> sums, u32 lane, const Pair (&keys)[2]) {
  Pair words[BATCH][2];
UNROLL
  for (u32 i = 0; i < BATCH; i++) {
    // Past the end the last run once more: no branch lies between the reads.
    const u64 run = src + (u64)(i < runs ? i : runs - 1) * RUN + lane * 16;
    words[i][0] = readPair<ALIGNED>(run);
    words[i][1] = readPair<ALIGNED>(run + 512);
  }
  Pair held[BATCH];
UNROLL
  for (u32 i = 0; i < BATCH; i++) {
    held[i] = {0, 0};
UNROLL
    for (u32 j = 0; j < 2; j++) {
      held[i].a += words[i][j].b + product(words[i][j].a ^ keys[j].a);
      held[i].b += words[i][j].a + product(words[i][j].b ^ keys[j].b);
    }
  }
  const u64 sum = gather(held, lane);
  const u32 run = (lane / 8 % 2) * 2 + lane / 16;
  if (run < runs) sums[run * 8 + lane % 4 * 2 + lane / 4 % 2] = sum;
}

// add fills one buffer with the sums of runs [first, last).
template <bool ALIGNED>
FN void add(u64 src, u32 first, u32 last, Shared<u64> sums, u32 warp, const Pair (&keys)[2]) {
  for (u32 i = warp * BATCH; i < ROUND && first + i < last; i += ADDERS * BATCH) {
    const u32 left = last - first - i;
    addRuns<ALIGNED>(src + (u64)(first + i) * RUN, left < BATCH ? left : BATCH, sums + i * 8,
                     laneIndex(), keys);
  }
}

FN u64 scramble(u64 sum, u64 key) { return (sum ^ sum >> 47 ^ key) * PRIME32_1; }

// finish adds what follows the whole runs, the last stripe, and merges: all lanes of warp 0, lane
// i with sum i%8. Returns the digest.
FN u64 finish(u64 src, u64 bytes, u32 runs, u64 sum) {
  const u32 lane = laneIndex(), place = lane % 8, stripes = (u32)((bytes - 1) % RUN) / STRIPE;
  const u64 tail = src + (u64)runs * RUN + place * 8;
  u64 own = 0, other = 0;
  for (u32 s = lane / 8; s < stripes; s += 4) {
    const u64 v = read64(tail + s * STRIPE);
    own += product(v ^ secret(8 * s + 8 * place));
    other += v;
  }
  if (lane < 8) {
    const u64 v = read64(src + bytes - STRIPE + place * 8);
    own += product(v ^ secret(121 + 8 * place));
    other += v;
  }
  own += shuffleXor64(other, 1);
  own += shuffleXor64(own, 8);
  own += shuffleXor64(own, 16);
  const u64 keyed = (sum + own) ^ secret(11 + 8 * place);
  u64 merged = fold(keyed, shuffleXor64(keyed, 1));
  merged += shuffleXor64(merged, 2);
  merged += shuffleXor64(merged, 4);
  return avalanche(merged + bytes * PRIME64_1);
}

FN u64 start(u32 place) {
  switch (place) {
    case 0:
      return PRIME32_3;
    case 1:
      return PRIME64_1;
    case 2:
      return PRIME64_2;
    case 3:
      return PRIME64_3;
    case 4:
      return PRIME64_4;
    case 5:
      return PRIME32_2;
    case 6:
      return PRIME64_5;
    default:
      return PRIME32_1;
  }
}

// hashLong is what all threads do for one chunk. Two buffers: while warp 0 empties one, the
// others fill the other.
template <bool ALIGNED>
FN void hashLong(const Chunk &c) {
  const u32 warp = warpIndex(), lane = laneIndex(), place = lane % 8;
  const u32 runs = (u32)((c.bytes - 1) / RUN), rounds = (runs + ROUND - 1) / ROUND;
  Pair keys[2];  // of this lane's part of stripe lane/4, and of the one 8 further
UNROLL
  for (u32 i = 0; i < 2; i++) {
    const u32 word = lane / 4 + 8 * i + lane % 4 * 2;
    keys[i] = {SECRET[word], SECRET[word + 1]};
  }
  u64 sum = start(place);
  const u64 key = SECRET[16 + place];
  for (u32 i = 0; i <= rounds; i++) {
    if (warp > 0) {
      add<ALIGNED>(c.src, i * ROUND, runs, shared<u64>(i % 2 * ROUND * 64), warp - 1, keys);
    } else if (i > 0) {
      const Shared<u64> sums = shared<u64>((i + 1) % 2 * ROUND * 64);
      const u32 left = runs - (i - 1) * ROUND, n = left < ROUND ? left : ROUND;
#ifndef SPLICED_EMULATE
#pragma unroll 8
#endif
      for (u32 j = 0; j < n; j++) sum = scramble(sum + sums[j * 8 + place], key);
    }
    blockBarrier();
  }
  if (warp > 0) return;
  const u64 digest = finish(c.src, c.bytes, runs, sum);
  if (lane == 0) *at<u64>(c.out) = digest;
}

// digest is what a block does: grid.x counts chunks; shared memory is two buffers of 64 runs' sums.
FN void digest(u64 tables) {
  const Chunk c = at<const Chunk>(tables)[blockX()];
  if (c.bytes <= SHORT) {
    if (threadIndex() == 0) *at<u64>(c.out) = hashShort(c.src, c.bytes);
  } else if (c.src % 16 == 0) {
    hashLong<true>(c);
  } else {
    hashLong<false>(c);
  }
}

}  // namespace digests

struct DigestArgs {
  u64 tables;
};

KERNEL(spliced_digest, DigestArgs, 288, 2) { digests::digest(args.tables); }
