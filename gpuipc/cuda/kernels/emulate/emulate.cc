// Runs kernels on the host, see emulate.h. The threads of a block are fibers of one host thread, so
// a block needs no locks and gives the same result each time. Blocks are spread over a few host
// threads. A warp runs until all its fibers wait for the same collective operation. Odd blocks run
// in the reverse order, so that a missing barrier gives wrong numbers in one of the two orders.
#include "../device.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulate {
namespace {

constexpr size_t stackBytes = 64 << 10;
constexpr size_t sharedLimit = 227 << 10;  // the most a block can have (compute capability 9.0)
constexpr size_t pageBytes = 4096;
constexpr u8 poison = 0xff;  // NaN in every element type
constexpr unsigned maxWorkers = 4;
constexpr size_t inlineThreads = 4096;  // smaller grids run in the caller

// ---- switching stacks

#if defined(__x86_64__)
struct Context {
  void *sp = nullptr;
};
extern "C" void emulateSwitch(void **from, void *to);
asm(R"(
.text
.local emulateSwitch
.type emulateSwitch, @function
emulateSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulateSwitch, .-emulateSwitch
)");
void switchTo(Context &from, Context &to) { emulateSwitch(&from.sp, to.sp); }
void prepare(Context &c, u8 *stack, void (*entry)()) {
  void **top = (void **)(stack + stackBytes);
  *--top = nullptr;  // entry finds the stack as a call leaves it: 8 off a multiple of 16
  *--top = (void *)entry;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  c.sp = top;
}
#else
struct Context {
  ucontext_t u;
};
void switchTo(Context &from, Context &to) { swapcontext(&from.u, &to.u); }
void prepare(Context &c, u8 *stack, void (*entry)()) {
  getcontext(&c.u);
  c.u.uc_stack.ss_sp = stack;
  c.u.uc_stack.ss_size = stackBytes;
  c.u.uc_link = nullptr;
  makecontext(&c.u, entry, 0);
}
#endif

// ---- kernels

struct Kernel {
  std::string name;
  size_t argumentBytes;
  u32 threads;
  void (*run)(const void *);
};

std::vector<Kernel> &kernels() {
  static std::vector<Kernel> all;  // filled before main by the Registrations
  return all;
}

const Kernel *find(const char *name) {
  for (const Kernel &k : kernels()) {
    if (k.name == name) return &k;
  }
  return nullptr;
}

// ---- one block

struct Copy {
  void *to;
  const void *from;
  u32 bytes, size;
};

struct Fiber {
  Context context;
  Position position;
  Collective waits;
  void *words;
  bool done;
  std::vector<Copy> open;                 // copies not committed yet
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
};

// Launch is what the workers of one emulate_launch share.
struct Launch {
  const Kernel *kernel;
  u32 grid[3];
  u32 threads;
  u32 shared;
  const void *args;
  std::atomic<u64> next{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> illegal{false};  // failed by an access to memory that is not there
  std::string error;  // written by the one that set failed
};

// Block is one host thread's fibers and memory; it runs one block after the other.
struct Block {
  Context scheduler;
  std::vector<Fiber> fibers;
  u8 *stacks = nullptr;
  size_t stackCount = 0;
  u8 *mapping;   // guard page, margin and shared memory, guard page
  u8 *end;       // of shared memory, where the guard page begins
  u8 *base;      // of this launch's shared memory
  Launch *launch = nullptr;
  Fiber *running = nullptr;
  volatile bool inside = false;  // a fiber runs, not the scheduler
  bool faulted = false;

  Block();
  ~Block();
  Block(const Block &) = delete;
  void run(Launch &l, u64 index);
  void begin(u64 index);
  bool runWarp(u32 first, u32 count, bool reverse);
  bool completeWarp(u32 first, u32 count);
  bool completeBlock();
  void report(const std::string &text);
};

thread_local Block *current = nullptr;

size_t sharedSpan() { return (sharedLimit + 2 * pageBytes - 1) / pageBytes * pageBytes; }

Block::Block() {
  const size_t span = sharedSpan();
  mapping = (u8 *)mmap(nullptr, span + 2 * pageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping + pageBytes, span, PROT_READ | PROT_WRITE) != 0) abort();
  end = mapping + pageBytes + span;
}

Block::~Block() {
  munmap(mapping, sharedSpan() + 2 * pageBytes);
  if (stacks) munmap(stacks, stackCount * stackBytes);
}

void enter() {
  Block *b = current;
  b->launch->kernel->run(b->launch->args);
  Fiber *f = b->running;
  if (!f->open.empty()) fault("ends with copies that were not committed");
  for (const auto &g : f->groups) {
    if (!g.empty()) fault("ends with copies in flight");
  }
  f->done = true;
  switchTo(f->context, b->scheduler);
  abort();  // a fiber that is done is not run again
}

void Block::begin(u64 index) {
  const u32 n = launch->threads;
  if (stackCount < n) {
    if (stacks) munmap(stacks, stackCount * stackBytes);
    stacks = (u8 *)mmap(nullptr, n * stackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    for (u32 i = 0; i < n; i++) mprotect(stacks + i * stackBytes, pageBytes, PROT_NONE);
    stackCount = n;
  }
  fibers.resize(n);
  const u32 *g = launch->grid;
  for (u32 i = 0; i < n; i++) {
    Fiber &f = fibers[i];
    f.position = {i, n, {(u32)(index % g[0]), (u32)(index / g[0] % g[1]), (u32)(index / g[0] / g[1])}};
    f.waits = NONE;
    f.done = false;
    f.open.clear();
    f.groups.clear();
    prepare(f.context, stacks + i * stackBytes, enter);
  }
  base = end - (launch->shared + 127) / 128 * 128;
  memset(base - pageBytes, poison, end - base + pageBytes);
}

// intact reports whether [from, to) still has only poison.
bool intact(const u8 *from, const u8 *to) {
  return std::all_of(from, to, [](u8 b) { return b == poison; });
}

void Block::run(Launch &l, u64 index) {
  launch = &l;
  faulted = false;
  begin(index);
  const bool reverse = index & 1;
  const u32 warps = (l.threads + 31) / 32;
  for (bool moved = true; moved && !faulted;) {
    moved = false;
    for (u32 i = 0; i < warps && !faulted; i++) {
      const u32 first = 32 * (reverse ? warps - 1 - i : i);
      moved |= runWarp(first, std::min<u32>(32, l.threads - first), reverse);
    }
    moved |= !faulted && completeBlock();
  }
  if (faulted) return;
  for (Fiber &f : fibers) {
    if (f.done) continue;
    running = &f;
    report("threads wait for different things (" + std::to_string(f.waits) + ") or have left");
    return;
  }
  if (!intact(base - pageBytes, base) || !intact(base + l.shared, end)) {
    running = &fibers[0];
    report("the block wrote beside its shared memory");
  }
}

// runWarp runs the fibers of a warp until they need other warps.
bool Block::runWarp(u32 first, u32 count, bool reverse) {
  bool moved = false;
  do {
    for (u32 i = 0; i < count; i++) {
      Fiber &f = fibers[first + (reverse ? count - 1 - i : i)];
      if (f.done || f.waits != NONE) continue;
      moved = true;
      running = &f;
      inside = true;
      switchTo(scheduler, f.context);
      inside = false;
      if (faulted) return moved;
    }
  } while (completeWarp(first, count));
  return moved;
}

bool Block::completeBlock() {
  for (const Fiber &f : fibers) {
    if (f.done || f.waits != BLOCK_BARRIER) return false;
  }
  for (Fiber &f : fibers) f.waits = NONE;
  return true;
}

void exchange(Fiber *warp, u32 count, Collective what) {
  u32 values[32];
  for (u32 i = 0; i < count; i++) values[i] = ((Shuffle *)warp[i].words)->value;
  for (u32 i = 0; i < count; i++) {
    auto *s = (Shuffle *)warp[i].words;
    const u32 from = (what == SHUFFLE ? s->lane : i ^ s->lane) & 31;
    s->value = from < count ? values[from] : 0xffffffffu;
  }
}

// ---- the tensor core

double powerOf2(i64 n) {
  const u64 bits = (u64)(n + 1023) << 52;
  double v;
  memcpy(&v, &bits, 8);
  return v;
}

// addTruncated adds four products to c as a tensor core may do it: all of them are truncated, not
// rounded, to the last place of the largest, and so is the sum. Real tensor cores were measured to
// keep a bit or two more (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor
// cores, 2021), so results here are a little worse.
float addTruncated(float c, const double p[4]) {
  double largest = std::fabs((double)c), plain = c;
  for (int i = 0; i < 4; i++) {
    largest = std::max(largest, std::fabs(p[i]));
    plain += p[i];
  }
  u64 bits;
  memcpy(&bits, &largest, 8);
  const i64 exponent = (i64)(bits >> 52) - 1023;
  if (!std::isfinite(plain) || exponent < -900) return (float)plain;
  const double up = powerOf2(23 - exponent), down = powerOf2(exponent - 23);
  i64 sum = (i64)(c * up);
  for (int i = 0; i < 4; i++) sum += (i64)(p[i] * up);
  i64 one = 1;
  while ((sum < 0 ? -sum : sum) >= one << 24) one <<= 1;
  return (float)((double)(sum / one * one) * down);
}

// half is one of the two numbers of a word.
float half(u32 type, u32 word, u32 i) {
  const u16 h = (u16)(word >> 16 * i);
  return type == F16 ? halfToFloat(h) : bfloatToFloat(h);
}

// Operands of a warp: A [16, 8 or 16] and B [8 or 16, 8] as lanes hold them.
struct Operands {
  u32 depth;
  float a[16][16], b[16][8];
};

void gather(Fiber *warp, Operands &o) {
  const u32 type = ((const Multiply *)warp[0].words)->type;
  o.depth = type == F32 ? 8 : 16;
  for (u32 l = 0; l < 32; l++) {
    const auto *m = (const Multiply *)warp[l].words;
    const u32 g = l >> 2, t = l & 3;
    for (u32 i = 0; i < 4; i++) {
      float *row = o.a[g + 8 * (i & 1)];
      if (type == F32) row[t + 4 * (i >> 1)] = asFloat(m->a[i]);
      else for (u32 e = 0; e < 2; e++) row[2 * t + 8 * (i >> 1) + e] = half(type, m->a[i], e);
    }
    for (u32 i = 0; i < 2; i++) {
      if (type == F32) o.b[t + 4 * i][g] = asFloat(m->b[i]);
      else for (u32 e = 0; e < 2; e++) o.b[2 * t + 8 * i + e][g] = half(type, m->b[i], e);
    }
  }
}

// multiplyBytes is exact.
void multiplyBytes(Fiber *warp) {
  const bool isSigned = ((const Multiply *)warp[0].words)->type == SIGNED_BYTES;
  i32 a[16][32], b[32][8];
  for (u32 l = 0; l < 32; l++) {
    const auto *m = (const Multiply *)warp[l].words;
    const u32 g = l >> 2, t = l & 3;
    for (u32 e = 0; e < 4; e++) {
      for (u32 i = 0; i < 4; i++) a[g + 8 * (i & 1)][4 * t + 16 * (i >> 1) + e] = (signed char)(m->a[i] >> 8 * e);
      for (u32 i = 0; i < 2; i++) {
        const u8 v = (u8)(m->b[i] >> 8 * e);
        b[4 * t + 16 * i + e][g] = isSigned ? (i32)(signed char)v : (i32)v;
      }
    }
  }
  for (u32 l = 0; l < 32; l++) {
    auto *m = (Multiply *)warp[l].words;
    for (u32 i = 0; i < 4; i++) {
      const u32 row = (l >> 2) + 8 * (i >> 1), column = 2 * (l & 3) + (i & 1);
      i32 sum;
      memcpy(&sum, &m->c[i], 4);
      for (u32 k = 0; k < 32; k++) sum += a[row][k] * b[k][column];
      memcpy(&m->c[i], &sum, 4);
    }
  }
}

void multiply(Fiber *warp) {
  if (((const Multiply *)warp[0].words)->type >= BYTES) return multiplyBytes(warp);
  Operands o;
  gather(warp, o);
  for (u32 l = 0; l < 32; l++) {
    auto *m = (Multiply *)warp[l].words;
    for (u32 i = 0; i < 4; i++) {
      const u32 row = (l >> 2) + 8 * (i >> 1), column = 2 * (l & 3) + (i & 1);
      for (u32 k = 0; k < o.depth; k += 4) {
        double p[4];
        for (u32 j = 0; j < 4; j++) p[j] = (double)o.a[row][k + j] * o.b[k + j][column];
        m->c[i] = addTruncated(m->c[i], p);
      }
    }
  }
}

// unlike returns what is wrong with a lane's operands, or null.
const char *unlike(const Multiply *m, const Multiply *first) {
  if (m->type != first->type) return "a product of another type than the warp's first thread";
  u32 low = 0;
  for (u32 v : m->a) low |= v;
  for (u32 v : m->b) low |= v;
  return m->type == F32 && low & 0x1fff ? "an operand of a product is not TF32" : nullptr;
}

bool Block::completeWarp(u32 first, u32 count) {
  Fiber *warp = &fibers[first];
  const Collective what = warp[0].waits;
  if (what == NONE || what == BLOCK_BARRIER) return false;
  for (u32 i = 0; i < count; i++) {
    if (warp[i].done || warp[i].waits != what) return false;
  }
  running = &warp[0];
  if (what == SHUFFLE || what == SHUFFLE_XOR) exchange(warp, count, what);
  if (what == MULTIPLY) {
    if (count < 32) return report("a product of part of a warp"), false;
    for (u32 i = 0; i < 32; i++) {
      const char *wrong = unlike((const Multiply *)warp[i].words, (const Multiply *)warp[0].words);
      if (!wrong) continue;
      running = &warp[i];
      return report(wrong), false;
    }
    multiply(warp);
  }
  for (u32 i = 0; i < count; i++) warp[i].waits = NONE;
  return true;
}

void Block::report(const std::string &text) {
  faulted = true;
  if (launch->failed.exchange(true)) return;
  const Position &p = running->position;
  char where[160];
  snprintf(where, sizeof where, "%s: block (%u, %u, %u), thread %u: ", launch->kernel->name.c_str(),
           p.block[0], p.block[1], p.block[2], p.thread);
  launch->error = where + text;
}

void work(Launch &l) {
  // One for each host thread that launches: stacks and shared memory are mapped once.
  static thread_local std::unique_ptr<Block> block;
  if (!block) block = std::make_unique<Block>();
  current = block.get();
  const u64 blocks = (u64)l.grid[0] * l.grid[1] * l.grid[2];
  while (!l.failed) {
    const u64 i = l.next++;
    if (i >= blocks) return;
    block->run(l, i);
  }
}

void workOnMany(Launch &l, unsigned workers) {
  // The handlers of the process's signals may only run on its own threads. Bad accesses are
  // delivered to this thread all the same, see emulate_illegal.
  sigset_t all, old;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < workers; i++) threads.emplace_back([&l] { work(l); });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  work(l);
  for (std::thread &t : threads) t.join();
}

thread_local std::string lastError;

int refuse(int code, const std::string &text) {
  lastError = text;
  return code;
}

}  // namespace

// ---- what kernels call

Registration::Registration(const char *name, size_t argumentBytes, u32 threads,
                           void (*run)(const void *)) {
  kernels().push_back({name, argumentBytes, threads, run});
}

const Position &position() { return current->running->position; }

void fault(const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  Block *b = current;
  b->report(text);
  switchTo(b->running->context, b->scheduler);
  abort();  // a fiber that faulted is not run again
}

void collect(Collective what, void *words) {
  Block *b = current;
  Fiber *f = b->running;
  f->waits = what;
  f->words = words;
  switchTo(f->context, b->scheduler);
}

u8 *sharedMemory(u32 offset, size_t align) {
  if (offset % align != 0) fault("shared memory at %u for an alignment of %zu", offset, align);
  return current->base + offset;
}

void sharedCheck(const void *p, size_t bytes) {
  Block *b = current;
  const i64 off = (const u8 *)p - b->base;
  if (off < 0 || off + bytes > b->launch->shared) {
    fault("shared memory at %lld, %zu bytes, of %u", (long long)off, bytes, b->launch->shared);
  }
}

void copyAsync(void *to, const void *from, u32 bytes, u32 size) {
  sharedCheck(to, size);
  if ((u64)to % size || (u64)from % size || bytes > size) {
    fault("copy of %u of %u bytes from %p to %p", bytes, size, from, to);
  }
  memset(to, poison, size);  // until the wait, neither the old bytes nor the new ones may be used
  current->running->open.push_back({to, from, bytes, size});
}

void commitAsync() {
  Fiber *f = current->running;
  f->groups.push_back(std::move(f->open));
  f->open.clear();
}

void waitAsync(u32 left) {
  Fiber *f = current->running;
  if (f->groups.size() <= left) return;
  const size_t n = f->groups.size() - left;
  for (size_t i = 0; i < n; i++) {
    for (const Copy &c : f->groups[i]) {
      memcpy(c.to, c.from, c.bytes);
      memset((u8 *)c.to + c.bytes, 0, c.size - c.bytes);
    }
  }
  f->groups.erase(f->groups.begin(), f->groups.begin() + n);
}

}  // namespace emulate

using namespace emulate;

extern "C" int emulate_launch(const char *name, const unsigned grid[3], const unsigned block[3],
                              unsigned shared, const void *args, size_t n) {
  const Kernel *k = find(name);
  if (!k) return refuse(1, std::string("no kernel is called ") + name);
  if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535) {
    return refuse(1, k->name + ": a grid that no device takes");
  }
  if (!block[0] || block[0] > k->threads || block[1] != 1 || block[2] != 1) {
    return refuse(1, k->name + ": a block that is not 1 to " + std::to_string(k->threads) + " threads in a row");
  }
  if (shared > sharedLimit) return refuse(1, k->name + ": more shared memory than any device has");
  if (n != k->argumentBytes) {
    return refuse(2, k->name + ": " + std::to_string(n) + " bytes of arguments, not " +
                         std::to_string(k->argumentBytes));
  }
  Launch l;
  l.kernel = k;
  std::copy(grid, grid + 3, l.grid);
  l.threads = block[0];
  l.shared = shared;
  l.args = args;
  const u64 blocks = (u64)grid[0] * grid[1] * grid[2];
  const u64 workers = std::min<u64>({blocks, maxWorkers, std::max(1u, std::thread::hardware_concurrency())});
  if (workers == 1 || blocks * l.threads <= inlineThreads) {
    work(l);
  } else {
    workOnMany(l, (unsigned)workers);
  }
  return l.failed ? refuse(l.illegal ? 4 : 3, l.error) : 0;
}

extern "C" int emulate_illegal(const void *at) {
  Block *b = current;
  if (!b || !b->inside) return 0;
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, SIGSEGV);
  sigaddset(&own, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  b->launch->illegal = true;
  fault("an access to %p, where no memory is", at);
}

extern "C" const char *emulate_error(void) { return lastError.c_str(); }

extern "C" const char *emulate_kernel(unsigned i) {
  return i < kernels().size() ? kernels()[i].name.c_str() : nullptr;
}

extern "C" size_t emulate_argument_bytes(const char *name) {
  const Kernel *k = find(name);
  return k ? k->argumentBytes : 0;
}
