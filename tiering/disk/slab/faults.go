package slab

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Op is an operation of FS or File that a fault can affect.
type Op uint8

// The operations. AnyOp counts and matches all of them; Bytes and Close never fail.
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

// FaultKind is the effect of a fault.
type FaultKind uint8

// The kinds of fault. Short, Torn, Reordered and FlipRest transfer part of the bytes and
// then return Errno. Without an Errno, writes claim success, like a disk that lied or a
// crash before the error.
const (
	// FaultError does nothing and returns Errno (EIO if none is given).
	FaultError FaultKind = iota
	// FaultShort fills whole blocks of the first part of a read and leaves the rest of
	// the buffers unchanged; io.ErrUnexpectedEOF if no Errno is given.
	FaultShort
	// FaultTorn writes only the first of the 512-byte sectors of a write.
	FaultTorn
	// FaultReordered writes some 4 KiB blocks of a write and not the others.
	FaultReordered
	// FaultFlipRead flips Bits bits in the result of a read; the disk keeps the right
	// ones. It returns success.
	FaultFlipRead
	// FaultFlipRest flips Bits bits on the disk after a write.
	FaultFlipRest
	// FaultSlow sends on Entered, if set, and waits until Wait is closed; then the call
	// continues with the next rule that matches.
	FaultSlow
	faultKinds
)

// Forever is a Last that is never reached.
const Forever = math.MaxUint64

// Rule says which calls get a fault: those of Op (and of Name, unless that is empty) from
// the First to the Last, counted from 1 since the rule was set, each with probability
// Rate. First 0 means all calls, Last 0 means First, Rate 0 means 1.
type Rule struct {
	Op          Op
	Name        string // of a file; operations of the FS have the name they are called with, or none
	First, Last uint64
	Rate        float64

	Kind    FaultKind
	Errno   unix.Errno
	Bits    int // to flip; 0 is 1
	Entered chan<- struct{}
	Wait    <-chan struct{}
}

// Faults is an FS that forwards to another one and fails according to its rules. Rules
// may be changed while it is used. With a single user, the seed determines everything.
type Faults struct {
	fs       FS
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
	met uint64 // matching calls since it was set
}

// NewFaults wraps fs; without rules nothing fails.
func NewFaults(fs FS, seed uint64) *Faults {
	f := &Faults{fs: fs}
	f.mu.rng = rand.New(rand.NewPCG(seed, 0))
	return f
}

// Set replaces all rules; without rules nothing fails any more. Calls that wait continue
// to wait.
func (f *Faults) Set(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = nil
	for _, r := range rules {
		f.mu.rules = append(f.mu.rules, rule{Rule: r})
	}
}

// Calls returns the number of calls of an operation, or with AnyOp of all.
func (f *Faults) Calls(op Op) uint64 { return f.calls[op].Load() }

// Injected returns the number of faults of a kind that took effect. A fault that cannot
// change anything, such as half of one sector, does not count.
func (f *Faults) Injected(k FaultKind) uint64 { return f.injected[k].Load() }

// InjectedAll returns the sum over all kinds.
func (f *Faults) InjectedAll() (n uint64) {
	for k := range f.injected {
		n += f.injected[k].Load()
	}
	return n
}

// Flip changes bits of a file at rest: the byte at off is XORed with mask.
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

// Create implements FS, as do the following.
func (f *Faults) Create(name string, bytes int64) (File, error) {
	if err := f.plain(OpCreate, name); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.fs.Create(name, bytes))
}

func (f *Faults) Open(name string) (File, error) {
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

func (f *Faults) wrap(name string) func(File, error) (File, error) {
	return func(file File, err error) (File, error) {
		if err != nil {
			return nil, err
		}
		return &faultFile{File: file, faults: f, name: name}, nil
	}
}

// plain handles operations that can only fail or wait.
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
	return failed(fmt.Sprintf("%s %s (injected)", opNames[op], name), err)
}

// meet counts a call, waits if a rule says so, and returns the first matching rule of a
// kind other than FaultSlow.
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

// drawBits returns distinct bit positions, since a bit flipped twice is unchanged.
func (f *Faults) drawBits(count int, bytes int64) []int64 {
	bits := make([]int64, 0, max(1, count))
	for len(bits) < cap(bits) {
		if b := f.draw(bytes * 8); !slices.Contains(bits, b) {
			bits = append(bits, b)
		}
	}
	return bits
}
