// Package slabtest has what tests of the disk tier need of slab files: an FS that injects faults.
package slabtest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// Op is an operation of slab.FS or slab.File that a fault can affect.
type Op uint8

// The operations. AnyOp stands for all of them. Bytes and Close are not operations; they
// never fail.
const (
	AnyOp Op = iota
	OpCreate
	OpOpen
	OpRemove
	OpList
	OpFree
	OpSyncDir
	OpRead
	OpWrite
	OpSync
	opCount
)

// FaultKind is the effect of a fault on a call.
type FaultKind uint8

// The kinds of fault. After a fault of a write, the call returns Rule.Errno. If that is 0,
// the write claims success. This simulates a disk that reports success wrongly, or a crash
// before the error is seen.
const (
	// FaultError does nothing and returns Errno (EIO if none is given).
	FaultError FaultKind = iota
	// FaultShort reads only some blocks at the beginning of the range and leaves the
	// remaining buffers unchanged. It returns Errno (io.ErrUnexpectedEOF if none is given).
	FaultShort
	// FaultTorn writes only some 512-byte sectors at the beginning of a write.
	FaultTorn
	// FaultReordered writes a random selection of the 4 KiB blocks of a write.
	FaultReordered
	// FaultFlipRead flips Bits bits in the result of a read and returns success. The bytes
	// on disk stay unchanged.
	FaultFlipRead
	// FaultFlipRest writes everything, and then flips Bits of these bits on the disk.
	FaultFlipRest
	// FaultSlow sends on Entered, if set, and waits until Wait is closed; then the call
	// continues with the next rule that matches.
	FaultSlow
	faultKinds
)

// Forever is a value of Rule.Last that no call number reaches.
const Forever = math.MaxUint64

// Rule says which calls get a fault. Calls match if they have its Op, and its Name unless
// that is empty. Matching calls are counted from 1 since the rule was set. The matching
// calls with numbers from First to Last get the fault, each with probability Rate. First 0
// means all matching calls, Last 0 means First, Rate 0 means 1.
type Rule struct {
	Op          Op
	Name        string // file name; "" for operations on the whole directory
	First, Last uint64
	Rate        float64

	Kind    FaultKind
	Errno   unix.Errno
	Bits    int // number of bits to flip; 0 = 1
	Entered chan<- struct{}
	Wait    <-chan struct{}
}

// Faults is a slab.FS that forwards calls to another one and injects faults according to its
// rules. Rules may be changed while it is in use. If calls are not concurrent, the seed
// determines all faults.
type Faults struct {
	fs       slab.FS
	calls    [opCount]atomic.Uint64
	injected [faultKinds]atomic.Uint64

	mu struct {
		sync.Mutex
		rng   *rand.Rand
		rules []rule
	}
}

type rule struct {
	Rule
	met uint64 // number of matching calls since the rule was set
}

// NewFaults wraps fs; without rules nothing fails.
func NewFaults(fs slab.FS, seed uint64) *Faults {
	f := &Faults{fs: fs}
	f.mu.rng = rand.New(rand.NewPCG(seed, 0))
	return f
}

// Set replaces all rules; without rules nothing fails any more. Calls that a FaultSlow
// delays continue to wait.
func (f *Faults) Set(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = nil
	for _, r := range rules {
		f.mu.rules = append(f.mu.rules, rule{Rule: r})
	}
}

// Calls returns the number of calls of an operation, or of all operations for AnyOp.
func (f *Faults) Calls(op Op) uint64 { return f.calls[op].Load() }

// Injected returns the number of faults of a kind that took effect. Faults that cannot
// change anything, such as a torn write of less than a block, do not count.
func (f *Faults) Injected(k FaultKind) uint64 { return f.injected[k].Load() }

// InjectedAll returns the sum over all kinds.
func (f *Faults) InjectedAll() (n uint64) {
	for k := range f.injected {
		n += f.injected[k].Load()
	}
	return n
}

// Flip replaces the byte at offset off of a file by its XOR with mask, like bits that flip
// on the disk.
func (f *Faults) Flip(name string, off int64, mask byte) error {
	file, err := f.fs.Open(name)
	if err != nil {
		return err
	}
	if mask != 0 {
		f.injected[FaultFlipRest].Add(1)
	}
	return errors.Join(flip(file, off, mask), file.Close())
}

// Create implements slab.FS, like the methods below.
func (f *Faults) Create(name string, bytes int64) (slab.File, error) {
	if err := f.plain(OpCreate, name); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.fs.Create(name, bytes))
}

func (f *Faults) Open(name string) (slab.File, error) {
	if err := f.plain(OpOpen, name); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.fs.Open(name))
}

func (f *Faults) Remove(name string) error {
	if err := f.plain(OpRemove, name); err != nil {
		return err
	}
	return f.fs.Remove(name)
}

func (f *Faults) List() ([]string, error) {
	if err := f.plain(OpList, ""); err != nil {
		return nil, err
	}
	return f.fs.List()
}

func (f *Faults) Free() (int64, error) {
	if err := f.plain(OpFree, ""); err != nil {
		return 0, err
	}
	return f.fs.Free()
}

func (f *Faults) Sync() error {
	if err := f.plain(OpSyncDir, ""); err != nil {
		return err
	}
	return f.fs.Sync()
}

func (f *Faults) wrap(name string) func(slab.File, error) (slab.File, error) {
	return func(file slab.File, err error) (slab.File, error) {
		if err != nil {
			return nil, err
		}
		return &faultFile{File: file, faults: f, name: name}, nil
	}
}

// plain applies the rules to a call of an operation that can only fail or wait.
func (f *Faults) plain(op Op, name string) error {
	if r, ok := f.meet(op, name); ok {
		return f.fail(&r, op, name)
	}
	return nil
}

func (f *Faults) fail(r *Rule, op Op, name string) error {
	f.injected[FaultError].Add(1)
	return r.err(op, name, unix.EIO)
}

var opNames = [opCount]string{"any", "create", "open", "remove", "list", "free bytes", "sync directory", "read", "write", "sync"}

func (r *Rule) err(op Op, name string, otherwise error) error {
	err := otherwise
	if r.Errno != 0 {
		err = r.Errno
	}
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("%s %s (injected)", opNames[op], name)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%s: %w: %w", what, slab.ErrNoSpace, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// meet counts a call and waits for the matching rules of kind FaultSlow. It returns the
// first matching rule of another kind.
func (f *Faults) meet(op Op, name string) (first Rule, ok bool) {
	f.calls[op].Add(1)
	f.calls[AnyOp].Add(1)
	var slow []Rule
	f.mu.Lock()
	for i := range f.mu.rules {
		r := &f.mu.rules[i]
		if r.Op != AnyOp && r.Op != op || r.Name != "" && r.Name != name || !r.possible(op) {
			continue
		}
		r.met++
		if !r.covers() || r.Rate > 0 && f.mu.rng.Float64() >= r.Rate {
			continue
		}
		if r.Kind == FaultSlow {
			slow = append(slow, r.Rule)
		} else if !ok {
			first, ok = r.Rule, true
		}
	}
	f.mu.Unlock()
	for _, r := range slow {
		f.injected[FaultSlow].Add(1)
		if r.Entered != nil {
			r.Entered <- struct{}{}
		}
		<-r.Wait
	}
	return first, ok
}

// possible reports whether a kind of fault applies to an operation.
func (r *Rule) possible(op Op) bool {
	switch r.Kind {
	case FaultShort, FaultFlipRead:
		return op == OpRead
	case FaultTorn, FaultReordered, FaultFlipRest:
		return op == OpWrite
	}
	return true
}

func (r *rule) covers() bool {
	return r.First == 0 || r.met >= r.First && r.met <= max(r.First, r.Last)
}

// draw returns a random number below n.
func (f *Faults) draw(n int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.rng.Int64N(n)
}

// drawBits returns random bit positions in some bytes. The parameter count is their number;
// 0 counts as 1. They are distinct, since a bit that is flipped twice does not change.
func (f *Faults) drawBits(count int, bytes int64) []int64 {
	bits := make([]int64, 0, max(1, count))
	for len(bits) < cap(bits) {
		if b := f.draw(bytes * 8); !slices.Contains(bits, b) {
			bits = append(bits, b)
		}
	}
	return bits
}
