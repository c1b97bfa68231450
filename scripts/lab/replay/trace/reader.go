package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Options adds what a path alone does not specify.
type Options struct {
	Member string // of a tar archive; may also follow the path after a colon
	// Texts is the file that the trace refers to: the texts for an order of sessions, the
	// lengths for a list of passages. Empty = Open searches the trace's directory for a file
	// with such content.
	Texts string
}

// Reader reads one trace.
type Reader struct {
	info     Info
	in       *lines
	from     *stream
	beside   *stream // companion that is read in parallel; nil = none
	first    []byte  // line that Open has read and Next has yet to return; nil = none
	decode   func(line []byte, r *Request) error
	requests int
}

// Open opens the trace at path and detects its format. The caller closes the Reader.
func Open(path string, o Options) (*Reader, error) {
	from, err := openStream(path, o.Member)
	if err != nil {
		return nil, err
	}
	r := &Reader{from: from, in: newLines(from.name, from)}
	if err := r.begin(o); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Info returns a description of the trace.
func (r *Reader) Info() Info { return r.info }

// File returns the name of the file, with the archive's member.
func (r *Reader) File() string { return r.from.name }

// Progress returns how much of the file was read, in bytes.
func (r *Reader) Progress() (done, total int64) { return r.from.taken, r.from.size }

// Close closes the files.
func (r *Reader) Close() error {
	err := r.from.Close()
	if r.beside != nil {
		err = errors.Join(err, r.beside.Close())
	}
	return err
}

func (r *Reader) begin(o Options) error {
	line, err := r.in.next()
	if errors.Is(err, io.EOF) {
		return &Error{Empty, r.in.file, 0, errors.New("no lines")}
	}
	if err != nil {
		return err
	}
	first := bytes.Clone(line)
	r.info = Info{BlockTokens: 1}
	switch s := sniff(first); s {
	case shapeOwn:
		return r.beginOwn(first)
	case shapeMooncake:
		r.info, r.first, r.decode = Info{Mooncake, Prompts, mooncakeBlock}, first, mooncake
	case shapeDepths:
		r.info.Format, r.info.Kind, r.decode = Depths, Overlaps, (&depths{}).decode
	case shapeOrders:
		r.info.Format, r.info.Kind, r.first = Sessions, Prompts, first
		if r.beside, err = companion(r.from, o.Texts, shapeTrajectories); err != nil {
			return err
		}
		texts := &trajectories{in: newLines(r.beside.name, r.beside)}
		r.decode = (&sessions{texts: texts}).decode
	case shapePassages:
		r.info.Format, r.info.Kind, r.first = Passages, FlatPieces, first
		beside, err := companion(r.from, o.Texts, shapeLengths)
		if err != nil {
			return err
		}
		defer beside.Close()
		lengths, err := readLengths(newLines(beside.name, beside))
		r.decode = (&passages{lengths: lengths, file: beside.name}).decode
		return err
	default:
		code, cause := refuse(s, first)
		return &Error{code, r.in.file, r.in.at, cause}
	}
	return nil
}

// beginOwn reads up to the first request, which determines the kind of trace.
func (r *Reader) beginOwn(head []byte) error {
	o, err := newOwn(head)
	if err != nil {
		return r.in.bad(err)
	}
	line, err := r.in.next()
	if errors.Is(err, io.EOF) {
		return &Error{Empty, r.in.file, 0, errors.New("no request below the header")}
	}
	if err != nil {
		return err
	}
	r.first, r.decode = bytes.Clone(line), o.decode
	probe := own{head: o.head, names: map[string]uint32{}}
	if err := probe.decode(r.first, &Request{}); err != nil {
		return r.in.bad(err)
	}
	r.info = Info{Own, Prompts, 1}
	switch probe.kind {
	case ownHashes:
		r.info.BlockTokens = o.head.BlockTokens
	case ownSegments:
		r.info.Kind = FlatPieces
	}
	return nil
}

// Next reads the next request into q; io.EOF after the last request. After any error the Reader
// must not be used.
func (r *Reader) Next(q *Request) error {
	line := r.first
	if r.first = nil; line == nil {
		var err error
		if line, err = r.in.next(); err != nil {
			if errors.Is(err, io.EOF) && r.requests == 0 {
				return &Error{Empty, r.in.file, 0, errors.New("no requests")}
			}
			return err
		}
	}
	q.reset(r.in.at)
	if err := r.decode(line, q); err != nil {
		// An error in a companion file is returned as it is. If the companion contradicts the trace,
		// the error has the place in the trace that refers to the companion.
		var e *Error
		if errors.As(err, &e) {
			if e.Code == Mismatch {
				return &Error{Mismatch, r.in.file, r.in.at, fmt.Errorf("%s: %w", e.File, e.Cause)}
			}
			return e
		}
		return r.in.bad(err)
	}
	r.requests++
	return nil
}
