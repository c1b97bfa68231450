// Dense transitions that the tensor cores' kernels cannot take: more than 192 key dimensions, rows
// that are not multiples of 16 bytes (of packed parts 8 numbers), tensors off their alignment. Plain multiply-adds on a state in
// shared memory; a thread computes one number of the new state at a time. Not made for speed: T
// is read once for each strip of at most 8 columns.
#include "compose_heads.cu"

enum : u32 { PLAIN_THREADS = 128, PLAIN_COLUMNS_OF_T = 32 };

struct PlainArgs {
  u64 tables;    // as of ComposeArgs
  u32 columns;   // of a block: 8, 4, 2 or 1
  u32 tOffset;   // where in shared memory a piece of T lies, behind two states of [rows, columns]
  u32 rows;      // the most dk of any job
  u32 unused;
};
static_assert(sizeof(PlainArgs) == 24, "compose.go");

// Place is a thread's number of a state's strip: row r of every `rows` rows, and the column.
struct Place {
  u32 head, first, row, column, rows;
  bool inside;
};

// PlainStep and HeadStep are where the numbers of a step come from.
struct PlainStep {
  const ComposeStep &st;
  FN PlainStep of(const ComposeJob &, const ComposeStep &st, u32) { return {st}; }
  FN float t(const ComposeJob &job, const PlainStep &p, u32 head, u32 row, u32 column) {
    return number(p.st.t, p.st.tType, (u64)head * job.dk * job.dk + (u64)row * job.dk + column);
  }
  FN float s(const ComposeJob &job, const PlainStep &p, u32 head, u32 row, u32 first, u32 column) {
    return number(p.st.s, p.st.sType, ((u64)head * job.dk + row) * job.dv + first + column);
  }
  FN bool forgets(const PlainStep &) { return false; }
};

struct HeadStep {
  Head tHead, sHead;
  FN HeadStep of(const ComposeJob &job, const ComposeStep &st, u32 head) {
    return {findHead(transitions(job, st), head), findHead(endStates(job, st), head)};
  }
  FN float t(const ComposeJob &job, const HeadStep &p, u32, u32 row, u32 column) {
    return headNumber(p.tHead, job.dk, job.dk, row, column);
  }
  FN float s(const ComposeJob &job, const HeadStep &p, u32, u32 row, u32 first, u32 column) {
    return headNumber(p.sHead, job.dk, job.dv, row, first + column);
  }
  FN bool forgets(const HeadStep &p) { return p.tHead.kind == ZERO; }
};

// copyT brings [rows, 32] of T to shared memory, zeros behind its ends. A row takes 33 numbers
// there, so that threads of neighbouring rows use different banks.
template <class STEP>
FN void copyT(const ComposeJob &job, const STEP &st, const Place &p, u32 row, u32 column, u32 to) {
  const auto t = shared<float>(to);
  for (u32 i = threadIndex(); i < p.rows * PLAIN_COLUMNS_OF_T; i += threads()) {
    const u32 r = row + i / PLAIN_COLUMNS_OF_T, c = column + i % PLAIN_COLUMNS_OF_T;
    const bool there = r < job.dk && c < job.dk;
    t[i / PLAIN_COLUMNS_OF_T * 33 + i % PLAIN_COLUMNS_OF_T] = there ? STEP::t(job, st, p.head, r, c) : 0;
  }
}

// plainRow is one number of T*state. Sums of 32 products are added to each other: a single chain
// of a thousand would lose bits.
template <class STEP>
FN float plainRow(const ComposeJob &job, const PlainArgs &args, const STEP &st, const Place &p, u32 row,
                  Shared<float> state) {
  const auto t = shared<float>(args.tOffset);
  float sum = 0;
  for (u32 k = 0; k < job.dk; k += PLAIN_COLUMNS_OF_T) {
    blockBarrier();
    copyT(job, st, p, row, k, args.tOffset);
    blockBarrier();
    const u32 end = job.dk - k < PLAIN_COLUMNS_OF_T ? job.dk - k : PLAIN_COLUMNS_OF_T;
    float part = 0;
    for (u32 j = 0; j < end; j++) part = fused(t[p.row * 33 + j], state[(k + j) * args.columns + p.column], part);
    sum += part;
  }
  return sum;
}

// plainStep multiplies by a T of zeros too: whatever becomes of a part meanwhile, all threads reach
// the same barriers.
template <class STEP>
FN void plainStep(const ComposeJob &job, const PlainArgs &args, const STEP &st, const Place &p, Shared<float> from,
                  Shared<float> to) {
  for (u32 row = 0; row < job.dk; row += p.rows) {
    const u32 r = row + p.row;
    float sum = plainRow(job, args, st, p, row, from);
    if (STEP::forgets(st)) sum = 0;
    if (r >= job.dk) continue;
    float s = 0;
    if (p.inside) s = STEP::s(job, st, p.head, r, p.first, p.column);
    to[r * args.columns + p.column] = sum + s;
  }
}

// plainMove reads a thread's numbers of the state, or writes them.
template <bool WRITE>
FN void plainMove(u64 array, const ComposeJob &job, const PlainArgs &args, const Place &p, Shared<float> state) {
  for (u32 r = p.row; r < job.dk; r += p.rows) {
    float *there = at<float>(array) + ((u64)p.head * job.dk + r) * job.dv + p.first + p.column;
    float &here = state[r * args.columns + p.column];
    if (WRITE) {
      if (p.inside) *there = here;
    } else {
      here = array && p.inside ? *there : 0;
    }
  }
}

template <class STEP>
FN void composePlain(const PlainArgs &args) {
  const ComposeJob &job = at<const ComposeJob>(args.tables)[blockY()];
  const u32 strips = (job.dv + args.columns - 1) / args.columns;
  if (blockX() >= job.heads * strips) return;
  Place p;
  p.head = blockX() / strips;
  p.first = blockX() % strips * args.columns;
  p.row = threadIndex() / args.columns;
  p.column = threadIndex() % args.columns;
  p.rows = threads() / args.columns;
  p.inside = p.first + p.column < job.dv;
  const ComposeStep *steps = stepsOf(args.tables, job);
  auto now = shared<float>(0), next = shared<float>(4 * args.rows * args.columns);
  plainMove<false>(job.from, job, args, p, now);
  for (u32 n = 0; n < job.count; n++) {
    const ComposeStep &st = steps[n];
    if (st.before) plainMove<true>(st.before, job, args, p, now);
    if (st.s == 0) continue;
    plainStep(job, args, STEP::of(job, st, p.head), p, now, next);
    const auto other = now;
    now = next;
    next = other;
  }
  if (job.out) plainMove<true>(job.out, job, args, p, now);
}

KERNEL(spliced_compose_plain, PlainArgs, PLAIN_THREADS, 4) { composePlain<PlainStep>(args); }
KERNEL(spliced_compose_packed_plain, PlainArgs, PLAIN_THREADS, 4) { composePlain<HeadStep>(args); }
