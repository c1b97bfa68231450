package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Options configures a Catalog.
type Options struct {
	// StoreID must match the catalogue's id; zero = any. A new catalogue gets this id,
	// also if it is zero.
	StoreID slab.StoreID
	Log     zerolog.Logger
	// CloseWithin is the longest time that Close waits for the disk; 0 = 10 seconds (a
	// guess: a disk that takes longer is not responding).
	CloseWithin time.Duration

	memTable uint64 // size of Pebble's memory tables in bytes, for tests; 0 = memTableBytes
}

// Catalog is an open index.
type Catalog struct {
	g        *guard
	db       *pebble.DB
	store    slab.StoreID
	log      zerolog.Logger
	within   time.Duration
	tenants  tenants
	gens     generations
	counters map[string]uint64 // as they were at opening

	mu struct {
		sync.Mutex
		calls  int
		closed bool
		idle   chan struct{} // closed when calls reaches 0; nil until Close
	}
}

// Open opens the catalogue in dir, or creates one if there is none. It may take as long as
// the disk does. After an error nothing is left open. tier.ErrCorrupt means that an
// operator has to repair or delete the directory.
func Open(fs vfs.FS, dir string, o Options) (*Catalog, error) {
	o.CloseWithin = cmp.Or(o.CloseWithin, 10*time.Second)
	o.memTable = cmp.Or(o.memTable, memTableBytes)
	c := &Catalog{g: newGuard(fs), log: o.Log, within: o.CloseWithin}
	_, err := call(c, func() (struct{}, error) {
		return struct{}{}, c.openDB(dir, c.options(o.memTable))
	})
	if err == nil {
		err = c.start(o.StoreID)
	}
	if err != nil {
		_ = c.Close() // Close may fail for the same reason; nothing can be lost
		return nil, fmt.Errorf("open catalogue %s: %w", dir, marked(err))
	}
	return c, nil
}

// compareMark checks the directory before Pebble is opened. Pebble would drop all records
// after a damaged one, and then delete the log.
func (c *Catalog) compareMark(dir string) error {
	if err := c.g.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := checkFiles(c.g.FS, dir); err != nil {
		return err
	}
	m, torn, err := openMark(c.g.FS, dir)
	if err != nil {
		return err
	}
	if torn != nil {
		c.log.Warn().Err(torn).Msg("what was synced of the catalogue is not known")
	}
	c.g.mark = m
	c.g.keep(m, m.file)
	return nil
}

// The largest sizes in bytes of the files that Pebble reads completely when the catalogue
// is opened: its options (about 2 KiB of text), and all other files except tables. Pebble
// starts a new log for each memory table, and a new MANIFEST after 128 MiB.
const (
	optionsMost = 1 << 20
	fileMost    = 1 << 30
)

// checkFiles refuses a directory with files that are too large for a catalogue, because
// reading them could exhaust the memory of the process. Tables may have any size, since
// they are read by blocks.
func checkFiles(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		most := int64(fileMost)
		switch {
		case strings.HasSuffix(name, ".sst"):
			most = math.MaxInt64
		case strings.HasPrefix(name, "OPTIONS-"):
			most = optionsMost
		}
		if !info.Mode().IsRegular() || info.Size() > most {
			return fmt.Errorf("%s is not a file of at most %d bytes, it has %d: %w", name, most, info.Size(), tier.ErrCorrupt)
		}
	}
	return nil
}

func (c *Catalog) openDB(dir string, o *pebble.Options) (err error) {
	if err := c.compareMark(dir); err != nil {
		return err
	}
	late := newLateScheduler()
	o.Experimental.CompactionScheduler = late
	if c.db, err = pebble.Open(dir, o); err == nil {
		late.open()
	}
	return err
}

// start checks the format row, or writes it in a new catalogue. It loads tenants, the
// next generation and counters, but no entries.
func (c *Catalog) start(id slab.StoreID) error {
	if err := c.checkFormat(id); err != nil {
		return err
	}
	if err := c.loadTenants(); err != nil {
		return err
	}
	if err := c.loadGeneration(); err != nil {
		return err
	}
	return c.loadCounters()
}

func (c *Catalog) checkFormat(id slab.StoreID) error {
	row, ok, err := c.get([]byte{spaceFormat})
	if err != nil {
		return err
	}
	if !ok {
		if err := c.refuseRows(); err != nil {
			return err
		}
		c.store = id
		return c.write(true, func(b *pebble.Batch) error {
			return b.Set([]byte{spaceFormat}, appendFormat(nil, id), nil)
		})
	}
	if c.store, err = parseFormat(row); err != nil {
		return err
	}
	if id != (slab.StoreID{}) && id != c.store {
		return fmt.Errorf("it is that of store %v, not of %v: %w", c.store, id, ErrStore)
	}
	return nil
}

// Pebble's sizes. They are small because rows are small: 100,000 entries take about 30 MiB.
const (
	memTableBytes = 4 << 20
	waitingBytes  = 16 << 20 // bytes of memory tables at which commits wait for a flush
	waitingTables = 100      // overlapping tables in level 0 at which commits wait for a compaction
	cacheBytes    = 8 << 20
	openFiles     = 200
)

func (c *Catalog) options(memTable uint64) *pebble.Options {
	o := &pebble.Options{
		FS:                          c.g,
		Logger:                      logger{c},
		MemTableSize:                memTable,
		MemTableStopWritesThreshold: int(waitingBytes / memTable),
		L0StopWritesThreshold:       waitingTables,
		CacheSize:                   cacheBytes,
		MaxOpenFiles:                openFiles,
		DisableTableStats:           true,
		// This format is older than FormatWALSyncChunks. In newer ones a log record
		// states how much of the log before it was synced. Here Pebble only believes that
		// it syncs, so the statement would be wrong, and after a power cut Pebble would
		// take missing bytes for corruption and not open. The mark records what was
		// really synced, also in the MANIFEST, for which Pebble records nothing.
		FormatMajorVersion: pebble.FormatVirtualSSTables,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { c.g.fail(fmt.Errorf("in the background: %w", err)) },
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				c.g.fail(fmt.Errorf("%s: %w", i.Path, marked(i.Details)))
			},
		},
	}
	// No compression: keys and digests do not shrink, and manifests are compressed already.
	for i := range o.Levels {
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	}
	o.Experimental.ReadSamplingMultiplier = -1 // no compactions triggered by reads
	return o
}

// logger forwards Pebble's log messages.
type logger struct{ c *Catalog }

func (l logger) Infof(format string, args ...any) { l.c.log.Debug().Msgf("pebble: "+format, args...) }

func (l logger) Errorf(format string, args ...any) { l.c.log.Warn().Msgf("pebble: "+format, args...) }

// Fatalf is called when Pebble cannot continue, often with locks held. Pebble's code does
// not expect Fatalf to return, panic or end the goroutine. So the catalogue fails, and
// the goroutine blocks forever.
func (l logger) Fatalf(format string, args ...any) {
	l.c.g.fail(&pebbleError{fmt.Sprintf("pebble: "+format, args...), args})
	select {}
}

// pebbleError is a message of Pebble with its arguments, or with the value of a panic. It
// unwraps to the errors among them.
type pebbleError struct {
	text string
	of   []any
}

func (e *pebbleError) Error() string { return e.text }

func (e *pebbleError) Unwrap() (causes []error) {
	for _, v := range e.of {
		if err, ok := v.(error); ok {
			causes = append(causes, err)
		}
	}
	return causes
}

func panicked(with any) error {
	return &pebbleError{fmt.Sprintf("pebble: panic: %v", with), []any{with}}
}

// The function call runs f, which may call Pebble, in another goroutine and returns its
// result. If the catalogue fails meanwhile, call returns the catalogue's error at once. f
// may then still be running, and its result is dropped.
func call[T any](c *Catalog, f func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	var none T
	if err := c.begin(); err != nil {
		return none, err
	}
	done := make(chan answer, 1)
	go func() {
		defer c.end()
		defer func() {
			if r := recover(); r != nil {
				c.g.fail(panicked(r))
			}
		}()
		v, err := f()
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		if err := c.Failed(); err != nil {
			return none, err
		}
		return a.v, a.err
	case <-c.g.failed:
		return none, c.Failed()
	}
}

func (c *Catalog) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return ErrClosed
	}
	c.mu.calls++
	return nil
}

func (c *Catalog) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.calls--; c.mu.calls == 0 && c.mu.idle != nil {
		close(c.mu.idle)
	}
}

// Failed returns why the catalogue has failed; nil = it works.
func (c *Catalog) Failed() error { return c.g.failure() }

// StoreID returns the store id that the catalogue was created with.
func (c *Catalog) StoreID() slab.StoreID { return c.store }

// Syncs counts the syncs of Pebble's logs that were really performed.
func (c *Catalog) Syncs() int64 { return c.g.syncs.Load() }

// failedWithin is the longest time that Close waits if the catalogue has failed. Nothing
// can be lost by then. If Pebble does not close in this time, a commit waits forever for
// room that no flush will make.
const failedWithin = 200 * time.Millisecond

// Close closes the catalogue. It waits about Options.CloseWithin at most. Unless it returns an
// error, all commits are on the disk. In any case no new change of the directory begins after
// Close; if an earlier one is still running, the directory stays locked until that ends.
func (c *Catalog) Close() error {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.mu.closed = true
	c.mu.idle = make(chan struct{})
	if c.mu.calls == 0 {
		close(c.mu.idle)
	}
	idle := c.mu.idle
	c.mu.Unlock()

	done := make(chan error, 1)
	go c.closeDB(idle, done)
	err := c.windUp(done)
	if failure := c.Failed(); failure != nil {
		err = failure // other errors are consequences of it
	}
	c.abandon()
	return err
}

// windUp waits until Pebble is closed, and returns the error sent to done. If that takes
// too long, it fails the catalogue.
func (c *Catalog) windUp(done <-chan error) error {
	late := time.NewTimer(c.within)
	defer late.Stop()
	failed := c.g.failed
	for {
		select {
		case err := <-done:
			return err
		case <-failed:
			failed = nil
			c.g.release()
			late.Reset(min(c.within, failedWithin))
		case <-late.C:
			// This ends calls that still wait for the disk.
			c.g.fail(fmt.Errorf("closed, but not done within %v", c.within))
			return c.Failed()
		}
	}
}

// closeDB closes Pebble after the last running call has ended, because closing frees
// memory that calls use. It sends the result to done.
func (c *Catalog) closeDB(idle <-chan struct{}, done chan<- error) {
	defer func() {
		if r := recover(); r != nil {
			done <- panicked(r)
		}
	}()
	<-idle
	if c.db == nil { // was never opened
		done <- nil
		return
	}
	err := c.db.Close()
	if err == nil {
		err = c.g.change(c.g.mark.sync)
	}
	done <- err
}

// abandon ends all access of Pebble's remaining goroutines to the directory. Only an
// operation that hangs in the kernel may still complete. Until then the directory stays
// locked, so that no other catalogue opens it.
func (c *Catalog) abandon() {
	idle := c.g.kill()
	late := time.NewTimer(c.within)
	defer late.Stop()
	select {
	case <-idle:
		c.g.closeAll()
	case <-late.C:
		go func() {
			<-idle
			c.g.closeAll()
		}()
	}
}
