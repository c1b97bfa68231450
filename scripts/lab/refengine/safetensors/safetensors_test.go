package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"
)

func file(header, data string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestWriteThenParse(t *testing.T) {
	values := []float32{0, -0.5, 1, 65504, 1e-7, -3.25}
	in := &File{Metadata: map[string]string{"format": "pt", "a": `"quoted"`}}
	for _, d := range []DType{F16, F32, BF16} {
		tensor, err := New("layer."+string(d), d, []int{2, 3}, values)
		if err != nil {
			t.Fatal(err)
		}
		in.Tensors = append(in.Tensors, tensor)
	}
	scalar, err := New("scalar", F32, nil, []float32{7})
	if err != nil {
		t.Fatal(err)
	}
	empty := Tensor{Name: "empty", DType: F32, Shape: []int{0, 4}, Data: []byte{}}
	in.Tensors = append(in.Tensors, scalar, empty)
	var buf bytes.Buffer
	if err := in.Write(&buf); err != nil {
		t.Fatal(err)
	}
	out, err := Parse(buf.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	in.Tensors[3].Shape = []int{}
	if !reflect.DeepEqual(in, out) {
		t.Errorf("read back %+v, wrote %+v", out, in)
	}
	if n := binary.LittleEndian.Uint64(buf.Bytes()); n%8 != 0 {
		t.Errorf("header of %d bytes leaves tensors unaligned", n)
	}
}

func TestParseRefuses(t *testing.T) {
	ok := `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	if _, err := Parse(file("{"+ok+"}", "12345678")); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"empty file":          {},
		"header beyond file":  file("{"+ok+"}", "")[:20],
		"absurd header":       append([]byte{255, 255, 255, 255, 255, 255, 255, 255}, make([]byte, 64)...),
		"not an object":       file(`["a"]`, ""),
		"no JSON":             file(`{`, ""),
		"trailing bytes":      file("{"+ok+"}{}", "12345678"),
		"name twice":          file("{"+ok+","+ok+"}", "12345678"),
		"unknown field":       file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}`, "12345678"),
		"unknown type":        file(`{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}`, "12345678"),
		"size not shape":      file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, "12345678"),
		"negative dimension":  file(`{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, "12345678"),
		"overflowing shape":   file(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}`, "12345678"),
		"range beyond data":   file("{"+ok+"}", "1234567"),
		"bytes after tensors": file("{"+ok+"}", "123456789"),
		"hole":                file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, "12345678"),
		"overlap": file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},`+
			`"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, "12345678"),
		"backward range": file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[8,4]}}`, "12345678"),
		"metadata":       file(`{"__metadata__":{"a":1},`+ok+`}`, "12345678"),
	} {
		if f, err := Parse(b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	a := Tensor{"a", F32, []int{1}, make([]byte, 4)}
	for name, f := range map[string]*File{
		"name twice":     {Tensors: []Tensor{a, a}},
		"reserved name":  {Tensors: []Tensor{{metadataKey, F32, []int{1}, make([]byte, 4)}}},
		"size not shape": {Tensors: []Tensor{{"a", F32, []int{2}, make([]byte, 4)}}},
	} {
		if err := f.Write(new(bytes.Buffer)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("a", F32, []int{2}, []float32{1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("too few values: %v", err)
	}
}

// Every 16-bit pattern survives, and values between two patterns go to the
// nearer one, ties to the even.
func TestHalvesRoundToNearestEven(t *testing.T) {
	for name, c := range map[string]struct {
		decode func(uint16) float32
		encode func(float32) uint16
	}{
		"F16":  {fromHalf, toHalf},
		"BF16": {func(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }, toBrain},
	} {
		for i := range 1 << 16 {
			h := uint16(i)
			v := c.decode(h)
			if v != v {
				if r := c.decode(c.encode(v)); r == r {
					t.Fatalf("%s: NaN %#x became %g", name, h, r)
				}
				continue
			}
			if got := c.encode(v); got != h {
				t.Fatalf("%s: %#x became %#x", name, h, got)
			}
			next := c.decode(h + 1)
			if math.IsInf(float64(v), 0) || math.IsInf(float64(next), 0) || next != next || h == 0x7fff {
				continue
			}
			if middle := float32((float64(v) + float64(next)) / 2); middle != v && middle != next {
				if got, want := c.encode(middle), h+h&1; got != want {
					t.Fatalf("%s: middle of %#x and %#x became %#x", name, h, h+1, got)
				}
			}
		}
	}
	if toHalf(65519) != 0x7bff || toHalf(65520) != 0x7c00 || toHalf(float32(math.Inf(-1))) != 0xfc00 {
		t.Error("F16 overflow")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, "12345678"))
	f.Add(file(`{"__metadata__":{"k":"v"},"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}  `, "12"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := Parse(b)
		if err != nil {
			return
		}
		var buf bytes.Buffer
		if err := in.Write(&buf); err != nil {
			t.Fatalf("parsed but not written: %v", err)
		}
		out, err := Parse(buf.Bytes())
		if err != nil || len(out.Tensors) != len(in.Tensors) {
			t.Fatalf("written but not parsed: %v", err)
		}
		for i, want := range in.Tensors {
			got := out.Tensors[i]
			if got.Name != want.Name || got.DType != want.DType || !bytes.Equal(got.Data, want.Data) {
				t.Fatalf("tensor %d: %+v became %+v", i, want, got)
			}
		}
	})
}
