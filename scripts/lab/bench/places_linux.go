package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sys/unix"
)

func setStamp(b []byte, n uint64) { binary.LittleEndian.PutUint64(b, n) }
func stamp(b []byte) uint64       { return binary.LittleEndian.Uint64(b) }

// quietLogger keeps Pebble's messages out of the report.
type quietLogger struct{}

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}
func (quietLogger) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("pebble: "+format, args...))
}

func pebbleKey(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

// pebbleValues stores values in Pebble itself.
type pebbleValues struct {
	blob bool // in blob files
	raw  bool // without compression
}

func (k pebbleValues) open(dir string, _ int64) (place, error) {
	o := &pebble.Options{
		MemTableSize: 64 << 20, CacheSize: 8 << 20, Logger: quietLogger{},
		FormatMajorVersion: pebble.FormatValueSeparation,
	}
	if k.raw {
		o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	}
	if k.blob {
		o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
			return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: 4 << 10, MaxBlobReferenceDepth: 10,
				RewriteMinimumAge: time.Hour, TargetGarbageRatio: 1}
		}
	}
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, err
	}
	return pebblePlace{db}, nil
}

type pebblePlace struct{ *pebble.DB }

func (p pebblePlace) put(i int, value []byte) error { return p.Set(pebbleKey(i), value, pebble.Sync) }

func (p pebblePlace) get(i int, dst []byte) error {
	value, closer, err := p.Get(pebbleKey(i))
	if err != nil {
		return err
	}
	n := copy(dst, value)
	if n != len(dst) || n != len(value) {
		err = fmt.Errorf("value %d has %d bytes, want %d", i, len(value), len(dst))
	}
	return errors.Join(err, closer.Close())
}

// flush flushes and waits until compactions are idle.
func (p pebblePlace) flush() error {
	if err := p.Flush(); err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for idle := 0; idle < 3; { // a compaction may be about to start
		m := p.Metrics()
		if m.Compact.NumInProgress+m.Flush.NumInProgress == 0 {
			idle++
		} else {
			idle = 0
		}
		<-tick.C
	}
	return nil
}

// slabIndex is a minimal form of the disk tier's design. Values are in our own file, which is
// written and read directly. A put writes the value, syncs the file, and then writes a synced
// row with the location to Pebble.
type slabIndex struct {
	index *pebble.DB
	fd    int
	next  int64
}

func openSlabIndex(dir string, bytes int64) (place, error) {
	index, err := pebble.Open(filepath.Join(dir, "index"), &pebble.Options{
		MemTableSize: 4 << 20, CacheSize: 8 << 20, Logger: quietLogger{}, FormatMajorVersion: pebble.FormatValueSeparation})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "slab")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: path, Err: err}, index.Close())
	}
	if err := unix.Fallocate(fd, 0, 0, bytes); err != nil {
		return nil, errors.Join(&os.PathError{Op: "fallocate", Path: path, Err: err}, unix.Close(fd), index.Close())
	}
	return &slabIndex{index: index, fd: fd}, nil
}

func (p *slabIndex) put(i int, value []byte) error {
	n, err := unix.Pwrite(p.fd, value, p.next)
	if err != nil || n != len(value) {
		return fmt.Errorf("%d of %d bytes at %d of the slab: %w", n, len(value), p.next, err)
	}
	if err := unix.Fdatasync(p.fd); err != nil {
		return fmt.Errorf("sync the slab: %w", err)
	}
	at := binary.LittleEndian.AppendUint64(nil, uint64(p.next))
	p.next += int64(len(value))
	return p.index.Set(pebbleKey(i), at, pebble.Sync)
}

func (p *slabIndex) get(i int, dst []byte) error {
	row, closer, err := p.index.Get(pebbleKey(i))
	if err != nil {
		return err
	}
	at := int64(binary.LittleEndian.Uint64(row))
	if err := closer.Close(); err != nil {
		return err
	}
	if n, err := unix.Pread(p.fd, dst, at); err != nil || n != len(dst) {
		return fmt.Errorf("%d of %d bytes at %d of the slab: %w", n, len(dst), at, err)
	}
	return nil
}

func (p *slabIndex) flush() error { return p.index.Flush() }

func (p *slabIndex) Close() error { return errors.Join(p.index.Close(), unix.Close(p.fd)) }
