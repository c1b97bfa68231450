package trace

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// stream reads a file, decompressed, or one member of an archive in the file.
type stream struct {
	io.Reader
	name  string // for errors
	file  *os.File
	zstd  *zstd.Decoder
	size  int64
	taken int64 // bytes of the file read so far
}

// Close frees the resources of openStream.
func (s *stream) Close() error {
	if s.zstd != nil {
		s.zstd.Close()
	}
	return s.file.Close()
}

// counted counts the bytes that are read from the file before decompression, so that progress is
// known with any compression.
type counted struct{ s *stream }

func (c counted) Read(p []byte) (int, error) {
	n, err := c.s.file.Read(p)
	c.s.taken += int64(n)
	return n, err
}

// windowBytes bounds the memory that a compressed file may request.
const windowBytes = 128 << 20

var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// openStream opens path, which may be FILE:MEMBER if no file has that name.
func openStream(path, member string) (*stream, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && member == "" {
		if at := strings.LastIndexByte(path, ':'); at > 0 {
			if g, e := os.Open(path[:at]); e == nil {
				f, err, path, member = g, nil, path[:at], path[at+1:]
			}
		}
	}
	if err != nil {
		return nil, &Error{Unreadable, path, 0, err}
	}
	s := &stream{name: path, file: f}
	if err := s.layers(member); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// layers detects compression and an archive by their first bytes, and sets up the reader.
func (s *stream) layers(member string) error {
	info, err := s.file.Stat()
	if err != nil {
		return &Error{Unreadable, s.name, 0, err}
	}
	if info.IsDir() {
		return &Error{Unreadable, s.name, 0, errors.New("is a directory")}
	}
	s.size = info.Size()
	in := bufio.NewReaderSize(counted{s}, 1<<16)
	if head, _ := in.Peek(len(zstdMagic)); bytes.Equal(head, zstdMagic) {
		// Decode in this goroutine, because a replay measures its own time.
		s.zstd, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytes))
		if err != nil {
			return &Error{Unreadable, s.name, 0, err}
		}
		in = bufio.NewReaderSize(s.zstd, 1<<16)
	}
	s.Reader = in
	const magicAt = 257
	if head, _ := in.Peek(magicAt + 5); len(head) == magicAt+5 && string(head[magicAt:]) == "ustar" {
		return s.enter(in, member)
	}
	if member != "" {
		return &Error{NoMember, s.name, 0, fmt.Errorf("is no tar archive, so it has no member %q", member)}
	}
	return nil
}

// enter skips to the given member of a tar archive.
func (s *stream) enter(in io.Reader, member string) error {
	archive := tar.NewReader(in)
	var names []string
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(names) == maxMembers {
			err = fmt.Errorf("more than %d members", maxMembers)
		}
		if err != nil {
			return &Error{Unreadable, s.name, 0, err}
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if member != "" && named(h.Name, member) {
			s.Reader, s.name = archive, s.name+":"+h.Name
			return nil
		}
		names = append(names, h.Name)
	}
	what := "say which member, as FILE:MEMBER or with -member"
	if member != "" {
		what = fmt.Sprintf("no member %q", member)
	}
	return &Error{NoMember, s.name, 0, fmt.Errorf("%s: it holds %s", what, some(names))}
}

// named reports whether name selects a member of an archive; full is the path of the member.
// name may be the whole path, the path without its folders, or the path without folders and
// extension.
func named(full, name string) bool {
	base := full[strings.LastIndexByte(full, '/')+1:]
	if full == name || base == name {
		return true
	}
	dot := strings.LastIndexByte(base, '.')
	return dot > 0 && base[:dot] == name
}

func some(names []string) string {
	const shown = 30
	if len(names) > shown {
		return strings.Join(names[:shown], ", ") + fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return strings.Join(names, ", ")
}
