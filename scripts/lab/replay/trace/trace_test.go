package trace

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

const trajectoriesText = `{"id":"a","msgs":[["s","You help."],["u","Task one"],["a","look"],["u","saw it"],["a","done"],["u","ok"]],"calls":[]}
{"id":"b","msgs":[["u","Task two"],["a","x"]]}
`

const ownHead = `{"spliced_trace":1,"block_tokens":16,"source":"test"}` + "\n"

// write puts files into a new directory and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func packed(t *testing.T, text string) string {
	t.Helper()
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(e.EncodeAll([]byte(text), nil))
}

func archived(t *testing.T, members map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "orders/", Typeflag: tar.TypeDir, Mode: 0o755})
	for _, name := range slices.Sorted(keys(members)) {
		w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(members[name]))})
		io.WriteString(w, members[name])
	}
	w.Close()
	return b.String()
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// readAll copies all requests.
func readAll(path string, o Options) ([]Request, Info, error) {
	r, err := Open(path, o)
	if err != nil {
		return nil, Info{}, err
	}
	defer r.Close()
	var out []Request
	for {
		var q Request
		if err := r.Next(&q); errors.Is(err, io.EOF) {
			return out, r.Info(), nil
		} else if err != nil {
			return out, r.Info(), err
		}
		out = append(out, q)
	}
}

func show(q Request) string {
	return fmt.Sprintf("%d %v %q in%v/%d out%v/%d cuts%v pieces%v %+v", q.Line, q.Time, q.Session, q.Input, q.InputTokens,
		q.Output, q.OutputTokens, q.Cuts, q.Pieces, q.Overlap)
}

func words(text string) []uint32 {
	var out []uint32
	for b := []byte(text); len(b) > 0; b = b[min(4, len(b)):] {
		out = append(out, binary.LittleEndian.Uint32(append(bytes.Clone(b[:min(4, len(b))]), 0, 0, 0)))
	}
	return out
}

func TestFormatsAreRecognisedByContent(t *testing.T) {
	first := append(words("<|s|>\nYou help."), words("<|u|>\nTask one")...)
	answer := words("<|a|>\nlook")
	second := slices.Concat(first, answer, words("<|u|>\nsaw it"))
	for _, c := range []struct {
		name, text string
		beside     string
		info       Info
		want       []Request
	}{
		{"mooncake", `{"timestamp": 27, "input_length": 1100, "output_length": 52, "hash_ids": [0, 7, 4294967295]}` + "\n" +
			`{"timestamp":27,"input_length":512,"output_length":1,"hash_ids":[0]}`, "", Info{Mooncake, Prompts, 512},
			[]Request{
				{Line: 1, Time: 27 * time.Millisecond, Input: []uint32{0, 7}, InputTokens: 1100, OutputTokens: 52},
				{Line: 2, Time: 27 * time.Millisecond, Input: []uint32{0}, InputTokens: 512, OutputTokens: 1},
			}},
		{"orders", fmt.Sprintf("0.000,0,0,%d,%d\n1.500,0,1,%d,3\n", len(first), len(answer), len(second)), trajectoriesText, Info{Sessions, Prompts, 1},
			[]Request{
				{Line: 1, Session: "0", Input: first, InputTokens: len(first), Output: answer, OutputTokens: 3},
				{Line: 2, Session: "0", Time: 1500 * time.Millisecond, Input: second, InputTokens: len(second), Output: words("<|a|>\ndone"), OutputTokens: 3},
			}},
		{"passages", "\xef\xbb\xbf3,1,25\r\n1,7\r\n", "\xef\xbb\xbf1,500\n3,70\n", Info{Passages, FlatPieces, 1},
			[]Request{
				{Line: 1, InputTokens: 595, Pieces: []Piece{{3, 70}, {1, 500}}},
				{Line: 2, InputTokens: 507, Pieces: []Piece{{1, 500}}},
			}},
		{"depths", depthsHead + "\n0,9,300,256,-1,0,0\n1,9,310,256,0,256,300\n", "", Info{Depths, Overlaps, 1},
			[]Request{
				{Line: 2, InputTokens: 300, Overlap: Overlap{9, 300, 256, -1, 0, 0}},
				{Line: 3, InputTokens: 310, Overlap: Overlap{9, 310, 256, 0, 256, 300}},
			}},
		{"own tokens", ownHead + `{"tokens":[1,2,3],"output":[4],"timestamp":1.5,"session":"u","cuts":[1,3],"segments":[["d",2]],"input_length":5}` + "\n" +
			`{"blocks":[[1,2],[],[3]],"output_length":9}` + "\n\n", "", Info{Own, Prompts, 1},
			[]Request{
				{Line: 2, Time: 1500 * time.Microsecond, Session: "u", Input: []uint32{1, 2, 3}, InputTokens: 5, Output: []uint32{4}, OutputTokens: 1,
					Cuts: []int{1, 3}, Pieces: []Piece{{0, 2}}},
				{Line: 3, Input: []uint32{1, 2, 3}, InputTokens: 3, OutputTokens: 9},
			}},
		{"own hashes", ownHead + `{"hashes":["x",17,"x"],"output":["y"]}`, "", Info{Own, Prompts, 16},
			[]Request{{Line: 2, Input: []uint32{0, 1, 0}, InputTokens: 48, Output: []uint32{2}, OutputTokens: 16}}},
		{"own segments", ownHead + `{"segments":[["doc",500],[4,60],["doc",500]],"input_length":1100}`, "", Info{Own, FlatPieces, 1},
			[]Request{{Line: 2, InputTokens: 1100, Pieces: []Piece{{0, 500}, {1, 60}, {0, 500}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, map[string]string{"a": c.text, "a.zst": packed(t, c.text), "a.tar": archived(t, map[string]string{"orders/one.csv": c.text, "two.csv": "x"})})
			if c.beside != "" {
				os.WriteFile(filepath.Join(dir, "texts"), []byte(c.beside), 0o600)
			}
			for _, file := range []string{"a", "a.zst", "a.tar:one", "a.tar:orders/one.csv"} {
				got, info, err := readAll(filepath.Join(dir, file), Options{})
				if err != nil || info != c.info || !slices.EqualFunc(got, c.want, func(a, b Request) bool { return show(a) == show(b) }) {
					t.Errorf("%s: %+v %v", file, info, err)
					for i := range got {
						t.Errorf("got  %s", show(got[i]))
					}
					for i := range c.want {
						t.Errorf("want %s", show(c.want[i]))
					}
				}
			}
		})
	}
}

// Old observations are left out when, and only when, the order's counts say so.
func TestOldObservationsAreLeftOut(t *testing.T) {
	text := `{"id":"a","msgs":[["u","T"]`
	whole, short := words("<|u|>\nT"), words("<|u|>\nT")
	var order strings.Builder
	for i := range 9 {
		want := whole
		if i%2 == 1 || i > 7 {
			want = short
		}
		fmt.Fprintf(&order, "%d.0,0,%d,%d,3\n", i, i, len(want))
		answer, ask := fmt.Sprintf("say %d", i), fmt.Sprintf("observation %d", i)
		text += fmt.Sprintf(`,["a",%q],["u",%q]`, answer, ask)
		whole = slices.Concat(whole, words("<|a|>\n"+answer), words("<|u|>\n"+ask))
		short = words("<|u|>\nT")
		for j := range i + 1 {
			short = append(short, words(fmt.Sprintf("<|a|>\nsay %d", j))...)
			if j >= i+1-6 {
				short = append(short, words(fmt.Sprintf("<|u|>\nobservation %d", j))...)
			}
		}
	}
	dir := write(t, map[string]string{"order": order.String(), "texts": text + "]}\n"})
	got, _, err := readAll(filepath.Join(dir, "order"), Options{})
	if err != nil || len(got) != 9 {
		t.Fatalf("%d requests, %v", len(got), err)
	}
	if !strings.Contains(fmt.Sprint(got[8].Input), strings.Trim(fmt.Sprint(words("<|u|>\nobservation 2")), "[]")) ||
		strings.Contains(fmt.Sprint(got[8].Input), strings.Trim(fmt.Sprint(words("<|u|>\nobservation 1")), "[]")) {
		t.Error("turn 8 does not begin with the observation after its second")
	}
}

func TestWhatIsWrongHasFileLineAndCode(t *testing.T) {
	for name, c := range map[string]struct {
		text, beside string
		member       string
		code         Code
		line         int
		says         string
	}{
		"empty":                      {"", "", "", Empty, 0, "no lines"},
		"nothing known":              {"hello\n", "", "", UnknownFormat, 1, "hello"},
		"lengths only, csv":          {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808,10\n", "", "", NoContent, 1, "not what is in them"},
		"lengths only, json":         {`{"timestamp":1,"input_length":5,"output_length":2}`, "", "", NoContent, 1, "not what is in them"},
		"texts alone":                {trajectoriesText, "", "", NotATrace, 1, "order"},
		"lengths alone":              {"1,500\n", "", "", NotATrace, 1, "passages"},
		"orders without texts":       {"0.0,0,0,1,1\n", "", "", NoCompanion, 0, "-texts"},
		"passages without lengths":   {"1,2,3\n", "", "", NoCompanion, 0, "-texts"},
		"no such passage":            {"1,2,3\n", "1,500\n", "", Mismatch, 1, "passage 2"},
		"no such session":            {"0.0,2,0,1,1\n", trajectoriesText, "", Mismatch, 1, "holds 2 sessions"},
		"no such turn":               {"0.0,1,1,1,1\n", trajectoriesText, "", Mismatch, 1, "has 1 turns"},
		"other counts":               {"0.0,1,0,5,2\n", trajectoriesText, "", Mismatch, 1, "the order says 5 and 2"},
		"bad lengths":                {"1,2,3\n", "1,500\n1,500\n", "", BadLine, 2, "second time"},
		"bad texts":                  {"0.0,1,0,4,2\n", "{\"msgs\":[[\"u\",\"T\"],[\"a\",\"x\"]]}\n{\"msgs\":[[\"tool\",\"x\"]]}\n", "", BadLine, 2, "role"},
		"time falls":                 {"5.0,1,0,4,2\n4.0,1,0,4,2\n", trajectoriesText, "", BadLine, 2, "after 5"},
		"mooncake, a number too big": {mooncakeWith(`[4294967296]`), "", "", BadLine, 1, "32 bits"},
		"mooncake, a fraction":       {mooncakeWith(`[1.5]`), "", "", BadLine, 1, "whole numbers"},
		"mooncake, ids short":        {mooncakeWith(`[]`), "", "", BadLine, 1, "want 1"},
		"mooncake, cut off":          {mooncakeWith(`[0]`) + `{"timestamp":1`, "", "", BadLine, 2, "JSON"},
		"an empty line":              {mooncakeWith(`[0]`) + "\n" + mooncakeWith(`[0]`), "", "", BadLine, 2, "empty line"},
		"depths, out of order":       {depthsHead + "\n1,9,300,256,-1,0,0\n", "", "", BadLine, 2, "expected 0"},
		"depths, too deep":           {depthsHead + "\n0,9,300,256,-1,0,0\n1,9,310,256,0,301,300\n", "", "", BadLine, 3, "depth 301"},
		"depths, none":               {depthsHead + "\n", "", "", Empty, 0, "no requests"},
		"own, version":               {`{"spliced_trace":2}` + "\n", "", "", BadLine, 1, "version 2"},
		"own, only a head":           {ownHead, "", "", Empty, 0, "below the header"},
		"own, unknown field":         {ownHead + `{"tokens":[1],"cut":[1]}`, "", "", BadLine, 2, "unknown field"},
		"own, two prompts":           {ownHead + `{"tokens":[1],"hashes":[1]}`, "", "", BadLine, 2, "one of"},
		"own, kinds mixed":           {ownHead + `{"tokens":[1]}` + "\n" + `{"hashes":[1]}`, "", "", BadLine, 3, "not of several"},
		"own, cut outside":           {ownHead + `{"tokens":[1,2],"cuts":[1,3]}`, "", "", BadLine, 2, "cut 2"},
		"own, two values":            {ownHead + `{"tokens":[1]} {}`, "", "", BadLine, 2, "more than one"},
		"own, length short":          {ownHead + `{"tokens":[1,2],"input_length":1}`, "", "", BadLine, 2, "named are 2"},
		"own, hashes unsized":        {`{"spliced_trace":1}` + "\n" + `{"hashes":[1]}`, "", "", BadLine, 2, "block_tokens"},
		"own, timestamp falls":       {ownHead + `{"tokens":[1],"timestamp":2}` + "\n" + `{"tokens":[1],"timestamp":1}`, "", "", BadLine, 3, "after 2"},
		"no archive":                 {ownHead, "", "x", NoMember, 0, "no tar archive"},
	} {
		files := map[string]string{"a": c.text}
		if c.beside != "" {
			files["b"] = c.beside
		}
		_, _, err := readAll(filepath.Join(write(t, files), "a"), Options{Member: c.member})
		var e *Error
		if !errors.As(err, &e) || e.Code != c.code || e.Line != c.line || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s in line %d with %q", name, err, c.code, c.line, c.says)
		}
	}
}

func mooncakeWith(ids string) string {
	return `{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":` + ids + "}\n"
}

func TestArchivesNeedAMember(t *testing.T) {
	dir := write(t, map[string]string{"a": packed(t, archived(t, map[string]string{"o/one.csv": "1", "o/two.csv": "2"}))})
	for member, says := range map[string]string{"": "say which member", "three": `no member "three"`} {
		_, err := Open(filepath.Join(dir, "a"), Options{Member: member})
		var e *Error
		if !errors.As(err, &e) || e.Code != NoMember || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "o/one.csv, o/two.csv") {
			t.Errorf("%q: %v", member, err)
		}
	}
}

func TestTextsBesideAreChosenByName(t *testing.T) {
	lens := "1,5\n2,6\n"
	dir := write(t, map[string]string{"zipf.csv": "1,2,3\n", "zipf_lens.csv": "1,7\n2,8\n", "other.csv": lens, "b": lens, "z.jsonl": mooncakeWith("[0]")})
	got, _, err := readAll(filepath.Join(dir, "zipf.csv"), Options{})
	if err != nil || got[0].InputTokens != 18 {
		t.Errorf("%+v, %v", got, err)
	}
	got, _, err = readAll(filepath.Join(dir, "zipf.csv"), Options{Texts: filepath.Join(dir, "b")})
	if err != nil || got[0].InputTokens != 14 {
		t.Errorf("named: %+v, %v", got, err)
	}
	os.Remove(filepath.Join(dir, "zipf_lens.csv"))
	if _, _, err = readAll(filepath.Join(dir, "zipf.csv"), Options{}); err == nil || !strings.Contains(err.Error(), "several") {
		t.Error(err)
	}
	if _, _, err = readAll(filepath.Join(dir, "zipf.csv"), Options{Texts: filepath.Join(dir, "z.jsonl")}); err == nil || !strings.Contains(err.Error(), "holds no lengths") {
		t.Error(err)
	}
}

func TestDamagedCompressionIsUnreadable(t *testing.T) {
	text := packed(t, ownHead+strings.Repeat(`{"tokens":[1,2,3]}`+"\n", 1000))
	_, _, err := readAll(filepath.Join(write(t, map[string]string{"a": text[:len(text)-9]}), "a"), Options{})
	var e *Error
	if !errors.As(err, &e) || e.Code != Unreadable {
		t.Error(err)
	}
}
