package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// The pebble suite compares three places for large values: inside Pebble, in Pebble's blob
// files, or in our own file with only the location in Pebble. One writer puts the same values
// into each place, and waits until a value is durable before it puts the next. One reader then
// reads the values back in another order, with cold caches.

// place stores values by number.
type place interface {
	put(i int, value []byte) error // durable when it returns
	get(i int, dst []byte) error
	flush() error // waits until deferred work is done
	Close() error
}

// placeKind opens a place in an empty directory, or reopens it.
type placeKind struct {
	name string
	open func(dir string, bytes int64) (place, error)
}

func placeKinds() []placeKind {
	return []placeKind{
		{"slab_index", openSlabIndex},
		{"pebble_inline", pebbleValues{}.open},
		{"pebble_inline_raw", pebbleValues{raw: true}.open},
		{"pebble_blob", pebbleValues{blob: true}.open},
		{"pebble_blob_raw", pebbleValues{blob: true, raw: true}.open},
	}
}

// placeSizes are values of 1, 16 and 64 MiB, in passes of equal bytes.
const placeBytes = 256 << 20

func placeSizes() []int64 { return []int64{1 << 20, 16 << 20, 64 << 20} }

func placeSection(size int64) section {
	name := fmt.Sprintf("values-%dMiB", size>>20)
	return section{name, func(ctx context.Context, s *session) error { return placeRows(ctx, s, size) }}
}

func pebbleSections() []section {
	var all []section
	for _, size := range placeSizes() {
		all = append(all, placeSection(size))
	}
	return all
}

// placePass is the result of one pass over a place.
type placePass struct {
	put, flushed, get float64 // MB/s
	wrote, read       machine.Usage
}

func placeRows(ctx context.Context, s *session, size int64) (err error) {
	d, err := machine.NewScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	kinds := placeKinds()
	passes := make([][]placePass, len(kinds))
	var writeLimit, readLimit []float64
	for range s.rounds(3) {
		w, r, err := plainPass(ctx, d, size)
		if err := errors.Join(err, d.Sync()); err != nil {
			return err
		}
		writeLimit, readLimit = append(writeLimit, w), append(readLimit, r)
		for i, kind := range kinds {
			p, err := kind.pass(ctx, d.Path(kind.name), size)
			if err != nil {
				return fmt.Errorf("%s with values of %d bytes: %w", kind.name, size, err)
			}
			passes[i] = append(passes[i], p)
			if err := d.Sync(); err != nil {
				return err
			}
		}
	}
	for i, kind := range kinds {
		s.addPlace(fmt.Sprintf("%s_%dMiB", kind.name, size>>20), passes[i], median(writeLimit), median(readLimit))
	}
	return nil
}

func (s *session) addPlace(name string, passes []placePass, writeLimit, readLimit float64) {
	of := func(get func(placePass) float64) float64 {
		samples := make([]float64, len(passes))
		for i, p := range passes {
			samples[i] = get(p)
		}
		return median(samples)
	}
	s.add(
		row(name+"_write", "MB/s", of(func(p placePass) float64 { return p.put }), writeLimit, bar{}),
		row(name+"_write_settled", "MB/s", of(func(p placePass) float64 { return p.flushed }), writeLimit, bar{}),
		row(name+"_read_cold", "MB/s", of(func(p placePass) float64 { return p.get }), readLimit, bar{}),
		row(name+"_write_cpu", "s/GB", of(func(p placePass) float64 { return p.wrote.CPUPerGB(placeBytes) }), 0, bar{}),
		row(name+"_read_cpu", "s/GB", of(func(p placePass) float64 { return p.read.CPUPerGB(placeBytes) }), 0, bar{}),
	)
	if err := machine.WritesCounted(); err != nil {
		s.skip(name+"_amplification", err.Error())
		return
	}
	s.add(row(name+"_amplification", "ratio", of(func(p placePass) float64 { return p.wrote.Amplification(placeBytes) }), 0, bar{}))
}

// plainPass returns the limit in MB/s: one writer writes the values to a plain file, with a sync
// after each, and then they are read back.
func plainPass(ctx context.Context, d *machine.Scratch, size int64) (write, read float64, err error) {
	path, err := d.Fallocated("plain", placeBytes)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	memory, err := machine.PageAligned(placeBytes)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, machine.Unmap(memory)) }()
	w, err := baseline.Transfer{Path: path, Write: true, Bytes: placeBytes, Block: size, Workers: 1, SyncEvery: 1}.Run(ctx, memory)
	if err != nil {
		return 0, 0, err
	}
	r, err := baseline.Transfer{Path: path, Bytes: placeBytes, Block: size, Workers: 1}.Run(ctx, memory)
	if err != nil {
		return 0, 0, err
	}
	return w.Rate() * 1e3, r.Rate() * 1e3, nil
}

// pass fills an empty place, closes it and reads all of it back.
func (k placeKind) pass(ctx context.Context, dir string, size int64) (out placePass, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	value, err := machine.PageAligned(size)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, machine.Unmap(value)) }()
	if err := k.fill(ctx, dir, value, &out); err != nil {
		return out, err
	}
	if err := machine.DropCached(dir); err != nil {
		return out, err
	}
	return out, k.drain(ctx, dir, value, &out)
}

func (k placeKind) fill(ctx context.Context, dir string, value []byte, out *placePass) (err error) {
	p, err := k.open(dir, placeBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	before := machine.OwnUsage()
	put, err := timed(func() error { return k.each(ctx, value, p.put) })
	if err != nil {
		return err
	}
	more, err := timed(p.flush)
	if err != nil {
		return err
	}
	out.wrote = machine.OwnUsage().Since(before)
	out.put, out.flushed = placeBytes/put/1e6, placeBytes/(put+more)/1e6
	return nil
}

func (k placeKind) drain(ctx context.Context, dir string, value []byte, out *placePass) (err error) {
	p, err := k.open(dir, placeBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	before := machine.OwnUsage()
	get, err := timed(func() error {
		return k.each(ctx, value, func(i int, dst []byte) error {
			clear(dst[:8])
			if err := p.get(i, dst); err != nil {
				return err
			}
			if stamp(dst) != uint64(i) {
				return fmt.Errorf("value %d came back as %d", i, stamp(dst))
			}
			return nil
		})
	})
	out.read = machine.OwnUsage().Since(before)
	out.get = placeBytes / get / 1e6
	return err
}

// each calls f with every value, in a fixed random order. A value starts with its number.
func (placeKind) each(ctx context.Context, value []byte, f func(int, []byte) error) error {
	order := rand.New(rand.NewPCG(7, 7)).Perm(placeBytes / len(value))
	for _, i := range order {
		if err := ctx.Err(); err != nil {
			return err
		}
		setStamp(value, uint64(i))
		if err := f(i, value); err != nil {
			return err
		}
	}
	return nil
}
