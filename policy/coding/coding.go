// Package coding writes and reads the fields of binary messages and files. A message has one function that passes
// its fields to a Cursor in order. The Cursor appends each field, or sets it to what it reads. Numbers are
// little-endian.
package coding

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Cursor appends fields to bytes, or reads them. A Cursor that appends never changes a field. After the first
// failure of a Cursor that reads, all further numbers are 0 and all further lists are empty.
type Cursor struct {
	b       []byte // written so far, or not read yet
	reading bool
	err     error // the first failure
	left    int   // bytes that were not read before it
}

// Writer returns a Cursor that appends to b.
func Writer(b []byte) Cursor { return Cursor{b: b} }

// Reader returns a Cursor that reads b. Fields share no memory with b.
func Reader(b []byte) Cursor { return Cursor{b: b, reading: true} }

// Message is a type with a list of fields.
type Message interface {
	// Fields passes the fields to a Cursor in order.
	Fields(*Cursor)
}

// Append appends a message to b.
func Append(b []byte, m Message) []byte {
	c := Writer(b)
	m.Fields(&c)
	return c.b
}

// Parse reads a message that has all of b.
func Parse(b []byte, m Message) error {
	c := Reader(b)
	m.Fields(&c)
	return c.End()
}

// Reading reports whether the Cursor reads.
func (c *Cursor) Reading() bool { return c.reading }

// Bytes returns what was written.
func (c *Cursor) Bytes() []byte { return c.b }

// Left returns the number of bytes that were not read before the first failure.
func (c *Cursor) Left() int { return c.left }

// Err returns the first failure.
func (c *Cursor) Err() error { return c.err }

// Fail makes a Cursor that reads fail.
func (c *Cursor) Fail(format string, args ...any) {
	if c.reading && c.err == nil {
		c.err, c.left, c.b = fmt.Errorf(format, args...), len(c.b), nil
	}
}

// End is Err, but bytes that were not read are a failure too.
func (c *Cursor) End() error {
	if len(c.b) > 0 {
		c.Fail("%d bytes are left over", len(c.b))
	}
	return c.err
}

// Take returns the next n bytes that a Cursor reads, as a part of its bytes that appending does not extend; nil after
// a failure.
func (c *Cursor) Take(n int) []byte {
	if n > len(c.b) {
		c.Fail("ends %d bytes early", n-len(c.b))
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

// Raw writes or fills b.
func (c *Cursor) Raw(b []byte) {
	if !c.reading {
		c.b = append(c.b, b...)
	} else if copy(b, c.Take(len(b))) < len(b) {
		clear(b)
	}
}

type integer interface {
	~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// U8 writes or reads numbers in one byte each.
func U8[T integer](c *Cursor, list ...*T) { numbers(c, 1, list) }

// U16 writes or reads numbers in two bytes each.
func U16[T integer](c *Cursor, list ...*T) { numbers(c, 2, list) }

// U32 writes or reads numbers in four bytes each.
func U32[T integer](c *Cursor, list ...*T) { numbers(c, 4, list) }

// U64 writes or reads numbers in eight bytes each.
func U64[T integer](c *Cursor, list ...*T) { numbers(c, 8, list) }

// numbers writes or reads numbers in so many bytes each.
func numbers[T integer](c *Cursor, bytes int, list []*T) {
	for _, v := range list {
		var b [8]byte
		if c.reading {
			copy(b[:], c.Take(bytes))
			*v = T(binary.LittleEndian.Uint64(b[:]))
		} else {
			binary.LittleEndian.PutUint64(b[:], uint64(*v))
			c.b = append(c.b, b[:bytes]...)
		}
	}
}

// F64 writes or reads floating-point numbers.
func F64(c *Cursor, list ...*float64) {
	for _, v := range list {
		n := math.Float64bits(*v)
		if U64(c, &n); c.reading {
			*v = math.Float64frombits(n)
		}
	}
}

// Flag writes or reads a byte that is 0 or 1.
func (c *Cursor) Flag(v *bool) {
	n := byte(0)
	if *v {
		n = 1
	}
	if U8(c, &n); n > 1 {
		c.Fail("flag %d", n)
	}
	if c.reading {
		*v = n == 1
	}
}

// Len writes the length of a list in a number of bytes, or reads it. A Cursor that reads fails and returns 0 if the
// length is above most, or if fewer elements of at least the given size follow: no length causes an allocation
// larger than the input.
func (c *Cursor) Len(n, bytes, size, most int) int {
	numbers(c, bytes, []*int{&n})
	if c.reading && (n > most || n > len(c.b)/size) {
		c.Fail("%d elements, at most %d, in %d bytes", n, most, len(c.b))
		return 0
	}
	return n
}

// List writes the length of a list as Len does, or makes a list of the length that it reads; nil if that is 0.
func List[T any](c *Cursor, list *[]T, bytes, size, most int) {
	n := c.Len(len(*list), bytes, size, most)
	if c.reading {
		if *list = nil; n > 0 {
			*list = make([]T, n)
		}
	}
}

// Text writes or reads a text after its length.
func Text[S ~string](c *Cursor, s *S, bytes, most int) {
	text(c, s, c.Len(len(*s), bytes, 1, most))
}

// Rest writes a text without its length, or reads one up to the end.
func Rest[S ~string](c *Cursor, s *S, most int) { text(c, s, min(len(c.b), most)) }

// text writes a text, or reads one of n bytes.
func text[S ~string](c *Cursor, s *S, n int) {
	if !c.reading {
		c.b = append(c.b, *s...)
		return
	}
	*s = S(c.Take(n))
}

// U32s writes or reads a list of numbers after its length, in four bytes each.
func (c *Cursor) U32s(list *[]uint32, most int) {
	List(c, list, 4, 4, most)
	if !c.reading {
		for _, v := range *list {
			c.b = binary.LittleEndian.AppendUint32(c.b, v)
		}
		return
	}
	b := c.Take(4 * len(*list))
	for i := range len(b) / 4 {
		(*list)[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
}

// U64s writes or fills a list.
func (c *Cursor) U64s(list []uint64) {
	if !c.reading {
		for _, v := range list {
			c.b = binary.LittleEndian.AppendUint64(c.b, v)
		}
		return
	}
	b := c.Take(8 * len(list))
	for i := range len(b) / 8 {
		list[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
}

// Rows writes or reads lists of numbers of equal length after that length in four bytes. A reader makes n lists.
func (c *Cursor) Rows(rows *[][]uint64, n int) {
	if c.reading {
		*rows = make([][]uint64, n)
	}
	per := c.Len(len((*rows)[0]), 4, 8*n, math.MaxInt32)
	for i := range *rows {
		if c.reading {
			(*rows)[i] = make([]uint64, per)
		}
		c.U64s((*rows)[i])
	}
}
