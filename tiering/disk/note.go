package disk

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxNoteBytes bounds the size of a note; a guess far above any use.
const maxNoteBytes = 32 << 20

// KeepNote stores a small file under a name in the directory and syncs it. It replaces the
// previous content atomically. ErrUnavailable means that the directory is not open. The
// call hangs as long as the disk does.
func (t *core) KeepNote(name string, content []byte) error {
	if len(content) > maxNoteBytes {
		return fmt.Errorf("disk: note %s: %d bytes, most %d: %w", name, len(content), maxNoteBytes, tier.ErrInvalid)
	}
	m, done, err := t.useMount()
	if err != nil {
		return err
	}
	defer done()
	if err := m.WriteFile(name, content); err != nil {
		return fmt.Errorf("disk: note %s: %w", name, err)
	}
	return nil
}

// Note returns the content that KeepNote stored last. fs.ErrNotExist means that there is no
// note of that name, and ErrUnavailable that the directory is not open.
func (t *core) Note(name string) ([]byte, error) {
	m, done, err := t.useMount()
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := m.ReadFile(name, maxNoteBytes)
	if err != nil {
		return nil, fmt.Errorf("disk: note %s: %w", name, err)
	}
	return b, nil
}

// useMount keeps the directory open until the returned function is called.
func (t *core) useMount() (m *mount, done func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mount == nil || !t.health.state.open() {
		return nil, nil, fmt.Errorf("disk: %v: %w", t.health.state, tier.ErrUnavailable)
	}
	t.reading++
	return t.mount, t.endUse, nil
}

func (t *core) endUse() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endUseLocked()
}
