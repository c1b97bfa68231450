// Package tracetest reads the request streams on which tests measure policies. The data
// sets are not part of this repository. Tests skip themselves if their data set is missing.
package tracetest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// Directory returns the directory of the data sets: SPLICED_DATA or, if it is not set,
// shared/data next to the repository.
func Directory() string {
	if dir := os.Getenv("SPLICED_DATA"); dir != "" {
		return dir
	}
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../../shared/data")
}

// Path returns the path of a file of the data sets. It skips the test if there
// is none.
func Path(tb testing.TB, file string) string {
	tb.Helper()
	path := filepath.Join(Directory(), file)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		tb.Skipf("no data set %s: set SPLICED_DATA to where it is", file)
	}
	return path
}

// Read returns one compressed file of the data sets, decompressed. It skips the
// test if there is none.
func Read(tb testing.TB, name string) []byte {
	tb.Helper()
	f, err := os.Open(Path(tb, name+".zst"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	d, err := zstd.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	defer d.Close()
	all, err := io.ReadAll(d)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return all
}

// Trace calls the function each once per request, in the order of arrival. The slices input
// and output are valid until that call returns.
type Trace func(each func(input, output []uint32))

// Mooncake returns the conversation trace. A symbol is a block of 512 tokens. An incomplete
// last block of a prompt is dropped, and answers are not known.
func Mooncake(tb testing.TB) Trace {
	tb.Helper()
	var prompts [][]uint32
	lines := bufio.NewScanner(bytes.NewReader(Read(tb, "mooncake_conversation_trace.jsonl")))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r struct {
			Length int      `json:"input_length"`
			Blocks []uint32 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			tb.Fatal(err)
		}
		if full := min(r.Length/512, len(r.Blocks)); full > 0 {
			prompts = append(prompts, r.Blocks[:full])
		}
	}
	return func(each func(input, output []uint32)) {
		for _, p := range prompts {
			each(p, nil)
		}
	}
}

// Chunk4 tokenizes text as the data sets do: a token is four bytes, and the last token is
// padded with zeros.
func Chunk4(text string) []uint32 {
	b := append([]byte(text), 0, 0, 0)
	tokens := make([]uint32, len(b)/4)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(b[i*4:])
	}
	return tokens
}

// Sessions returns the texts of n agent sessions as tokens: for each session its prompts
// and answers in turn. The first prompt is the system message and the task.
func Sessions(tb testing.TB, n int) [][][]uint32 {
	tb.Helper()
	lines := bufio.NewScanner(bytes.NewReader(Read(tb, "swe_mini_traj.jsonl")))
	lines.Buffer(nil, 1<<26)
	var all [][][]uint32
	for len(all) < n && lines.Scan() {
		var s struct {
			Messages [][2]string `json:"msgs"`
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			tb.Fatal(err)
		}
		var turns [][]uint32
		for i, m := range s.Messages {
			tokens := Chunk4("<|" + m[0] + "|>\n" + m[1])
			if i == 1 {
				turns[0] = append(turns[0], tokens...)
				continue
			}
			turns = append(turns, tokens)
		}
		all = append(all, turns)
	}
	if len(all) < n {
		tb.Fatalf("%d sessions, want %d: %v", len(all), n, lines.Err())
	}
	return all
}

// order is one line of an order file: the arrival of one prompt.
type order struct{ session, turn, input, output int }

// Orders returns the arrival orders of the archive by name, such as
// "c5_sps1_art7.5".
func Orders(tb testing.TB) map[string][]order {
	tb.Helper()
	orders := map[string][]order{}
	archive := tar.NewReader(bytes.NewReader(Read(tb, "swe100_orders.tar")))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return orders
		}
		if err != nil {
			tb.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		rows, err := csv.NewReader(archive).ReadAll()
		if err != nil {
			tb.Fatalf("%s: %v", h.Name, err)
		}
		var list []order
		for _, r := range rows {
			var o order
			for i, to := range []*int{&o.session, &o.turn, &o.input, &o.output} {
				if *to, err = strconv.Atoi(r[i+1]); err != nil {
					tb.Fatalf("%s: %v", h.Name, err)
				}
			}
			list = append(list, o)
		}
		name := filepath.Base(h.Name)
		orders[name[len("swe100_"):len(name)-len(".csv")]] = list
	}
}
