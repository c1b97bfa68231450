package disk

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxNoteBytes bounds what a note may hold; a guess far above what anybody notes.
const maxNoteBytes = 32 << 20

// KeepNote makes a small file of a name last in the directory, in place of what it
// held before, whole or not at all. ErrUnavailable: the directory is not open. It
// may hang with the disk.
func (t *Tier) KeepNote(name string, content []byte) error {
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

// Note reads what KeepNote wrote last: fs.ErrNotExist when there is none, otherwise
// as KeepNote.
func (t *Tier) Note(name string) ([]byte, error) {
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

// useMount keeps the directory open until done is called.
func (t *Tier) useMount() (m *mount, done func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mount == nil || !t.health.state.open() {
		return nil, nil, fmt.Errorf("disk: %v: %w", t.health.state, tier.ErrUnavailable)
	}
	t.reading++
	return t.mount, t.endUse, nil
}

func (t *Tier) endUse() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endUseLocked()
}
