package fakecuda

import "strconv"

// Kind is the effect of a Fault.
type Kind string

// The kinds of faults; fakecuda.h describes each.
const (
	Fail Kind = "FAIL"
	Slow Kind = "SLOW"
	Die  Kind = "DIE"
	Hang Kind = "HANG"
	Lost Kind = "LOST"
)

// Fault happens at the Nth call of a function after the fault is set; Nth 0 means at every
// call. Call is the exported name of a driver function, "*" for all functions, or an
// operation of a stream: "run.copy", "run.memset", "run.launch", "run.write", "run.wait",
// "run.record", "run.*". With the suffix "@N" the fault happens only on device N.
type Fault struct {
	Kind  Kind
	Call  string
	Nth   int
	Value int // Fail, Lost: the error code; Slow: microseconds
}

func (f Fault) spec() string {
	s := f.Call + ":" + strconv.Itoa(f.Nth)
	if f.Kind == Fail || f.Kind == Slow || f.Kind == Lost {
		s += ":" + strconv.Itoa(f.Value)
	}
	return s
}
