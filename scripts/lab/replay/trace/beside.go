package trace

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// errNoTexts is the error of a session line that cannot be checked without the texts of the
// sessions.
var errNoTexts = errors.New("no texts")

// companion opens the file that a trace refers to. If a name is given (named), it opens that
// file. Otherwise it opens the file of the wanted shape in the trace's directory. If several
// files have this shape, it opens the one whose name has the longest common prefix with the
// trace's name.
func companion(of *stream, named string, want shape) (*stream, error) {
	what := map[shape]string{shapeTrajectories: "texts of sessions", shapeLengths: "lengths of passages"}[want]
	if named != "" {
		s, err := openStream(named, "")
		if err != nil {
			return nil, err
		}
		if s.shape() != want {
			s.Close()
			return nil, &Error{NoCompanion, s.name, 0, fmt.Errorf("holds no %s", what)}
		}
		return s, nil
	}
	dir, base := filepath.Split(of.file.Name())
	entries, err := os.ReadDir(filepath.Clean(dir + "."))
	if err != nil {
		return nil, &Error{Unreadable, dir, 0, err}
	}
	var best *stream
	common, tied := -1, false
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == base {
			continue
		}
		s, err := openStream(dir+e.Name(), "")
		if err != nil {
			continue // skip archives and unreadable files
		}
		n := commonPrefix(e.Name(), base)
		if s.shape() != want || n < common {
			s.Close()
			continue
		}
		if best != nil {
			best.Close()
		}
		best, common, tied = s, n, n == common
	}
	switch {
	case best == nil:
		return nil, &Error{NoCompanion, of.name, 0, fmt.Errorf("the %s that this trace refers to are not beside it: name them with -texts", what)}
	case tied:
		best.Close()
		return nil, &Error{NoCompanion, of.name, 0, fmt.Errorf("several files beside this trace hold %s: name one with -texts", what)}
	}
	return best, nil
}

// shape peeks at the first line without consuming it. A line that is longer than 64 KiB is
// classified by its beginning.
func (s *stream) shape() shape {
	in := bufio.NewReaderSize(s.Reader, 1<<16)
	s.Reader = in
	head, _ := in.Peek(1 << 16)
	line, _, whole := strings.Cut(strings.TrimPrefix(string(head), string(byteOrderMark)), "\n")
	if !whole && len(head) == 1<<16 && strings.HasPrefix(line, `{"id":`) && strings.Contains(line[:1<<10], `"msgs":[[`) {
		return shapeTrajectories
	}
	return sniff([]byte(strings.TrimRight(line, "\r")))
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
