package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// List is a flag whose values are separated by commas or given repeatedly.
type List []string

func (l *List) String() string { return strings.Join(*l, ",") }

// Type returns the name of a value in help texts.
func (l *List) Type() string { return "list" }

// Set appends values.
func (l *List) Set(text string) error {
	for _, v := range strings.Split(text, ",") {
		if v = strings.TrimSpace(v); v == "" {
			return errors.New("empty value")
		}
		*l = append(*l, v)
	}
	return nil
}

var units = map[string]float64{
	"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}

// Bytes parses a size up to 10^18 bytes: 300GB, 1.5 GiB or plain bytes.
func Bytes(text string) (n float64, ok bool) {
	at := strings.LastIndexAny(text, "0123456789.") + 1
	v, err := strconv.ParseFloat(text[:at], 64)
	unit, known := units[strings.ToUpper(strings.TrimSpace(text[at:]))]
	n = v * unit
	return n, err == nil && known && n >= 0 && n <= 1e18
}

// maxConfigBytes bounds a file: real ones have a few KiB.
const maxConfigBytes = 16 << 20

// ReadConfig reads a model's config.json; - is standard input.
func ReadConfig(path string) ([]byte, error) {
	var in io.Reader = os.Stdin
	name := "standard input"
	if path != "-" {
		name = path
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxConfigBytes+1))
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok { // also names the file
			err = path.Err
		}
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("%s has more than %d bytes: not a config.json", name, maxConfigBytes)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("%s is empty, want a model's config.json", name)
	}
	return text, nil
}
