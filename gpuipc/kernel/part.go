package kernel

import "fmt"

// PartToF32 writes the numbers of a part to dst as F32. The parameters t and shape are the
// part's type and shape; packed is true if the part is packed. It returns an error if b is
// not such a part, or if dst does not have the length of the shape.
func PartToF32(dst []float32, b []byte, t DType, packed bool, shape [3]int) error {
	n := shape[1] * shape[2]
	if t.Size() == 0 || len(dst) != shape[0]*n || !packed && len(b) != len(dst)*t.Size() {
		return fmt.Errorf("kernel: %d bytes of type %d, shaped %v, into %d numbers", len(b), t, shape, len(dst))
	}
	if !packed {
		ToF32(dst, b, t)
		return nil
	}
	p, err := OpenPacked(b, t, shape[0], shape[1], shape[2])
	if err != nil {
		return err
	}
	for i := range shape[0] {
		p.Unpack(dst[i*n:][:n], i)
	}
	return nil
}
