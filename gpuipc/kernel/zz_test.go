package kernel
import ("testing";"fmt";"runtime")
func TestZZ(t *testing.T) {
	runtime.LockOSThread()
	for _, dt := range []DType{BF16,F16} {
	for _, inter := range []bool{false,true} {
	for _, dims := range []int{128,64} {
	for _, v := range []isa{avx2, avx512} {
	active = v
	dim := 128; if dims == 64 { dim = 256 }
	for _, kb := range []int{4, 16, 128, 1024} {
		n := kb<<10
		src, dst := make([]byte, max(n,65536)), make([]byte, max(n,65536))
		turn := randomTurn(rng(t), dims, 1, inter)
		f:=make([]float32,n/2); normal(rng(t),f,1); fromF32(src,f,dt); src = src[:n]; dst = dst[:n]
		reps := max(1, 1<<19/n)
		var best, lim float64
		for range 300 {
			lim = max(lim, float64(n*reps)/float64(measured(func(){for range reps {copy(dst,src)}})))
			best = max(best, float64(n*reps)/float64(measured(func(){for range reps {RotateRows(dst, dim*2, dim*2, src, dt, n/(dim*2), 1, dim, turn)}})))
		}
		fmt.Printf("%v inter=%v dims=%d %v %d KiB: %.1f of %.1f = %.2f\n", dt.name(), inter, dims, v, kb, best, lim, best/lim)
	}}}}}
}
