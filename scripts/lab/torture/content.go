package torture

import "encoding/binary"

// content is the bytes of one part of one rank's share of an item. The bytes are computed from
// the seed and their position, so they need not be stored. Each 16 bits are a number of ordinary
// magnitude, as F16 and as BF16, so that a codec has something to compress.
type content struct{ base uint64 }

// contentOf returns the content of a part. Item numbers are never reused for different
// bytes.
func contentOf(seed, item uint64, rank, part int) content {
	h := mix(seed ^ 0x9e3779b97f4a7c15)
	h = mix(h ^ item)
	return content{mix(h ^ uint64(rank)<<32 ^ uint64(part))}
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// word returns the 8 bytes at 8*i.
func (c content) word(i uint64) uint64 {
	const signsAndFractions, exponents = 0x83ff83ff83ff83ff, 0x3c003c003c003c00
	return mix(c.base+i)&signsAndFractions | exponents
}

// fill writes the bytes starting at off.
func (c content) fill(dst []byte, off int64) {
	i := uint64(off) / 8
	if skip := int(off % 8); skip > 0 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], c.word(i))
		dst = dst[copy(dst, w[skip:]):]
		i++
	}
	for ; len(dst) >= 8; dst, i = dst[8:], i+1 {
		binary.LittleEndian.PutUint64(dst, c.word(i))
	}
	if len(dst) > 0 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], c.word(i))
		copy(dst, w[:])
	}
}

// holds reports whether b equals the bytes starting at off, a multiple of 8.
func (c content) holds(b []byte, off int64) bool {
	i := uint64(off) / 8
	for ; len(b) >= 8; b, i = b[8:], i+1 {
		if binary.LittleEndian.Uint64(b) != c.word(i) {
			return false
		}
	}
	if len(b) == 0 {
		return true
	}
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], c.word(i))
	return string(b) == string(w[:len(b)])
}
