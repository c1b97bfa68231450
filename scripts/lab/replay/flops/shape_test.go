package flops

import (
	"math"
	"testing"
)

// The figures of Marconi's formulas at D = 4096, N = 128, for 24 SSM, 4
// attention and 28 MLP layers.
func TestMarconiHybrid7BWork(t *testing.T) {
	const d, n = 4096.0, 128.0
	for _, scan := range []Scan{ScanPaper, ScanCode} {
		s := MarconiHybrid7B(scan)
		for _, tokens := range []int{1, 1000, 8192, 32768} {
			l, last := float64(tokens), 10.0
			if scan == ScanCode {
				last *= d
			}
			for _, c := range []struct {
				kind   string
				work   Work
				layers float64
				want   float64
			}{
				{"attention", s.Attention, 4, 8*l*d*d + 4*l*l*d},
				{"MLP", s.MLP, 28, 16 * l * d * d},
				{"SSM", s.Linear, 24, 12*l*d*d + 16*l*d*n + last*l},
			} {
				if got := c.work.FLOPs(tokens) / c.layers; got != c.want {
					t.Errorf("scan %d, %s, %d tokens: %v FLOPs a layer, want %v", scan, c.kind, tokens, got, c.want)
				}
			}
		}
	}
}

func TestMarconiHybrid7BBytes(t *testing.T) {
	s := MarconiHybrid7B(ScanCode)
	const transformerRows = 32 * 4 * 4096
	for _, c := range []struct {
		what string
		got  int64
		want int64
	}{
		{"rows of a token", s.KVBytes, 65_536},
		{"one SSM layer", s.CheckpointBytes() / 24, 1_116_160},
		{"a checkpoint", s.CheckpointBytes(), 26_787_840},
		{"10,000 tokens at block 16", everyBlockBytes(&s, 16), 17_397_760_000},
		{"10,000 tokens at block 32", everyBlockBytes(&s, 32), 9_039_953_920},
		{"10,000 tokens, one checkpoint", s.PrefixBytes(10_000, 1), 655_360_000 + 26_787_840},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.what, c.got, c.want)
		}
	}
	near(t, "part of convolutions", float64(s.ConvBytes)/float64(s.CheckpointBytes()), 0.06055, 5e-6)
	near(t, "against a 32-layer transformer", float64(everyBlockBytes(&s, 16))/(transformerRows*10_000), 3.318, 5e-4)
}

func TestFLOPsSavedPerByte(t *testing.T) {
	for _, c := range []struct {
		tokens int
		want   float64
	}{{1000, 142463.18}, {8192, 198007.19}, {32768, 229598.97}} {
		near(t, "hybrid", perByte(MarconiHybrid7B(ScanCode), c.tokens), c.want, 0.005)
	}
	for _, l := range []int{1, 1000, 32768} {
		tokens := float64(l)
		attention := Uniform{Hidden: 4096, State: 128, AttentionLayers: 1}.Shape()
		if got := attention.FLOPs(l) / float64(attention.RowBytes(l)); got != tokens+8192 {
			t.Errorf("attention, %d tokens: %v FLOPs a byte, want %v", l, got, tokens+8192)
		}
		paper := Uniform{Hidden: 4096, State: 128, SSMLayers: 1}.Shape()
		near(t, "SSM", perByte(paper, l), 200*tokens, 1e-4*tokens)
		code := Uniform{Hidden: 4096, State: 128, SSMLayers: 1, Scan: ScanCode}.Shape()
		near(t, "SSM as released", perByte(code, l), (200+5.0/128)*tokens, 1e-9*tokens)
	}
}

func TestSharesOfWork(t *testing.T) {
	s := MarconiHybrid7B(ScanCode)
	all := s.FLOPs(10_000)
	attention, linear, mlp := s.Attention.FLOPs(10_000)/all, s.Linear.FLOPs(10_000)/all, s.MLP.FLOPs(10_000)/all
	near(t, "attention", attention, 0.0868, 5e-5)
	near(t, "SSM", linear, 0.3663, 5e-5)
	near(t, "MLP", mlp, 0.5469, 5e-5) // 54.70 % with 10 L
	near(t, "sum", attention+linear+mlp, 1, 1e-12)
}

func TestWindowedWorkGrowsLinearlyBeyondTheWindow(t *testing.T) {
	w := Work{PerToken: 3, PerTokenSquared: 2, Window: 100}
	if got, want := w.FLOPs(50), 3.0*50+2*50*50; got != want {
		t.Errorf("inside: %v, want %v", got, want)
	}
	if got, want := w.FLOPs(1000), 3.0*1000+2*1000*100; got != want {
		t.Errorf("beyond: %v, want %v", got, want)
	}
	if w.FLOPs(0) != 0 || w.FLOPs(-1) != 0 {
		t.Error("no tokens cost something")
	}
}

// everyBlockBytes returns the bytes of a prefix of 10,000 tokens with a checkpoint at the end of each
// block, as in a paged cache.
func everyBlockBytes(s *Shape, block int) int64 { return s.PrefixBytes(10_000, (10_000+block-1)/block) }

// perByte returns Marconi's efficiency: the work that reuse of a prefix saves, per byte of the prefix's
// rows and one checkpoint.
func perByte(s Shape, tokens int) float64 {
	return s.FLOPs(tokens) / float64(s.PrefixBytes(tokens, 1))
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > within {
		t.Errorf("%s: %v, want %v within %v", what, got, want, within)
	}
}

func TestPriorFromWork(t *testing.T) {
	s := MarconiHybrid7B(ScanCode)
	p := s.Prior(100e12, 4)
	for _, n := range []int{100, 10_000} {
		near(t, "milliseconds", p.Millis(0, n), 4+s.FLOPs(n)/100e9, 1e-6)
	}
	if got := (Shape{}).Prior(100e12, 4); !got.IsZero() {
		t.Errorf("of no work: %+v", got)
	}
	if got := s.Prior(0, 4); !got.IsZero() {
		t.Errorf("of no speed: %+v", got)
	}
}
