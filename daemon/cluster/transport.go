package cluster

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"
)

// Limits of the gossip port. memberlist itself reads up to 20 MiB from each of any number of
// streams before it authenticates them. A push/pull message has the state of all members, including
// recently dead ones: about 230 bytes each, 450 with the longest names.
const (
	maxState = 4 << 20 // bytes of one stream: 2 * MaxMembers states of 450 bytes
	// maxStreams limits three groups separately: streams of strangers, streams from addresses of
	// members, and authenticated streams. A stream of a member lasts milliseconds.
	maxStreams     = 64
	strangersBytes = 8 << 20 // of unauthenticated strangers; addresses of members have as many again
	insideBytes    = 32 << 20

	helloTime   = 2 * time.Second // limit for the head of the first message, which has the length
	messageTime = 3 * time.Second // limit for the whole first message

	// maxPacket is the largest packet that is not dropped. memberlist sends at most 1,400 bytes.
	maxPacket    = 4 << 10
	packetBuffer = 2 << 20 // receive buffer of the kernel, for bursts
	portTries    = 10      // attempts to find a port that is free for both TCP and UDP
)

// Layout of the beginning of a stream, as memberlist writes it. 244 and 10 are types, see below;
// the other numbers are sizes in bytes.
//
//	| 244 | length 1 | label | 10 | length 4, big-endian | sealed |
//	sealed: | version 1 | nonce 12 | ciphertext | tag 16 |, which also covers | 10 | length | label |
const (
	typePushPull   = 6
	typeCompressed = 9
	typeSealed     = 10
	typeLabel      = 244

	sealedNonce = 12
	sealedExtra = 1 + sealedNonce + 16
)

// transport implements memberlist's transport with limits. It reads and authenticates the first
// message of each incoming stream within the limits of a gate. It passes only authenticated streams
// on to memberlist. Without a keyring it cannot authenticate, and only the limits apply.
type transport struct {
	label string
	ring  *memberlist.Keyring // nil = gossip is not encrypted
	now   func() time.Time
	log   zerolog.Logger // writes a few lines per minute

	tcp     *net.TCPListener
	udp     *net.UDPConn
	packets chan *memberlist.Packet
	streams chan net.Conn
	closed  chan struct{}
	running sync.WaitGroup

	gate     *gate
	opening  sync.Mutex // held while a message is decrypted, so that only one copy of a state exists
	refused  [refusals]atomic.Uint64
	rejected rejected
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// newTransport listens on one port by TCP and UDP. The function known reports whether an address
// belongs to a member.
func newTransport(bind netip.AddrPort, label string, ring *memberlist.Keyring, known func(netip.Addr) bool, now func() time.Time, log zerolog.Logger) (*transport, error) {
	t := &transport{
		label: label, ring: ring, now: now, log: log.Sample(&zerolog.BurstSampler{Burst: 3, Period: time.Minute}),
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), closed: make(chan struct{}),
	}
	n := places(maxStreams, 32)
	t.gate = newGate(
		bounds{conns: n, connsEach: max(2, n/4), bytes: strangersBytes, bytesEach: maxState + maxState/4},
		bounds{conns: n, bytes: insideBytes})
	t.gate.known = known
	if err := t.listen(bind); err != nil {
		return nil, err
	}
	t.running.Go(t.accept)
	t.running.Go(t.receivePackets)
	return t, nil
}

// listen opens both sockets. With port 0 it tries several ports, since a port that is free for TCP
// may be in use for UDP.
func (t *transport) listen(bind netip.AddrPort) error {
	for try := 1; ; try++ {
		tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(bind))
		if err != nil {
			return err
		}
		at := netip.AddrPortFrom(bind.Addr(), tcp.Addr().(*net.TCPAddr).AddrPort().Port())
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err == nil {
			// An error is ignored: a smaller buffer only loses more packets in bursts.
			_ = udp.SetReadBuffer(packetBuffer)
			t.tcp, t.udp = tcp, udp
			return nil
		}
		_ = tcp.Close()
		if bind.Port() != 0 || try == portTries {
			return err
		}
	}
}

// port returns the port of both sockets.
func (t *transport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if ip == "" {
		bound := t.tcp.Addr().(*net.TCPAddr)
		return bound.IP, bound.Port, nil
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, 0, err
	}
	return addr.Unmap().AsSlice(), port, nil
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err == nil {
		_, err = t.udp.WriteTo(b, net.UDPAddrFromAddrPort(to))
	}
	return time.Now(), err
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", a.Addr, timeout)
	if err != nil {
		return nil, err
	}
	return &dialed{Conn: conn, left: maxState}, nil
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	close(t.closed)
	_ = t.tcp.Close()
	_ = t.udp.Close()
	t.gate.close()
	t.running.Wait()
	return nil
}

// receivePackets passes packets on to memberlist, each in a new buffer.
func (t *transport) receivePackets() {
	buf := make([]byte, maxPacket+1)
	for {
		n, from, err := t.udp.ReadFromUDP(buf)
		at := time.Now()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if !t.pause() {
				return
			}
			continue
		case n > maxPacket:
			t.refused[tooLong].Add(1)
			continue
		case n == 0:
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: bytes.Clone(buf[:n]), From: from, Timestamp: at}:
		case <-t.closed:
			return
		}
	}
}

func (t *transport) status() StreamStatus {
	s := StreamStatus{
		Unauthenticated: t.refused[unauthenticated].Load(), Slow: t.refused[slow].Load(), TooLong: t.refused[tooLong].Load(),
		NoRoom: t.refused[noRoom].Load() + t.gate.ended.Load(), Foreign: t.refused[foreign].Load(), Rejected: t.rejected.list(t.now()),
	}
	s.Open, s.Bytes = t.gate.outside()
	return s
}

// pause waits after a socket error, so that a repeated error does not use the CPU. It returns false
// on shutdown.
func (t *transport) pause() bool {
	select {
	case <-t.closed:
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

func (t *transport) accept() {
	for {
		conn, err := t.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // probably out of descriptors
			if !t.pause() {
				return
			}
		default:
			t.running.Go(func() { t.receive(conn) })
		}
	}
}

// receive authenticates a stream and passes it on to memberlist, or closes it.
func (t *transport) receive(conn net.Conn) {
	v, ok := t.gate.enter(conn)
	if !ok {
		_ = conn.Close()
		return
	}
	message, rest, err := t.authenticate(v)
	if err == nil && !t.gate.admit(v) {
		err = refuseAs(noRoom, "too many member streams are open")
	}
	if err == nil {
		s := &stream{guest: v, gate: t.gate, unread: message, rest: rest}
		select {
		case t.streams <- s:
		case <-t.closed:
			_ = s.Close()
		}
		return
	}
	t.gate.leave(v)
	_ = conn.Close()
	var r *refusal
	if !errors.As(err, &r) {
		return // closed by the peer, or by the gate, which has counted it
	}
	t.refused[r.kind].Add(1)
	if r.kind == unauthenticated {
		t.rejected.note(v.from, r.why, t.now())
	}
	t.log.Warn().Stringer("from", conn.RemoteAddr()).Msg("cluster: refused a stream to the gossip port: " + r.why)
}

// authenticate reads the first message of a stream and checks that it is encrypted with a key of
// the ring. The result rest is a reader of the bytes after the message; nil = no bytes may follow.
// The error is a *refusal or an error of the connection.
func (t *transport) authenticate(v *guest) (message []byte, rest io.Reader, err error) {
	begun := time.Now()
	if err := v.SetReadDeadline(begun.Add(helloTime)); err != nil {
		return nil, nil, err
	}
	b := make([]byte, 2+maxLabel+5)
	read := 0
	until := func(n int) bool { // reads until b has n bytes
		var some int
		some, err = io.ReadFull(v, b[read:n])
		read += some
		err = slowIf(err)
		return err == nil
	}
	if !until(1) {
		return nil, nil, err
	}
	label, at := "", 0
	if b[0] == typeLabel {
		if !until(2) || !until(2+int(b[1])) {
			return nil, nil, err
		}
		at = read
		label = string(b[2:at])
	}
	if label != t.label {
		if marks := []byte{typeLabel, typeSealed, typeCompressed, typePushPull}; !slices.Contains(marks, b[0]) {
			return nil, nil, refuseAs(foreign, "it uses another protocol")
		}
		return nil, nil, refuseAs(unauthenticated, "it belongs to another cluster: the names differ")
	}
	if !until(at + 1) {
		return nil, nil, err
	}
	if t.ring == nil {
		return t.plain(v, b[:read], b[at])
	}
	if b[at] != typeSealed {
		return nil, nil, refuseAs(unauthenticated, "it has no keyring: its messages are not encrypted")
	}
	if !until(at + 5) {
		return nil, nil, err
	}
	n := binary.BigEndian.Uint32(b[at+1:])
	if n < sealedExtra || n > maxState {
		return nil, nil, refuseAs(tooLong, fmt.Sprintf("it announces %d bytes, want %d to %d", n, sealedExtra, maxState))
	}
	if err := v.SetReadDeadline(begun.Add(messageTime)); err != nil {
		return nil, nil, err
	}
	if message, err = t.body(v, b[:read], int(n)); err != nil {
		return nil, nil, err
	}
	if !t.opens(message[read:], message[at:read], label) {
		return nil, nil, refuseAs(unauthenticated, "its key is not in this node's keyring")
	}
	return message, nil, nil
}

// maxLabel is the largest length of a label, which is stored in one byte.
const maxLabel = 255

// body reads n bytes that follow head, and returns head and these bytes. Its buffer grows with the
// bytes received, since the announced length n may be false.
func (t *transport) body(v *guest, head []byte, n int) ([]byte, error) {
	message := append(make([]byte, 0, 4<<10), head...)
	if !t.gate.grow(v, cap(message)) {
		return nil, t.crowded(v)
	}
	for end := len(head) + n; len(message) < end; {
		if len(message) == cap(message) {
			more := min(cap(message), end-cap(message))
			if !t.gate.grow(v, more) {
				return nil, t.crowded(v)
			}
			message = append(make([]byte, 0, cap(message)+more), message...)
		}
		some, err := v.Read(message[len(message):min(cap(message), end)])
		message = message[:len(message)+some]
		if err != nil {
			return nil, slowIf(err)
		}
	}
	return message, nil
}

// crowded returns the error for a stream for whose bytes there is no room. If the gate has closed
// the stream, the gate has already counted it.
func (t *transport) crowded(v *guest) error {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	if v.room == nil {
		return net.ErrClosed
	}
	return refuseAs(noRoom, "unauthenticated streams send too many bytes")
}

// opens reports whether some key of the ring authenticates a sealed message and its head.
func (t *transport) opens(sealed, head []byte, label string) bool {
	t.opening.Lock()
	defer t.opening.Unlock()
	nonce, text := sealed[1:1+sealedNonce], sealed[1+sealedNonce:]
	covered := append(bytes.Clone(head), label...)
	plain := make([]byte, 0, len(text))
	for _, key := range t.ring.GetKeys() {
		block, err := aes.NewCipher(key)
		if err != nil {
			continue
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			continue
		}
		if _, err := aead.Open(plain, nonce, text, covered); err == nil {
			return true
		}
	}
	return false
}

// plain bounds a stream that is not encrypted. It checks the header of a push/pull message first,
// because memberlist allocates memory by the counts in that header.
func (t *transport) plain(v *guest, head []byte, kind byte) (message []byte, rest io.Reader, err error) {
	limited := &io.LimitedReader{R: v, N: maxState}
	switch kind {
	case typeSealed:
		return nil, nil, refuseAs(unauthenticated, "it has a keyring, and this node has none")
	case typeCompressed:
		return nil, nil, refuseAs(unauthenticated, "it is compressed, which no release uses")
	case typePushPull:
		var h struct {
			Nodes, UserStateLen int
			Join                bool
		}
		var seen bytes.Buffer
		err := msgpack.NewDecoder(io.TeeReader(io.LimitReader(limited, 128), &seen)).Decode(&h)
		if err != nil {
			return nil, nil, slowIf(err)
		}
		if h.Nodes < 0 || h.Nodes > 2*MaxMembers || h.UserStateLen != 0 {
			return nil, nil, refuseAs(tooLong, fmt.Sprintf("it announces %d nodes and %d bytes", h.Nodes, h.UserStateLen))
		}
		head = append(bytes.Clone(head), seen.Bytes()...)
	}
	return head, limited, nil
}

// stream is an authenticated stream. Read first returns the message that was read to authenticate
// it.
type stream struct {
	*guest
	gate   *gate
	unread []byte
	rest   io.Reader // bytes after the first message; nil = none may follow
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) {
	if len(s.unread) > 0 {
		n := copy(p, s.unread)
		s.unread = s.unread[n:]
		return n, nil
	}
	if s.rest == nil {
		return 0, io.EOF
	}
	return s.rest.Read(p)
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.gate.leave(s.guest)
	return s.guest.Close()
}

// dialed is an outgoing stream that limits the size of the answer.
type dialed struct {
	net.Conn
	left int
}

var errNoAnswer = errors.New("it closed the connection without an answer: its keyring or cluster name differs, or it is too busy")

// Read implements net.Conn.
func (d *dialed) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, fmt.Errorf("answer of more than %d bytes", maxState)
	}
	n, err := d.Conn.Read(p[:min(len(p), d.left)])
	if n == 0 && d.left == maxState && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		err = errNoAnswer
	}
	d.left -= n
	return n, err
}

// refusalKind is the kind of reason why a stream or packet was refused.
type refusalKind uint8

const (
	unauthenticated refusalKind = iota
	slow
	tooLong
	noRoom
	foreign
	refusals
)

type refusal struct {
	kind refusalKind
	why  string
}

func (r *refusal) Error() string { return r.why }

func refuseAs(kind refusalKind, why string) error { return &refusal{kind, why} }

// slowIf turns the error of an expired deadline into a refusal. It returns other errors unchanged.
func slowIf(err error) error {
	if timed, ok := errors.AsType[net.Error](err); ok && timed.Timeout() {
		return refuseAs(slow, "its first message timed out")
	}
	return err
}

// Rejected is an address that speaks the gossip protocol but could not be authenticated. Most
// likely it is a node with a wrong key.
type Rejected struct {
	Address     netip.Addr
	Since, Last time.Time
	Times       uint64
	Why         string // reason of the last rejection
}

// rejected records the addresses that were rejected recently.
type rejected struct {
	mu sync.Mutex
	of map[netip.Addr]*Rejected // by address; at most maxRejected
}

const (
	maxRejected = 64
	// rejectedLife is long enough for several attempts of a node to join (Timing.Rejoin).
	rejectedLife = time.Minute
)

func (r *rejected) note(from netip.Addr, why string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepLocked(now)
	x := r.of[from]
	if x == nil {
		if len(r.of) >= maxRejected {
			var oldest *Rejected
			for _, other := range r.of {
				if oldest == nil || other.Last.Before(oldest.Last) {
					oldest = other
				}
			}
			delete(r.of, oldest.Address)
		}
		if r.of == nil {
			r.of = map[netip.Addr]*Rejected{}
		}
		x = &Rejected{Address: from, Since: now}
		r.of[from] = x
	}
	x.Last, x.Why = now, why
	x.Times++
}

func (r *rejected) sweepLocked(now time.Time) {
	for from, x := range r.of {
		if now.Sub(x.Last) > rejectedLife {
			delete(r.of, from)
		}
	}
}

// list returns the rejected addresses, in order.
func (r *rejected) list(now time.Time) (list []Rejected) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepLocked(now)
	for _, x := range r.of {
		list = append(list, *x)
	}
	slices.SortFunc(list, func(a, b Rejected) int { return a.Address.Compare(b.Address) })
	return list
}
