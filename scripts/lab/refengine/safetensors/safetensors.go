// Package safetensors reads and writes tensor files in the safetensors format:
//
//	u64 little-endian header length | JSON header | tensor bytes
//
// The header maps each name to its element type, shape and byte range, and may have string
// metadata. The reader is strict, because a model with a slightly wrong file computes plausible
// but wrong results. Ranges must cover the bytes exactly once, sizes must follow from shapes,
// names must be unique, and only the element types F32, F16 and BF16 are accepted. Tensors that
// the reader returns are views of its input. The writer's output depends only on its input.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrInvalid is wrapped by every error about the contents of a file.
var ErrInvalid = errors.New("safetensors: invalid")

// DType is the name of an element type in the header.
type DType string

// The supported element types.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
)

func (d DType) size() int {
	switch d {
	case F32:
		return 4
	case F16, BF16:
		return 2
	}
	return 0
}

// Tensor is one tensor, row-major.
type Tensor struct {
	Name  string
	DType DType
	Shape []int
	Data  []byte
}

// File is a tensor file in memory. Tensors are in byte order.
type File struct {
	Metadata map[string]string
	Tensors  []Tensor
}

const (
	lengthBytes = 8
	// maxHeader is the bound in the format's own library.
	maxHeader = 100 << 20
	// maxRank is larger than the rank of any weight. It bounds the work on a hostile header.
	maxRank     = 8
	metadataKey = "__metadata__"
)

type entry struct {
	DType   DType    `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// Parse reads a file. Tensor data are views of b.
func Parse(b []byte) (*File, error) {
	if len(b) < lengthBytes {
		return nil, fmt.Errorf("file of %d bytes: %w", len(b), ErrInvalid)
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxHeader || n > uint64(len(b)-lengthBytes) {
		return nil, fmt.Errorf("header of %d bytes in a file of %d: %w", n, len(b), ErrInvalid)
	}
	f := &File{}
	data := b[lengthBytes+int(n):]
	if err := f.parseHeader(b[lengthBytes:lengthBytes+int(n)], data); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) parseHeader(header, data []byte) error {
	fields, err := members(header)
	if err != nil {
		return err
	}
	var ranges []entry
	for _, m := range fields {
		if m.name == metadataKey {
			if err := strictly(m.value, &f.Metadata); err != nil {
				return fmt.Errorf("metadata: %v: %w", err, ErrInvalid)
			}
			continue
		}
		var e entry
		if err := strictly(m.value, &e); err != nil {
			return fmt.Errorf("tensor %q: %v: %w", m.name, err, ErrInvalid)
		}
		if err := e.check(int64(len(data))); err != nil {
			return fmt.Errorf("tensor %q: %w", m.name, err)
		}
		f.Tensors = append(f.Tensors, Tensor{m.name, e.DType, e.Shape, data[e.Offsets[0]:e.Offsets[1]]})
		ranges = append(ranges, e)
	}
	order := make([]int, len(ranges))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return int(min(1, max(-1, ranges[a].Offsets[0]-ranges[b].Offsets[0])))
	})
	sorted := make([]Tensor, len(order))
	at := int64(0)
	for i, o := range order {
		if ranges[o].Offsets[0] != at {
			return fmt.Errorf("tensor %q begins at %d, expected %d: %w", f.Tensors[o].Name, ranges[o].Offsets[0], at, ErrInvalid)
		}
		at = ranges[o].Offsets[1]
		sorted[i] = f.Tensors[o]
	}
	if at != int64(len(data)) {
		return fmt.Errorf("tensors end at %d of %d bytes: %w", at, len(data), ErrInvalid)
	}
	f.Tensors = sorted
	return nil
}

func (e entry) check(limit int64) error {
	size := int64(e.DType.size())
	if size == 0 {
		return fmt.Errorf("element type %q not supported: %w", e.DType, ErrInvalid)
	}
	if len(e.Shape) > maxRank {
		return fmt.Errorf("%d dimensions: %w", len(e.Shape), ErrInvalid)
	}
	for _, d := range e.Shape {
		if d < 0 || (d > 0 && size > limit/int64(d)) {
			return fmt.Errorf("shape %v in %d bytes: %w", e.Shape, limit, ErrInvalid)
		}
		size *= int64(d)
	}
	begin, end := e.Offsets[0], e.Offsets[1]
	if begin < 0 || end > limit || end-begin != size {
		return fmt.Errorf("range [%d, %d) for %d bytes in %d: %w", begin, end, size, limit, ErrInvalid)
	}
	return nil
}

type member struct {
	name  string
	value json.RawMessage
}

// members lists the members of a JSON object in order and rejects duplicate names, which
// decoding into a map would not notice.
func members(b []byte) ([]member, error) {
	bad := func(err error) error { return fmt.Errorf("header: %v: %w", err, ErrInvalid) }
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, bad(fmt.Errorf("not an object (%v)", err))
	}
	var out []member
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, bad(err)
		}
		m := member{name: t.(string)} // the decoder allows no other token here
		if seen[m.name] {
			return nil, bad(fmt.Errorf("%q comes twice", m.name))
		}
		seen[m.name] = true
		if err := dec.Decode(&m.value); err != nil {
			return nil, bad(err)
		}
		out = append(out, m)
	}
	if _, err := dec.Token(); err != nil {
		return nil, bad(err)
	}
	if rest := bytes.Trim(b[dec.InputOffset():], " "); len(rest) > 0 {
		return nil, bad(fmt.Errorf("%d bytes after the object", len(rest)))
	}
	return out, nil
}

// strictly decodes one value and rejects unknown fields.
func strictly(raw json.RawMessage, into any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// Write stores the tensors in the given order.
func (f *File) Write(w io.Writer) error {
	var header bytes.Buffer
	header.WriteByte('{')
	seen := map[string]bool{metadataKey: true}
	if len(f.Metadata) > 0 {
		m, err := json.Marshal(f.Metadata) // sorted by key
		if err != nil {
			return err
		}
		fmt.Fprintf(&header, "%q:%s,", metadataKey, m)
	}
	at := int64(0)
	for i, t := range f.Tensors {
		end := at + int64(len(t.Data))
		if seen[t.Name] {
			return fmt.Errorf("tensor %q comes twice or is reserved: %w", t.Name, ErrInvalid)
		}
		seen[t.Name] = true
		e := entry{t.DType, slices.Clone(t.Shape), [2]int64{at, end}}
		if e.Shape == nil {
			e.Shape = []int{}
		}
		if err := e.check(end); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return err
		}
		value, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if i > 0 {
			header.WriteByte(',')
		}
		header.Write(name)
		header.WriteByte(':')
		header.Write(value)
		at = end
	}
	if len(f.Tensors) == 0 && header.Len() > 1 {
		header.Truncate(header.Len() - 1)
	}
	header.WriteByte('}')
	// The format requires tensors to start 8-byte aligned.
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(header.Len()))); err != nil {
		return err
	}
	if _, err := w.Write(header.Bytes()); err != nil {
		return err
	}
	for _, t := range f.Tensors {
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
}
