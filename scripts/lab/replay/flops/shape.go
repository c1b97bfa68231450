// Package flops counts the work of a prefill of L tokens. With D the hidden size and N the size of
// a state, one layer costs (Marconi, Table 1, and its released code)
//
//	attention  8 L D² + 4 L² D        stores 4 L D bytes (keys and values, 16 bit)
//	MLP        16 L D²                stores nothing
//	SSM        12 L D² + 16 L D N + 10 L      stores 2 D N bytes
//	           the released code has 10 L D as its last term
//
// Attention counts the whole square, as Marconi does; a causal kernel does half.
//
// The daemon does not use it: a profile does not have the widths of a model, so the daemon measures
// milliseconds instead.
package flops

import "github.com/spliced-kv/spliced/policy/cost"

// Work is the floating-point work of all layers of one kind for a prefill of L
// tokens: PerToken·L + PerTokenSquared·L².
type Work struct {
	PerToken        float64
	PerTokenSquared float64
	Window          int // lookback in tokens: L² becomes L·min(L, Window); 0 = no limit
}

// FLOPs returns the work of a prefill of that many tokens from an empty cache.
func (w Work) FLOPs(tokens int) float64 {
	if tokens <= 0 {
		return 0
	}
	l, span := float64(tokens), float64(tokens)
	if w.Window > 0 {
		span = min(span, float64(w.Window))
	}
	return w.PerToken*l + w.PerTokenSquared*l*span
}

func (w *Work) add(o Work) {
	w.PerToken += o.PerToken
	w.PerTokenSquared += o.PerTokenSquared
	w.Window = max(w.Window, o.Window)
}

// Shape describes the computation and the cached bytes of a model, over all layers and all
// tensor-parallel ranks. If the Work of every kind is zero, only the bytes are known.
type Shape struct {
	cost.Shape
	Attention Work // full and MLA layers
	Window    Work // sliding-window layers
	Linear    Work // recurrent layers: linear attention, SSM
	MLP       Work
}

// FLOPs returns the work of a prefill of that many tokens from an empty cache. The work of
// the tokens [a, b) is FLOPs(b) - FLOPs(a).
func (s Shape) FLOPs(tokens int) float64 {
	return s.Attention.FLOPs(tokens) + s.Window.FLOPs(tokens) + s.Linear.FLOPs(tokens) + s.MLP.FLOPs(tokens)
}

// Known reports whether the shape has any work.
func (s Shape) Known() bool { return s.FLOPs(1) > 0 }

// Prior predicts from the work of the shape and a device's speed, with the given
// milliseconds for each run. It returns the zero Prefill if the work or the speed is
// unknown.
func (s Shape) Prior(flopsPerSecond, fixedMillis float64) cost.Prefill {
	if !s.Known() || flopsPerSecond <= 0 {
		return cost.Prefill{}
	}
	perMilli := flopsPerSecond / 1e3
	linear := s.Attention.PerToken + s.Window.PerToken + s.Linear.PerToken + s.MLP.PerToken
	if s.Window.Window > 0 {
		linear += s.Window.PerTokenSquared * float64(s.Window.Window)
	}
	return cost.Prefill{Fixed: fixedMillis, PerToken: linear / perMilli, PerTokenSquared: s.Attention.PerTokenSquared / perMilli}
}
