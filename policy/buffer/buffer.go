// Package buffer counts the bytes that decoding moves when the rows of recent
// tokens (key, delta value, decay) are kept beside a linear-attention state and
// the state itself is written only now and then (KVBuffer). From the counts follow
// the best number of rows for a layer, and up to which length rows alone are
// cheaper than a state.
//
// All bytes are of one value head and one decoding step unless said otherwise.
// Everything is arithmetic on the caller's numbers: no state, no clock.
package buffer

import (
	"fmt"
	"math"
)

// Geometry is what one value head keeps. Its fields are positive, apart from
// ExtraBytes and ValuesPerKey, which may be zero.
type Geometry struct {
	KeyDim, ValueDim int
	StateBytes       int // of one number of the state
	VectorBytes      int // of one number of a key or value row
	// ExtraBytes is what else a row holds for a value head: the decay, one number
	// (GDN, Eq. 17-19) or KeyDim of them.
	ExtraBytes int
	// ValuesPerKey is how many value heads read the same keys; 0 = 1. The bytes of
	// a key are split between them.
	ValuesPerKey int
}

// Paper is the geometry of KVBuffer's formulas: square heads, states in F32,
// rows in F16.
func Paper(d int) Geometry { return Geometry{KeyDim: d, ValueDim: d, StateBytes: 4, VectorBytes: 2} }

// Validate refuses geometries that have no bytes to count.
func (g Geometry) Validate() error {
	if g.KeyDim <= 0 || g.ValueDim <= 0 || g.StateBytes <= 0 || g.VectorBytes <= 0 || g.ExtraBytes < 0 || g.ValuesPerKey < 0 {
		return fmt.Errorf("buffer: no geometry of a head: %+v", g)
	}
	return nil
}

// State is the bytes of the state, Row those of one token's row.
func (g Geometry) State() float64 {
	return float64(g.StateBytes) * float64(g.KeyDim) * float64(g.ValueDim)
}

// Row is the bytes of one row: key, value and what goes with them.
func (g Geometry) Row() float64 {
	keys := float64(g.KeyDim) / float64(max(1, g.ValuesPerKey))
	return float64(g.VectorBytes)*(keys+float64(g.ValueDim)) + float64(g.ExtraBytes)
}

// Traffic is what a form of linear attention stores, and reads and writes per
// step (KVBuffer Tables 1 and 2, in bytes).
type Traffic struct{ Stored, Read, Written float64 }

// Moved is everything read or written.
func (t Traffic) Moved() float64 { return t.Read + t.Written }

// Parallel reads the rows of all earlier tokens and has no state.
func (g Geometry) Parallel(tokens int) Traffic {
	rows := float64(tokens) * g.Row()
	return Traffic{Stored: rows, Read: rows, Written: g.Row()}
}

// Recurrent reads and writes the state.
func (g Geometry) Recurrent() Traffic {
	return Traffic{Stored: g.State(), Read: g.State(), Written: g.State()}
}

// Chunkwise reads the state and the rows pending, half of the capacity on average,
// and writes its row, and the state once in capacity steps.
func (g Geometry) Chunkwise(capacity int) Traffic {
	c := float64(capacity)
	return Traffic{
		Stored:  g.State() + c*g.Row(),
		Read:    g.State() + c/2*g.Row(),
		Written: g.State()/c + g.Row(),
	}
}

// Step is the bytes of a chunkwise step as Eq. 6 charges them: without writing the
// step's own row.
func (g Geometry) Step(capacity int) float64 { return g.step(float64(capacity)) }

func (g Geometry) step(c float64) float64 { return g.State() + c/2*g.Row() + g.State()/c }

// Counted is the bytes of a chunkwise step of gpuipc/kernel, on average over
// capacity steps: the state and the rows of earlier steps are read, the own row is
// written, and the last step writes the state out of the same read.
func (g Geometry) Counted(capacity int) float64 {
	c := float64(capacity)
	return g.State() + (c-1)/2*g.Row() + g.Row() + g.State()/c
}

// Flush is the bytes of a flush on its own: the state twice and all rows (§3.2).
func (g Geometry) Flush(capacity int) float64 { return 2*g.State() + float64(capacity)*g.Row() }

// StepWithFlush is a step when a flush is a pass of its own that reads state and
// rows again.
func (g Geometry) StepWithFlush(capacity int) float64 {
	c := float64(capacity)
	return g.State() + c/2*g.Row() + g.Flush(capacity)/c
}

// Speedup is the bytes of recurrent decoding over those of a chunkwise step
// (Eq. 6).
func (g Geometry) Speedup(capacity int) float64 { return g.Recurrent().Moved() / g.Step(capacity) }

// SpeedupWithFlush is the same where flushes read again.
func (g Geometry) SpeedupWithFlush(capacity int) float64 {
	return g.Recurrent().Moved() / g.StepWithFlush(capacity)
}

// Optimum is the capacity of fewest bytes as a real number: sqrt(2*State/Row),
// which is sqrt(2d) for the paper's geometry.
func (g Geometry) Optimum() float64 { return math.Sqrt(2 * g.State() / g.Row()) }

// OptimumWithFlush is the same where flushes read again: 2*sqrt(d).
func (g Geometry) OptimumWithFlush() float64 { return math.Sqrt(4 * g.State() / g.Row()) }

// Best is the whole capacity of fewest bytes a step, at least 1.
func (g Geometry) Best() int {
	low := max(1, int(g.Optimum()))
	if g.Step(low+1) < g.Step(low) {
		return low + 1
	}
	return low
}

// FlushIntensity is the multiply-adds of a flush per byte (Eq. 5), counted two
// operations each as the paper does.
func (g Geometry) FlushIntensity(capacity int) float64 {
	return 2 * float64(capacity) * float64(g.KeyDim) * float64(g.ValueDim) / g.Flush(capacity)
}
