package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// lines splits a stream at line ends and counts them.
type lines struct {
	file string
	in   *bufio.Reader
	at   int // number of the last line returned
	long []byte
}

func newLines(file string, in io.Reader) *lines {
	return &lines{file: file, in: bufio.NewReaderSize(in, 1<<16)}
}

// next returns the next line without its line end; io.EOF after the last line. The line is valid
// until the next call. Empty lines are allowed only at the end of the file.
func (l *lines) next() ([]byte, error) {
	line, err := l.read()
	if err != nil || len(line) > 0 {
		return line, err
	}
	empty := l.at
	for {
		line, err := l.read()
		if err != nil {
			return nil, err
		}
		if len(line) > 0 {
			l.at = empty
			return nil, l.bad(errors.New("empty line"))
		}
	}
}

func (l *lines) read() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		l.long = append(l.long[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(l.long) > maxLineBytes {
				l.at++
				return nil, l.bad(fmt.Errorf("more than %d bytes in a line", maxLineBytes))
			}
			line, err = l.in.ReadSlice('\n')
			l.long = append(l.long, line...)
		}
		line = l.long
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, &Error{Unreadable, l.file, l.at + 1, err}
	}
	if err != nil && len(line) == 0 {
		return nil, io.EOF
	}
	if l.at++; l.at == 1 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// byteOrderMark is at the start of texts written by some spreadsheets.
var byteOrderMark = []byte("\xef\xbb\xbf")

func (l *lines) bad(cause error) error { return &Error{BadLine, l.file, l.at, cause} }
