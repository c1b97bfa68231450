package kernel

import "fmt"

// Step is one segment or seam of one head: state = T*state + S. If T and S are empty, the
// step leaves the state unchanged and only stores it in Before.
type Step struct {
	T     []byte // Scalar: 1, Diagonal: dk, Dense: dk*dk numbers of TType
	TType DType
	S     []byte // [dk, dv] of SType
	SType DType
	// TForm and SForm are the forms of T and S. Any form but FormPlain means that the bytes
	// are a head of a packed part, with its padding or without. Only a Dense T can be
	// packed.
	TForm, SForm Form
	// Before, if not nil, receives the state before this step, [dk, dv].
	Before []float32
	// If Dims is above 0, the first Dims rows of S are rotated by one angle per pair before
	// S is added (HYPIC Eq. 7). Only Scalar transitions commute with a rotation; the others
	// panic. Cos and Sin have Dims/2 entries.
	Cos, Sin    []float32
	Dims        int
	Interleaved bool // pairs (2i, 2i+1); false: pairs (i, i+Dims/2)
}

// Scratch is the working memory of Compose. Each worker needs one, and one call at a time
// may use it. It grows with larger heads. The zero value is ready.
type Scratch struct {
	t, s, a, b []float32
	wide       wide
}

// Compose applies all steps, in order, to one head's state [dk, dv] in place (HYPIC Eq. 6),
// in F32. It reads T and S once, and the state stays in cache. Slices may be misaligned.
// The slices state and Before must not overlap anything else. Wrong lengths panic. If sc is
// nil, Compose allocates.
//
// Results with Scalar and Diagonal transitions have the same bits on every processor.
// Results with Dense transitions have the same bits with AVX2 and AVX-512; plain Go rounds
// each multiply-add differently. A packed T or S gives the same bits as its numbers in F32
// would, except that a T of FormZero forgets the state even if the state has NaN or
// infinite numbers.
func Compose(tr Transition, dk, dv int, state []float32, steps []Step, sc *Scratch) {
	if dk < 0 || dv < 0 || len(state) != dk*dv {
		panic(fmt.Sprintf("kernel: compose a state of %d numbers as [%d, %d]", len(state), dk, dv))
	}
	for i := range steps {
		steps[i].check(tr, dk, dv)
	}
	if sc == nil {
		sc = new(Scratch)
	}
	if dk*dv == 0 {
		return
	}
	sc.reserve(dk, dv)
	compose(tr, dk, dv, state, steps, sc)
}

// count returns the number of elements of a head's T.
func (tr Transition) count(dk int) int {
	switch tr {
	case Scalar:
		return 1
	case Diagonal:
		return dk
	case Dense:
		return dk * dk
	}
	return -1
}

func (s *Step) empty() bool {
	return len(s.T) == 0 && len(s.S) == 0 && s.TForm == FormPlain && s.SForm == FormPlain
}

func (s *Step) check(tr Transition, dk, dv int) {
	if s.Before != nil && len(s.Before) != dk*dv {
		panic(fmt.Sprintf("kernel: state before a step has %d numbers, want [%d, %d]", len(s.Before), dk, dv))
	}
	if s.empty() {
		return
	}
	n := tr.count(dk)
	if n < 0 || s.TForm != FormPlain && tr != Dense || !fits(s.T, s.TForm, s.TType, n, dk) {
		panic(fmt.Sprintf("kernel: transition %d of type %d, form %d has %d bytes for dk=%d", tr, s.TType, s.TForm, len(s.T), dk))
	}
	if !fits(s.S, s.SForm, s.SType, dk*dv, dk) {
		panic(fmt.Sprintf("kernel: end-state of type %d, form %d has %d bytes, want [%d, %d]", s.SType, s.SForm, len(s.S), dk, dv))
	}
	if s.Dims == 0 {
		return
	}
	if tr != Scalar {
		panic(fmt.Sprintf("kernel: rotation does not commute with transition %d", tr))
	}
	checkTurn(Turn{Dims: s.Dims, Cos: s.Cos, Sin: s.Sin}, dk, 1)
}

// fits reports whether b has the length of n numbers in form f. Packed forms have these
// numbers in the given number of rows.
func fits(b []byte, f Form, t DType, n, rows int) bool {
	if f == FormPlain {
		return t.Size() > 0 && len(b) == n*t.Size()
	}
	size := f.size(F32, rows, n/max(rows, 1))
	return size >= 0 && (len(b) == size || len(b) == padded(size))
}

func (sc *Scratch) reserve(dk, dv int) {
	panels := dk * ((dv + panelWidth - 1) / panelWidth * panelWidth)
	grow(&sc.t, dk*dk)
	grow(&sc.s, panels)
	grow(&sc.a, panels)
	grow(&sc.b, panels)
	sc.wide.reserve(min(dk, dv)/rankShare, dk, dv)
}

func grow(b *[]float32, n int) {
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	*b = (*b)[:cap(*b)]
}
