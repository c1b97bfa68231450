//go:build !amd64

package enginekernel

import "testing"

func eachISA(t *testing.T, f func(*testing.T)) { t.Run("isa=generic", f) }
