package note

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// shelf is a disk with one note, whose reads fail first.
type shelf struct {
	failures []error
	content  []byte
	kept     []string
}

func (s *shelf) Note(string) ([]byte, error) {
	if len(s.failures) > 0 {
		err := s.failures[0]
		s.failures = s.failures[1:]
		return nil, err
	}
	if s.content == nil {
		return nil, fs.ErrNotExist
	}
	return s.content, nil
}

func (s *shelf) KeepNote(_ string, content []byte) error {
	s.content = bytes.Clone(content)
	s.kept = append(s.kept, string(content))
	return nil
}

// noteOf is a note of at most 8 bytes that says one word, and refuses "bad".
func noteOf(s *shelf, word *string, log *bytes.Buffer) *Note {
	return &Note{
		Keeper: Keeper{Disk: s, Every: time.Hour, Log: zerolog.New(log).Level(zerolog.WarnLevel)}, Name: "word.json", Most: 8, Lost: "the word is not known",
		Take: func(b []byte) error {
			if string(b) == "bad" {
				return errors.New("is bad")
			}
			*word = string(b)
			return nil
		},
		Content: func() ([]byte, error) { return []byte(*word), nil },
	}
}

// run is the life of a note that ends once it was read.
func run(n *Note) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	take := n.Take
	n.Take = func(b []byte) error { defer cancel(); return take(b) }
	_ = n.Run(ctx)
}

func TestANoteIsReadAsSoonAsItCanBe(t *testing.T) {
	away := fmt.Errorf("opening: %w", tier.ErrUnavailable)
	for _, c := range []struct {
		failures []error
		told     int
	}{{nil, 0}, {[]error{away, away}, 0}, {[]error{away, errors.New("EIO"), errors.New("EIO")}, 1}} {
		word, log := "", &bytes.Buffer{}
		s := &shelf{failures: c.failures, content: []byte("old")}
		run(noteOf(s, &word, log))
		if word != "old" || len(s.kept) != 0 {
			t.Errorf("%v: took %q, and wrote %q, which has not changed", c.failures, word, s.kept)
		}
		if n := strings.Count(log.String(), "word.json"); n != c.told {
			t.Errorf("%v: told %d times: %s", c.failures, n, log)
		}
	}
}

func TestADamagedNoteIsToldOnceAndBegunAnew(t *testing.T) {
	tooLarge := []error{fmt.Errorf("more than all: %w", tier.ErrCorrupt)}
	for name, s := range map[string]*shelf{
		"refused": {content: []byte("bad")}, "long": {content: []byte("123456789")}, "larger than any": {failures: tooLarge, content: []byte("x")},
	} {
		word, log := "", &bytes.Buffer{}
		n := noteOf(s, &word, log)
		if err := n.Load(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if word != "" || strings.Count(log.String(), "word.json") != 1 || !strings.Contains(log.String(), n.Lost) {
			t.Errorf("%s: took %q, told %s", name, word, log)
		}
		word = "new"
		n.Save()
		if !slices.Equal(s.kept, []string{"new"}) {
			t.Errorf("%s: wrote %q", name, s.kept)
		}
	}
}

func TestANoteIsWrittenWhenItHasChanged(t *testing.T) {
	word, log := "a", &bytes.Buffer{}
	s := &shelf{}
	n := noteOf(s, &word, log)
	n.Save()
	n.Save()
	word = "123456789" // would not be read
	n.Save()
	word = "b"
	n.Save()
	if !slices.Equal(s.kept, []string{"a", "b"}) {
		t.Errorf("wrote %q", s.kept)
	}
}

func TestANoteIsWrittenNowAndThenAndAtTheEnd(t *testing.T) {
	count, log := 0, &bytes.Buffer{}
	ctx, cancel := context.WithCancel(context.Background())
	word := ""
	s := &shelf{}
	n := noteOf(s, &word, log)
	n.Every = time.Millisecond
	n.Content = func() ([]byte, error) {
		if count++; count == 3 {
			cancel()
		}
		return fmt.Append(nil, count), nil
	}
	if err := n.Run(ctx); err != nil || len(s.kept) < 3 || s.kept[len(s.kept)-1] != fmt.Sprint(count) {
		t.Errorf("%v, wrote %q", err, s.kept)
	}
}

// What is on a disk that did not open stays: this start's alone is not all.
func TestANoteThatWasNotReadIsNotWrittenOver(t *testing.T) {
	word, log := "new", &bytes.Buffer{}
	s := &shelf{failures: []error{tier.ErrUnavailable, tier.ErrUnavailable}, content: []byte("old")}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := noteOf(s, &word, log).Run(ctx); err != nil || len(s.kept) != 0 {
		t.Errorf("%v, wrote %q", err, s.kept)
	}
}
