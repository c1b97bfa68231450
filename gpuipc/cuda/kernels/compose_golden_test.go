package kernels

import (
	"maps"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// layers is a job of n layers with tensors at made-up addresses, all multiples of 16 apart from off.
func layers(n, steps int, sh shape, tType, sType gpuipc.DType, off uint64) []ComposeJob {
	jobs := make([]ComposeJob, n)
	for l := range jobs {
		base := 0x7f0000000000 + uint64(l)<<28 + off
		jobs[l] = ComposeJob{Transition: sh.tr, Heads: sh.heads, DK: sh.dk, DV: sh.dv, From: base, Out: base + 1<<24}
		for i := range steps {
			t := base + 2<<24 + uint64(i)<<22
			jobs[l].Steps = append(jobs[l].Steps, ComposeStep{T: t, S: t + 1<<21, TType: tType, SType: sType})
		}
	}
	return jobs
}

// packedLayers is jobs with packed parts where they may have them.
func packedLayers(jobs []ComposeJob) []ComposeJob {
	for l := range jobs {
		for i := range jobs[l].Steps {
			st := &jobs[l].Steps[i]
			if st.SPacked = 1<<16 + 64*int64(i); jobs[l].Transition == kernel.Dense {
				st.TPacked = 1<<17 + 64*int64(l)
			}
		}
	}
	return jobs
}

func goldenCompositions() map[string][]ComposeJob {
	dense := shape{kernel.Dense, 32, 128, 128}
	turned := layers(2, 2, shape{kernel.Scalar, 16, 8, 128}, kernel.F32, kernel.F32, 0)
	mixed := layers(1, 2, shape{kernel.Scalar, 16, 8, 128}, kernel.F32, kernel.BF16, 0)
	for l := range turned {
		for i := range turned[l].Steps {
			c := float32(i) / 4
			turned[l].Steps[i].Rotation = &gpuipc.Rotation{Dims: 4, Cos: []float32{1, c}, Sin: []float32{0, 0.5}}
		}
	}
	for i := range mixed[0].Steps {
		mixed[0].Steps[i].Rotation = &gpuipc.Rotation{Dims: 2 + 2*i, Interleaved: true, Cos: make([]float32, 1+i), Sin: make([]float32, 1+i)}
	}
	seams := layers(1, 3, dense, kernel.BF16, kernel.F32, 0)
	seams[0].From = 0
	seams[0].Steps[0].Before = 0x7f5000000000
	seams[0].Steps[1] = ComposeStep{Before: 0x7f5100000000}
	inPlace := layers(1, 1, shape{kernel.Diagonal, 8, 64, 64}, kernel.F16, kernel.F16, 0)
	inPlace[0].Out = inPlace[0].From
	unwanted := layers(1, 1, dense, kernel.F16, kernel.F32, 0)
	unwanted[0].Out = 0
	several := append(layers(1, 1, shape{kernel.Dense, 4, 64, 64}, kernel.F32, kernel.F16, 0), layers(2, 1, dense, kernel.F32, kernel.F32, 0)...)
	packed := packedLayers(layers(12, 3, dense, kernel.F16, kernel.F32, 0))
	packed[0].Steps[1] = ComposeStep{Before: 0x7f5100000000}
	wide := packedLayers(layers(1, 2, shape{kernel.Dense, 40, 192, 128}, kernel.F16, kernel.F32, 0))
	halves := packedLayers(layers(2, 2, shape{kernel.Dense, 16, 64, 64}, kernel.BF16, kernel.F16, 0))
	between := packedLayers(layers(1, 3, dense, kernel.F16, kernel.F32, 0))
	between[0].Steps[1] = ComposeStep{T: 0x7f6000000000, S: 0x7f6000800000, TType: kernel.F32, SType: kernel.F32}
	states := packedLayers(layers(2, 2, shape{kernel.Scalar, 16, 8, 128}, kernel.F32, kernel.F32, 0))
	states[0].Steps[1].Rotation = &gpuipc.Rotation{Dims: 4, Cos: []float32{1, 0.5}, Sin: []float32{0, 0.5}}
	return map[string][]ComposeJob{
		"packed, 12 layers":              packed,
		"packed, [192, 128]":             wide,
		"packed, halves":                 halves,
		"packed, plain steps between":    between,
		"packed, odd rows":               packedLayers(layers(1, 1, shape{kernel.Dense, 3, 37, 19}, kernel.F16, kernel.F32, 0)),
		"packed, off alignment":          packedLayers(layers(1, 1, dense, kernel.F16, kernel.F32, 4)),
		"packed, end-states alone":       states,
		"dense, one layer":               layers(1, 2, dense, kernel.F16, kernel.F32, 0),
		"dense, 12 layers":               layers(12, 1, dense, kernel.F16, kernel.F32, 0),
		"dense, seams from zero":         seams,
		"dense, [192, 128]":              layers(1, 1, shape{kernel.Dense, 8, 192, 128}, kernel.F32, kernel.F32, 0),
		"dense, two kernels":             several,
		"dense, odd rows":                layers(1, 1, shape{kernel.Dense, 3, 37, 19}, kernel.F16, kernel.F32, 0),
		"dense, many rows":               layers(1, 1, shape{kernel.Dense, 1, 2000, 16}, kernel.F16, kernel.F32, 0),
		"scalar, Mamba2":                 layers(2, 3, shape{kernel.Scalar, 64, 128, 64}, kernel.F32, kernel.F32, 0),
		"scalar, turned":                 turned,
		"scalar, turned in several ways": mixed,
		"scalar, off alignment":          layers(1, 1, shape{kernel.Scalar, 16, 8, 128}, kernel.F32, kernel.F32, 4),
		"diagonal, Mamba1":               layers(2, 2, shape{kernel.Diagonal, 5120, 16, 1}, kernel.F32, kernel.F32, 0),
		"diagonal, in place":             inPlace,
		"nothing wanted":                 unwanted,
	}
}

func TestLaunchesThatComposeAreTheGoldenOnes(t *testing.T) {
	all := goldenCompositions()
	var cases []goldenCase
	for _, what := range slices.Sorted(maps.Keys(all)) {
		launches, err := Compose(all[what])
		cases = append(cases, newGoldenCase(t, "compose", what, all[what], launches, err))
	}
	checkGolden(t, "launches.json", cases)
}
