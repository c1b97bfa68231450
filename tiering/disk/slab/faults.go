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

// Op is an operation of FS or File that a fault can meet.
type Op uint8

// The operations. AnyOp counts and meets them all; Bytes and Close never fail.
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

// FaultKind is what goes wrong.
type FaultKind uint8

// The kinds of fault. Short, Torn, Reordered and FlipRest move part of the bytes
// and then answer with Errno; without one, writes claim success, like a disk that
// lied or a crash that came before the error.
const (
	// FaultError does nothing and answers Errno (EIO if none is given).
	FaultError FaultKind = iota
	// FaultShort fills whole blocks of the first part of a read and leaves the
	// rest of the buffers alone; io.ErrUnexpectedEOF if no Errno is given.
	FaultShort
	// FaultTorn writes the first sectors of 512 bytes of a write, not all.
	FaultTorn
	// FaultReordered writes some 4 KiB blocks of a write and not the others.
	FaultReordered
	// FaultFlipRead flips Bits bits in what a read gave; the disk keeps the
	// right ones. It answers success.
	FaultFlipRead
	// FaultFlipRest flips Bits bits on the disk after a write.
	FaultFlipRest
	// FaultSlow sends on Entered, if there is one, and waits until Wait is
	// closed; then the call goes on, into the next rule that meets it.
	FaultSlow
	faultKinds
)

// Forever is a Last that never comes.
const Forever = math.MaxUint64

// Rule says which calls a fault meets: those of Op (and of Name, unless that is
// empty) from the First to the Last, counted from 1 since the rule was set, each
// with probability Rate. First 0 is all calls, Last 0 is First, Rate 0 is 1.
type Rule struct {
	Op          Op
	Name        string // of a file; an FS's own operations have the name they are called with, or none
	First, Last uint64
	Rate        float64

	Kind    FaultKind
	Errno   unix.Errno
	Bits    int // to flip; 0 is 1
	Entered chan<- struct{}
	Wait    <-chan struct{}
}

// Faults is an FS that passes on to another one and fails as its rules say.
// Rules may be changed while it is used. With one user the seed decides all.
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
	met uint64 // calls since it was set
}

// NewFaults wraps fs; without rules nothing fails.
func NewFaults(fs FS, seed uint64) *Faults {
	f := &Faults{fs: fs}
	f.mu.rng = rand.New(rand.NewPCG(seed, 0))
	return f
}

// Set replaces all rules; none means that nothing fails any more. Calls that wait
// go on waiting.
func (f *Faults) Set(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = nil
	for _, r := range rules {
		f.mu.rules = append(f.mu.rules, rule{Rule: r})
	}
}

// Calls is how many calls of an operation there were, with AnyOp of all.
func (f *Faults) Calls(op Op) uint64 { return f.calls[op].Load() }

// Injected is how many faults of a kind came about. A fault that could change
// nothing, such as half of one sector, is not one.
func (f *Faults) Injected(k FaultKind) uint64 { return f.injected[k].Load() }

// InjectedAll is the sum over all kinds.
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

// plain is for operations that can only fail or wait.
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

// meet counts a call, waits as it must, and gives the first rule of another kind
// than FaultSlow that meets it.
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

// possible says whether a kind of fault can happen to an operation.
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

// draw gives a number below n.
func (f *Faults) draw(n int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.rng.Int64N(n)
}

// drawBits gives distinct places of bits among bytes: one flipped twice is none.
func (f *Faults) drawBits(count int, bytes int64) []int64 {
	bits := make([]int64, 0, max(1, count))
	for len(bits) < cap(bits) {
		if b := f.draw(bytes * 8); !slices.Contains(bits, b) {
			bits = append(bits, b)
		}
	}
	return bits
}
