package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/ragdemo"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
)

// The codec section encodes and decodes output of the reference engine for the demo's passages,
// and synthetic numbers. It uses one core and measures CPU time. The limit of both directions is
// a copy of the raw bytes.

// captureTokens is the number of tokens captured at once. It is as long as a large document, so
// that each part fills chunks.
const captureTokens = 4096

// sample is a set of parts of one element type, as a tier receives them.
type sample struct {
	name  string
	dt    kernel.DType
	parts [][]byte
	asked bool // the report's requirements (bars) apply to it
}

func (d *sample) bytes() (n int64) {
	for _, p := range d.parts {
		n += int64(len(p))
	}
	return n
}

// add appends numbers, rounded to the sample's type.
func (d *sample) add(values []float32) {
	part := make([]byte, len(values)*d.dt.Size())
	kernel.FromF32(part, values, d.dt)
	d.parts = append(d.parts, part)
}

func codecRows(ctx context.Context, s *session) error {
	captured, err := capture(ctx, s.rounds(6))
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	for _, d := range append(captured, synthetic()...) {
		if err := codecRow(s, &d); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}

func codecRow(s *session, d *sample) error {
	encoded := make([][]byte, len(d.parts))
	plain := make([][]byte, len(d.parts))
	for i, p := range d.parts {
		encoded[i] = make([]byte, 0, codec.MaxEncodedBytes(len(p), codec.Options{}))
		plain[i] = make([]byte, len(p))
	}
	got, err := alternate(s.rounds(9),
		perCore(d.bytes(), func() (err error) {
			for i, p := range d.parts {
				encoded[i], err = codec.Encode(encoded[i][:0], p, d.dt, codec.Options{})
				if err != nil {
					return err
				}
			}
			return nil
		}),
		perCore(d.bytes(), func() error {
			for i := range d.parts {
				if err := codec.Decode(plain[i], encoded[i], d.dt, codec.Options{}); err != nil {
					return err
				}
			}
			return nil
		}),
		perCore(d.bytes(), func() error {
			for i, p := range d.parts {
				copy(plain[i], p)
			}
			return nil
		}),
	)
	if err != nil {
		return err
	}
	stored := int64(0)
	for i, p := range d.parts {
		if err := codec.Decode(plain[i], encoded[i], d.dt, codec.Options{}); err != nil || !bytes.Equal(plain[i], p) {
			return errors.Join(fmt.Errorf("part %d came back changed", i), err)
		}
		stored += int64(len(encoded[i]))
	}
	var ratio, encode, decode bar
	if d.asked {
		ratio, encode, decode = bar{atLeast: 1.4}, bar{atLeast: 1}, bar{atLeast: 1.5}
	}
	copied := median(got[2])
	s.add(
		row("codec_"+d.name+"_smaller", "ratio", float64(d.bytes())/float64(stored), 0, ratio),
		row("codec_"+d.name+"_encode", "GB/s", median(got[0]), copied, encode),
		row("codec_"+d.name+"_decode", "GB/s", median(got[1]), copied, decode),
	)
	return nil
}

// perCore samples bytes per second of processor time once, in GB/s.
func perCore(bytes int64, f func() error) func() ([]float64, error) {
	return func() ([]float64, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var failed error
		s, err := machine.ThreadSeconds(func() { failed = f() })
		return []float64{float64(bytes) / s / 1e9}, errors.Join(err, failed)
	}
}

// capture runs the demo's model over spans of its passages: keys and values of the attention
// layers, transitions and states of the linear layers.
func capture(ctx context.Context, spans int) ([]sample, error) {
	out := []sample{
		{name: "kv_bf16", dt: kernel.BF16, asked: true}, {name: "kv_f32", dt: kernel.F32},
		{name: "states_bf16", dt: kernel.BF16}, {name: "states_f32", dt: kernel.F32},
	}
	text, err := ragdemo.Embedded()
	if err != nil {
		return nil, err
	}
	var tokens []uint32
	for _, p := range text.Passages {
		for _, c := range []byte(p) {
			tokens = append(tokens, uint32(c))
		}
	}
	m, err := ragdemo.Model(1)
	if err != nil {
		return nil, err
	}
	for i := 0; i < spans && (i+1)*captureTokens <= len(tokens); i++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		segment, err := m.Capture(tokens[i*captureTokens:][:captureTokens], profile.FirstSpec(captureTokens))
		if err != nil {
			return nil, err
		}
		for l := range segment.Layers {
			sortParts(&segment.Layers[l], out)
		}
	}
	return out, nil
}

// sortParts puts keys and values into the first two samples, transitions and states into the
// other two.
func sortParts(l *refengine.SegmentLayer[float32], out []sample) {
	for i, parts := range [][][]float32{{l.K, l.V}, {l.T, l.S}} {
		for _, p := range parts {
			if len(p) > 0 {
				out[2*i].add(p)
				out[2*i+1].add(p)
			}
		}
	}
}

// synthetic returns normally distributed numbers. Each channel has its own scale, drawn from a
// log-normal distribution, like the keys of an untrained model.
func synthetic() []sample {
	const channels, rows = 1024, 4096
	rng := rand.New(rand.NewPCG(3, 3))
	scale := make([]float64, channels)
	for i := range scale {
		scale[i] = math.Exp(rng.NormFloat64())
	}
	values := make([]float32, channels*rows)
	for i := range values {
		values[i] = float32(rng.NormFloat64() * scale[i%channels])
	}
	out := []sample{{name: "synthetic_bf16", dt: kernel.BF16}, {name: "synthetic_f32", dt: kernel.F32}}
	for i := range out {
		out[i].add(values)
	}
	return out
}
