package kernel

import "testing"

func eachISA(t *testing.T, f func(*testing.T)) { t.Run("generic", f) }
