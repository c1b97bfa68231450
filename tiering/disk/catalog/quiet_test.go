package catalog

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"
)

// What is written so far is summed, for a sync, while Pebble goes on writing. That
// must leave the sum of the whole as it is.
func TestFileIsSummedWhileItIsWritten(t *testing.T) {
	g := newGuard(vfs.NewMem())
	content := make([]byte, 5000)
	for i := range content {
		content[i] = byte(i * 7)
	}
	for n := range 300 {
		q := &quietFile{g: g, name: fmt.Sprintf("%06d.log", n)}
		g.createQuiet(q, vfs.WriteCategoryUnspecified)
		var writer sync.WaitGroup
		writer.Go(func() {
			for rest := content; len(rest) > 0; rest = rest[1000:] {
				_, _ = q.Write(append([]byte(nil), rest[:1000]...))
			}
		})
		for done := int64(0); done < int64(len(content)); {
			part := q.end()
			if part.sum != xxh3.Hash(content[:part.bytes]) {
				t.Fatalf("file %d: %d bytes have another sum", n, part.bytes)
			}
			done = part.bytes
		}
		writer.Wait()
		must(t, g.failure())
		must(t, q.Close())
	}
}
