package events

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// The server's part of ZMTP 3.0 (ZeroMQ RFC 23), with the NULL mechanism.
//
//	greeting  FF 00*8 7F | 03 00 | "NULL" 00*16 | as-server 00 | 00*31         64 bytes
//	frame     flags (1 more, 2 long, 4 command) | size, 1 or 8 bytes | body
//	READY     a command: 05 "READY" { name length, name, u32 value length, value }
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	greetingSize = 64

	// Limits of received data. Honest clients send a topic, an empty frame or eight bytes, and about 50
	// bytes of metadata.
	maxFrame     = 1 << 10
	maxFrames    = 8
	handshakeMax = 5 * time.Second
)

var errProtocol = errors.New("events: not ZMTP 3 with the NULL mechanism")

// wire is one connection after its handshake. One goroutine reads, and one goroutine writes.
type wire struct {
	net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
	sent atomic.Int64 // bytes that the kernel has taken
	last atomic.Int64 // time of the latest write, in unix nanoseconds
}

// counted counts the bytes that the kernel takes from a connection.
type counted struct{ w *wire }

func (c counted) Write(b []byte) (int, error) {
	n, err := c.w.Conn.Write(b)
	c.w.sent.Add(int64(n))
	c.w.last.Store(time.Now().UnixNano())
	return n, err
}

// handshake does the ZMTP handshake with a new connection. The parameter socket is the type of the
// daemon's socket, and the parameter peers lists the socket types that the other side may have.
func handshake(conn net.Conn, socket string, peers ...string) (*wire, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeMax)); err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, r: bufio.NewReaderSize(conn, 2<<10)}
	w.w = bufio.NewWriterSize(counted{w}, 32<<10)
	var mine [greetingSize]byte
	mine[0], mine[9], mine[10] = 0xff, 0x7f, 3
	copy(mine[12:], "NULL")
	w.buffer(mine[:])
	if err := w.w.Flush(); err != nil {
		return nil, err
	}
	var theirs [greetingSize]byte
	if _, err := io.ReadFull(w.r, theirs[:]); err != nil {
		return nil, err
	}
	if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 || string(bytes.TrimRight(theirs[12:32], "\x00")) != "NULL" {
		return nil, errProtocol
	}
	w.command(readyCommand(socket))
	if err := w.w.Flush(); err != nil {
		return nil, err
	}
	flags, body, err := w.frame()
	if err != nil {
		return nil, err
	}
	if err := checkReady(flags, body, peers); err != nil {
		return nil, err
	}
	return w, conn.SetDeadline(time.Time{})
}

func readyCommand(socket string) []byte {
	b := []byte("\x05READY")
	for _, p := range [][2]string{{"Socket-Type", socket}, {"Identity", ""}} {
		b = append(append(b, byte(len(p[0]))), p[0]...)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(p[1]))), p[1]...)
	}
	return b
}

func checkReady(flags byte, body []byte, peers []string) error {
	rest, ok := bytes.CutPrefix(body, []byte("\x05READY"))
	if flags&flagCommand == 0 || !ok {
		return errProtocol
	}
	for len(rest) > 0 {
		n := int(rest[0])
		if len(rest) < 1+n+4 {
			return errProtocol
		}
		name := rest[1 : 1+n]
		size := binary.BigEndian.Uint32(rest[1+n:])
		rest = rest[1+n+4:]
		if uint64(size) > uint64(len(rest)) {
			return errProtocol
		}
		value := string(rest[:size])
		rest = rest[size:]
		if !bytes.EqualFold(name, []byte("Socket-Type")) {
			continue
		}
		if !slices.Contains(peers, value) {
			return fmt.Errorf("%w: socket type %.16q", errProtocol, value)
		}
		return nil
	}
	return errProtocol
}

// frame reads one frame of at most maxFrame bytes.
func (w *wire) frame() (flags byte, body []byte, err error) {
	if flags, err = w.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	var size uint64
	if flags&flagLong != 0 {
		var b [8]byte
		if _, err = io.ReadFull(w.r, b[:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(b[:])
	} else {
		short, err := w.r.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		size = uint64(short)
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || size > maxFrame {
		return 0, nil, fmt.Errorf("%w: flags %#x, %d bytes", errProtocol, flags, size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(w.r, body)
	return flags, body, err
}

// message reads the frames of one message. It calls the function command for commands in between.
func (w *wire) message(command func(body []byte)) (frames [][]byte, err error) {
	for {
		flags, body, err := w.frame()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			command(body)
			continue
		}
		if frames = append(frames, body); len(frames) > maxFrames {
			return nil, fmt.Errorf("%w: more than %d frames", errProtocol, maxFrames)
		}
		if flags&flagMore == 0 {
			return frames, nil
		}
	}
}

// command buffers a command. Flush returns the errors of buffering.
func (w *wire) command(body []byte) { w.put(flagCommand, body) }

// send buffers a message.
func (w *wire) send(frames ...[]byte) {
	for i, body := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		w.put(flags, body)
	}
}

func (w *wire) put(flags byte, body []byte) {
	head := []byte{flags, byte(len(body))}
	if len(body) > 255 {
		head = binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body)))
	}
	w.buffer(head)
	w.buffer(body)
}

// buffer ignores errors, since Flush returns them.
func (w *wire) buffer(b []byte) { _, _ = w.w.Write(b) }

// pong returns the answer to a PING; false = body is another command.
func pong(body []byte) (answer []byte, ok bool) {
	rest, ok := bytes.CutPrefix(body, []byte("\x04PING"))
	if !ok || len(rest) < 2 {
		return nil, false
	}
	return append([]byte("\x04PONG"), rest[2:]...), true
}
