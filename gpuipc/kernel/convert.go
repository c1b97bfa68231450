package kernel

import "fmt"

// ToF32 widens len(dst) numbers of type dt from src. Every value of F16 and BF16 is exact
// in F32; a signaling NaN may become quiet.
func ToF32(dst []float32, src []byte, dt DType) {
	checkBytes("ToF32", src, len(dst), dt)
	toF32(dst, src, dt)
}

// FromF32 writes src as len(src) numbers of type dt to dst, rounded to nearest
// even. Overflow becomes infinite, NaN stays NaN.
func FromF32(dst []byte, src []float32, dt DType) {
	checkBytes("FromF32", dst, len(src), dt)
	fromF32(dst, src, dt)
}

// checkBytes panics unless b has n numbers of type dt. Sizes are checked where requests
// enter the daemon, so a wrong size here is a bug of ours.
func checkBytes(what string, b []byte, n int, dt DType) {
	if dt.Size() == 0 || len(b) < n*dt.Size() {
		panic(fmt.Sprintf("kernel: %s of %d numbers of type %d in %d bytes", what, n, dt, len(b)))
	}
}
