package errkind

import (
	"errors"
	"io"
	"io/fs"
	"testing"
)

func TestWithAddsAKindAndNoText(t *testing.T) {
	err := With(io.EOF, fs.ErrNotExist)
	if err.Error() != io.EOF.Error() || !errors.Is(err, io.EOF) || !errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
}
