//go:build !amd64

package kernel

func eachISA[T runner[T]](t T, f func(T)) { t.Run("isa=generic", f) }
