package enginekernel

import "testing"

// eachISA runs f once per instruction set that this processor has.
func eachISA(t *testing.T, f func(*testing.T)) {
	widest := active
	t.Cleanup(func() { active = widest })
	for v := plainGo; v <= widest; v++ {
		t.Run("isa="+[...]string{"generic", "avx2", "avx512"}[v], func(t *testing.T) {
			active = v
			f(t)
		})
	}
}
