// Moves states over rows of consecutive tokens: S = g*S + k u^T for each row (KVBuffer Eq. 5).
// replay.go builds the launch.
//
// A number of a state depends on no other of it: a thread holds a few rows of four columns in
// registers while it goes through all tokens, so a state is read and written once. Keys and
// delta values are read again by the threads of other columns and rows, out of the caches: for
// some tens of tokens they are small beside the state.
//
// Each product and each sum is rounded on its own, as gpuipc/kernel.Replay does, so the bits are
// the same (but for the payload of NaN, of which a GPU has one).
#include "device.h"

namespace replaying {

enum : u32 { THREADS = 128, HEIGHT = 4 };

// Job is one row of the launch's table, as replay.go writes it.
struct Job {
  u64 from;      // [heads, dk, dv]; 0: zero states
  u64 decay;     // [rows, heads] or [rows, heads, dk]
  u64 k;         // [rows, keyHeads, dk]
  u64 u;         // [rows, heads, dv]
  u64 out;       // [heads, dk, dv]; may be from
  u32 heads;
  u32 keyHeads;
  u32 dk;
  u32 dv;
  u32 rows;
  u32 perKey;    // a decay for each of dk
  u32 width;     // columns that a thread holds: 4, or 1 where addresses are not whole 16 bytes
  u32 tiles;     // blocks of a head
};
static_assert(sizeof(Job) == 72, "replay.go writes rows of 72 bytes");

template <u32 W>
FN void load(float (&v)[W], const float *from) {
  if (W == 4) {
    Word4 w = read16(from);
UNROLL
    for (u32 j = 0; j < W; j++) v[j] = asFloat(w.v[j]);
  } else {
    v[0] = *from;
  }
}

template <u32 W>
FN void store(float *to, const float (&v)[W]) {
  if (W == 4) {
    Word4 w;
UNROLL
    for (u32 j = 0; j < 4; j++) w.v[j] = asBits(v[j % W]);
    write16(to, w);
  } else {
    *to = v[0];
  }
}

// run moves rows [first, first+HEIGHT) of W columns of one head.
template <u32 W>
FN void run(const Job &job, u32 head, u32 item) {
  const u32 columns = job.dv / W, first = item / columns * HEIGHT, column = item % columns * W;
  if (first >= job.dk) return;
  const u64 state = ((u64)head * job.dk + first) * job.dv + column;
  u32 row[HEIGHT];  // past the end the last one again, which is not stored
UNROLL
  for (u32 i = 0; i < HEIGHT; i++) row[i] = first + i < job.dk ? i : job.dk - 1 - first;
  float s[HEIGHT][W];
UNROLL
  for (u32 i = 0; i < HEIGHT; i++) {
UNROLL
    for (u32 j = 0; j < W; j++) s[i][j] = 0;
    if (job.from) load(s[i], at<const float>(job.from) + state + (u64)row[i] * job.dv);
  }
  const u32 key = head / (job.heads / job.keyHeads), decays = job.perKey ? job.dk : 1;
  const float *k = at<const float>(job.k) + (u64)key * job.dk + first;
  const float *u = at<const float>(job.u) + (u64)head * job.dv + column;
  const float *g = at<const float>(job.decay) + (u64)head * decays + (job.perKey ? first : 0);
  // Nothing in the loop waits for the sums of the row before but the sums.
#ifndef SPLICED_EMULATE
#pragma unroll 4
#endif
  for (u32 n = 0; n < job.rows; n++) {
    float add[W];
    load(add, u);
UNROLL
    for (u32 i = 0; i < HEIGHT; i++) {
      const float factor = k[row[i]], decay = g[job.perKey ? row[i] : 0];
UNROLL
      for (u32 j = 0; j < W; j++) s[i][j] = decay * s[i][j] + factor * add[j];
    }
    k += (u64)job.keyHeads * job.dk;
    u += (u64)job.heads * job.dv;
    g += (u64)job.heads * decays;
  }
UNROLL
  for (u32 i = 0; i < HEIGHT; i++) {
    if (first + i < job.dk) store(at<float>(job.out) + state + (u64)i * job.dv, s[i]);
  }
}

// replay is what a thread does: grid.y counts jobs, grid.x is heads times tiles of the largest.
FN void replay(u64 tables) {
  const Job job = at<const Job>(tables)[blockY()];
  const u32 head = blockX() / job.tiles, item = blockX() % job.tiles * THREADS + threadIndex();
  if (head >= job.heads) return;
  if (job.width == 4) {
    run<4>(job, head, item);
  } else {
    run<1>(job, head, item);
  }
}

}  // namespace replaying

struct ReplayArgs {
  u64 tables;
};

KERNEL(spliced_replay, ReplayArgs, 128, 4) { replaying::replay(args.tables); }
