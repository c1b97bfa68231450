package profile

import (
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// Report describes the bytes of segments of a profile, for one rank.
type Report struct {
	Model         string         `json:"model"`
	Fingerprint   string         `json:"fingerprint"`
	TPSize        int            `json:"tp_size"`
	Layers        map[string]int `json:"layers"` // number of layers by kind; linear layers are also counted by family
	SegmentTokens int            `json:"segment_tokens"`
	// Bytes of one segment without padding. The first three do not depend on the segment's
	// length.
	TransitionBytes int64 `json:"transition_bytes"`
	StateBytes      int64 `json:"state_bytes"`
	ConvBytes       int64 `json:"conv_bytes"`
	KVBytes         int64 `json:"kv_bytes"`
	SegmentBytes    int64 `json:"segment_bytes"` // padding included, nothing packed
	PackedBytes     int64 `json:"packed_bytes"`  // SegmentBytes if a tolerance allows 8 bits per number; zero heads and end-states of low rank take even less
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	KVBytesPerToken int64 `json:"kv_bytes_per_token"`
	// BreakEvenTokens is the length at which keys and values have as many
	// bytes as T and S: (TransitionBytes + StateBytes) / KVBytesPerToken,
	// rounded. Shorter segments spend more bytes on T and S than on their
	// rows. 0 without attention layers.
	BreakEvenTokens int64 `json:"break_even_tokens"`
	ConfigNotes           // empty unless the caller has read a config
}

// Report computes the bytes of a segment with segmentTokens interior tokens.
func (p *Profile) Report(segmentTokens int) Report {
	r := Report{
		Model: p.id.Model, Fingerprint: hex.EncodeToString(p.fingerprint[:]), TPSize: p.id.TPSize,
		Layers: map[string]int{}, SegmentTokens: segmentTokens,
		CheckpointBytes: p.CheckpointLayout(0).Bytes,
	}
	for i := range p.id.Layers {
		l := &p.id.Layers[i]
		r.Layers[l.Kind.String()]++
		if l.Kind == KindLinear {
			r.Layers[l.Linear.Family.String()]++
		}
	}
	layout := p.SegmentLayout(segmentTokens)
	r.SegmentBytes = layout.Bytes
	for _, part := range layout.Parts {
		switch part.Kind {
		case PartT:
			r.TransitionBytes += part.Len
		case PartS:
			r.StateBytes += part.Len
		case PartConv:
			r.ConvBytes += part.Len
		case PartK, PartV:
			r.KVBytes += part.Len
		}
	}
	r.PackedBytes = p.packedIn8Bits(layout)
	for _, part := range p.RowsLayout(AllLayers, 1).Parts {
		r.KVBytesPerToken += part.Len
	}
	if r.KVBytesPerToken > 0 {
		r.BreakEvenTokens = int64(math.Round(float64(r.TransitionBytes+r.StateBytes) / float64(r.KVBytesPerToken)))
	}
	if r.Layers[KindWindow.String()] > 0 {
		r.Warnings = []string{"engines refuse this model and reuse nothing of it: it has " + readModels().Refused.Window}
	}
	return r
}

// WriteText prints the report for people.
func (r Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...) // a tabwriter reports at Flush
	}
	row("model", "%s", r.Model)
	row("ranks", "%d (figures are for one)", r.TPSize)
	for _, kind := range []Kind{KindLinear, KindConv, KindFull, KindMLA, KindWindow, KindNone} {
		if n := r.Layers[kind.String()]; n > 0 {
			row(kind.String()+" layers", "%d", n)
		}
	}
	for f := RetNet; int(f) < len(families); f++ {
		if n := r.Layers[f.String()]; n > 0 {
			row("  "+f.String(), "%d, %s transition", n, f.Transition())
		}
	}
	row("segment of", "%d interior tokens", r.SegmentTokens)
	row("  transitions T", "%s", mebibytes(r.TransitionBytes))
	row("  end-states S", "%s", mebibytes(r.StateBytes))
	row("  convolution tails", "%s", mebibytes(r.ConvBytes))
	row("  keys and values", "%s", mebibytes(r.KVBytes))
	row("  together", "%s with padding; this much is stored with an engine's tolerance of 0", mebibytes(r.SegmentBytes))
	if packed := mebibytes(r.PackedBytes); packed != mebibytes(r.SegmentBytes) {
		row("  packed", "%s with T and S in 8 bits; this much is stored with a larger tolerance, less where heads forget or S has a low rank", packed)
	} else {
		row("  packed", "the same with any tolerance: these layers have nothing to pack")
	}
	row("keys and values", "%d B a token", r.KVBytesPerToken)
	row("checkpoint", "%s and its keys and values", mebibytes(r.CheckpointBytes))
	if r.BreakEvenTokens > 0 {
		row("break-even", "%d tokens (where keys and values take as much as T and S)", r.BreakEvenTokens)
	}
	if len(r.Defaults) > 0 {
		row("defaults", "%s (not in the file)", r.assumed())
	}
	for _, warning := range r.Warnings {
		row("warning", "%s", warning)
	}
	return t.Flush()
}

func mebibytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.2f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
}

func (k Kind) String() string {
	return name(int(k), "none", "full", "mla", "window", "linear", "conv")
}

func (t Transition) String() string {
	return name(int(t), "none", "scalar", "diagonal", "dense")
}

func (d DType) String() string {
	return name(int(d), "none", "f32", "f16", "bf16")
}

func (k PartKind) String() string {
	return name(int(k), "none", "T", "S", "conv", "K", "V")
}

func (r Role) String() string {
	return name(int(r), "none", "first", "mid")
}

func name(i int, names ...string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}
