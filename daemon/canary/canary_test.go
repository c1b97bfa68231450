package canary

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestReportsOfOneTenantAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	c := New(func() time.Time { now = now.Add(time.Second); return now })
	of := func(tenant, i int) (k Key) {
		k.Tenant = 1
		k.Fingerprint[0], k.Fingerprint[1], k.Fingerprint[2] = byte(i), byte(i>>8), byte(tenant)
		return k
	}
	if _, _, err := c.Add(of(0, 0), "", &wire.ReportRequest{Compared: 1}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= maxRows; i++ {
		if off, _, err := c.Add(of(0, i), "", &wire.ReportRequest{Compared: 1, Off: 1}); err != nil || !off {
			t.Fatal(i, off, err)
		}
	}
	if _, _, err := c.Add(of(0, maxRows+1), "", &wire.ReportRequest{Compared: 1, Off: 1}); err == nil {
		t.Fatal("more rows than the bound")
	} else if code, _ := codes.Of(err); code != wire.Full {
		t.Fatal(err)
	}
	if rows := c.List(); len(rows) != maxRows || c.Off() != maxRows {
		t.Fatalf("%d rows, %d off", len(rows), c.Off())
	}
	elsewhere := of(0, 1)
	elsewhere.Tenant = 2
	if off, _, err := c.Add(elsewhere, "", &wire.ReportRequest{Compared: 1}); err != nil || off {
		t.Fatal("another tenant is in the way of the first:", off, err)
	}
}

// unreliable is a disk that takes a while.
type unreliable struct {
	refusals int
	content  []byte
	kept     chan []byte
}

func (u *unreliable) Note(string) ([]byte, error) {
	if u.refusals--; u.refusals >= 0 {
		return nil, tier.ErrUnavailable
	}
	return u.content, nil
}

func (u *unreliable) KeepNote(_ string, content []byte) error {
	u.kept <- content
	return nil
}

func TestNotesOfOthersAndDamageAreKeptApart(t *testing.T) {
	disk := &unreliable{refusals: 3, kept: make(chan []byte, 1), content: []byte(
		`[{"tenant":"gone","profile":"` + strings.Repeat("ab", 32) + `","model":"m","why":"w"}]`)}
	c := New(time.Now)
	k := NewMemory(c, disk, []tiering.Tenant{{ID: 1, Name: "here"}}, zerolog.Nop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	<-k.Loaded()
	if _, err := c.Set(Key{Tenant: 1}, "m", true, ""); err != nil {
		t.Fatal(err)
	}
	if text := string(<-disk.kept); !strings.Contains(text, `"gone"`) || !strings.Contains(text, `"here"`) {
		t.Fatalf("kept %s", text)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	damaged := NewMemory(c, &unreliable{content: []byte("{")}, nil, zerolog.Nop())
	if err := damaged.load(); err != nil {
		t.Fatalf("a note that cannot be read keeps the start waiting: %v", err)
	}
}
