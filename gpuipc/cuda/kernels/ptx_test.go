package kernels

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sourcesDigest is what scripts/ptx computes.
func sourcesDigest(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("*.cu")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range append(names, "device.h") {
		b, err := os.ReadFile(name)
		must(t, err)
		h.Write([]byte(name + "\n"))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func TestPTXIsOfTheseSources(t *testing.T) {
	lines := strings.SplitN(string(PTX()), "\n", 4)
	want := "// sources sha256 " + sourcesDigest(t)
	if len(lines) < 4 || lines[1] != want {
		t.Errorf("spliced.ptx says\n%s\nnot\n%s\nRun make ptx.", lines[1], want)
	}
}

// Whoever looks for the compiler finds it without expanding anything.
func TestHeadOfPTXStandsBesideIt(t *testing.T) {
	head, err := os.ReadFile("spliced.ptx")
	must(t, err)
	of := strings.SplitAfterN(string(PTX()), "\n", 4)
	want := strings.Join(of[:3], "") + "// The text: zstd -dc spliced.ptx.zst\n"
	if string(head) != want || !strings.Contains(want, "\n// clang ") {
		t.Errorf("spliced.ptx is\n%s\nwant\n%s\nRun make ptx.", head, want)
	}
}

// A driver refuses a newer instruction set, and code for sm_90a runs nowhere else.
func TestPTXRunsSinceAmpereAndCUDA118(t *testing.T) {
	for _, want := range []string{"\n.version 7.8\n", "\n.target sm_80\n", "\n.address_size 64\n"} {
		if n := strings.Count(string(PTX()), want); n != 1 {
			t.Errorf("%q stands %d times in spliced.ptx", want, n)
		}
	}
}

func TestPTXHasEveryKernel(t *testing.T) {
	var want, got []string
	names, _ := filepath.Glob("*.cu")
	for _, name := range names {
		b, err := os.ReadFile(name)
		must(t, err)
		for _, m := range regexp.MustCompile(`(?m)^KERNEL\((\w+),`).FindAllSubmatch(b, -1) {
			want = append(want, string(m[1]))
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`).FindAllSubmatch(PTX(), -1) {
		got = append(got, string(m[1]))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("entries %v, sources have %v", got, want)
	}
	if names := slices.Sorted(slices.Values(Entries(PTX()))); !slices.Equal(names, got) {
		t.Errorf("Entries gives %v of %v", names, got)
	}
	for k := range composeKernel(composeKernels) {
		if !slices.Contains(got, k.String()) {
			t.Errorf("no entry %s", k)
		}
	}
}

// What a driver would have to find elsewhere, memory of a thread's own in HBM, and sums whose
// rounding ptxas may choose (it fuses a product and a sum without .rn) do not belong there.
func TestPTXCallsNothingAndRoundsAsWritten(t *testing.T) {
	for _, bad := range []string{`\.extern \.func`, `\bcall\b`, `(?m)^\t\.local`, `\t(add|sub|mul|mad)(\.ftz)?\.f32`, `\.approx`, `\.ftz`} {
		if m := regexp.MustCompile(bad).Find(bytes.ReplaceAll(PTX(), []byte("ex2.approx.f32"), nil)); m != nil { // attention asks for that one
			t.Errorf("spliced.ptx has %q", m)
		}
	}
}
