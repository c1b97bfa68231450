package profile

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/goldentest"
)

const goldenLayoutsFile = "testdata/layouts.json"

// goldenLayouts is read by every client that computes sizes: identities as
// canonical bytes with their layouts, and what each file in testdata/config says
// with weights that begin with 1 and slopes of 0.01.
type goldenLayouts struct {
	Profiles []goldenProfile   `json:"profiles"`
	Configs  map[string]string `json:"configs"` // file: fingerprint
}

type goldenProfile struct {
	Name        string         `json:"name"`
	Canonical   string         `json:"canonical"`
	Fingerprint string         `json:"fingerprint"`
	MinHead     int            `json:"min_head"`
	Layouts     []goldenLayout `json:"layouts"`
}

// goldenLayout is one layout of so many rows. A part is its layer, kind, type,
// shape, offset and bytes, and whether it is packed. Packed is what says how, with its
// errors.
type goldenLayout struct {
	Of     string    `json:"of"`
	Rows   int       `json:"rows"`
	Packed string    `json:"packed,omitempty"`
	Errors []float32 `json:"errors,omitempty"`
	Bytes  int64     `json:"bytes"`
	Parts  []string  `json:"parts"`
}

func TestGoldenLayoutsHold(t *testing.T) {
	g := goldenLayouts{Configs: map[string]string{}}
	for _, id := range goldenIdentities() {
		p, err := New(id)
		must(t, err)
		g.Profiles = append(g.Profiles, goldenProfileOf(t, p))
	}
	files, err := filepath.Glob("testdata/config/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no configs: ", err)
	}
	for _, f := range files {
		f = filepath.Base(f)
		fp := loadConfig(t, strings.TrimSuffix(f, ".json")).Fingerprint()
		g.Configs[f] = hex.EncodeToString(fp[:])
	}
	golden(t, goldenLayoutsFile, g)
}

func goldenProfileOf(t *testing.T, p *Profile) goldenProfile {
	fp := p.Fingerprint()
	g := goldenProfile{
		Name: p.id.Model, Canonical: hex.EncodeToString(p.Canonical()), Fingerprint: hex.EncodeToString(fp[:]), MinHead: p.HeadExclusion(0),
	}
	add := func(of string, rows int, l Layout) *goldenLayout {
		out := goldenLayout{Of: of, Rows: rows, Bytes: l.Bytes, Parts: []string{}}
		for _, part := range l.Parts {
			text := fmt.Sprintf("%d %s %s %dx%dx%d %d %d",
				part.Layer, part.Kind, part.DType, part.Shape[0], part.Shape[1], part.Shape[2], part.Off, part.Len)
			if part.Packed {
				text += " packed"
			}
			out.Parts = append(out.Parts, text)
		}
		g.Layouts = append(g.Layouts, out)
		return &g.Layouts[len(g.Layouts)-1]
	}
	for _, n := range []int{1, 130} {
		add("segment", n, p.SegmentLayout(n))
	}
	for _, n := range []int{0, 7} {
		add("checkpoint", n, p.CheckpointLayout(n))
	}
	add("buffer", 3, p.BufferLayout(3))
	add("seam", 0, p.SeamLayout(AllLayers))
	add("states", 2, p.StatesLayout(AllLayers, 2))
	add("rows", 5, p.RowsLayout(AllLayers, 5))
	if p.MaxError() > 0 {
		packed := goldenPacked(p)
		l, err := p.PackedLayout(130, packed)
		must(t, err)
		transition, state := packed.Errors()
		out := add("packed", 130, l)
		out.Packed, out.Errors = hex.EncodeToString([]byte(packed)), []float32{transition, state}
	}
	return g
}

// goldenPacked has the parts of a segment at lengths from the longest to the shortest.
func goldenPacked(p *Profile) Packed {
	var lengths []int64
	l := p.SegmentLayout(130)
	for i := range l.Parts {
		if part := &l.Parts[i]; p.MayPack(part) {
			most := PackedMost(part) / PartAlign
			lengths = append(lengths, PartAlign*max(0, most-most*int64(len(lengths))/2))
		}
	}
	return PackedOf(.015625, .0078125, lengths)
}

// goldenIdentities are a hybrid of all kinds, one identity for each family on
// one rank and on four, and models without linear layers.
func goldenIdentities() []Identity {
	ids := []Identity{hybrid()}
	for f := RetNet; int(f) < len(families); f++ {
		for _, tp := range []int{1, 4} {
			ids = append(ids, goldenFamily(f, tp))
		}
	}
	window := Layer{Kind: KindWindow, Attention: Attention{
		KVHeads: 2, KeyDim: 32, ValueDim: 32, Window: 64, DType: F32, Keys: Unrotated, Rope: Rope{Dims: 32, Theta: 5e5},
	}}
	mla := Layer{Kind: KindMLA, Attention: Attention{
		KVHeads: 1, KeyDim: 8, ValueDim: 24, DType: F16, Keys: AtZero, Rope: Rope{Dims: 8, Theta: 1e4, Interleaved: true},
	}}
	packed := goldenFamily(GDN, 4)
	packed.Model, packed.Tolerance = "packed", .02
	packed.Layers = append(packed.Layers, goldenFamily(Mamba2, 4).Layers[0])
	packed.Layers[0].Linear.KeyDim, packed.Layers[0].Linear.ValueDim = 256, 128
	rows := packed
	rows.Model, rows.RowTolerance = "packed rows", .01
	rows.Layers = append([]Layer{window}, append(packed.Layers[:len(packed.Layers):len(packed.Layers)], mla)...)
	return append(ids, packed, rows,
		Identity{Model: "short convolutions", Weights: [32]byte{10}, TPSize: 2, Layers: []Layer{shortConv(3), {}, window, shortConv(3)}},
		Identity{Model: "rows – only", Weights: [32]byte{9}, Adapter: "lora sha256:0", TPSize: 4, Layers: []Layer{window, mla, window}})
}

func goldenFamily(f Family, tp int) Identity {
	l := Linear{Family: f, KeyHeads: 4, ValueHeads: 8, KeyDim: 24, ValueDim: 16, StateDType: BF16, TransitionDType: F16}
	switch f {
	case RetNet, Lightning:
		l.KeyHeads, l.TransitionDType = 8, F32
		l.Rope = Rope{Dims: 12, Theta: 1e4}
		l.Slopes = []float64{.5, .25, .125, .0625, .03125, .015625, .0078125, .00390625}
	case Mamba2:
		l.KeyHeads, l.TransitionDType = 1, F32
		l.Conv = Conv{Kernel: 4, Channels: []int{128, 96, 96}, DType: BF16}
	case Mamba1:
		l.KeyHeads, l.ValueHeads, l.ValueDim = 8, 8, 1
		l.Conv = Conv{Kernel: 3, Channels: []int{8}, DType: F32}
	case GDN, KDA, DeltaNet, GDN2:
		l.Conv = Conv{Kernel: 4, Channels: []int{96, 96, 128}, DType: F16}
	}
	return Identity{
		Model: f.String(), Weights: [32]byte{byte(f)}, Tokenizer: "bytes", TPSize: tp,
		Layers: []Layer{
			{Kind: KindLinear, Linear: l},
			{Kind: KindFull, Attention: Attention{KVHeads: 2, KeyDim: 16, ValueDim: 16, DType: BF16, Keys: AtZero, Rope: Rope{Dims: 16, Theta: 1e6}}},
			{},
			{Kind: KindLinear, Linear: l},
		},
	}
}

// golden compares what is made of a value with what was recorded. Stored segments are
// forgotten where keys or layouts change.
func golden(t *testing.T, file string, v any) {
	t.Helper()
	made, err := json.MarshalIndent(v, "", " ")
	must(t, err)
	goldentest.File(t, file, append(made, '\n'), fmt.Sprintf("keys or layouts differ; a change on purpose is recorded with -update:\n%s", made))
}
