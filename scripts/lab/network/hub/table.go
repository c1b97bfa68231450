package hub

// address is an Ethernet address.
type address [6]byte

// group reports whether the address is a group address: multicast or broadcast.
func (a address) group() bool { return a[0]&1 != 0 }

// headerBytes is the length of a frame's header: to, from, type.
const headerBytes = 14

// maxAddresses bounds the table. Further addresses are not learned, and frames for them go
// to all ports.
const maxAddresses = 1024

// table maps an address to its port.
type table map[address]int

// learn records the port of a frame's source address, and returns the port of its destination;
// -1 = all other ports. ok is false if the frame is shorter than a header.
func (t table) learn(port int, frame []byte) (to int, ok bool) {
	if len(frame) < headerBytes {
		return 0, false
	}
	dst, src := address(frame[:6]), address(frame[6:12])
	if _, known := t[src]; !src.group() && (known || len(t) < maxAddresses) {
		t[src] = port
	}
	if at, known := t[dst]; known && !dst.group() {
		return at, true
	}
	return -1, true
}
