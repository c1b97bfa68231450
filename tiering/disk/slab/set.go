package slab

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/tiering/tier"
	"golang.org/x/sys/unix"
)

// SetOptions says which slabs belong to a Set and how new slabs are created.
type SetOptions struct {
	StoreID   StoreID
	SlabBytes int64 // size of new slabs: a multiple of Granule, at least 2 granules. Existing slabs may differ
	Granule   int64 // power of two, MinGranule to MaxGranule
	Width     int   // requests in flight per call; 0 = DefaultWidth
}

// Validate lists every bad setting.
func (o *SetOptions) Validate() error {
	var errs []error
	if !validGranule(o.Granule) {
		errs = append(errs, fmt.Errorf("granule %d: not a power of two from %d to %d: %w", o.Granule, MinGranule, MaxGranule, tier.ErrInvalid))
	} else if o.SlabBytes%o.Granule != 0 || o.SlabBytes < 2*o.Granule {
		errs = append(errs, fmt.Errorf("slab of %d bytes: not two or more granules of %d: %w", o.SlabBytes, o.Granule, tier.ErrInvalid))
	}
	if o.Width < 0 || o.Width > MaxWidth {
		errs = append(errs, fmt.Errorf("width %d: not 0 to %d: %w", o.Width, MaxWidth, tier.ErrInvalid))
	}
	return errors.Join(errs...)
}

// SlabInfo describes a slab. Getting it needs no I/O.
type SlabInfo struct {
	Number uint32
	Name   string // file name
	Bytes  int64
	Direct bool // O_DIRECT is used, or was not tried yet
}

// Refusal is a file that has the name of a slab but is not used. Its bytes are left
// unchanged. Err says why, and so whether removing the file would lose entries.
type Refusal struct {
	Number uint32
	Name   string
	Err    error
}

// Set is the slab files of one directory. Space tracks which parts of them are free.
type Set struct {
	fs    FS
	opts  SetOptions
	width int

	mu struct {
		sync.RWMutex
		slabs   map[uint32]File
		refused []Refusal
		next    uint32 // number of the next slab; greater than every number in use
	}
}

// OpenSet opens the slabs of a directory and checks their headers. Slabs that cannot be used
// are not an error: Refused lists them. An error is about the directory or the options.
func OpenSet(fs FS, o SetOptions) (*Set, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Set{fs: fs, opts: o, width: cmp.Or(o.Width, DefaultWidth)}
	s.mu.slabs, s.mu.next = map[uint32]File{}, 1
	names, err := fs.List()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		n, ok := fileNumber(name)
		if !ok {
			continue
		}
		s.mu.next = max(s.mu.next, n+1)
		f, err := s.open(n, name)
		if err != nil {
			s.mu.refused = append(s.mu.refused, Refusal{Number: n, Name: name, Err: err})
			continue
		}
		s.mu.slabs[n] = f
	}
	return s, nil
}

func (s *Set) open(n uint32, name string) (File, error) {
	f, err := s.fs.Open(name)
	if err != nil {
		return nil, err
	}
	if err := s.checkHeader(f, n); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return f, nil
}

func (s *Set) checkHeader(f File, n uint32) error {
	if f.Bytes() < BlockBytes {
		return fmt.Errorf("%d bytes: %w", f.Bytes(), ErrUnfinished)
	}
	block := AlignedBuffer(BlockBytes)
	if err := f.ReadAt([][]byte{block}, 0); err != nil {
		return err
	}
	h, err := parseHeader(block)
	if err != nil {
		return err
	}
	return h.check(header{number: n, store: s.opts.StoreID, bytes: f.Bytes(), granule: s.opts.Granule})
}

// Identify returns the store id and granule that all intact slab headers in a directory
// have. It returns ErrHeader if no header is intact, or if the headers differ.
func Identify(fs FS) (id StoreID, granule int64, err error) {
	names, err := fs.List()
	if err != nil {
		return id, 0, err
	}
	seen := 0
	for _, name := range names {
		if _, ok := fileNumber(name); !ok {
			continue
		}
		h, err := readHeader(fs, name)
		switch {
		case errors.Is(err, ErrHeader), errors.Is(err, ErrUnfinished):
		case err != nil:
			return id, 0, fmt.Errorf("%s: %w", name, err)
		case seen > 0 && (h.store != id || h.granule != granule):
			return id, 0, fmt.Errorf("slabs are of store %v with granule %d and of store %v with granule %d: %w", id, granule, h.store, h.granule, ErrHeader)
		default:
			id, granule = h.store, h.granule
			seen++
		}
	}
	if seen == 0 || !validGranule(granule) {
		return id, 0, fmt.Errorf("of %d files none is a slab with an intact header: %w", len(names), ErrHeader)
	}
	return id, granule, nil
}

func readHeader(fs FS, name string) (h header, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if f.Bytes() < BlockBytes {
		return h, ErrUnfinished
	}
	block := AlignedBuffer(BlockBytes)
	if err := f.ReadAt([][]byte{block}, 0); err != nil {
		return h, err
	}
	return parseHeader(block)
}

// Grow creates one more slab. When it returns, the slab is allocated, and its header and
// its name are synced. After an error there is no new slab. ErrNoSpace means that the file
// system has no room.
func (s *Set) Grow() (SlabInfo, error) {
	s.mu.Lock()
	n := s.mu.next
	if n == math.MaxUint32 {
		s.mu.Unlock()
		return SlabInfo{}, fmt.Errorf("slab number %d: %w", n, tier.ErrFull)
	}
	s.mu.next++ // if creation fails, the number is not used again
	s.mu.Unlock()

	f, err := s.create(n)
	if err != nil {
		return SlabInfo{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.slabs[n] = f
	return info(n, f), nil
}

// create creates and syncs a slab file and its name. That comes before any space in it is
// allocated: otherwise a crash could leave catalogue rows that point into a missing file.
func (s *Set) create(n uint32) (File, error) {
	name := fileName(n)
	f, err := s.fs.Create(name, s.opts.SlabBytes)
	if err != nil {
		return nil, err
	}
	block := AlignedBuffer(BlockBytes)
	h := header{number: n, store: s.opts.StoreID, bytes: s.opts.SlabBytes, granule: s.opts.Granule}
	h.put(block)
	err = f.WriteAt([][]byte{block}, 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = s.fs.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), s.fs.Remove(name))
	}
	return f, nil
}

// Remove deletes the file of a slab, used or refused, and syncs the directory. No other call
// may use the slab meanwhile. If the file cannot be deleted, the slab counts as refused.
func (s *Set) Remove(n uint32) error {
	s.mu.Lock()
	f, used := s.mu.slabs[n]
	i := slices.IndexFunc(s.mu.refused, func(r Refusal) bool { return r.Number == n })
	if !used && i < 0 {
		s.mu.Unlock()
		return fmt.Errorf("remove slab %d: no such slab: %w", n, tier.ErrInvalid)
	}
	delete(s.mu.slabs, n)
	if i >= 0 {
		s.mu.refused = slices.Delete(s.mu.refused, i, i+1)
	}
	s.mu.Unlock()

	var err error
	if used {
		err = f.Close()
	}
	if removeErr := s.fs.Remove(fileName(n)); removeErr != nil {
		err = errors.Join(err, removeErr)
		s.mu.Lock()
		s.mu.refused = append(s.mu.refused, Refusal{Number: n, Name: fileName(n), Err: err})
		s.mu.Unlock()
		return err
	}
	return errors.Join(err, s.fs.Sync())
}

// Restore adopts a refused slab like Adopt, and rewrites its header if it is damaged.
func (s *Set) Restore(n uint32) (SlabInfo, error) {
	damaged, err := s.Adopt(n)
	if err == nil && damaged {
		err = s.WriteHeader(n)
	}
	if err != nil {
		return SlabInfo{}, err
	}
	f, _ := s.file(n)
	return info(n, f), nil
}

// Adopt uses a refused slab whose header is damaged, missing or unreadable, and changes
// nothing in the file. The result damaged is false if a second check finds the header
// intact. A truncated file is adopted with its remaining bytes, unless they are less than
// two granules; then the error is ErrSize. Slabs of other stores, versions and granules
// stay refused.
func (s *Set) Adopt(n uint32) (damaged bool, err error) {
	name := fileName(n)
	f, err := s.open(n, name)
	for _, mend := range [...]error{ErrHeader, ErrSize, ErrUnfinished, unix.EIO} {
		if errors.Is(err, mend) {
			damaged = true
			f, err = s.openAnyway(name)
			break
		}
	}
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.slabs[n] = f
	s.mu.refused = slices.DeleteFunc(s.mu.refused, func(r Refusal) bool { return r.Number == n })
	return damaged, nil
}

// openAnyway opens a slab file without looking at its header.
func (s *Set) openAnyway(name string) (File, error) {
	f, err := s.fs.Open(name)
	if err != nil {
		return nil, err
	}
	if f.Bytes() < 2*s.opts.Granule {
		err := fmt.Errorf("%s: %d bytes, less than two granules of %d: %w", name, f.Bytes(), s.opts.Granule, ErrSize)
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// WriteHeader writes and syncs the header of a slab in use; all its fields are known from
// elsewhere.
func (s *Set) WriteHeader(n uint32) error {
	f, ok := s.file(n)
	if !ok {
		return fmt.Errorf("header of slab %d: no such slab: %w", n, tier.ErrInvalid)
	}
	block := AlignedBuffer(BlockBytes)
	h := header{number: n, store: s.opts.StoreID, bytes: f.Bytes(), granule: s.opts.Granule}
	h.put(block)
	if err := f.WriteAt([][]byte{block}, 0); err != nil {
		return err
	}
	return f.Sync()
}

// Slabs lists the slabs in use, by number.
func (s *Set) Slabs() []SlabInfo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]SlabInfo, 0, len(s.mu.slabs))
	for n, f := range s.mu.slabs {
		list = append(list, info(n, f))
	}
	slices.SortFunc(list, func(a, b SlabInfo) int { return int(int64(a.Number) - int64(b.Number)) })
	return list
}

// Refused lists the files that are not used, and why.
func (s *Set) Refused() []Refusal {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.mu.refused)
}

// Free returns the bytes that are available on the file system.
func (s *Set) Free() (int64, error) { return s.fs.Free() }

// Close closes all files, without syncing them.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range s.mu.slabs {
		errs = append(errs, f.Close())
	}
	s.mu.slabs = nil
	return errors.Join(errs...)
}

func info(n uint32, f File) SlabInfo {
	return SlabInfo{Number: n, Name: fileName(n), Bytes: f.Bytes(), Direct: f.Direct()}
}
