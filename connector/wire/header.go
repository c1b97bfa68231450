package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrMalformed is wrapped by every error about bytes that break the layout. The error's text
// names the message, the field and the value. The daemon answers such a frame with code Invalid.
var ErrMalformed = errors.New("malformed frame")

// ErrVersion is wrapped when a header carries a version that this package does not support. The
// daemon answers such a frame with code Unsupported.
var ErrVersion = errors.New("unsupported version")

// ErrTooLarge is wrapped when a message does not fit a frame.
var ErrTooLarge = errors.New("frame too large")

// magic is "SPLC" read as a little-endian number.
const magic = uint32('S') | uint32('P')<<8 | uint32('L')<<16 | uint32('C')<<24

// Header starts every frame.
//
//	 0      4   5   6    8         16        24       28       32       36
//	+------+---+---+----+---------+---------+--------+--------+--------+--------+
//	| SPLC | v | k | op | request |  epoch  | tenant | c or d | length |   0    |
//	+------+---+---+----+---------+---------+--------+--------+--------+--------+
//
// c is the code and two zero bytes (replies), d the deadline (requests).
type Header struct {
	Version  uint8 // 0 is written as Version
	Kind     Kind
	Op       Op
	Request  uint64 // chosen by the client, never 0, not reused on a connection
	Epoch    uint64 // boot epoch of the daemon; 0 in hello
	Tenant   uint32
	Code     Code   // replies only
	Deadline uint32 // requests only: microseconds from arrival; 0 = the daemon's default
	Length   uint32 // bytes of the body
}

// AppendHeader appends h to b.
func AppendHeader(b []byte, h *Header) []byte {
	version := h.Version
	if version == 0 {
		version = Version
	}
	outcome := h.Deadline
	if h.Kind == Reply {
		outcome = uint32(h.Code)
	}
	le := binary.LittleEndian
	b = le.AppendUint32(b, magic)
	b = append(b, version, byte(h.Kind))
	b = le.AppendUint16(b, uint16(h.Op))
	b = le.AppendUint64(b, h.Request)
	b = le.AppendUint64(b, h.Epoch)
	b = le.AppendUint32(b, h.Tenant)
	b = le.AppendUint32(b, outcome)
	b = le.AppendUint32(b, h.Length)
	return le.AppendUint32(b, 0)
}

// ParseHeader splits a frame. On an error h still has the fields that could be read, so that an
// answer can name the request. If the frame is too short or has another magic, h is zero. The
// body is a view of frame.
func ParseHeader(frame []byte) (h Header, body []byte, err error) {
	if len(frame) < HeaderBytes {
		return h, nil, fmt.Errorf("header: %d bytes, want %d: %w", len(frame), HeaderBytes, ErrMalformed)
	}
	le := binary.LittleEndian
	if m := le.Uint32(frame); m != magic {
		return h, nil, fmt.Errorf("header: magic %#08x: %w", m, ErrMalformed)
	}
	h = Header{
		Version: frame[4],
		Kind:    Kind(frame[5]),
		Op:      Op(le.Uint16(frame[6:])),
		Request: le.Uint64(frame[8:]),
		Epoch:   le.Uint64(frame[16:]),
		Tenant:  le.Uint32(frame[24:]),
		Length:  le.Uint32(frame[32:]),
	}
	outcome := le.Uint32(frame[28:])
	if h.Kind == Reply {
		h.Code = Code(outcome)
	} else {
		h.Deadline = outcome
	}
	body = frame[HeaderBytes:]
	switch {
	case h.Version != Version:
		err = fmt.Errorf("header: version %d, want %d: %w", h.Version, Version, ErrVersion)
	case h.Kind > Reply:
		err = fmt.Errorf("header: kind %d: %w", h.Kind, ErrMalformed)
	case h.Kind == Reply && outcome>>16 != 0:
		err = fmt.Errorf("header: bytes after code %#x are not zero: %w", outcome, ErrMalformed)
	case le.Uint32(frame[36:]) != 0:
		err = fmt.Errorf("header: reserved %#x: %w", le.Uint32(frame[36:]), ErrMalformed)
	case len(frame) > MaxFrame:
		err = fmt.Errorf("header: frame of %d bytes, at most %d: %w", len(frame), MaxFrame, ErrMalformed)
	case int64(h.Length) != int64(len(body)):
		err = fmt.Errorf("header: length %d, body %d bytes: %w", h.Length, len(body), ErrMalformed)
	}
	if err != nil {
		body = nil
	}
	return h, body, err
}

// AppendFrame appends the header h and the body m to b and sets the length. A nil m is an
// empty body. On ErrTooLarge it returns b unchanged.
func AppendFrame(b []byte, h *Header, m Message) ([]byte, error) {
	start := len(b)
	b = AppendHeader(b, h)
	if m != nil {
		b = m.Append(b)
	}
	size := len(b) - start
	if size > MaxFrame {
		return b[:start], fmt.Errorf("%s: %d bytes, at most %d: %w", h.Op, size, MaxFrame, ErrTooLarge)
	}
	binary.LittleEndian.PutUint32(b[start+32:], uint32(size-HeaderBytes))
	return b, nil
}

// AppendError appends an error reply: the header h, whose Code the caller has set, and the text
// as valid UTF-8, cut to MaxErrorText bytes.
func AppendError(b []byte, h *Header, text string) []byte {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > MaxErrorText {
		cut := MaxErrorText
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	reply := *h
	reply.Kind, reply.Length = Reply, uint32(len(text))
	return append(AppendHeader(b, &reply), text...)
}

// ErrorText returns the text of an error reply. It never fails: a body that is
// too long is cut and bytes that are not UTF-8 are replaced.
func ErrorText(body []byte) string {
	return strings.ToValidUTF8(string(body[:min(len(body), MaxErrorText)]), "?")
}

// Answer returns the code for the reply to a frame. err is the error that ParseHeader or Decode
// returned for that frame.
func Answer(err error) Code {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, ErrVersion):
		return Unsupported
	default:
		return Invalid
	}
}
