package kernels

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/goldentest"
)

// goldenCase is arguments and the launches they become, for other languages to build the same.
// Args is the list of jobs as JSON has them.
type goldenCase struct {
	Name     string         `json:"name"` // of the kernel, without its prefix
	Case     string         `json:"case"`
	Args     any            `json:"args"`
	Launches []goldenLaunch `json:"launches"`
}

type goldenLaunch struct {
	Name   string    `json:"name"`
	Grid   [3]uint32 `json:"grid"`
	Block  [3]uint32 `json:"block"`
	Shared uint32    `json:"shared"`
	Args   string    `json:"args"`   // hex
	Tables string    `json:"tables"` // hex
}

func newGoldenCase(tb testing.TB, name, what string, args any, launches []Launch, err error) goldenCase {
	tb.Helper()
	if err != nil {
		tb.Fatal(what, err)
	}
	c := goldenCase{Name: name, Case: what, Args: args, Launches: []goldenLaunch{}}
	for _, l := range launches {
		c.Launches = append(c.Launches, goldenLaunch{l.Name, l.Grid, l.Block, l.Shared, hex.EncodeToString(l.Args), hex.EncodeToString(l.Tables)})
	}
	return c
}

// checkGolden compares with testdata/file.
func checkGolden(tb testing.TB, file string, cases []goldenCase) {
	tb.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	must(tb, e.Encode(cases))
	goldentest.File(tb, filepath.Join("testdata", file), b.Bytes(), "launches differ, and clients build these too. A change on purpose is recorded with -update")
}

func TestLaunchesThatMoveAreTheGoldenOnes(t *testing.T) {
	var cases []goldenCase
	for _, c := range goldenRotations() {
		launches, err := Rotate(c.jobs)
		cases = append(cases, newGoldenCase(t, "rotate", c.what, c.jobs, launches, err))
	}
	flat := ReplayJob{Heads: 4, KeyHeads: 2, DK: 128, DV: 128, Rows: 5, From: 0x7f0000000000, Decay: 0x7f0000100000, K: 0x7f0000200000, U: 0x7f0000300000, Out: 0x7f0000400000}
	flush, narrow := flat, flat
	flush.Out = flush.From
	narrow.DV, narrow.PerKey, narrow.From = 6, true, 0
	for _, c := range []struct {
		what string
		jobs []ReplayJob
	}{{"wide", []ReplayJob{flat}}, {"flush", []ReplayJob{flush}}, {"two shapes, from zero", []ReplayJob{flat, narrow}}, {"nothing", []ReplayJob{}}} {
		launches, err := Replay(c.jobs)
		cases = append(cases, newGoldenCase(t, "replay", c.what, c.jobs, launches, err))
	}
	for _, c := range []struct {
		what string
		jobs []DigestJob
	}{
		{"three chunks and a short one", []DigestJob{{Src: 0x7f0000000001, Bytes: 2<<20 + 5, Out: 0x7f1000000000}, {Src: 0x7f0000300000, Bytes: 7, Out: 0x7f1000000100}}},
		{"nothing", []DigestJob{{Src: 16, Out: 8}}},
	} {
		launches, err := Digests(c.jobs)
		cases = append(cases, newGoldenCase(t, "digest", c.what, c.jobs, launches, err))
	}
	checkGolden(t, "launches_move.json", cases)
}

type goldenRotation struct {
	what string
	jobs []RotateJob
}

func goldenRotations() []goldenRotation {
	turn := &gpuipc.Rotation{Dims: 16, Cos: []float32{1, 0.5, -0.25, 0.1, 0.7, -1, 0, 0.3}, Sin: []float32{0, 0.8, 0.6, -0.1, 0.2, 0, 1, -0.9}}
	pairs := &gpuipc.Rotation{Dims: 6, Interleaved: true, Cos: []float32{1, 0.5, 0.25}, Sin: []float32{0.1, 0.2, 0.3}}
	perRow := &gpuipc.RowRotation{Dims: 8, Position: 1000, InvFreq: []float64{1, 0.1, 0.01, 0.001}}
	table := RotateTarget{Base: 0x7f1000000000, Blocks: []uint32{9, 4, 7, 2}, BlockRows: 16, FirstRow: 20, BlockStride: 1 << 20, RowStride: 1024, HeadStride: 256}
	k := RotateJob{Rows: 30, Heads: 4, Dim: 128, Type: kernel.BF16, Src: 0x7f0000000000, Turn: turn, Dst: table}
	v := k
	v.Src, v.Turn, v.Dst.Base = 0x7f0000100000, nil, 0x7f1000008000
	far := k
	far.Src, far.Turn, far.PerRow, far.Rows = 0x7f0000200000, nil, perRow, 3
	dense := RotateJob{Rows: 1, Heads: 2, Dim: 64, Type: kernel.F32, Src: 0x7f0000000000, Turn: turn, Dst: RotateTarget{Base: 0x7f2000000000}}
	odd := RotateJob{Rows: 3, Heads: 3, Dim: 7, Type: kernel.F16, Src: 0x7f0000000002, Turn: pairs, Dst: RotateTarget{Base: 0x7f2000000006}}
	wide := RotateJob{Rows: 100_000, Heads: 40, Dim: 128, Type: kernel.BF16, Src: 0x7f0000000000, Dst: RotateTarget{Base: 0x7f2000000000}}
	none := k
	none.Rows = 0
	return []goldenRotation{
		{"keys and values into blocks", []RotateJob{k, v}},
		{"a position for each row, two layers", []RotateJob{far, far}},
		{"densely", []RotateJob{dense}},
		{"pairs, nothing on 16 bytes", []RotateJob{odd}},
		{"more blocks than a launch starts", []RotateJob{wide, wide, wide}},
		{"all kinds", []RotateJob{odd, wide, far, none, k, dense}},
		{"nothing", []RotateJob{none}},
	}
}
