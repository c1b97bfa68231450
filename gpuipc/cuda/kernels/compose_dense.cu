// Composing running states by dense transitions, state = T*state + S (HYPIC Eq. 6), on the tensor
// cores, with F32's accuracy.
//
// compose_operands.cu says how the numbers are kept and multiplied.
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
// products of 16x8x16 in 2,048 clocks at the rated peak, 3,300 at the 62 % of it that mma.sync reaches
// on this generation (Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture,
// 2024); 2,500 instructions of each of 8 warps (counted in ptxas' output) on four schedulers, 5,000
// clocks; shared memory, reads and writes, 4,600 clocks. So memory should hold it, by a small margin,
// and clearly where a job is one step with its From and Out, 224 KiB. T is read by each strip of
// columns, by all but one from L2. An H200 needs 9,900 clocks (36.4 us for 960 heads, at 1.98 GHz): what
// holds it is none of these but waiting, with twelve warps on a multiprocessor.
#include "compose_strips.cu"

struct DenseArgs {
  u64 tables;       // as of ComposeArgs
  u32 columns;      // of a block: 16 for each of its warps
  u32 sOffset;      // where in a slot of the ring S begins
  u32 slotBytes;
  u32 slots;        // 2 or 3
  u32 parkOffset;   // where warps keep a new state that registers do not
  u32 unused;
};
static_assert(sizeof(DenseArgs) == 32, "compose.go");

// Cursor walks over the tiles of all steps that have T and S.
struct Cursor {
  u32 step, tile;
  const u8 *t, *s;  // where the next tile of a step that was begun comes from
  u32 tType, sType;
};

// fetch begins to copy the tile at the cursor, if there is one, and moves on.
template <u32 DK>
FN void fetch(const Strip &a, const DenseArgs &args, Cursor &c, u32 slot) {
  if (c.tile == 0) {
    for (; c.step < a.job.count; c.step++) {
      const ComposeStep st = readStep(a.steps, c.step);
      if (st.s == 0) continue;
      c.tType = st.tType;
      c.sType = st.sType;
      const u64 row = (u64)a.head * a.job.dk;
      c.t = at<const u8>(st.t) + row * a.job.dk * sizeOf(st.tType);
      c.s = at<const u8>(st.s) + (row * a.job.dv + a.column) * sizeOf(st.sType);
      break;
    }
  }
  if (c.step < a.job.count) {
    const u32 base = slot * args.slotBytes, row = c.tile * TILE;
    const u32 rows = row < a.job.dk ? a.job.dk - row : 0;
    const u32 tStride = a.job.dk * sizeOf(c.tType), sStride = a.job.dv * sizeOf(c.sType);
    const Tile t = {c.t, tStride, rows, tStride};
    const Tile s = {c.s, sStride, rows, (a.job.dv - a.column) * sizeOf(c.sType)};
    if (c.tType == F32) copyT<DK * 4>(base, t, 16);
    else copyT<DK * 2>(base, t, 64);
    if (c.sType == F32) copyS<true>(base + args.sOffset, s);
    else copyS<false>(base + args.sOffset, s);
    if (row + TILE < a.job.dk) {  // behind the last row a tile is zeros, from wherever
      c.t += TILE * tStride;
      c.s += TILE * sStride;
    }
    if (++c.tile == DK / TILE) {
      c.tile = 0;
      c.step++;
    }
  }
  commitAsync();
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
      warpBarrier();  // copies took threads different ways, products want the warp together
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
  const ComposeJob job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 strips = (job.dv + args.columns - 1) / args.columns;
  if (blockX() >= job.heads * strips) return;
  const Strip a = {job, args.tables + job.steps, blockX() / strips, blockX() % strips * args.columns};
  Walk w = {};
  for (u32 i = 0; i + 1 < args.slots; i++) fetch<DK>(a, args, w.ahead, i);
  Part x[DK / TILE] = {};
  if (job.from) moveState<false, DK>(job.from, a, x);
  for (u32 n = 0; n < job.count; n++) {
    const ComposeStep st = readStep(a.steps, n);
    if (st.before) moveState<true, DK>(st.before, a, x);
    if (st.s == 0) continue;
    if (st.tType == F16) step<F16, DK>(args, a, st, w, x);
    else if (st.tType == BF16) step<BF16, DK>(args, a, st, w, x);
    else step<F32, DK>(args, a, st, w, x);
  }
  if (job.out) moveState<true, DK>(job.out, a, x);
}

KERNEL(spliced_compose_dense_64, DenseArgs, 128, 3) { composeDense<64>(args); }
KERNEL(spliced_compose_dense_128, DenseArgs, 128, 3) { composeDense<128>(args); }
KERNEL(spliced_compose_dense_192, DenseArgs, 128, 2) { composeDense<192>(args); }
