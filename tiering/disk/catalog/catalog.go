package catalog

import (
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

// Options opens a Catalog.
type Options struct {
	// StoreID has to be that of the catalogue; a new one takes it. The zero id
	// opens any, and is what a new one takes then.
	StoreID slab.StoreID
	Log     zerolog.Logger
	// CloseWithin bounds Close; 0 = 10 seconds, a guess: what takes longer is a
	// disk that does not answer.
	CloseWithin time.Duration

	memTable uint64 // bytes, for tests; 0 = memTableBytes
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
	counters map[string]uint64 // counters as they were at opening

	mu struct {
		sync.Mutex
		calls  int
		closed bool
		idle   chan struct{} // closed when calls reaches 0; nil while nobody waits
	}
}

// Open opens the catalogue in dir, or makes one where there is none. It may take
// as long as the disk does; an error leaves nothing open. tiering.ErrCorrupt: the
// directory has to be repaired, or deleted.
func Open(fs vfs.FS, dir string, o Options) (*Catalog, error) {
	if o.CloseWithin == 0 {
		o.CloseWithin = 10 * time.Second
	}
	if o.memTable == 0 {
		o.memTable = memTableBytes
	}
	c := &Catalog{g: newGuard(fs), log: o.Log, within: o.CloseWithin}
	_, err := call(c, func() (struct{}, error) {
		return struct{}{}, c.openDB(dir, c.options(o.memTable))
	})
	if err == nil {
		err = c.start(o.StoreID)
	}
	if err != nil {
		_ = c.Close() // which has failed for the same reason, or has nothing to lose
		return nil, fmt.Errorf("open catalogue %s: %w", dir, marked(err))
	}
	return c, nil
}

// compareMark comes before Pebble, which would drop what is behind damage, and then
// the log.
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

// Bounds of files that are read whole, or record by record, when the catalogue is
// opened. Pebble begins a new log after a memory table and a new MANIFEST after 128 MiB;
// its options are some 2 KiB of text.
const (
	optionsMost = 1 << 20
	fileMost    = 1 << 30
)

// checkFiles refuses what none of the catalogue's files can be before any is read: it
// would take the memory of the process. Tables are read by blocks, whatever their size.
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

// start reads what is not an entry.
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

// Sizes are small because rows are: 100,000 entries take some 30 MiB.
const (
	memTableBytes = 4 << 20
	waitingBytes  = 16 << 20 // of memtables, when commits begin to wait for a flush
	waitingTables = 100      // above each other in L0, when they wait for a compaction
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
		// Below FormatWALSyncChunks: from that on, a record of a log says how much
		// before it was synced, which is not so for us, and a hole there is taken
		// for corruption: Pebble would not open after a power cut. What was really
		// synced, mark says, of the MANIFEST too, which no format of Pebble covers.
		FormatMajorVersion: pebble.FormatVirtualSSTables,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { c.g.fail(fmt.Errorf("in the background: %w", err)) },
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				c.g.fail(fmt.Errorf("%s: %w", i.Path, marked(i.Details)))
			},
		},
	}
	// No compression: keys and digests do not shrink, manifests are compressed.
	for i := range o.Levels {
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	}
	o.Experimental.ReadSamplingMultiplier = -1 // no compactions because of reads
	return o
}

// logger passes on what Pebble says.
type logger struct{ c *Catalog }

func (l logger) Infof(format string, args ...any) { l.c.log.Debug().Msgf("pebble: "+format, args...) }

func (l logger) Errorf(format string, args ...any) { l.c.log.Warn().Msgf("pebble: "+format, args...) }

// Fatalf is called where Pebble cannot go on, often with locks held: returning,
// panicking or ending the goroutine would all lead to code that does not expect
// it. So the catalogue fails, and the goroutine stays where it is for good.
func (l logger) Fatalf(format string, args ...any) {
	l.c.g.fail(&pebbleError{fmt.Sprintf("pebble: "+format, args...), args})
	select {}
}

// pebbleError keeps the errors that a text was made of, or that a panic was.
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

// call runs f, which may call Pebble, and answers at the latest when the
// catalogue fails; f may then still run and nobody sees what comes of it.
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

// Failed says why the catalogue does not work any more; nil = it does.
func (c *Catalog) Failed() error { return c.g.failure() }

// StoreID is what the catalogue was made with.
func (c *Catalog) StoreID() slab.StoreID { return c.store }

// Syncs counts the syncs of Pebble's logs that really were made.
func (c *Catalog) Syncs() int64 { return c.g.syncs.Load() }

// failedWithin is for a catalogue that has nothing to lose. Where it does not
// suffice, a commit waits for room that a flush would have to make, for ever.
const failedWithin = 200 * time.Millisecond

// Close ends the catalogue, within Options.CloseWithin or so. What was committed
// is on the disk unless it answers an error. After it nothing begins to change the
// directory any more, however it ended; it stays locked while something does.
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
		err = failure // what follows from it says nothing new
	}
	c.abandon()
	return err
}

// windUp waits for done as long as there is hope.
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
			// Calls that still wait for the disk end with this.
			c.g.fail(fmt.Errorf("closed, but not done within %v", c.within))
			return c.Failed()
		}
	}
}

// closeDB closes Pebble once no call is in it: it frees memory that they use.
func (c *Catalog) closeDB(idle <-chan struct{}, done chan<- error) {
	defer func() {
		if r := recover(); r != nil {
			done <- panicked(r)
		}
	}()
	<-idle
	if c.db == nil { // it was not opened
		done <- nil
		return
	}
	err := c.db.Close()
	if err == nil {
		err = c.g.change(c.g.mark.sync)
	}
	done <- err
}

// abandon cuts whatever is left of Pebble off the directory. An operation that
// hangs in the kernel may still come to pass: until then the lock stays, so that
// no other catalogue opens the directory.
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
