package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
	"github.com/zeebo/xxh3"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// markName is the file that records which part of the log and of the MANIFEST was synced:
//
//	spliced synced 1
//	000007.log 00000000000000012345 6f1f23aa90c14e5b
//	MANIFEST-000005 00000000000000000789 0c44e2d18a7f3b96
//	sum 83d1f0a2c9b7e645
//
// A line for a file has its name, the number of synced bytes from its start, and their
// xxh3. The last line has the xxh3 of all lines before it. Pebble takes damage in its
// last log or in its MANIFEST for the place where a crash cut the file off, and drops
// everything after it. But a crash does not change synced bytes. So both files are
// compared with SYNCED before Pebble opens them, and a difference is damage.
//
// The mark file is overwritten after each sync of a log or MANIFEST, and is itself synced only
// occasionally. After a power cut it may cover fewer bytes than were synced, but never more.
const (
	markName = "SYNCED"
	markHead = "spliced synced 1\n"
	markMost = 4096
)

// syncedPart is the synced prefix of a file.
type syncedPart struct {
	name  string
	bytes int64
	sum   uint64
}

// mark is an open SYNCED file.
type mark struct {
	fs  vfs.FS
	dir string

	mu    sync.Mutex // held while the mark is written to the kernel, which does not wait for the disk
	file  vfs.File
	parts map[string]syncedPart // by fileKind
	text  []byte
}

// fileKind returns "log" or "MANIFEST", or "" for a file that is not marked. The result
// number grows with each file of a kind.
func fileKind(base string) (kind string, number uint64) {
	if n, _, ok := wal.ParseLogFilename(base); ok {
		return "log", uint64(n)
	}
	if digits, ok := strings.CutPrefix(base, "MANIFEST-"); ok {
		if number, err := strconv.ParseUint(digits, 10, 64); err == nil {
			return "MANIFEST", number
		}
	}
	return "", 0
}

// openMark compares the files of a directory with its mark, and opens the mark for writing.
// If the mark is missing or torn, it is not known what was synced, and no file is compared;
// for a torn mark, the result torn says why. The error is tier.ErrCorrupt if synced bytes
// are missing or changed.
func openMark(fsys vfs.FS, dir string) (m *mark, torn error, err error) {
	m = &mark{fs: fsys, dir: dir, parts: map[string]syncedPart{}}
	path := fsys.PathJoin(dir, markName)
	text, err := readMark(fsys, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, nil, err
	default:
		parts, bad := parseMark(text)
		if bad != nil {
			torn = fmt.Errorf("%s: %w", path, bad)
		}
		for _, p := range parts {
			if err := p.compare(fsys, dir); err != nil {
				return nil, nil, err
			}
			kind, _ := fileKind(p.name)
			m.parts[kind] = p
		}
	}
	if m.file, err = fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified); err != nil {
		return nil, nil, err
	}
	return m, torn, nil
}

func readMark(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, markMost))
}

// parseMark parses the text of a mark. An empty text, which a crash may leave, has no
// parts. The error tier.ErrCorrupt means that the mark is torn.
func parseMark(text []byte) (parts []syncedPart, err error) {
	if len(bytes.Trim(text, "\x00")) == 0 {
		return nil, nil
	}
	rest, ok := bytes.CutPrefix(text, []byte(markHead))
	for ok {
		var line []byte
		if line, rest, ok = bytes.Cut(rest, []byte("\n")); !ok {
			break
		}
		if sum, last := bytes.CutPrefix(line, []byte("sum ")); last {
			before := text[:len(text)-len(rest)-len(line)-1]
			if string(sum) != sumText(xxh3.Hash(before)) {
				return nil, fmt.Errorf("the mark has another sum than %.16q: %w", sum, tier.ErrCorrupt)
			}
			return parts, nil
		}
		p, err := parsePart(string(line))
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return nil, fmt.Errorf("the mark ends too early: %w", tier.ErrCorrupt)
}

func sumText(sum uint64) string { return fmt.Sprintf("%016x", sum) }

func parsePart(line string) (p syncedPart, err error) {
	var number, sum string
	p.name, number, _ = strings.Cut(line, " ")
	number, sum, _ = strings.Cut(number, " ")
	var bad error
	p.bytes, err = strconv.ParseInt(number, 10, 64)
	p.sum, bad = strconv.ParseUint(sum, 16, 64)
	if kind, _ := fileKind(p.name); err != nil || bad != nil || p.bytes < 0 || kind == "" || p.text() != line+"\n" {
		return p, fmt.Errorf("the mark has a line %.60q: %w", line, tier.ErrCorrupt)
	}
	return p, nil
}

func (p *syncedPart) text() string {
	return fmt.Sprintf("%s %020d %s\n", p.name, p.bytes, sumText(p.sum))
}

// compare checks that a file begins with its synced part. If Pebble has replaced the
// file, it may be gone, but then a younger file of its kind must exist.
func (p *syncedPart) compare(fsys vfs.FS, dir string) error {
	f, err := fsys.Open(fsys.PathJoin(dir, p.name))
	if errors.Is(err, fs.ErrNotExist) {
		return p.replaced(fsys, dir)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	h := xxh3.New()
	n, err := io.Copy(h, io.LimitReader(f, p.bytes))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", p.name, err)
	case n < p.bytes:
		return fmt.Errorf("%s is damaged: it has %d bytes, of which %d were synced: %w", p.name, n, p.bytes, tier.ErrCorrupt)
	case h.Sum64() != p.sum:
		return fmt.Errorf("%s is damaged: its first %d bytes are not those that were synced: %w", p.name, p.bytes, tier.ErrCorrupt)
	}
	return nil
}

func (p *syncedPart) replaced(fsys vfs.FS, dir string) error {
	list, err := fsys.List(dir)
	if err != nil {
		return err
	}
	kind, number := fileKind(p.name)
	for _, name := range list {
		if k, n := fileKind(name); k == kind && n > number {
			return nil
		}
	}
	return fmt.Errorf("%s is lost, of which %d bytes were synced: %w", p.name, p.bytes, tier.ErrCorrupt)
}

// note records the synced part of a file. The mark covers only the youngest file of a
// kind, since Pebble itself reports damage in older ones. After a sync of a MANIFEST,
// which is rare, the mark is synced too. Before a new MANIFEST enters the mark, the
// directory is synced: Pebble does that only later, and a crash in between could keep the
// mark and lose the name of the file.
func (m *mark) note(p syncedPart) error {
	kind, number := fileKind(p.name)
	if kind == "MANIFEST" && !m.vouches(p.name) {
		if err := m.syncDir(); err != nil {
			return err
		}
	}
	changed, err := m.change(kind != "", func() bool {
		old := m.parts[kind]
		if _, n := fileKind(old.name); old.name != "" && (n > number || n == number && old.bytes >= p.bytes) {
			return false
		}
		m.parts[kind] = p
		return true
	})
	if err != nil || !changed || kind == "log" {
		return err
	}
	return m.sync()
}

// vouches reports whether the mark covers a file.
func (m *mark) vouches(name string) bool {
	kind, _ := fileKind(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parts[kind].name == name
}

// syncDir syncs the names of files.
func (m *mark) syncDir() error {
	d, err := m.fs.OpenDir(m.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// forget is called before a file is removed. When it returns, the mark on the disk no
// longer covers the file.
func (m *mark) forget(name string) error {
	kind, _ := fileKind(name)
	changed, err := m.change(kind != "", func() bool {
		if m.parts[kind].name != name {
			return false
		}
		delete(m.parts, kind)
		return true
	})
	if err != nil || !changed {
		return err
	}
	return m.sync()
}

// change calls f, which may change m.parts, and rewrites the mark if f returns true. If
// marked is false, it does nothing.
func (m *mark) change(marked bool, f func() bool) (changed bool, err error) {
	if !marked {
		return false, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !f() {
		return false, nil
	}
	m.text = append(m.text[:0], markHead...)
	for _, k := range slices.Sorted(maps.Keys(m.parts)) {
		part := m.parts[k]
		m.text = append(m.text, part.text()...)
	}
	m.text = fmt.Appendf(m.text, "sum %s\n", sumText(xxh3.Hash(m.text)))
	if _, err := m.file.WriteAt(bytes.Clone(m.text), 0); err != nil { // a vfs.File may modify its argument
		return false, fmt.Errorf("write %s: %w", markName, err)
	}
	return true, nil
}

func (m *mark) sync() error {
	if err := m.file.SyncData(); err != nil {
		return fmt.Errorf("sync %s: %w", markName, err)
	}
	return nil
}
