package slab

// Names of this package for tests in package slab_test, which can import slabtest.
const (
	PieceBytes = pieceBytes
	SumOff     = sumOff
	IOVMax     = iovMax
)

var (
	FileName      = fileName
	CheckTransfer = checkTransfer
)

type (
	DirFile    = dirFile
	VectorCall = vectorCall
)

// FD returns the file descriptor.
func (f *dirFile) FD() int { return f.fd }

// SetCalls replaces the kernel's calls.
func (f *dirFile) SetCalls(preadv, pwritev VectorCall) { f.preadv, f.pwritev = preadv, pwritev }

// OpenDirBuffered is OpenDir without trying O_DIRECT.
func OpenDirBuffered(path string) (FS, error) { return openDir(path, 0) }

// Requests returns the number of requests that a transfer consists of.
func (s *Set) Requests(runs []Run, bufs [][]byte) (int, error) {
	list, err := s.divide(runs, 0, bufs)
	return len(list), err
}
