//go:build !amd64

package enginekernel

func dot(a, b []float32) float32              { return dotGeneric(a, b) }
func sumRows(a, b, x, y, s []float32, ld int) { sumRowsGeneric(a, b, x, y, s, ld) }
func fetch([]byte)                            {}

func dotRows(x, y, q, k, s []float32, ld int)    { dotRowsGeneric(x, y, q, k, s, ld) }
func scaled(y []float32, a float32, s []float32) { scaledGeneric(y, a, s) }
func carried(y, w, d, s []float32)               { carriedGeneric(y, w, d, s) }

func addRankOnes(s []float32, ld, cols int, d, k []float32, ldk int, u []float32, ldu, n int) {
	addRankOnesGeneric(s, ld, cols, d, k, ldk, u, ldu, n)
}
