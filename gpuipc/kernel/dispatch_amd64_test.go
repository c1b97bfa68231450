package kernel

// eachISA runs f once per instruction set that this processor has.
func eachISA[T runner[T]](t T, f func(T)) {
	widest := active
	t.Cleanup(func() { active = widest })
	for v := plainGo; v <= widest; v++ {
		t.Run("isa="+v.String(), func(t T) {
			active = v
			f(t)
		})
	}
}

func (v isa) String() string { return [...]string{"generic", "avx2", "avx512"}[v] }
