package catalog

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
)

const (
	loadRows   = 512   // rows passed between the goroutines at once; a guess
	maxOrphans = 10000 // most last uses without an entry that one Load deletes
)

// Load calls fn with every entry in key order. It stops at fn's first error, or at the
// first invalid row.
func (c *Catalog) Load(fn func(Row) error) error {
	s := &scan{rows: make(chan []Row, 4), stop: make(chan struct{})}
	defer close(s.stop)
	done := make(chan error, 1)
	go func() {
		_, err := call(c, func() (struct{}, error) { return struct{}{}, s.run(c.db) })
		done <- err
	}()
	for {
		select {
		case rows := <-s.rows:
			if err := each(rows, fn); err != nil {
				return err
			}
		case err := <-done:
			if err != nil {
				return fmt.Errorf("load: %w", marked(err))
			}
			for len(s.rows) > 0 {
				if err := each(<-s.rows, fn); err != nil {
					return err
				}
			}
			return c.forget(s.orphans)
		}
	}
}

func each(rows []Row, fn func(Row) error) error {
	for i := range rows {
		if err := fn(rows[i]); err != nil {
			return err
		}
	}
	return nil
}

// forget deletes last uses whose entries no longer exist.
func (c *Catalog) forget(keys [][]byte) error {
	if len(keys) == 0 {
		return nil
	}
	return c.apply(pebble.NoSync, func(b *pebble.Batch) error {
		for _, k := range keys {
			if err := b.Delete(k, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// scan iterates over the entries and the last uses side by side, and sends the entries to
// rows.
type scan struct {
	rows    chan []Row
	stop    chan struct{} // closed when Load wants no more rows
	orphans [][]byte      // keys of last uses without an entry; valid after run
}

var errStopped = errors.New("stopped")

func (s *scan) run(db *pebble.DB) (err error) {
	entries, err := db.NewIter(within(spaceEntry))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, entries.Close()) }()
	uses, err := db.NewIter(within(spaceUse))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, uses.Close()) }()

	uses.First()
	batch := make([]Row, 0, loadRows)
	for ok := entries.First(); ok; ok = entries.Next() {
		r, err := readRow(entries)
		if err != nil {
			return err
		}
		if r.Used, err = s.lastUse(uses, entries.Key(), r.Created); err != nil {
			return err
		}
		if batch = append(batch, r); len(batch) == loadRows {
			if err := s.send(batch); err != nil {
				return err
			}
			batch = make([]Row, 0, loadRows)
		}
	}
	for ; uses.Valid(); uses.Next() {
		s.orphan(uses.Key())
	}
	if err := errors.Join(entries.Error(), uses.Error()); err != nil {
		return err
	}
	return s.send(batch)
}

func within(space byte) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: []byte{space}, UpperBound: []byte{space + 1}}
}

func readRow(entries *pebble.Iterator) (Row, error) {
	n, err := parseNameKey(entries.Key())
	if err != nil {
		return Row{}, err
	}
	value, err := entries.ValueAndErr()
	if err != nil {
		return Row{}, err
	}
	return parseRow(n, value)
}

// lastUse advances the iterator uses to the row of the entry with the given key, and
// returns the last use from this row. If there is no such row, it returns the parameter
// created. The last uses that it skips have no entry; they become orphans.
func (s *scan) lastUse(uses *pebble.Iterator, entry []byte, created int64) (int64, error) {
	for uses.Valid() {
		switch bytes.Compare(uses.Key()[1:], entry[1:]) {
		case -1:
			s.orphan(uses.Key())
			uses.Next()
		case 1:
			return created, nil
		default:
			value, err := uses.ValueAndErr()
			if err != nil {
				return 0, err
			}
			at, err := parseUint64Row(value, useVersion, "last use")
			if err != nil {
				return 0, err
			}
			uses.Next()
			return int64(at), nil
		}
	}
	return created, nil
}

func (s *scan) orphan(key []byte) {
	if len(s.orphans) < maxOrphans {
		s.orphans = append(s.orphans, bytes.Clone(key))
	}
}

func (s *scan) send(rows []Row) error {
	select {
	case s.rows <- rows:
		return nil
	case <-s.stop:
		return errStopped
	}
}

// refuseRows returns an error if the catalogue has any rows. It is called if the format
// row is missing, which is right only in a new catalogue.
func (c *Catalog) refuseRows() error {
	_, err := call(c, func() (_ struct{}, err error) {
		it, err := c.db.NewIter(nil)
		if err != nil {
			return struct{}{}, err
		}
		defer func() { err = errors.Join(err, it.Close()) }()
		if it.First() {
			return struct{}{}, fmt.Errorf("rows without a format: %w", ErrVersion)
		}
		return struct{}{}, it.Error()
	})
	return err
}

// names calls fn with each row of one type: the part of its key after the type, and its value.
func (c *Catalog) names(space byte, fn func(name string, value []byte) error) error {
	_, err := call(c, func() (_ struct{}, err error) {
		it, err := c.db.NewIter(within(space))
		if err != nil {
			return struct{}{}, err
		}
		defer func() { err = errors.Join(err, it.Close()) }()
		for ok := it.First(); ok; ok = it.Next() {
			value, err := it.ValueAndErr()
			if err != nil {
				return struct{}{}, err
			}
			if err := fn(string(it.Key()[1:]), value); err != nil {
				return struct{}{}, fmt.Errorf("%q: %w", it.Key()[1:], err)
			}
		}
		return struct{}{}, it.Error()
	})
	return marked(err)
}

// Entry returns one entry, without its last use.
func (c *Catalog) Entry(n extent.Name) (r Row, ok bool, err error) {
	row, ok, err := c.get(nameKey(spaceEntry, &n))
	if err != nil || !ok {
		return Row{}, false, err
	}
	r, err = parseRow(n, row)
	return r, err == nil, err
}
