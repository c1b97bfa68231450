package hub

// address is an Ethernet address.
type address [6]byte

// group reports whether it stands for several: multicast and broadcast.
func (a address) group() bool { return a[0]&1 != 0 }

// headerBytes begin a frame: to, from, type.
const headerBytes = 14

// maxAddresses bounds the table; addresses beyond it are not learnt, and what is for
// them goes to all ports.
const maxAddresses = 1024

// table knows behind which port an address is.
type table map[address]int

// learn notes where a frame came from, and tells which port it is for; -1 = all others.
// What is shorter than a header is for none: ok is false.
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
